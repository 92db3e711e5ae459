"""The exact engine for small grids: dynamic programming over the levels that the last n blocks have.

Blocks are visited row by row. What is yet to come depends on the last n of them only, so that L^n states are enough, for all problems of
the batch at once: 81 for 4×4 blocks of 3 levels.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from mixsage.solvers.grid import LevelProblem, squared_differences


def solve(problem: LevelProblem) -> Tensor:
    """The best levels [B, n, n] int64 of every problem. Time and memory grow with L^n."""
    side, levels = problem.side, problem.levels
    # The batch goes last, so that the runs that a kernel works along are long.
    unary, down, across = (costs.movedim(0, -1).contiguous() for costs in (problem.unary, problem.down, problem.across))
    price = squared_differences(levels, unary)[:, :, None, None]

    states: list[Tensor] = []
    cost = unary.new_zeros(1, unary.shape[-1])
    for row in range(side):
        for column in range(side):
            # States are numbers to base L, the digit of column 0 first; `before` counts what the digits left of this column can be.
            before = levels**column
            if row:
                states.append(cost)
                choices = cost.view(before, levels, 1, -1, cost.shape[-1]) + price * down[row - 1, column]
                here = reduce(torch.minimum, choices.unbind(1))
            else:
                here = cost.view(before, 1, 1, -1).expand(-1, levels, -1, -1)
            here = here + unary[row, column][:, None]
            if column:
                here = here.view(before // levels, levels, *here.shape[1:]) + price * across[row, column - 1]
            cost = here.reshape(-1, cost.shape[-1])
    return _trace_back(states, cost, down, price[:, :, 0, 0], side, levels)


def _trace_back(states: list[Tensor], cost: Tensor, down: Tensor, price: Tensor, side: int, levels: int) -> Tensor:
    """Levels [B, n, n] of the best last state, and of the states before it that led there."""
    state = cost.argmin(dim=0)
    places = levels ** torch.arange(side - 1, -1, -1, device=state.device)
    digits = torch.arange(levels, device=state.device)[:, None]
    found = [[state // places[column] % levels for column in range(side)]]
    for row in range(side - 1, 0, -1):
        above = list(found[0])
        for column in range(side - 1, -1, -1):
            place = levels ** (side - 1 - column)
            below = found[0][column]
            candidates = state + (digits - below) * place
            best = (states.pop().gather(0, candidates) + price[:, below] * down[row - 1, column]).argmin(dim=0)
            above[column] = best
            state = state + (best - below) * place
        found.insert(0, above)
    return torch.stack([torch.stack(row, dim=-1) for row in found], dim=1)
