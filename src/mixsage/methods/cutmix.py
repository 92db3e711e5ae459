"""CutMix (Yun et al., ICCV 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Generator, Tensor

from mixsage import sampling
from mixsage.methods.base import Mixer, check_positive, pair
from mixsage.plan import Boxes, MixPlan


@dataclass(frozen=True, kw_only=True)
class CutMix(Mixer):
    """Paste a box of the partner over each image.

    Example:
        >>> import torch
        >>> images, targets = CutMix(alpha=1.0, num_classes=10)(torch.rand(8, 3, 32, 32), torch.arange(8))
    """

    alpha: float = 1.0
    """Concentration of the Beta distribution that the area outside the box is drawn from [α]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("alpha", self.alpha)

    def draw(self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, generator: Generator | None) -> MixPlan:
        """Partners, and boxes; the label shares are the areas that remain after clipping at the border."""
        batch, (height, width) = len(images), images.shape[-2:]
        partners = sampling.partners(batch, generator)
        area = 1 - sampling.beta(self.alpha, batch if self.per_sample else 1, generator)
        boxes = Boxes(sampling.boxes(area, height, width, generator), height, width)
        device = images.device
        return MixPlan(
            sources=pair(partners).to(device, non_blocking=True),
            # The corners stay on the host, where one box for the batch costs two slices instead of a mask.
            masks=boxes,
            weights=boxes.weights().expand(batch, -1).to(device, non_blocking=True),
        )
