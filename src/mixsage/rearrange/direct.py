"""The direct engine: visits the overlap of each shift, for many pairs of the batch at once.

With a and b the two maps and b shifted, v = Σ a + Σ_overlap (b - 2ab/(a+b)). The first two sums need no visit (`overlap_sums`), and
ab/(a+b) = 1/(1/a + 1/b), so that one addition and one reciprocal a pixel remain, and a zero in either map is exact: its reciprocal is inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixsage.rearrange.shifts import overlap, overlap_sums, wide
from mixsage.warp import translate

_CACHE = 2**20
"""Bytes of scratch that a core keeps at hand: pairs beyond that wait for their turn, unless they are too few to fill a kernel's lanes."""
_LANES = 16


def total_saliency(first: Tensor, second: Tensor, shifts: Tensor) -> Tensor:
    """v [B, N] of every pair under every shift. ``shifts`` [N, 2] lies on the CPU, as each one decides which slices are visited."""
    on_device = shifts.to(first.device, non_blocking=True)
    kept = first.sum(dim=(1, 2), dtype=wide(first.device))[:, None] + overlap_sums(second, on_device, moved=True)
    return kept.sub_(_harmonic_sums(first, second, shifts), alpha=2).to(first.dtype)


def best(first: Tensor, second: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """The place [B] of each pair's best shift in the list, the earliest where several keep the same, and its v [B]."""
    values, places = total_saliency(first, second, shifts).max(dim=1)
    return places, values


def bytes_per_pair(height: int, width: int, count: int, itemsize: int) -> int:
    """What a pair takes: both reciprocals, the sum of them, the integral image, and a few numbers a shift."""
    return height * width * (3 * itemsize + 24) + count * (2 * itemsize + 40)


def pairs_at_a_time(height: int, width: int, itemsize: int) -> int:
    """How many pairs a CPU core keeps in its cache together, or fills its lanes with."""
    return max(_LANES, _CACHE // (height * width * itemsize))


def at(first: Tensor, second: Tensor, offsets: Tensor) -> Tensor:
    """v [B] of each pair under a shift of its own; ``offsets`` [B, 2] lies on the maps' device."""
    moved = translate(second, offsets)
    shared = (first.reciprocal() + moved.reciprocal()).reciprocal_()
    kept, visible, lost = (maps.sum(dim=(1, 2), dtype=wide(maps.device)) for maps in (first, moved, shared))
    return (kept + visible - 2 * lost).to(first.dtype)


def _harmonic_sums(first: Tensor, second: Tensor, shifts: Tensor) -> Tensor:
    """Σ_overlap 1/(1/a + 1/b), [B, N]."""
    batch, height, width = first.shape
    group = pairs_at_a_time(height, width, first.element_size()) if first.device.type == "cpu" else batch
    overlaps = [(*overlap(row, height), *overlap(column, width)) for row, column in shifts.tolist()]
    sums = [_visit(*maps, overlaps) for maps in zip(torch.split(first, group), torch.split(second, group), strict=True)]
    return torch.cat(sums, dim=1).T


def _visit(first: Tensor, second: Tensor, overlaps: list[tuple[slice, slice, slice, slice]]) -> Tensor:
    """The sums [N, B] of pairs that fit in the cache together."""
    one_over_first, one_over_second = _one_over(first), _one_over(second)
    scratch = torch.empty_like(one_over_first)
    batch, strides = len(first), one_over_first.stride()
    sums = first.new_empty(len(overlaps), batch)
    # The views by their strides: of small maps, slicing would take longer than the arithmetic.
    for (rows, moved_rows, columns, moved_columns), total in zip(overlaps, sums.unbind(), strict=True):
        shape = (rows.stop - rows.start, columns.stop - columns.start, batch)
        both = scratch.as_strided(shape, (shape[1] * batch, batch, 1))
        start, moved_start = (
            down.start * strides[0] + right.start * strides[1] for down, right in ((rows, columns), (moved_rows, moved_columns))
        )
        torch.add(
            one_over_first.as_strided(shape, strides, start), one_over_second.as_strided(shape, strides, moved_start), out=both
        )
        torch.sum(both.reciprocal_(), dim=(0, 1), out=total)
    return sums


def _one_over(maps: Tensor) -> Tensor:
    """1/a, [H, W, B]: the batch goes last, so that the runs that a kernel works along are long however thin the overlap is."""
    return maps.flatten(1).t().clone(memory_format=torch.contiguous_format).reciprocal_().view(*maps.shape[1:], len(maps))
