"""The direct engine: visits the overlap of each shift, for all pairs of the batch at once.

With a and b the two maps and b shifted, v = Σ a + Σ_overlap (b - 2ab/(a+b)). The first two sums need no visit (`overlap_sums`), and
ab/(a+b) = 1/(1/a + 1/b), so that one addition and one reciprocal a pixel remain, and a zero in either map is exact: its reciprocal is inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mixsage.rearrange.shifts import overlap, overlap_sums


def total_saliency(first: Tensor, second: Tensor, shifts: Tensor) -> Tensor:
    """v [B, N] of every pair under every shift. ``shifts`` [N, 2] lies on the CPU, as each one decides which slices are visited."""
    shared = _harmonic_sums(first, second, shifts)
    on_device = shifts.to(first.device, non_blocking=True)
    kept = first.sum(dim=(1, 2))[:, None] + overlap_sums(second, on_device, moved=True)
    return kept.sub_(shared, alpha=2)


def _harmonic_sums(first: Tensor, second: Tensor, shifts: Tensor) -> Tensor:
    """Σ_overlap 1/(1/a + 1/b), [B, N]."""
    batch, height, width = first.shape
    # The batch goes last, so that the runs that a kernel works along are long however thin the overlap is.
    one_over_first = first.permute(1, 2, 0).reciprocal().contiguous()
    one_over_second = second.permute(1, 2, 0).reciprocal().contiguous()
    scratch = torch.empty_like(one_over_first).flatten()
    sums = first.new_empty(len(shifts), batch)
    for n, (row, column) in enumerate(shifts.tolist()):
        rows, moved_rows = overlap(row, height)
        columns, moved_columns = overlap(column, width)
        shape = (rows.stop - rows.start, columns.stop - columns.start, batch)
        both = scratch[: shape[0] * shape[1] * batch].view(shape)
        torch.add(one_over_first[rows, columns], one_over_second[moved_rows, moved_columns], out=both)
        torch.sum(both.reciprocal_().view(-1, batch), dim=0, out=sums[n])
    return sums.T
