"""No mixing: the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from mixsage.methods.base import Mixer
from mixsage.plan import MixPlan


@dataclass(frozen=True, kw_only=True)
class Clean(Mixer):
    """Leave every image as it is: the baseline, in the same loop as the methods it is compared with.

    Example:
        >>> import torch
        >>> images, targets = Clean(num_classes=10)(torch.rand(8, 3, 32, 32), torch.arange(8))
    """

    min_batch: ClassVar[int] = 1
    spatial: ClassVar[bool] = False

    def draw(self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, generator: Generator | None) -> MixPlan:
        """The identity."""
        return MixPlan.identity(len(images), images.device)
