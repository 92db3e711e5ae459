"""What shows where two images lie over each other, and how much saliency that keeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mixsage.rearrange import direct
from mixsage.rearrange.shifts import overlap_sums, wide
from mixsage.warp import shift_index, translate


class Engine(Protocol):
    """A way to compute what the saliency-guided blend keeps. Maps are [B, H, W], ``shifts`` [N, 2] lies on the CPU."""

    def total_saliency(self, first: Tensor, second: Tensor, shifts: Tensor, /) -> Tensor:
        """v [B, N]."""
        ...

    def best(self, first: Tensor, second: Tensor, shifts: Tensor, /) -> tuple[Tensor, Tensor]:
        """The place [B] of each pair's best shift in the list, the earliest where several keep the same, and its v [B]."""
        ...

    def bytes_per_pair(self, height: int, width: int, count: int, itemsize: int, /) -> int:
        """About how much memory a pair takes while ``count`` shifts are tried, beside what comes and goes."""
        ...


class Blend(ABC):
    """How the mask of a pair follows from its two saliency maps, once the second is shifted."""

    @abstractmethod
    def mask(self, first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
        """The share of the first image [B, H, W] when the second is shifted by ``offsets`` [B, 2]."""

    @abstractmethod
    def total_saliency(self, first: Tensor, second: Tensor, shifts: Tensor, engine: Engine) -> Tensor:
        """v [B, N]: the saliency that the mask keeps, of each pair under each shift; ``shifts`` [N, 2] lies on the CPU."""

    def best(self, first: Tensor, second: Tensor, shifts: Tensor, engine: Engine) -> tuple[Tensor, Tensor]:
        """The place [B] of each pair's best shift in the list, the earliest where several keep the same, and its v [B]."""
        values, places = self.total_saliency(first, second, shifts, engine).max(dim=1)
        return places, values

    def value(self, first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
        """v [B] of each pair under a shift of its own, by the definition."""
        mask, moved = self.mask(first, second, offsets), translate(second, offsets)
        return (mask * first + (1 - mask) * moved).sum(dim=(1, 2), dtype=wide(first.device)).to(first.dtype)


@dataclass(frozen=True, kw_only=True)
class Guided(Blend):
    """Every pixel is shared in proportion to the two saliencies there: M = a / (a + b)."""

    def mask(self, first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
        """M = a / (a + b); 0 where both vanish, as published."""
        return first / (first + translate(second, offsets)).clamp_min_(_GUARD)

    def total_saliency(self, first: Tensor, second: Tensor, shifts: Tensor, engine: Engine) -> Tensor:
        """Σ M·a + (1 - M)·b, by the engine."""
        return engine.total_saliency(first, second, shifts)

    def best(self, first: Tensor, second: Tensor, shifts: Tensor, engine: Engine) -> tuple[Tensor, Tensor]:
        """By the engine, which need not know every value exactly."""
        return engine.best(first, second, shifts)

    def value(self, first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
        """Without the guard of the division, and with less rounding."""
        return direct.at(first, second, offsets)


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
        kept = first.sum(dim=(1, 2), dtype=wide(first.device))[:, None] - covered
        return (kept + overlap_sums(second, shifts, moved=True)).to(first.dtype)


_GUARD = 1e-16
"""Keeps the division of the mask from 0/0; small enough to leave every real share as it is."""


def pair_maps(maps: Tensor, partners: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The rescaled maps of each image and of its partner: λ·s0 and (1 - λ)·s1, with λ [B] or [1]."""
    share = share.view(-1, 1, 1)
    return maps * share, maps.index_select(0, partners) * torch.sub(1, share)
