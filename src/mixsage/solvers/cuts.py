"""Best levels on a grid: the engine that fits the size of the problem."""

from __future__ import annotations

from torch import Tensor

from mixsage.solvers import frontier, messages
from mixsage.solvers.grid import LevelProblem

MOST_STATES = 256
"""States of a row up to which the exact engine is the faster one: 4×4 blocks of up to 4 levels, 5×5 of up to 3, 8×8 of 2."""


def best_levels(problem: LevelProblem) -> Tensor:
    """The levels [B, n, n] int64 that cost least, for all problems at once: exact on small grids, proved or very nearly best on larger ones.

    Example:
        >>> import torch
        >>> unary = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]], [[0.4, 0.0], [1.0, 0.0]]]])
        >>> weight = torch.tensor(0.3)
        >>> best_levels(LevelProblem(unary=unary, down=weight.expand(1, 1, 2), across=weight.expand(1, 2, 1)))
        tensor([[[0, 0],
                 [1, 1]]])
    """
    exact = problem.levels**problem.side <= MOST_STATES
    return frontier.solve(problem) if exact else messages.solve(problem)
