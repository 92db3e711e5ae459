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
FORBIDDEN = 1e30
"""More than anything else costs, whatever the weights; finite, as 0·∞ is not a number."""


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
        menu = state.menu(halves=iteration > 0, apart=apart if last and iteration else 0.0)
        for output in range(count):
            state.choose(output, menu)
    shares = state.board.straight(state.shares).view(parts * starts, count, problem.side, problem.side, count)
    best = state.problem.objective(shares).view(parts, starts).argmin(dim=1)
    return shares.view(parts, starts, *shares.shape[1:])[torch.arange(parts, device=best.device), best]


@dataclass(frozen=True, eq=False)
class _Menu:
    """What every output may choose from in one iteration; it does not depend on what the others choose meanwhile."""

    choices: Tensor
    """[P, m, L, m] shares of the inputs (last axis) in each choice of each output."""
    cost: Tensor
    """[P, m, n·n, L] of each choice at each block, but for the penalty on what others use."""
    likeness: Tensor
    """[P, m, L, L] inner products of the choices."""
    felt: Tensor
    """[P, m, m, L] what a penalty on the inputs adds to each choice."""
    nearest: Tensor
    """[P, m, n·n] the choice that is most like what the output has."""


class _State:
    """The outputs as they are chosen, and how much they use of each input. Blocks are in the order of the board."""

    def __init__(self, problem: JointProblem, shares: Tensor) -> None:
        self.problem = problem
        self.board = _Board(problem.side, problem.smoothness, shares.device)
        self.shares = shares[:, :, self.board.order]
        self.use = shares.sum(dim=2)
        self.total = self.use.sum(dim=1)
        cost = problem.cost.flatten(2).transpose(1, 2) + FORBIDDEN * (~problem.member)[:, None].to(problem.cost.dtype)
        self.cost = cost[:, self.board.order]
        self.compatibility = problem.compatibility.transpose(1, 2)
        self.part = torch.arange(len(shares), device=shares.device)[:, None]

    @classmethod
    def of(cls, problem: JointProblem, labels: Tensor) -> _State:
        one_hot = functional.one_hot(labels, labels.shape[1]).to(torch.float32)
        return cls(problem, one_hot * problem.member[:, :, None, None])

    def menu(self, *, halves: bool, apart: float) -> _Menu:
        """The choices of all outputs in the iteration to come."""
        parts, count = self.use.shape[:2]
        choices = torch.eye(count, dtype=self.use.dtype, device=self.use.device).expand(parts, count, -1, -1)
        cost = self.cost[:, None]
        if apart:
            cost = cost + apart * _pulled_apart(self.use)[:, :, None]
        if halves:
            choices, surcharge = _with_halves(self.use)
            cost = cost @ choices.transpose(2, 3) + surcharge[:, :, None]
        likeness = choices @ choices.transpose(2, 3)
        size = torch.diagonal(likeness, dim1=2, dim2=3)[:, :, None]
        # A border costs half the squared distance of the shares on its sides: |a|²/2 + |b|²/2 - a·b.
        cost = cost + self.board.borders * size
        nearest = (self.shares @ choices.transpose(2, 3) - size / 2).argmax(dim=-1)
        felt = (2 * self.problem.diversity) * choices.transpose(2, 3)
        # Places that are filled up show nothing, whatever they choose.
        return _Menu(choices * self.problem.member[:, :, None, None], cost, likeness, felt, nearest)

    def choose(self, output: int, menu: _Menu) -> None:
        """Choose one output anew, given the others."""
        others = self.total - self.use[:, output]
        penalty = functional.threshold(others[:, None] @ self.compatibility, self.problem.threshold, 0.0)
        cost = menu.cost[:, output] + penalty @ menu.felt[:, output]
        labels = self.board.choose(cost, menu.likeness[:, output], menu.nearest[:, output])
        shares = menu.choices[:, output][self.part, labels]
        self.shares[:, output] = shares
        use = shares.sum(dim=1)
        self.use[:, output] = use
        self.total = others + use


