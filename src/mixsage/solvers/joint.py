"""The joint problem of Co-Mixup: which input each output shows at each block, for all outputs of a part and all parts at once.

Outputs of a part are chosen one after the other, as each has to see what the others use; parts, and several random starts of each,
go side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

HALF_BONUS = 5e-4
"""What half of each of two inputs costs less than the mean of the two, so that it is taken where they tie."""
FORBIDDEN = 1e3
"""More than anything else costs."""


@dataclass(frozen=True, eq=False, kw_only=True)
class JointProblem:
    """Parts of m inputs and as many outputs; weights as they enter the objective, divided by the number of blocks already."""

    cost: Tensor
    """[P, m, n, n] cost of each input at each block: what the prior makes of it, less its saliency."""
    compatibility: Tensor
    """[P, m, m]: how much the use of one input by others counts against another [A]."""
    member: Tensor
    """[P, m] bool: parts with fewer inputs and outputs are filled up."""
    smoothness: float
    """Of a border between blocks with different inputs [β/n²]."""
    diversity: float
    """Of inputs that others use more than the threshold [γ/n²]."""
    threshold: float
    """Use by others, in blocks, up to which it costs nothing [τ·n²]."""

    @property
    def side(self) -> int:
        """Blocks along a side, n."""
        return self.cost.shape[-1]

    def repeat(self, times: int) -> JointProblem:
        """Each part that many times over, one after the other."""
        fields = ("cost", "compatibility", "member")
        return replace(self, **{name: getattr(self, name).repeat_interleave(times, dim=0) for name in fields})

    def penalty(self, others: Tensor) -> Tensor:
        """[..., m] A·use where that exceeds the threshold, in full, and 0 elsewhere; ``others`` [P, ..., m] is the others' use of each input."""
        felt = others @ self.compatibility.transpose(1, 2)
        return torch.where(felt > self.threshold, felt, 0)

    def objective(self, shares: Tensor) -> Tensor:
        """[P] what shares [P, m, n, n, m] cost: of each output (second axis) at each block, the share of each input (last axis)."""
        shown = (self.cost.movedim(1, -1)[:, None] * shares).flatten(1).sum(dim=1)
        borders = shares.diff(dim=2).square().flatten(1).sum(dim=1) + shares.diff(dim=3).square().flatten(1).sum(dim=1)
        use = shares.sum(dim=(2, 3))
        excess = (self.penalty(use.sum(dim=1, keepdim=True) - use) * use).flatten(1).sum(dim=1)
        return shown + self.smoothness / 2 * borders + self.diversity * excess


def solve(problem: JointProblem, labels: Tensor, iterations: int, apart: float) -> Tensor:
    """Shares [P, m, n, n, m] after some iterations over all outputs.

    Args:
        problem: P parts.
        labels: [P, S, m, n·n] int64, the input that each output starts with at each block, for each of S starts; the best of their ends is kept.
        iterations: how often every output is chosen anew. From the second on, half of each of two inputs may be chosen.
        apart: cost, in the last iteration, of the inputs that outputs with the same inputs are pulled away from.
    """
    parts, starts, count = labels.shape[:3]
    state = _State.of(problem.repeat(starts), labels.flatten(0, 1))
    for iteration in range(iterations):
        last = iteration == iterations - 1
        extra = apart * _pulled_apart(state.use) if last and iteration else None
        for output in range(count):
            state.choose(output, extra, halves=iteration > 0)
    shares = state.shares.view(parts * starts, count, problem.side, problem.side, count)
    best = state.problem.objective(shares).view(parts, starts).argmin(dim=1)
    return shares.view(parts, starts, *shares.shape[1:])[torch.arange(parts, device=best.device), best]


class _State:
    """The outputs as they are chosen, and how much they use of each input."""

    def __init__(self, problem: JointProblem, shares: Tensor) -> None:
        self.problem = problem
        self.shares = shares
        self.use = shares.sum(dim=2)
        self.total = self.use.sum(dim=1)
        self.cost = problem.cost.flatten(2).transpose(1, 2) + FORBIDDEN * (~problem.member)[:, None].to(problem.cost.dtype)
        self.single = torch.eye(shares.shape[-1], device=shares.device).expand(len(shares), -1, -1)
        self.grid = _Grid(problem.side, problem.smoothness, shares.device)

    @classmethod
    def of(cls, problem: JointProblem, labels: Tensor) -> _State:
        one_hot = functional.one_hot(labels, labels.shape[1]).to(torch.float32)
        return cls(problem, one_hot * problem.member[:, :, None, None])

    def choose(self, output: int, extra: Tensor | None, *, halves: bool) -> None:
        """Choose one output anew, given the others."""
        others = self.total - self.use[:, output]
        penalty = (2 * self.problem.diversity) * self.problem.penalty(others[:, None])
        if extra is not None:
            penalty = penalty + extra[:, output, None]
        cost, menu = self.cost + penalty, self.single
        if halves:
            menu, surcharge = _with_halves(menu, self.use[:, output])
            cost = torch.baddbmm(surcharge[:, None], cost, menu.transpose(1, 2))
        shares = self.grid.choose(cost, menu, self.shares[:, output])
        shares = shares * self.problem.member[:, output, None, None]
        self.shares[:, output] = shares
        self.use[:, output] = shares.sum(dim=1)
        self.total = others + self.use[:, output]


