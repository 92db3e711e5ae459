"""The set of all rearrangements of a picture, and sums over what remains visible after each."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional

from mixsage import sampling


def all_shifts(height: int, width: int) -> Tensor:
    """All (2H-1)(2W-1) rearrangements [N, 2], rows first, from (-(H-1), -(W-1)) to (H-1, W-1); on the CPU."""
    return sample_shifts(height, width, 1.0)


def sample_shifts(
    height: int, width: int, portion: float, generator: Generator | None = None, *, max_shift: float = 1.0, stride: int = 1
) -> Tensor:
    """A random subset [N, 2] of the rearrangements, without repetition: ⌊their number·portion⌋, at least one; on the CPU.

    ``max_shift`` leaves those that move no farther than this share of the side, ``stride`` those by multiples of so many pixels.
    """
    rows, columns = axis_shifts(height, max_shift, stride), axis_shifts(width, max_shift, stride)
    index = sampling.subset(len(rows) * len(columns), portion, generator)
    return torch.stack([rows[index // len(columns)], columns[index % len(columns)]], dim=-1)


def axis_shifts(size: int, max_shift: float, stride: int) -> Tensor:
    """The shifts of one axis, from the farthest up or left; 0 is always among them."""
    # The small addend undoes the rounding of products such as 0.29·100 = 28.999….
    steps = min(size - 1, math.floor(size * max_shift + 1e-9)) // stride
    return torch.arange(-steps, steps + 1, device="cpu") * stride


def overlap(shift: int, size: int) -> tuple[slice, slice]:
    """For one axis: where the shifted partner covers the first map, and which part of the partner that is."""
    return slice(max(0, shift), min(size, size + shift)), slice(max(0, -shift), min(size, size - shift))


def overlap_sums(maps: Tensor, shifts: Tensor, *, moved: bool) -> Tensor:
    """Sum of each map over its part of the overlap, for every shift: [B, N], from one integral image in double precision.

    ``moved`` says whether the maps are the ones that move or the ones that stand still. ``shifts`` lies on the maps' device.
    """
    integral = _integral(maps)
    (top, bottom), (left, right) = (
        _edges(axis, size, moved=moved) for axis, size in zip(shifts.unbind(-1), maps.shape[-2:], strict=True)
    )
    return integral[:, bottom, right] - integral[:, top, right] - integral[:, bottom, left] + integral[:, top, left]


def overlap_grid(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """What remains of each moved map under every shift of a grid: [B, R, C], in double precision."""
    (top, bottom), (left, right) = (
        _edges(axis, size, moved=True) for axis, size in zip((rows, columns), maps.shape[-2:], strict=True)
    )
    integral = _integral(maps)
    bands = integral.index_select(1, bottom) - integral.index_select(1, top)
    return bands.index_select(2, right) - bands.index_select(2, left)


def wide(device: torch.device) -> torch.dtype:
    """The type of long sums: double precision, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _integral(maps: Tensor) -> Tensor:
    return functional.pad(maps.to(wide(maps.device)).cumsum(1).cumsum(2), (1, 0, 1, 0))


def _edges(shifts: Tensor, size: int, *, moved: bool) -> tuple[Tensor, Tensor]:
    """First line of the overlap, and the first after it."""
    shifts = -shifts if moved else shifts
    return shifts.clamp(min=0), size + shifts.clamp(max=0)
