"""SAGE (Ma et al., BMVC 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from mixsage import sampling
from mixsage.methods.base import CleanPass, Mixer, check_kind, check_range, pair
from mixsage.plan import MixPlan, Shift
from mixsage.rearrange import Blend, Guided, Sampled, Search
from mixsage.rearrange.blend import pair_maps
from mixsage.saliency import InputGradient, Saliency, Uniform, normalise, smooth


@dataclass(frozen=True, kw_only=True)
class SAGE(Mixer):
    """Move the partner to where both images show most of what the network looks at, and share every pixel by saliency.

    Example:
        >>> import mixsage, torch
        >>> model = mixsage.models.preactresnet18(width=8)
        >>> step = mixsage.accumulate(SAGE(), model, torch.rand(4, 3, 32, 32), torch.arange(4))
    """

    truncation: float = 0.6
    """Upper end of the uniform distribution that the share λ of the image's own saliency is drawn from [u]."""
    mixed_share: float = 0.7
    """Weight of the mixed batch's gradient; the clean batch's has the rest [η]. With 1, only the gradient of the input is computed."""
    saliency: Saliency = field(default_factory=InputGradient)
    """Where the saliency comes from: `InputGradient`, or `Uniform` as a control."""
    search: Search = field(default_factory=Sampled)
    """Which rearrangements are tried: `Sampled(0.01)`, `Full()`, or `NoShift()` as an ablation."""
    blend: Blend = field(default_factory=Guided)
    """How the two images share a pixel: `Guided()` by saliency, or `Paste()` as an ablation."""

    passes: int = 2
    """2 as published; or 1: a single pass over the batch, whose first rows stay clean (the share 1 - η) while the others are mixed, with
    uniform maps, or maps that are handed in, as there is no pass before it to take any from."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10/preactresnet18": {"truncation": 0.6, "mixed_share": 0.7},
        "cifar100/preactresnet18": {"truncation": 0.5, "mixed_share": 0.7},
        "cifar100/wrn16_8": {"truncation": 0.6, "mixed_share": 0.7},
        "cifar100/resnext29_4_24": {"truncation": 0.7, "mixed_share": 0.5},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("truncation", self.truncation, 0, 1)
        check_range("mixed_share", self.mixed_share, 0, 1, open_low=True)
        if self.passes not in (1, 2):
            raise ValueError(f"passes must be 1 or 2, got {self.passes}")
        check_kind("saliency", self.saliency, Saliency, "InputGradient() or Uniform()")
        check_kind("search", self.search, Search, "Sampled(0.01), Full() or NoShift()")
        check_kind("blend", self.blend, Blend, "Guided() or Paste()")

    @property
    def source(self) -> Saliency:
        """Where the saliency comes from; a single pass has no gradient to take it from."""
        return Uniform() if self.passes == 1 and self.saliency.needs_gradient else self.saliency

    @property
    def clean(self) -> CleanPass | None:
        """The clean pass yields the saliency, and its parameter gradient is a part of the step."""
        weight = 1 - self.mixed_share
        if self.passes == 1 or (weight == 0 and not self.saliency.needs_gradient):
            return None
        return CleanPass(mode=getattr(self.saliency, "mode", "train"), weight=weight)

    @property
    def mixed_weight(self) -> float:
        """η; in a single pass the clean rows have their weight by their number."""
        return self.mixed_share if self.passes == 2 else 1.0

    def draw(self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, generator: Generator | None) -> MixPlan:
        """Partners and λ; the best shift of each partner; the mask that shares the pixels; label shares from its mean."""
        assert saliency is not None
        device = images.device
        partners = sampling.partners(len(images), generator)
        share = sampling.uniform(self.truncation, len(images) if self.per_sample else 1, generator).clamp_min(_SMALLEST_SHARE)
        sources = pair(partners).to(device, non_blocking=True)

        first, second = pair_maps(normalise(smooth(saliency)), sources[:, 1], share.to(device, non_blocking=True))
        offsets = self.search(first, second, blend=self.blend, generator=generator)
        mask = self.blend.mask(first, second, offsets)
        if self.passes == 1:
            clean = round((1 - self.mixed_share) * len(images))
            mask[:clean], offsets[:clean] = 1, 0
        weight = mask.mean(dim=(1, 2))
        return MixPlan(
            sources=sources,
            masks=torch.stack([mask, 1 - mask], dim=1),
            warp=Shift(torch.stack([torch.zeros_like(offsets), offsets], dim=1), still=(0,)),
            weights=torch.stack([weight, 1 - weight], dim=1),
        )


_SMALLEST_SHARE = 1e-12
"""λ stays above this, as in the authors' code: at 0 the image would vanish even where its partner does not reach."""
