"""The search finds what a loop over all rearrangements finds, and the searches that a method is composed with do what they say."""

import itertools

import pytest
import torch

from helpers import ENGINES_HERE, seeded
from mixsage.rearrange import Full, Guided, NoShift, Paste, Sampled, all_shifts, best_of, sample_shifts, search

BLENDS = [Guided(), Paste()]


def value_by_hand(blend, a, b, row, column):
    """v(τ) = Σ M·a + (1 - M)·T(b, τ), pixel by pixel."""
    height, width = a.shape
    total = 0.0
    for i, j in itertools.product(range(height), range(width)):
        covered = 0 <= i - row < height and 0 <= j - column < width
        own, other = float(a[i, j]), float(b[i - row, j - column]) if covered else 0.0
        mask = float(not covered) if isinstance(blend, Paste) else own / max(own + other, 1e-16)
        total += mask * own + (1 - mask) * other
    return total


def best_by_hand(blend, a, b, shifts):
    """The best value, and every shift that has it."""
    values = [value_by_hand(blend, a, b, *shift) for shift in shifts.tolist()]
    return max(values), values


def distributions(*shape, seed=0, power=4):
    maps = torch.rand(*shape, generator=seeded(seed), dtype=torch.float64) ** power
    return maps / maps.sum(dim=(1, 2), keepdim=True)


