"""Co-Mixup's joint problem: its objective written out, the choice of one output against all choices, and the whole against the authors' loop."""

import itertools
from dataclasses import replace

import pytest
import torch

from graph_cuts import joint_by_swap_cuts, joint_made_up, joint_objective, pulled_apart
from mixsage.solvers import joint
from mixsage.solvers.joint import JointProblem, solve

try:
    import gco
except ModuleNotFoundError:  # ready-made for few platforms
    gco = None


def starts_for(problem, starts, seed):
    parts, count = problem.member.shape
    return torch.randint(count, (parts, starts, count, problem.side**2), generator=torch.Generator().manual_seed(seed))


def plain(cost, **changes):
    """A problem without penalties."""
    parts, count = cost.shape[:2]
    settings = {"smoothness": 0.1, "diversity": 0.0, "threshold": 1e9}
    member = torch.ones(parts, count, dtype=torch.bool)
    return JointProblem(cost=cost, compatibility=torch.eye(count).expand(parts, -1, -1), member=member, **(settings | changes))


def test_the_objective_is_the_written_out_one():
    problem = replace(joint_made_up(2, 5, 3, seed=0), threshold=1.5)
    draw = torch.Generator().manual_seed(1)
    shares = torch.nn.functional.one_hot(torch.randint(5, (2, 5, 3, 3), generator=draw), 5).float()
    shares[:, ::2] = (shares[:, ::2] + shares[:, ::2].roll(1, dims=-1)) / 2
    expected = [joint_objective(problem, part, shares[part]) for part in range(2)]
    torch.testing.assert_close(problem.objective(shares), torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_the_penalty_counts_in_full_beyond_the_threshold():
    problem = plain(torch.zeros(1, 3, 2, 2), diversity=1.0, threshold=2.0)
    others = torch.tensor([[[2.0, 2.5, 0.5]]])
    assert problem.penalty(others).tolist() == [[[0.0, 2.5, 0.0]]]


@pytest.mark.parametrize("seed", range(5))
def test_one_output_among_all_choices(seed):
    """2×2 blocks of 3 inputs, one iteration without penalties: each output is the best of all 81."""
    cost = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
    problem = plain(cost)
    found = solve(problem, starts_for(problem, 1, seed), iterations=1, apart=0.0)
    every = torch.tensor(list(itertools.product(range(3), repeat=4))).view(-1, 2, 2)
    shares = torch.nn.functional.one_hot(every, 3).float()
    for part in range(4):
        shown = (cost[part].movedim(0, -1) * shares).sum(dim=(1, 2, 3))
        borders = shares.diff(dim=1).square().sum(dim=(1, 2, 3)) + shares.diff(dim=2).square().sum(dim=(1, 2, 3))
        best = (shown + 0.05 * borders).min()
        assert problem.objective(found)[part] / 3 <= best * 1.02 + 1e-6


def test_halves_come_with_the_second_iteration_and_only_of_what_is_used():
    """Where two inputs tie at a block, half of each is taken; an input that the output did not use has no half."""
    cost = torch.full((1, 4, 2, 2), 1.0)
    cost[0, 0, :, 0], cost[0, 1, :, 1] = -1.0, -1.0
    problem = plain(cost, smoothness=0.9)
    labels = starts_for(problem, 1, 0)
    first = solve(problem, labels, iterations=1, apart=0.0)
    assert ((first == 0) | (first == 1)).all()
    even = plain(torch.zeros(1, 4, 2, 2) + torch.tensor([0.0, 0.0, 5.0, 5.0]).view(1, 4, 1, 1), smoothness=0.0)
    labels = torch.tensor([0, 1, 0, 1]).expand(1, 1, 4, 4).contiguous()
    halved = solve(even, labels, iterations=2, apart=0.0)
    assert (halved[..., 2:] == 0).all()
    use = halved.sum(dim=(2, 3))
    assert torch.equal(use.sum(dim=-1), torch.full((1, 4), 4.0))


def test_half_and_half_is_taken_where_it_pays():
    board = joint._Board(2, 0.0, torch.device("cpu"))
    menu, surcharge = joint._with_halves(torch.tensor([[2.0, 2.0, 0.0]]))
    assert menu[0, 3].tolist() == [0.5, 0.5, 0.0]
    assert surcharge[0].tolist() == pytest.approx([0.0, 0.0, 0.0, -joint.HALF_BONUS, joint.FORBIDDEN, joint.FORBIDDEN])
    cost = torch.tensor([[0.3, 0.3, 0.9], [0.1, 0.5, 0.9], [0.2, 0.2, 0.2], [0.9, 0.9, 0.1]])[None]
    cost = cost @ menu.transpose(1, 2) + surcharge[:, None]
    chosen = board.choose(cost[:, board.order], menu @ menu.transpose(1, 2), torch.tensor([[0, 1, 0, 1]]))[:, board.back]
    assert menu[0, chosen[0]].tolist() == [[0.5, 0.5, 0], [1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]]


def test_three_inputs_have_three_halves():
    menu, surcharge = joint._with_halves(torch.tensor([[1.0, 3.0, 0.0, 2.0]]))
    assert menu[0, :4].tolist() == torch.eye(4).tolist()
    assert menu[0, 4:].tolist() == [[0, 0.5, 0, 0.5], [0.5, 0.5, 0, 0], [0.5, 0, 0, 0.5]]
    assert surcharge[0, 4:].tolist() == pytest.approx(3 * [-joint.HALF_BONUS])


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_a_choice_weighs_its_borders(side):
    """The board's own account of its choice, against a sum over pairs of neighbours; and no choice of a single block does better."""
    draw = torch.Generator().manual_seed(side)
    board = joint._Board(side, 0.3, torch.device("cpu"))
    menu = torch.cat([torch.eye(3), (torch.eye(3)[[0]] + torch.eye(3)[[1]]) / 2])
    price = torch.rand(5, side**2, 4, generator=draw)
    weighed = price + board.borders[board.back] * (menu**2).sum(dim=1)
    chosen = board.choose(weighed[:, board.order], (menu @ menu.T).expand(5, -1, -1), torch.zeros(5, side**2, dtype=torch.int64))

    def energy(part, labels):
        total = sum(float(price[part, k, label]) for k, label in enumerate(labels))
        for k, label in enumerate(labels):
            beside = [k + 1] if k % side < side - 1 else []
            for other in beside + ([k + side] if k + side < side**2 else []):
                total += 0.15 * float(((menu[label] - menu[labels[other]]) ** 2).sum())
        return total

    for part in range(5):
        labels = chosen[part, board.back].tolist()
        second = [k for k in range(side**2) if (k // side + k % side) % 2]
        for k, label in itertools.product(second, range(4)):
            assert energy(part, labels) <= energy(part, [*labels[:k], label, *labels[k + 1 :]]) + 1e-5


def test_outputs_with_the_same_inputs_are_pulled_apart():
    draw = torch.Generator().manual_seed(0)
    use = torch.randint(0, 2, (6, 8, 4), generator=draw).float() * torch.rand(6, 8, 4, generator=draw)
    assert torch.equal(joint._pulled_apart(use), torch.stack([pulled_apart(part) for part in use]))
    assert joint._pulled_apart(use).any()
    assert not joint._pulled_apart(torch.eye(4)[None, [0, 0, 1, 2]]).any(), "an output of one input has nothing to let go of"


def test_pulling_apart_changes_the_outcome():
    problem = joint_made_up(6, 8, 4, seed=1)
    labels = starts_for(problem, 1, 0)
    kept, pulled = (solve(problem, labels, iterations=4, apart=apart) for apart in (0.0, 1.0))
    assert not torch.equal(kept, pulled)
    together = solve(problem, labels, iterations=1, apart=0.0)
    assert torch.equal(together, solve(problem, labels, iterations=1, apart=1.0)), (
        "with one iteration there is nothing to pull apart"
    )


@pytest.mark.skipif(gco is None, reason="needs gco-wrapper")
@pytest.mark.parametrize("starts", [1, 2])
def test_no_worse_than_the_same_loop_with_graph_cuts(starts):
    problem = joint_made_up(12, 20, 4, seed=2)
    labels = starts_for(problem, starts, 1)
    ours = problem.objective(solve(problem, labels, iterations=4, apart=1.0))
    theirs = problem.objective(torch.stack([joint_by_swap_cuts(problem, part, labels[part, 0]) for part in range(12)]))
    assert ours.mean() <= theirs.mean() + 0.02 * theirs.mean().abs() * (starts == 1)


def test_more_starts_are_never_worse():
    problem = joint_made_up(5, 10, 4, seed=3)
    labels = starts_for(problem, 4, 0)
    four = problem.objective(solve(problem, labels, iterations=3, apart=1.0))
    each = [problem.objective(solve(problem, labels[:, s : s + 1], iterations=3, apart=1.0)) for s in range(4)]
    torch.testing.assert_close(four, torch.stack(each).amin(dim=0))


def test_parts_do_not_meet():
    problem = joint_made_up(4, 6, 4, seed=4)
    labels = starts_for(problem, 2, 0)
    together = solve(problem, labels, iterations=4, apart=1.0)
    fields = ("cost", "compatibility", "member")
    for part in range(4):
        one = replace(problem, **{name: getattr(problem, name)[part : part + 1] for name in fields})
        torch.testing.assert_close(solve(one, labels[part : part + 1], iterations=4, apart=1.0)[0], together[part])


def test_filling_takes_no_part():
    """A part with two places too many comes out as the same part without them."""
    problem = joint_made_up(3, 6, 4, seed=5)
    labels = starts_for(problem, 1, 0)
    pad = torch.nn.functional.pad
    filled = replace(
        problem,
        cost=pad(problem.cost, (0, 0, 0, 0, 0, 2)),
        compatibility=pad(problem.compatibility, (0, 2, 0, 2)),
        member=pad(problem.member, (0, 2)),
    )
    found = solve(filled, pad(labels, (0, 0, 0, 2)), iterations=4, apart=1.0)
    assert not found[:, 6:].any()
    assert not found[..., 6:].any()
    torch.testing.assert_close(found[:, :6, ..., :6], solve(problem, labels, iterations=4, apart=1.0))
