"""SaliencyMix (Uddin et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Generator, Tensor

from mixsage import sampling
from mixsage.methods.base import Mixer, check_positive, pair
from mixsage.plan import Boxes, MixPlan
from mixsage.saliency import FineGrained


@dataclass(frozen=True, kw_only=True)
class SaliencyMix(Mixer):
    """Paste a box around the most salient pixel of the partner over each image.

    Example:
        >>> import torch
        >>> images, targets = SaliencyMix(num_classes=10)(torch.rand(8, 3, 32, 32), torch.arange(8))
    """

    prob: float = 0.5
    """Probability that a batch is mixed [p]."""
    alpha: float = 1.0
    """Concentration of the Beta distribution that the area outside the box is drawn from [β]."""
    mean: tuple[float, ...] | None = None
    """Mean that the images were normalised with, a value a channel; None takes them as colours from 0 to 1."""
    std: tuple[float, ...] | None = None
    """Standard deviation that the images were normalised with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("alpha", self.alpha)
        self.source  # its own checks  # noqa: B018

    @property
    def source(self) -> FineGrained:
        """Saliency of the picture itself: no model is asked."""
        return FineGrained(mean=self.mean, std=self.std)

    def draw(self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, generator: Generator | None) -> MixPlan:
        """Partners, and a box at the peak of the partner's map: of the first partner for the whole batch, or one for each image."""
        assert saliency is not None
        batch, (height, width) = len(images), images.shape[-2:]
        boxes = batch if self.per_sample else 1
        sources = pair(sampling.partners(batch, generator)).to(images.device, non_blocking=True)
        area = 1 - sampling.beta(self.alpha, boxes, generator)
        peak = saliency[sources[:boxes, 1]].flatten(1).argmax(dim=1)
        corners = sampling.boxes_around(peak // width, peak % width, area.to(images.device, non_blocking=True), height, width)
        return MixPlan(sources=sources, masks=Boxes(corners, height, width))