def _with_halves(use: Tensor) -> tuple[Tensor, Tensor]:
    """All inputs, then half and half of the three that are used [..., m] most: [..., m + 3, m]; and what each costs extra, [..., m + 3]."""
    count = use.shape[-1]
    # A stable sort, as `topk` breaks ties otherwise on each device.
    amount, most = use.sort(dim=-1, descending=True, stable=True)
    parents = functional.one_hot(most[..., :3], count).to(use.dtype)
    # Of parents a, b, c in their order, the halves ab, ac, bc. From slices: a list of indices would be moved to the device, and wait for it.
    a, others = parents[..., :1, :], parents[..., 1:, :]
    halves = torch.cat([a + others, others.sum(dim=-2, keepdim=True)], dim=-2) / 2
    # A half of something that is not used is no choice.
    rarer = torch.cat([amount[..., 1:3], amount[..., 2:3]], dim=-1)
    surcharge = torch.where(rarer > 0, -HALF_BONUS, FORBIDDEN).to(use.dtype)
    single = torch.eye(count, dtype=use.dtype, device=use.device).expand(*use.shape, -1)
    return torch.cat([single, halves], dim=-2), functional.pad(surcharge, (count, 0))


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


class _Board:
    """The choice of one output: a Potts problem, by iterated conditional modes on the two colours of a chessboard, from several starts.

    Blocks are held in the order of their colours, as those of one colour do not touch.
    """

    def __init__(self, side: int, smoothness: float, device: torch.device) -> None:
        place = torch.arange(side * side, device=device)
        row, column = place // side, place % side
        self.first = -(-side * side // 2)
        """Blocks of the first colour."""
        self.order = ((row + column) % 2).argsort(stable=True)
        self.back = self.order.argsort()
        row, column = row[self.order], column[self.order]
        adjacent = ((row[:, None] - row).abs() + (column[:, None] - column).abs() == 1).to(torch.float32)
        self.attraction = -smoothness * adjacent[: self.first, self.first :]
        self.borders = smoothness / 2 * adjacent.sum(dim=1)[:, None]

    def straight(self, shares: Tensor) -> Tensor:
        """Shares [P, m, n·n, m] back to rows of blocks."""
        return shares[:, :, self.back]

    def choose(self, cost: Tensor, likeness: Tensor, nearest: Tensor) -> Tensor:
        """Choices [P, n·n] at costs [P, n·n, L] whose neighbours are alike as [P, L, L] says.

        Starts are the cheapest of each block, the cheapest for all blocks together, and the ``nearest`` [P, n·n] to what there is. Only those of
        the second colour matter, as the first is chosen given them.
        """
        parts, first = len(cost), self.first
        same = cost.sum(dim=1).argmin(dim=-1, keepdim=True).expand(-1, cost.shape[1] - first)
        starts = torch.stack([cost[:, first:].argmin(dim=-1), same, nearest[:, first:]], dim=1)
        count = starts.shape[1]
        part = torch.arange(parts, device=cost.device)[:, None]
        cost = cost[:, None].expand(-1, count, -1, -1).flatten(0, 1)

        def felt(mine: Tensor, attraction: Tensor, labels: Tensor) -> Tensor:
            """[P·S, …, L] what each choice costs at the blocks of one colour, those of the other being as they are."""
            beside = likeness[part, labels.view(parts, -1)].view(len(cost), -1, likeness.shape[-1])
            return torch.baddbmm(mine, attraction.expand(len(cost), -1, -1), beside)

        one = felt(cost[:, :first], self.attraction, starts).argmin(dim=-1)
        least, other = felt(cost[:, first:], self.attraction.T, one).min(dim=-1)
        # Every border lies between the colours, so that the second has felt all of them.
        energy = least.sum(dim=1) + cost[:, :first].gather(-1, one[..., None]).sum(dim=(1, 2))
        best = energy.view(parts, count).argmin(dim=1)
        return torch.cat([one, other], dim=1).view(parts, count, -1)[part[:, 0], best]
