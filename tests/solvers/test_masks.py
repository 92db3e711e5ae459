"""Both engines of the mask problem: exact where they say so, near the exact minimum cut elsewhere, and no worse than the swaps they replace."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_cuts import best_by_trying, made_up, minimum_cuts, swap_cuts, tight
from mixsage.solvers import LevelProblem, best_levels, cuts, frontier, messages
from mixsage.solvers.lines import improve

try:
    import gco
except ModuleNotFoundError:  # ready-made for few platforms
    gco = None

needs_gco = pytest.mark.skipif(gco is None, reason="needs gco-wrapper")
TIGHTNESS = 1e-6
"""float32 sums of a few hundred costs."""


def test_the_energy_is_what_it_says():
    problem = LevelProblem(
        unary=torch.arange(12.0).view(1, 2, 2, 3),
        down=torch.tensor([[[100.0, 200.0]]]),
        across=torch.tensor([[[1000.0], [2000.0]]]),
    )
    levels = torch.tensor([[[0, 2], [1, 1]]])
    # 0 + 5 + 7 + 10, then ¼·100 + ¼·200 down, 1·1000 and 0 across.
    assert problem.energy(levels).item() == 22 + 25 + 50 + 1000


@pytest.mark.parametrize(("side", "levels"), [(1, 3), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3)])
def test_small_grids_are_solved_exactly(side, levels):
    for problem in (tight(20, side, seed=side, levels=levels), made_up("smooth", 20, side, seed=side, levels=levels)):
        found = problem.energy(best_levels(problem))
        torch.testing.assert_close(found, best_by_trying(problem), rtol=0, atol=TIGHTNESS)


@pytest.mark.parametrize("engine", [frontier, messages])
@pytest.mark.parametrize(("side", "levels"), [(4, 3), (4, 4), (5, 3), (7, 2)])
def test_both_engines_reach_the_minimum_cut(engine, side, levels):
    problem = tight(30, side, seed=1, levels=levels)
    gap = problem.energy(engine.solve(problem)) - problem.energy(minimum_cuts(problem))
    assert gap.max() < 1e-6 if engine is frontier else gap.mean() < 1e-5


def test_the_minimum_cut_itself_is_exact():
    problem = tight(20, 3, seed=4)
    torch.testing.assert_close(problem.energy(minimum_cuts(problem)), best_by_trying(problem), rtol=0, atol=TIGHTNESS)


@pytest.mark.parametrize("side", [8, 16])
@pytest.mark.parametrize("kind", ["noise", "peaks", "smooth"])
@needs_gco
def test_no_worse_than_swaps_and_almost_exact(kind, side):
    problem = made_up(kind, 50, side, seed=side)
    ours, theirs, exact = (problem.energy(solve(problem)) for solve in (best_levels, swap_cuts, minimum_cuts))
    assert (ours - exact).min() > -1e-5
    assert ours.mean() <= theirs.mean() + TIGHTNESS
    assert ((ours - exact) / exact).mean() < 1e-4


@pytest.mark.parametrize("side", [2, 3, 4])
@pytest.mark.parametrize("kind", ["noise", "peaks", "smooth"])
@needs_gco
def test_no_worse_than_swaps_on_small_grids(kind, side):
    problem = made_up(kind, 50, side, seed=side, size=24)
    assert problem.energy(best_levels(problem)).mean() <= problem.energy(swap_cuts(problem)).mean() + TIGHTNESS


@pytest.mark.parametrize("side", [5, 8])
def test_a_bound_is_never_above_the_minimum_and_a_proof_is_a_proof(side):
    problem = tight(40, side, seed=7)
    exact = problem.energy(minimum_cuts(problem))
    for sweeps in (2, 6, 12, 24):
        levels, proved = messages.sweep(problem, sweeps, labellings=sweeps, watched=False)
        assert (problem.energy(levels) - exact)[proved].abs().max() < 1e-5 if proved.any() else True
    assert proved.float().mean() > 0.5


def test_without_a_look_at_the_device_it_is_nearly_as_good():
    """What a device runs: a set number of sweeps, the last of which yield labellings, and the finish for all."""
    problem = made_up("smooth", 60, 16, seed=3)
    exact = problem.energy(minimum_cuts(problem))
    levels, _ = messages.sweep(problem, messages.SWEEPS_UNSEEN, labellings=messages.LABELLINGS_UNSEEN, watched=False)
    unseen = problem.energy(improve(problem, levels))
    watched = problem.energy(best_levels(problem))
    assert ((watched - exact) / exact).mean() <= ((unseen - exact) / exact).mean() + 1e-6 < 2e-4


@pytest.mark.parametrize("side", [3, 8])
def test_each_image_is_solved_as_it_would_be_alone(side):
    problem = made_up("smooth", 12, side, seed=5)
    together = best_levels(problem)
    for b in range(12):
        one = problem.pick(torch.tensor([b]))
        torch.testing.assert_close(one.energy(best_levels(one)), one.energy(together[b : b + 1]), rtol=0, atol=TIGHTNESS)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 9), st.integers(2, 4), st.integers(0, 10**6))
def test_the_finish_never_makes_it_worse(side, levels, seed):
    problem = tight(4, side, seed=seed, levels=levels)
    start = torch.randint(levels, (4, side, side), generator=torch.Generator().manual_seed(seed))
    better = improve(problem, start)
    assert (problem.energy(better) <= problem.energy(start) + TIGHTNESS).all()
    assert better.shape == start.shape
    assert better.dtype == torch.int64


def test_the_finish_chooses_lines_exactly():
    """A row that can only win when it changes as a whole."""
    unary = torch.zeros(1, 4, 4, 2)
    unary[0, :, :, 1] = 0.1
    unary[0, 1, :, 1] = -0.2
    heavy = torch.full((1, 4, 3), 5.0)
    problem = LevelProblem(unary=unary, down=torch.full((1, 3, 4), 0.01), across=heavy)
    expected = torch.zeros(1, 4, 4, dtype=torch.int64)
    expected[0, 1] = 1
    assert torch.equal(improve(problem, torch.zeros(1, 4, 4, dtype=torch.int64)), expected)


def test_the_engine_follows_the_size(monkeypatch):
    asked = []
    monkeypatch.setattr(cuts.frontier, "solve", lambda problem: asked.append("frontier"))
    monkeypatch.setattr(cuts.messages, "solve", lambda problem: asked.append("messages"))
    for side, levels in ((4, 3), (5, 3), (6, 3), (8, 2), (9, 2), (16, 3)):
        best_levels(tight(1, side, seed=0, levels=levels))
    assert asked == ["frontier", "frontier", "messages", "frontier", "messages", "messages"]


def test_a_problem_of_the_wrong_form_is_refused():
    with pytest.raises(ValueError, match=r"unary must be \[B, n, n, L\], got \[2, 3, 4, 3\]"):
        LevelProblem(unary=torch.zeros(2, 3, 4, 3), down=torch.zeros(2, 2, 4), across=torch.zeros(2, 3, 3))
    with pytest.raises(ValueError, match=r"down and across must be \[2, 2, 3\] and \[2, 3, 2\]"):
        LevelProblem(unary=torch.zeros(2, 3, 3, 3), down=torch.zeros(2, 3, 2), across=torch.zeros(2, 3, 2))