def _with_halves(single: Tensor, use: Tensor) -> tuple[Tensor, Tensor]:
    """All inputs [P, m, m], then half and half [P, 3, m] of the three that are used most; and what each costs extra, [P, m + 3]."""
    # A stable sort, as `topk` breaks ties otherwise on each device.
    amount, most = use.sort(dim=1, descending=True, stable=True)
    parents = functional.one_hot(most[:, :3], use.shape[1]).to(use.dtype)
    # Stacked from slices: a list of indices would be moved to the device, and wait for it.
    first, second = (
        torch.stack([parents[:, 0], parents[:, 0], parents[:, 1]], 1),
        torch.stack([parents[:, 1], parents[:, 2], parents[:, 2]], 1),
    )
    # A half of something that is not used is no choice.
    surcharge = torch.where(torch.stack([amount[:, 1], amount[:, 2], amount[:, 2]], 1) > 0, -HALF_BONUS, FORBIDDEN)
    return torch.cat([single, (first + second) / 2], dim=1), functional.pad(surcharge, (use.shape[1], 0))


def _pulled_apart(use: Tensor) -> Tensor:
    """[P, m, m] 1 where an output (second axis) is to let go of an input (last axis), as another output uses the same inputs.

    The earlier output of such a pair lets go of their first input, the later one of their second.
    """
    used = (use > 0).to(torch.float32)
    same = (used[:, :, None] - used[:, None]).abs().sum(dim=-1) == 0
    pairs = same.triu(1)
    first = functional.one_hot(used.argmax(dim=-1), use.shape[-1]).to(torch.float32)
    rest = used - first
    second = functional.one_hot(rest.argmax(dim=-1), use.shape[-1])
    several = rest.sum(dim=-1, keepdim=True) > 0
    lets_go = (first * pairs.any(dim=2, keepdim=True)).bool() | (second * pairs.any(dim=1).unsqueeze(-1)).bool()
    return (lets_go & several).to(torch.float32)


class _Grid:
    """The choice of one output: a Potts problem, by iterated conditional modes on the two colours of a chessboard, from several starts."""

    def __init__(self, side: int, smoothness: float, device: torch.device) -> None:
        place = torch.arange(side * side, device=device)
        row, column = place // side, place % side
        adjacent = ((row[:, None] - row).abs() + (column[:, None] - column).abs() == 1).to(torch.float32)
        self.attraction = -smoothness * adjacent
        self.borders = smoothness / 2 * adjacent.sum(dim=1)[:, None]
        self.colours = [(row + column) % 2 == colour for colour in (0, 1)]

    def choose(self, cost: Tensor, menu: Tensor, now: Tensor) -> Tensor:
        """Shares [P, n·n, m] chosen from a menu [P, L, m] at costs [P, n·n, L].

        Starts are the cheapest of each block, the cheapest for all blocks together, and what there is ``now`` [P, n·n, m].
        """
        likeness = menu @ menu.transpose(1, 2)
        size = torch.diagonal(likeness, dim1=1, dim2=2)
        # A border costs half the squared distance of the shares on its sides: |a|²/2 + |b|²/2 - a·b.
        cost = cost + self.borders * size[:, None]
        nearest = (now @ menu.transpose(1, 2) - size[:, None] / 2).argmax(dim=-1)
        same = cost.sum(dim=1).argmin(dim=-1, keepdim=True).expand_as(nearest)
        labels = torch.stack([cost.argmin(dim=-1), same, nearest], dim=1)
        part = torch.arange(len(cost), device=cost.device)[:, None, None]
        cost = cost[:, None]
        for colour in self.colours:
            labels = torch.where(colour, self._felt(cost, likeness, part, labels).argmin(dim=-1), labels)
        # Of the attraction each border is felt from both sides.
        felt = (self._felt(cost, likeness, part, labels) + cost).gather(-1, labels[..., None]).sum(dim=(2, 3))
        best = labels[part[:, 0, 0], felt.argmin(dim=1)]
        return menu[part[:, 0], best]

    def _felt(self, cost: Tensor, likeness: Tensor, part: Tensor, labels: Tensor) -> Tensor:
        """[P, S, n·n, L] what each choice costs at each block, its neighbours being as they are."""
        return cost + self.attraction @ likeness[part, labels]
