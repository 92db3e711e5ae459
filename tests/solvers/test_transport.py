"""Transport: always a permutation, the published auction's cost, and next to the optimal assignment's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from graph_cuts import auction_cost, distance_table, optimal_assignment_cost, published_auction
from mixsage.solvers import transport, transport_cost
from mixsage.solvers.transport import squared_distances

DISTANCE = 0.8


def drawn(batch, side, seed, power=3.0, shown=0.5):
    """Saliency with a few peaks, and masks of a few regions."""
    draw = torch.Generator().manual_seed(seed)
    saliency = torch.rand(batch, side * side, generator=draw) ** power
    regions = interpolate(torch.rand(batch, 1, 3, 3, generator=draw), size=side, mode="bilinear").flatten(1)
    return saliency / saliency.sum(dim=1, keepdim=True), regions < shown


@pytest.mark.parametrize("side", [1, 2, 5, 16])
def test_distances(side):
    torch.testing.assert_close(squared_distances(side), distance_table(side))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), st.sampled_from([0.0, 0.01, 0.8, 100.0])
)
def test_always_a_permutation_that_never_costs_more_than_to_stay(side, seed, shown, distance):
    saliency, visible = drawn(4, side, seed, power=6.0, shown=shown)
    order = transport(saliency, visible, distance)
    stay = torch.arange(side * side).expand(4, -1)
    assert torch.equal(order.sort(dim=1).values, stay)
    assert (transport_cost(order, saliency, visible, distance) <= transport_cost(stay, saliency, visible, distance) + 1e-6).all()


@pytest.mark.parametrize("side", [2, 4, 8])
@pytest.mark.parametrize("power", [1.0, 3.0, 8.0])
def test_costs_what_the_published_auction_costs(side, power):
    saliency, visible = drawn(60, side, seed=side, power=power)
    ours = transport_cost(transport(saliency, visible, DISTANCE), saliency, visible, DISTANCE)
    won = published_auction(saliency, visible, DISTANCE)
    assert (won.sum(dim=1) > 0)[visible].all(), "the auction left a visible place without a block"
    theirs = auction_cost(won, saliency, visible, DISTANCE)
    # It stops after n rounds, ours when nobody claims any more.
    assert (ours <= theirs + 1e-6).all()
    torch.testing.assert_close(ours.mean(), theirs.mean(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("side", "count"), [(2, 100), (4, 100), (8, 100), (16, 30)])
def test_within_one_per_cent_of_the_optimal_assignment(side, count):
    saliency, visible = drawn(count, side, seed=side)
    ours = transport_cost(transport(saliency, visible, DISTANCE), saliency, visible, DISTANCE)
    best = optimal_assignment_cost(saliency, visible, DISTANCE)
    assert (ours >= best - 1e-5).all()
    shown = visible.any(dim=1)
    assert ((ours - best) / best.abs())[shown].mean() < 0.01


def test_by_hand():
    """Two salient hidden blocks beside a visible place with nothing on it: the better one comes, and who was there goes where it came from."""
    saliency = torch.tensor([[0.0, 0.3, 0.0, 0.0, 0.6, 0.0, 0.1, 0.0, 0.0]])
    visible = torch.zeros(1, 9, dtype=torch.bool)
    visible[0, 0] = True
    # Block 1 costs 0.25·0.8 - 0.3, block 4 costs 0.5·0.8 - 0.6.
    assert transport(saliency, visible, 0.8).tolist() == [[4, 1, 2, 3, 0, 5, 6, 7, 8]]
    assert transport(saliency, visible, 1.3).tolist() == [list(range(9))]


def test_a_chain_moves_by_short_steps():
    """A salient block at the edge of the visible part pushes the others on, as far as that pays."""
    saliency = torch.zeros(1, 16)
    saliency[0, :4] = torch.tensor([0.5, 0.3, 0.1, 0.0])
    visible = torch.zeros(1, 16, dtype=torch.bool)
    visible[0, 1:4] = True
    assert transport(saliency, visible, 0.1)[0, :4].tolist() == [3, 0, 1, 2]


def test_all_or_nothing_shown_stays():
    saliency = torch.rand(3, 25, generator=torch.Generator().manual_seed(0))
    stay = torch.arange(25).expand(3, -1)
    for visible in (torch.ones(3, 25, dtype=torch.bool), torch.zeros(3, 25, dtype=torch.bool)):
        for distance in (0.0, 0.8):
            assert torch.equal(transport(saliency, visible, distance), stay)


def test_ties_go_to_the_first():
    saliency = torch.full((1, 9), 0.1)
    saliency[0, 4] = 0.0
    visible = torch.zeros(1, 9, dtype=torch.bool)
    visible[0, 4] = True
    assert transport(saliency, visible, 0.01)[0, 4] == 1


def test_each_image_by_itself():
    saliency, visible = drawn(10, 8, seed=3, power=6.0)
    together = transport(saliency, visible, DISTANCE)
    alone = torch.cat([transport(saliency[b : b + 1], visible[b : b + 1], DISTANCE) for b in range(10)])
    assert torch.equal(together, alone)


def test_any_layout():
    saliency, visible = drawn(10, 4, seed=3)
    turned = saliency.T.contiguous().T, visible.T.contiguous().T
    assert torch.equal(transport(*turned, DISTANCE), transport(saliency, visible, DISTANCE))


def test_forms_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"must both be \[B, n·n\], got \[2, 9\] and \[2, 4\]"):
        transport(torch.zeros(2, 9), torch.zeros(2, 4, dtype=torch.bool), 0.8)
    with pytest.raises(ValueError, match=r"\[B, n·n\]"):
        transport(torch.zeros(2, 8), torch.zeros(2, 8, dtype=torch.bool), 0.8)
