"""What shows where two images lie over each other, and how much saliency that keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mixsage.rearrange.shifts import overlap_sums
from mixsage.warp import shift_index, translate

Engine = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``engine(first, second, shifts) -> v [B, N]`` of the saliency-guided blend."""


class Blend(ABC):
    """How the mask of a pair follows from its two saliency maps, once the second is shifted."""

    @abstractmethod
    def mask(self, first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
        """The share of the first image [B, H, W] when the second is shifted by ``offsets`` [B, 2]."""

    @abstractmethod
    def total_saliency(self, first: Tensor, second: Tensor, shifts: Tensor, engine: Engine) -> Tensor:
        """v [B, N]: the saliency that the mask keeps, of each pair under each shift; ``shifts`` [N, 2] lies on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Guided(Blend):
    """Every pixel is shared in proportion to the two saliencies there: M = a / (a + b)."""

    def mask(self, first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
        """M = a / (a + b); 0 where both vanish, as published."""
        return first / (first + translate(second, offsets)).clamp_min_(_GUARD)

    def total_saliency(self, first: Tensor, second: Tensor, shifts: Tensor, engine: Engine) -> Tensor:
        """Σ M·a + (1 - M)·b, by the engine."""
        return engine(first, second, shifts)


@dataclass(frozen=True, kw_only=True)
class Paste(Blend):
    """The shifted image replaces what it covers: the ablation without saliency-guided mixing."""

    def mask(self, first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
        """0 in the overlap, 1 outside."""
        _, covered = shift_index(offsets, first.shape[-2], first.shape[-1])
        return (~covered).to(first.dtype)

    def total_saliency(self, first: Tensor, second: Tensor, shifts: Tensor, engine: Engine) -> Tensor:
        """What remains of the first map outside the overlap, and all that the second has inside it."""
        shifts = shifts.to(first.device, non_blocking=True)
        covered = overlap_sums(first, shifts, moved=False)
        return first.sum(dim=(1, 2))[:, None] - covered + overlap_sums(second, shifts, moved=True)


_GUARD = 1e-16
"""Keeps the division of the mask from 0/0; small enough to leave every real share as it is."""


def pair_maps(maps: Tensor, partners: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The rescaled maps of each image and of its partner: λ·s0 and (1 - λ)·s1, with λ [B] or [1]."""
    share = share.view(-1, 1, 1)
    return maps * share, maps.index_select(0, partners) * torch.sub(1, share)