@pytest.mark.parametrize("engine", ["auto", *ENGINES_HERE])
@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
@pytest.mark.parametrize(("height", "width"), [(1, 4), (3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("portion", [0.1, 1.0])
def test_search_finds_the_best(engine, blend, height, width, portion):
    first, second = 0.45 * distributions(4, height, width, seed=1), 0.55 * distributions(4, height, width, seed=2)
    found = search(first.float(), second.float(), portion, engine=engine, generator=seeded(7), blend=blend)
    assert found.shifts.shape == (4, 2)
    assert found.shifts.dtype == torch.int64
    tried = sample_shifts(height, width, portion, seeded(7))
    for b in range(4):
        best, values = best_by_hand(blend, first[b], second[b], tried)
        place = tried.tolist().index(found.shifts[b].tolist())
        regret = best - values[place]
        assert regret <= (1e-6 if engine == "direct" or isinstance(blend, Paste) else 1e-3)
        assert float(found.values[b]) == pytest.approx(values[place], abs=1e-3)


def test_the_winner_in_double_precision_is_the_winner_of_the_loop():
    first, second = 0.45 * distributions(6, 4, 5, seed=1), 0.55 * distributions(6, 4, 5, seed=2)
    every = all_shifts(4, 5)
    found = search(first, second, 1.0, engine="direct")
    for b in range(6):
        _, values = best_by_hand(Guided(), first[b], second[b], every)
        assert found.shifts[b].tolist() == every[values.index(max(values))].tolist()


def test_what_the_search_does_to_two_spots():
    """Two spots at the same place are best moved apart; an empty half is where the second goes."""
    first, second = torch.zeros(1, 6, 6), torch.zeros(1, 6, 6)
    first[0, 2:4, 2:4] = 0.1
    second[0, 2:4, 2:4] = 0.15
    found = search(first, second, 1.0)
    row, column = found.shifts[0].tolist()
    assert max(abs(row), abs(column)) == 2
    assert float(found.values[0]) == pytest.approx(1.0)


@pytest.mark.parametrize("engine", ["auto", *ENGINES_HERE])
def test_ties_go_to_the_earliest(engine):
    """Of maps that are nothing every shift keeps as much; so it does of two spots that never meet."""
    nothing = torch.zeros(2, 3, 4)
    shifts = torch.tensor([[1, 1], [0, 0], [-1, 2]])
    found = best_of(nothing, nothing, shifts, engine=engine)
    assert found.shifts.tolist() == [[1, 1], [1, 1]]
    assert found.values.tolist() == [0.0, 0.0]
    assert search(nothing, nothing, 1.0, engine=engine).shifts.tolist() == [[-2, -3], [-2, -3]]


def test_the_same_subset_is_shared_by_the_pairs():
    """Each pair's shift comes from one short list, drawn once."""
    first, second = distributions(50, 8, 8, seed=1), distributions(50, 8, 8, seed=2)
    found = search(first, second, 0.02, generator=seeded(3))
    tried = sample_shifts(8, 8, 0.02, seeded(3)).tolist()
    assert len(tried) == 4
    assert {tuple(shift) for shift in found.shifts.tolist()} <= {tuple(shift) for shift in tried}


def test_the_generator_decides():
    first, second = distributions(8, 8, 8, seed=1), distributions(8, 8, 8, seed=2)
    generator = seeded(3)
    one, two = (search(first, second, 0.05, generator=generator) for _ in range(2))
    assert not torch.equal(one.shifts, two.shifts)
    assert torch.equal(search(first, second, 0.05, generator=seeded(3)).shifts, one.shifts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        assert torch.equal(search(first, second, 0.05).shifts, one.shifts)


def test_a_full_search_draws_nothing():
    first, second = distributions(2, 4, 4, seed=1), distributions(2, 4, 4, seed=2)
    generator = seeded(3)
    state = generator.get_state()
    found = Full()(first, second, blend=Guided(), generator=generator)
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(found, Sampled(1.0)(first, second, blend=Guided(), generator=generator))


@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
def test_searches_of_a_method(blend):
    first, second = distributions(5, 4, 6, seed=1), distributions(5, 4, 6, seed=2)
    sampled = Sampled(0.1)(first, second, blend=blend, generator=seeded(3))
    assert torch.equal(sampled, search(first, second, 0.1, generator=seeded(3), blend=blend).shifts)
    full = Full()(first, second, blend=blend, generator=None)
    assert torch.equal(full, search(first, second, 1.0, blend=blend).shifts)
    none = NoShift()(first, second, blend=blend, generator=None)
    assert torch.equal(none, torch.zeros(5, 2, dtype=torch.int64))
    for shifts in (sampled, full, none):
        assert shifts.dtype == torch.int64


@pytest.mark.parametrize("reduce", [1, 2])
def test_a_search_under_autograd_keeps_no_graph(reduce):
    first = distributions(2, 4, 4).requires_grad_()
    found = search(first, distributions(2, 4, 4, seed=1), 0.1, generator=seeded(), reduce=reduce)
    assert not found.values.requires_grad


def test_searches_are_values():
    assert Sampled(0.1) == Sampled(0.1) != Sampled(0.2)
    assert len({Sampled(), Sampled(0.01), Full(), NoShift(), NoShift(), Guided(), Guided(), Paste()}) == 5


@pytest.mark.parametrize("portion", [0.0, -0.1, 1.5, float("nan")])
@pytest.mark.parametrize("use", [Sampled, lambda portion: search(torch.rand(1, 2, 2), torch.rand(1, 2, 2), portion)])
def test_portions_out_of_range(portion, use):
    with pytest.raises(
        ValueError, match=r"portion must lie in \(0, 1\], got .*; 0.01 tries one per cent of all rearrangements, 1.0 all of them"
    ):
        use(portion)


@pytest.mark.parametrize("composed", [Sampled, Full])
def test_unknown_engine(composed):
    with pytest.raises(ValueError, match="unknown engine 'direkt'; did you mean 'direct'\\? valid: auto, direct"):
        composed(engine="direkt")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
def test_the_same_on_a_gpu(blend):
    first, second = 0.45 * distributions(6, 9, 7, seed=1).float(), 0.55 * distributions(6, 9, 7, seed=2).float()
    here = search(first, second, 0.2, generator=seeded(), blend=blend)
    there = search(first.cuda(), second.cuda(), 0.2, generator=seeded(), blend=blend)
    assert there.shifts.device.type == "cuda"
    torch.testing.assert_close(there.values.cpu(), here.values)
