"""The set of all rearrangements of a picture, and sums over what remains visible after each."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional

from mixsage import sampling


def shift_at(index: Tensor, height: int, width: int) -> Tensor:
    """The shifts [N, 2] that stand at these places of the list of all rearrangements."""
    columns = 2 * width - 1
    return torch.stack([index // columns - (height - 1), index % columns - (width - 1)], dim=-1)


def all_shifts(height: int, width: int) -> Tensor:
    """All (2H-1)(2W-1) rearrangements [N, 2], rows first, from (-(H-1), -(W-1)) to (H-1, W-1); on the CPU."""
    return shift_at(torch.arange((2 * height - 1) * (2 * width - 1)), height, width)


def sample_shifts(height: int, width: int, portion: float, generator: Generator | None = None) -> Tensor:
    """A random subset [N, 2] of all rearrangements, without repetition: ⌊(2H-1)(2W-1)·portion⌋ of them, at least one; on the CPU."""
    return shift_at(sampling.subset((2 * height - 1) * (2 * width - 1), portion, generator), height, width)


def overlap(shift: int, size: int) -> tuple[slice, slice]:
    """For one axis: where the shifted partner covers the first map, and which part of the partner that is."""
    return slice(max(0, shift), min(size, size + shift)), slice(max(0, -shift), min(size, size - shift))


def overlap_sums(maps: Tensor, shifts: Tensor, *, moved: bool) -> Tensor:
    """Sum of each map over its part of the overlap, for every shift: [B, N], from one integral image.

    ``moved`` says whether the maps are the ones that move or the ones that stand still. ``shifts`` lies on the maps' device.
    """
    height, width = maps.shape[-2:]
    integral = functional.pad(maps.cumsum(1).cumsum(2), (1, 0, 1, 0))
    rows, columns = (-shifts if moved else shifts).unbind(-1)
    top, bottom = rows.clamp(min=0), height + rows.clamp(max=0)
    left, right = columns.clamp(min=0), width + columns.clamp(max=0)
    return integral[:, bottom, right] - integral[:, top, right] - integral[:, bottom, left] + integral[:, top, left]
