"""Levels on a grid of blocks: the problem whose solution is a mask.

Every block of an n×n grid takes one of L levels. A level costs what `unary` says; neighbouring blocks cost their weight times
(i - j)²/(L - 1)². With weights that are not negative this is a minimum cut; with costs that are convex in the level, as those of mixing are,
a block also finds its best level step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class LevelProblem:
    """A batch of problems of one size."""

    unary: Tensor
    """[B, n, n, L] float32: cost of each level at each block, convex in the level."""
    down: Tensor
    """[B, n - 1, n] float32, not negative: weight between a block and the one below it."""
    across: Tensor
    """[B, n, n - 1] float32, not negative: weight between a block and the one to its right."""

    def __post_init__(self) -> None:
        if self.unary.ndim != 4 or self.unary.shape[1] != self.unary.shape[2]:
            raise ValueError(f"unary must be [B, n, n, L], got {list(self.unary.shape)}")
        batch, side = self.unary.shape[:2]
        expected = [batch, side - 1, side], [batch, side, side - 1]
        found = list(self.down.shape), list(self.across.shape)
        if found != expected:
            raise ValueError(f"down and across must be {expected[0]} and {expected[1]}, got {found[0]} and {found[1]}")

    @property
    def side(self) -> int:
        """Blocks along a side, n."""
        return self.unary.shape[1]

    @property
    def levels(self) -> int:
        """Number of levels, L."""
        return self.unary.shape[3]

    def energy(self, levels: Tensor) -> Tensor:
        """[B] cost of a choice of levels [B, n, n] int64."""
        share = levels.to(self.unary.dtype) / (self.levels - 1)
        chosen = self.unary.gather(-1, levels[..., None])[..., 0].sum(dim=(1, 2))
        vertical = (self.down * (share[:, 1:] - share[:, :-1]) ** 2).sum(dim=(1, 2))
        horizontal = (self.across * (share[:, :, 1:] - share[:, :, :-1]) ** 2).sum(dim=(1, 2))
        return chosen + vertical + horizontal

    def pick(self, rows: Tensor) -> LevelProblem:
        """Some of the problems."""
        return LevelProblem(unary=self.unary[rows], down=self.down[rows], across=self.across[rows])


def squared_differences(levels: int, like: Tensor) -> Tensor:
    """[L, L]: (i - j)²/(L - 1)²."""
    share = torch.arange(levels, device=like.device, dtype=like.dtype) / (levels - 1)
    return (share[:, None] - share) ** 2
