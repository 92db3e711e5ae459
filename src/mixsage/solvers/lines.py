"""The finish of a labelling: whole lines of the grid are chosen anew, each exactly, given the lines beside it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mixsage.solvers.grid import LevelProblem, squared_differences


def improve(problem: LevelProblem, levels: Tensor) -> Tensor:
    """Levels [B, n, n] int64 that cost no more than the given ones: every second row anew, then the others; the columns likewise."""
    unary, down, across = (costs.movedim(0, -1) for costs in (problem.unary, problem.down, problem.across))
    shares = (levels.to(unary.dtype) / (problem.levels - 1)).movedim(0, -1)
    for start in (0, 1):
        shares = _choose_rows(unary, across, down, shares, start)
    unary, down, across, shares = (values.transpose(0, 1) for values in (unary, down, across, shares))
    for start in (0, 1):
        shares = _choose_rows(unary, down, across, shares, start)
    return (shares.transpose(0, 1) * (problem.levels - 1)).round().long().movedim(-1, 0)


def _choose_rows(unary: Tensor, along: Tensor, between: Tensor, shares: Tensor, start: int) -> Tensor:
    """Shares [n, n, B] with every second row chosen anew from row ``start`` on, by dynamic programming along it.

    ``unary`` is [n, n, L, B], ``along`` [n, n - 1, B] the weights within rows, ``between`` [n - 1, n, B] those from row to row.
    """
    count = unary.shape[2]
    level = torch.arange(count, device=unary.device, dtype=unary.dtype) / (count - 1)
    price = squared_differences(count, unary)[..., None]
    rows = slice(start, None, 2)
    # A row beyond the border weighs nothing.
    weights, others = functional.pad(between, (0, 0, 0, 0, 1, 1)), functional.pad(shares, (0, 0, 0, 0, 1, 1))
    cost = unary[rows]
    for beside, weight in ((others[:-2], weights[:-1]), (others[2:], weights[1:])):
        cost = cost + weight[rows, :, None] * (level[:, None] - beside[rows, :, None]) ** 2

    steps = along[rows, :, None, None] * price
    best, origins = cost[:, 0], []
    for place in range(1, cost.shape[1]):
        reached, origin = (best[:, :, None] + steps[:, place - 1]).min(dim=1)
        best = reached + cost[:, place]
        origins.append(origin)
    chosen = [best.argmin(dim=1, keepdim=True)]
    for origin in reversed(origins):
        chosen.append(origin.gather(1, chosen[-1]))
    shares = shares.clone()
    shares[rows] = torch.cat(chosen[::-1], dim=1) / (count - 1)
    return shares
