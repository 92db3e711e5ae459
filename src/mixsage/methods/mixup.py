"""Mixup (Zhang et al., ICLR 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from mixsage import sampling
from mixsage.methods.base import Mixer, check_positive, pair
from mixsage.plan import MixPlan


@dataclass(frozen=True, kw_only=True)
class Mixup(Mixer):
    """Blend each image with its partner, the whole picture alike.

    Example:
        >>> import torch
        >>> images, targets = Mixup(alpha=1.0, num_classes=10)(torch.rand(8, 3, 32, 32), torch.arange(8))
    """

    alpha: float = 1.0
    """Concentration of the Beta distribution that the share of the image itself is drawn from [α]."""

    spatial: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("alpha", self.alpha)

    def draw(self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, generator: Generator | None) -> MixPlan:
        """Partners, and the share of each image itself."""
        return blend_plan(len(images), self.alpha, self.per_sample, generator).to(images.device)


def blend_plan(batch: int, alpha: float, per_sample: bool, generator: Generator | None) -> MixPlan:
    """A plan on the CPU that blends whole images with shares from Beta(alpha, alpha)."""
    partners = sampling.partners(batch, generator)
    share = sampling.beta(alpha, batch if per_sample else 1, generator)
    weights = torch.stack([share, 1 - share], dim=1).expand(batch, 2)
    return MixPlan(sources=pair(partners), masks=weights[:, :, None, None], weights=weights)
