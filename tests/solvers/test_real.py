"""Every solver on real images and maps: CIFAR-10 where MIXSAGE_DATA holds it, the embedded sample elsewhere."""

import pytest
import torch

from graph_cuts import (
    auction_cost,
    best_by_trying,
    joint_by_swap_cuts,
    joint_real,
    minimum_cuts,
    optimal_assignment_cost,
    published_auction,
    real,
    real_moves,
    real_pictures,
    swap_cuts,
)
from mixsage.solvers import best_levels, messages, transport, transport_cost
from mixsage.solvers.joint import solve
from mixsage.solvers.lines import improve

try:
    import gco
except ModuleNotFoundError:  # ready-made for few platforms
    gco = None

needs_gco = pytest.mark.skipif(gco is None, reason="needs gco-wrapper")
DISTANCE = 0.8
ROUNDING = 1e-6


def test_the_pictures_are_real_and_so_are_the_maps():
    source, images, maps = real_pictures()
    assert source in {"cifar10", "sample"}
    assert images.shape[0] == maps.shape[0] == 100
    assert 0 <= images.min() < images.max() <= 1
    assert maps.isfinite().all()
    assert (maps.amax(dim=(1, 2)) > 3 * maps.mean(dim=(1, 2))).float().mean() > 0.9, "the network looks at something"


@pytest.mark.parametrize(("side", "levels"), [(2, 2), (2, 3), (2, 4), (3, 2)])
def test_small_grids_are_solved_exactly(side, levels):
    problem = real(side, seed=side, levels=levels)
    best = best_by_trying(problem)
    found = problem.energy(best_levels(problem))
    torch.testing.assert_close(found, best, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("side", [2, 4, 8, 16])
@pytest.mark.parametrize("levels", [2, 3, 4])
@needs_gco
def test_no_worse_than_swaps_whatever_the_levels(side, levels):
    problem = real(side, seed=side, levels=levels)
    ours, theirs = problem.energy(best_levels(problem)), problem.energy(swap_cuts(problem))
    assert ours.mean() <= theirs.mean() + ROUNDING


@pytest.mark.parametrize("side", [8, 16])
def test_large_grids_come_next_to_the_exact_cut(side):
    problem = real(side, seed=1)
    exact = problem.energy(minimum_cuts(problem))
    unseen = messages.sweep(problem, messages.SWEEPS_UNSEEN, labellings=messages.LABELLINGS_UNSEEN, watched=False)[0]
    for levels, most in ((best_levels(problem), 1e-4), (improve(problem, unseen), 3e-4)):
        gap = (problem.energy(levels) - exact) / exact
        assert gap.min() > -1e-5
        assert gap.mean() < most


@pytest.mark.parametrize("side", [2, 8, 16])
def test_transport(side):
    saliency, visible = real_moves(side, seed=side)
    order = transport(saliency, visible, DISTANCE)
    assert torch.equal(order.sort(dim=1).values, torch.arange(saliency.shape[1]).expand_as(order))
    ours = transport_cost(order, saliency, visible, DISTANCE)
    best = optimal_assignment_cost(saliency, visible, DISTANCE)
    shown = visible.any(dim=1)
    assert ((ours - best) / best.abs())[shown].mean() < 0.01
    won = published_auction(saliency, visible, DISTANCE)
    assert (ours <= auction_cost(won, saliency, visible, DISTANCE) + ROUNDING).all()


@needs_gco
def test_joint_problems_are_no_worse_than_with_graph_cuts():
    ours, theirs = [], []
    for seed in range(3):
        problem = joint_real(seed)
        labels = torch.randint(20, (5, 2, 20, 16), generator=torch.Generator().manual_seed(seed))
        ours.append(problem.objective(solve(problem, labels, iterations=4, apart=1.0)))
        theirs.append(problem.objective(torch.stack([joint_by_swap_cuts(problem, part, labels[part, 0]) for part in range(5)])))
    assert torch.cat(ours).mean() <= torch.cat(theirs).mean()
