"""The engine for larger grids: sequential tree-reweighted message passing (Kolmogorov, 2006), a diagonal of the grid at a time.

A sweep visits the grid from one corner to the other. Blocks on one anti-diagonal do not touch, so a diagonal of all problems of the batch is
one set of tensors, and a sweep takes 2n - 1 steps whatever the batch. It yields a labelling, each block choosing given those visited before it,
and a bound that no labelling beats. As the cost between neighbours is convex in the levels, the relaxation behind the bound is tight: where
the two meet, the labelling is proved best.

Grids are held *skewed*, [2n - 1, …, n, B]: first the diagonal, then the row, the batch last; places where a diagonal leaves the grid hold zero.
The edge 0 of a block leads along its row, edge 1 down its column; a sweep in the other direction is the same sweep on the grid turned round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mixsage.solvers.grid import LevelProblem, squared_differences
from mixsage.solvers.lines import improve

SWEEPS = 48
"""Sweeps at most on the host, which stops when all problems are proved; few need that many."""
SWEEPS_OF_TWO = 240
"""The same for two levels, where a single graph cut is exact: what takes longest to prove is the last thousandth of the energy, of one problem in a hundred."""
SWEEPS_UNSEEN = 10
"""Sweeps on a device, which would have to be waited for to learn how far it is. A step is three launches there, and launches are what it costs."""
LABELLINGS_UNSEEN = 2
"""How many of them, the last ones, yield a labelling there; without it a step takes half the launches."""
SHRINK = 0.6
"""On the host, proved problems are laid aside once no more than this share of them is left."""
TOLERANCE = 2e-6
"""A labelling counts as proved when it costs at most this share more than the bound: the rounding of float32."""


def solve(problem: LevelProblem) -> Tensor:
    """The best levels [B, n, n] int64 of every problem, or very nearly so."""
    if problem.unary.device.type != "cpu":
        return improve(problem, sweep(problem, SWEEPS_UNSEEN, labellings=LABELLINGS_UNSEEN, watched=False)[0])
    sweeps = SWEEPS_OF_TWO if problem.levels == 2 else SWEEPS
    levels, proved = sweep(problem, sweeps, labellings=sweeps, watched=True)
    rest = (~proved).nonzero()[:, 0]
    if len(rest):
        levels[rest] = improve(problem.pick(rest), levels[rest])
    return levels


def sweep(problem: LevelProblem, sweeps: int, *, labellings: int, watched: bool) -> tuple[Tensor, Tensor]:
    """Levels [B, n, n] int64 after some sweeps, and for which problems [B] bool they are proved best.

    Args:
        problem: a batch of problems.
        sweeps: how many at most.
        labellings: how many of them, the last ones, yield a labelling.
        watched: whether to stop where all are proved, and to go on with the others alone; that looks at values, and so waits for a device.
    """
    grid = _Grid.of(problem)
    best = answer = _Best.none(grid)
    rows = torch.arange(len(problem.unary), device=problem.unary.device)
    there, back = _Sweeper(grid), _Sweeper(grid.turn())
    facing = torch.zeros_like(there.messages[:, :, :, 1:])
    for count in range(sweeps):
        sweeper, turned = (back, True) if count % 2 else (there, False)
        facing, bound = sweeper.run(facing.flip(0, 3), choose=count >= sweeps - labellings)
        if count >= sweeps - labellings:
            shares = sweeper.chosen()
            best = best.better(shares.flip(0, 1) if turned else shares, sweeper.grid.energy(shares), bound)
        if watched and turned and count + 1 < sweeps:
            rest = (~best.proved).nonzero()[:, 0]
            # To go on with fewer problems costs about as much as a sweep.
            if len(rest) <= SHRINK * len(rows):
                answer = answer.put(rows, best)
                if not len(rest):
                    break
                rows, best, facing, grid = rows[rest], best.pick(rest), facing[..., rest], grid.pick(rest)
                there, back = _Sweeper(grid), _Sweeper(grid.turn())
    answer = answer.put(rows, best)
    return answer.levels(problem), answer.proved


@dataclass(frozen=True, eq=False)
class _Grid:
    """Problems in skewed form."""

    unary: Tensor
    """[2n - 1, L, n, B]."""
    weights: Tensor
    """[2n - 1, 2, n, B]: of the edges that leave each block in the direction of the sweep."""

    @classmethod
    def of(cls, problem: LevelProblem) -> _Grid:
        down = functional.pad(problem.down, (0, 0, 0, 1))
        across = functional.pad(problem.across, (0, 1))
        weights = torch.stack([across, down], dim=-1)
        return cls(*(_skewed(values.movedim(0, -1)).transpose(1, 2).contiguous() for values in (problem.unary, weights)))

    def turn(self) -> _Grid:
        """The same grid, seen from the opposite corner."""
        return _Grid(self.unary.flip(0, 2), arriving(self.weights).flip(0, 2))

    def pick(self, rows: Tensor) -> _Grid:
        return _Grid(self.unary[..., rows], self.weights[..., rows])

    def energy(self, shares: Tensor) -> Tensor:
        """[B] cost of shares [2n - 1, n, B]."""
        levels = (shares * (self.unary.shape[1] - 1)).round_().long()
        along = self.weights[:-1, 0] * (shares[1:] - shares[:-1]) ** 2
        down = self.weights[:-1, 1, :-1] * (shares[1:, 1:] - shares[:-1, :-1]) ** 2
        return self.unary.gather(1, levels[:, None]).sum(dim=(0, 1, 2)) + along.sum(dim=(0, 1)) + down.sum(dim=(0, 1))


@dataclass(frozen=True, eq=False)
class _Best:
    """The best labelling so far, and the best bound."""

    shares: Tensor
    energy: Tensor
    bound: Tensor

    @classmethod
    def none(cls, grid: _Grid) -> _Best:
        unary = grid.unary
        worst = unary.new_full(unary.shape[-1:], torch.inf)
        return cls(torch.zeros_like(unary[:, 0]), worst, -worst)

    def better(self, shares: Tensor, energy: Tensor, bound: Tensor) -> _Best:
        shares = torch.where(energy < self.energy, shares, self.shares)
        return _Best(shares, torch.minimum(energy, self.energy), torch.maximum(bound, self.bound))

    @property
    def proved(self) -> Tensor:
        return self.energy - self.bound <= TOLERANCE * (1 + self.energy.abs())

    def pick(self, rows: Tensor) -> _Best:
        return _Best(self.shares[..., rows], self.energy[rows], self.bound[rows])

    def put(self, rows: Tensor, other: _Best) -> _Best:
        if len(rows) == len(self.energy):
            return other
        pairs = (self.shares, other.shares), (self.energy, other.energy), (self.bound, other.bound)
        return _Best(*(mine.index_copy(-1, rows, theirs) for mine, theirs in pairs))

    def levels(self, problem: LevelProblem) -> Tensor:
        return (_straight(self.shares) * (problem.levels - 1)).round().long().movedim(-1, 0)


class _Step(NamedTuple):
    """What is read and written on one diagonal."""

    offers: Tensor
    differences: Tensor
    arriving: tuple[Tensor, Tensor]
    weights: tuple[Tensor, Tensor]
    neighbours: tuple[Tensor, Tensor]
    messages: Tensor
    steps: Tensor


class _Sweeper:
    """A sweep over one grid in one direction, its views cut once: small steps would spend more time on slicing than on sums."""

    def __init__(self, grid: _Grid) -> None:
        self.grid = grid
        unary, weights = grid.unary, grid.weights
        count, levels, side, batch = unary.shape
        self.top = levels - 1
        self.price = squared_differences(levels, unary)[:, :, None, None] * weights[:, :, None, None]
        behind = arriving(weights)
        # What the visited neighbours add to the difference between one level and the next, but for the part that depends on their levels.
        middle = torch.arange(1, 2 * levels - 1, 2, device=unary.device, dtype=unary.dtype) / self.top**2
        self.slope = middle[:, None, None] * behind.sum(dim=1)[:, None]
        self.behind = behind * (2 / self.top**2)
        self.offers = torch.empty_like(self.price)
        self.differences = unary.new_empty(count, self.top, side, batch)
        # One place more than there are rows, at the front: who has no neighbour there reads zero.
        self.messages = unary.new_zeros(count, 2, levels, side + 1, batch)
        self.taken = unary.new_zeros(count, side + 1, batch)
        self.steps = [self._cut(k, max(0, k - side + 1), min(side, k + 1)) for k in range(count)]

    def _cut(self, k: int, low: int, high: int) -> _Step:
        here, shifted = slice(low, high), slice(low + 1, high + 1)
        before = max(k - 1, 0)
        return _Step(
            offers=self.offers[k, :, :, :, here],
            differences=self.differences[k, :, here],
            arriving=(self.messages[before, 0, :, shifted], self.messages[before, 1, :, here]),
            weights=(self.behind[k, 0, here], self.behind[k, 1, here]),
            neighbours=(self.taken[before, shifted], self.taken[before, here]),
            messages=self.messages[k, :, :, shifted],
            steps=self.taken[k, shifted],
        )

    def run(self, facing: Tensor, *, choose: bool) -> tuple[Tensor, Tensor]:
        """One sweep; with ``choose`` it leaves a labelling behind.

        ``facing`` [2n - 1, 2, L, n, B] are the messages that come against it over each block's leaving edges. Returns the messages, where they arrive, and
        the bound [B].
        """
        base = self.grid.unary + facing.sum(dim=1)
        # What a step adds to the arriving messages is known before: for all diagonals at once.
        torch.add(torch.add(-facing, base[:, None], alpha=0.5)[:, :, :, None], self.price, out=self.offers)
        if choose:
            torch.add(base[:, 1:] - base[:, :-1], self.slope, out=self.differences)
        for k, step in enumerate(self.steps):
            offers = step.offers
            if k:
                heard = step.arriving[0] + step.arriving[1]
                offers = torch.add(offers, heard[:, None], alpha=0.5)
            torch.amin(offers, dim=1, out=step.messages)
            if choose:
                self._choose(step)
        sent = self.messages[:, :, :, 1:]
        return arriving(sent - sent[:, :, :1]), self._bound()

    def chosen(self) -> Tensor:
        """The labelling of the last sweep that made one: shares [2n - 1, n, B]."""
        return self.taken[:, 1:] / self.top

    def _choose(self, step: _Step) -> None:
        """The level of each block of a diagonal, given its neighbours on the diagonal before: the number of steps up that pay."""
        pull = step.weights[0] * step.neighbours[0]
        pull.addcmul_(step.weights[1], step.neighbours[1])
        torch.sum(step.differences < pull, dim=0, dtype=pull.dtype, out=step.steps)

    def _bound(self) -> Tensor:
        """[B] no labelling costs less. A message that leaves the grid is the same for all levels: what a chain of blocks costs at least."""
        side = self.taken.shape[1] - 1
        leaving = torch.arange(side, device=self.taken.device)
        along = self.messages[side - 1 + leaving, 0, 0, leaving + 1].sum(dim=0)
        return along + self.messages[side - 1 :, 1, 0, side].sum(dim=0)


def arriving(sent: Tensor) -> Tensor:
    """What is held at the blocks that edges [2n - 1, 2, …, n, B] leave, held at the blocks where they arrive."""
    held = torch.zeros_like(sent)
    held[1:, 0] = sent[:-1, 0]
    held[1:, 1, ..., 1:, :] = sent[:-1, 1, ..., :-1, :]
    return held


def _places(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each place of the skewed form, the block of the grid that lies there; and whether any does."""
    row = torch.arange(side, device=device)
    column = torch.arange(2 * side - 1, device=device)[:, None] - row
    inside = (column >= 0) & (column < side)
    return torch.where(inside, row * side + column, 0), inside


def _skewed(values: Tensor) -> Tensor:
    """[n, n, …, B] to [2n - 1, n, …, B]."""
    side = values.shape[0]
    places, inside = _places(side, values.device)
    taken = values.flatten(0, 1)[places]
    return taken * inside.view(*inside.shape, *[1] * (taken.ndim - 2))


def _straight(values: Tensor) -> Tensor:
    """[2n - 1, n, B] back to [n, n, B]."""
    row = torch.arange(values.shape[1], device=values.device)[:, None]
    return values[row + row.T, row]
