"""The fourier engine: its bound holds, and what it finds is what a loop over all rearrangements finds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import ENGINES_HERE, seeded
from mixsage.rearrange import Guided, all_shifts, best_of, fourier, search, total_saliency
from mixsage.rearrange.exponentials import COARSE, FINE
from surfaces import every_v, hostile_pairs, random_maps

SIDES = [(6, 9), (9, 4), (1, 12), (12, 1), (1, 1), (16, 16)]
HOSTILE = sorted(hostile_pairs(6, 9))
DENORMAL = 1e-38
"""Below this a float32 has no full precision: what is lost there is no error of an engine's."""


@pytest.mark.parametrize("terms", [COARSE, FINE], ids=["coarse", "fine"])
def test_the_sum_of_exponentials_keeps_its_word(terms):
    x = torch.logspace(-18, 0, 60_001, dtype=torch.float64)[:, None]
    exponents, weights = (torch.tensor(values, dtype=torch.float64) for values in (terms.exponents, terms.weights))
    terms_of_x = weights * (-exponents * x).exp()
    error = (1 - x[:, 0] * terms_of_x.sum(dim=1)).abs() / (1 + terms.knee / x[:, 0])
    assert 0.5 * terms.error < error.max() <= terms.error
    assert (weights > 0).all()
    # What the bound takes for granted of the rounding of exponentials.
    assert (x[:, 0] ** 2 * (terms_of_x * exponents).sum(dim=1)).max() < 1.5


@pytest.mark.parametrize("terms", [COARSE, FINE], ids=["coarse", "fine"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("height", "width"), SIDES)
@pytest.mark.parametrize("power", [0.0, 1.0, 4.0, 20.0])
def test_the_bound_holds(terms, dtype, height, width, power):
    first, second = 0.4 * random_maps(2, height, width, 1, power), 0.6 * random_maps(2, height, width, 2, power)
    shifts = all_shifts(height, width)
    found = fourier.surface(first.to(dtype), second.to(dtype), shifts, terms)
    exact = every_v(first, second, shifts)
    assert (found.lower.double() <= exact).all()
    assert (exact <= found.upper.double()).all()
    # A bound that holds but says nothing would be of no use; what is left in the middle is far better than the bound.
    assert float((found.upper - found.lower).max()) < (8e-3 if terms is COARSE else 1.5e-3 if dtype == torch.float32 else 1e-5)
    middle = (found.lower + found.upper).double() / 2
    assert float((middle - exact).abs().max()) < (1e-3 if terms is COARSE else 2e-5 if dtype == torch.float32 else 1e-6)


@pytest.mark.parametrize("terms", [COARSE, FINE], ids=["coarse", "fine"])
@pytest.mark.parametrize("name", HOSTILE)
def test_the_bound_holds_of_hostile_maps(terms, name):
    first, second = hostile_pairs(6, 9)[name]
    shifts = all_shifts(6, 9)
    exact = every_v(first, second, shifts)
    for dtype in (torch.float32, torch.float64):
        found = fourier.surface(first.to(dtype), second.to(dtype), shifts, terms)
        assert (found.lower.double() <= exact + DENORMAL).all()
        assert (exact - DENORMAL <= found.upper.double()).all()


@settings(deadline=None, max_examples=40)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    share=st.floats(1e-12, 1),
    seed=st.integers(0, 2**31),
    power=st.floats(0, 40),
    portion=st.sampled_from([0.02, 0.3, 1.0]),
)
def test_regret(height, width, share, seed, power, portion):
    """The value is the exact one of the shift that is returned, and no shift of the subset keeps a millionth more."""
    first, second = share * random_maps(2, height, width, seed, power), (1 - share) * random_maps(2, height, width, seed + 1, power)
    found = search(first, second, portion, engine="fourier", generator=seeded(seed))
    tried = search(first, second, portion, engine="direct", generator=seeded(seed))
    every = every_v(first, second, all_shifts(height, width))
    if portion == 1.0:
        assert (every.amax(dim=1) - found.values.double() <= 1e-6 * every.amax(dim=1)).all()
    torch.testing.assert_close(found.values, tried.values, rtol=1e-6, atol=0)
    own = torch.stack([every_v(first[b : b + 1], second[b : b + 1], found.shifts[b : b + 1])[0, 0] for b in range(2)])
    torch.testing.assert_close(found.values.double(), own, rtol=1e-6, atol=0)


@pytest.mark.parametrize("engine", ENGINES_HERE)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(("height", "width"), [(6, 9), (1, 12), (16, 16)])
def test_hostile_maps_with_every_engine(engine, name, height, width):
    first, second = hostile_pairs(height, width)[name]
    found = search(first, second, 1.0, engine=engine)
    exact = every_v(first, second, all_shifts(height, width))
    assert float(exact.max()) - float(found.values) <= 1e-6 * float(exact.max()) + DENORMAL
    assert float(found.values) == pytest.approx(float(every_v(first, second, found.shifts)), rel=1e-6, abs=DENORMAL)


@pytest.mark.parametrize("engine", ENGINES_HERE)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_maps_that_are_not_finite_spoil_their_own_pair_only(engine, value):
    first, second = 0.4 * random_maps(3, 6, 9, 1), 0.6 * random_maps(3, 6, 9, 2)
    expected = search(first, second, 1.0, engine="direct")
    first[1, 2, 3] = value
    found = search(first, second, 1.0, engine=engine)
    assert not found.values[1].isfinite()
    assert torch.equal(found.shifts[[0, 2]], expected.shifts[[0, 2]])
    torch.testing.assert_close(found.values[[0, 2]], expected.values[[0, 2]], rtol=1e-6, atol=0)


@pytest.mark.parametrize("engine", ["auto", *ENGINES_HERE])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (8, 32)])
def test_of_ties_everywhere_the_earliest_wins(engine, height, width):
    """961 shifts that keep exactly as much: more than are ever rescored."""
    flat = torch.full((3, height, width), 2.0**-9)
    found = search(flat, flat, 1.0, engine=engine)
    assert found.shifts.tolist() == [[1 - height, 1 - width]] * 3
    assert torch.equal(found.values, flat.sum(dim=(1, 2)))
    assert (2 * height - 1) * (2 * width - 1) > fourier.PLATEAU


def test_a_plateau_is_left_to_the_fine_sum(monkeypatch):
    """Where more shifts than `PLATEAU` lie within the coarse bound, what is found is still the best."""
    monkeypatch.setattr(fourier, "PLATEAU", 1)
    first, second = 0.5 * random_maps(20, 8, 8, 1, 0.1), 0.5 * random_maps(20, 8, 8, 2, 0.1)
    coarse = fourier.surface(first, second, all_shifts(8, 8), COARSE)
    assert ((coarse.upper >= coarse.lower.amax(dim=1, keepdim=True)).sum(dim=1) > 1).any()
    found, exact = search(first, second, 1.0, engine="fourier"), every_v(first, second, all_shifts(8, 8))
    assert (exact.amax(dim=1) - found.values.double() <= 1e-6 * exact.amax(dim=1)).all()


def test_without_a_look_at_values():
    """What runs on devices: a fixed number of shifts is rescored, and nothing of the result differs where that is enough."""
    first, second = 0.4 * random_maps(10, 9, 12, 1), 0.6 * random_maps(10, 9, 12, 2)
    shifts = all_shifts(9, 12)
    for tried in (shifts, shifts[::40], shifts[5:6]):
        places, values = fourier.best_of_top(first, second, tried)
        expected = fourier.best(first, second, tried)
        assert torch.equal(places, expected[0])
        assert torch.equal(values, expected[1])


@pytest.mark.parametrize("portion", [0.05, 0.5, 1.0])
def test_engines_agree_on_subset_and_shift(portion):
    first, second = 0.4 * random_maps(30, 14, 11, 1), 0.6 * random_maps(30, 14, 11, 2)
    direct, fast = (search(first, second, portion, engine=name, generator=seeded(5)) for name in ("direct", "fourier"))
    assert torch.equal(direct.shifts, fast.shifts)
    torch.testing.assert_close(direct.values, fast.values, rtol=1e-6, atol=0)


def test_values_of_a_list():
    """In any order, with repetitions, and shifts so far that nothing of the second remains."""
    first, second = 0.4 * random_maps(2, 5, 7, 1), 0.6 * random_maps(2, 5, 7, 2)
    shifts = torch.tensor([[4, -6], [0, 0], [4, -6], [5, 0], [0, -7], [90, 90], [-1, 2]])
    values = total_saliency(first, second, shifts, engine="fourier")
    torch.testing.assert_close(values.double(), every_v(first, second, shifts), rtol=2e-6, atol=0)
    found = best_of(first, second, shifts, engine="fourier", blend=Guided())
    assert torch.equal(found.shifts, best_of(first, second, shifts, engine="direct").shifts)


@pytest.mark.parametrize("least", [1, 2, 7, 31, 33, 63, 100, 447, 448, 449, 1023])
def test_sizes_of_transforms(least):
    size = fourier._good_size(least)
    assert least <= size <= 1.25 * least
    for factor in (2, 3, 5, 7):
        while size % factor == 0:
            size //= factor
    assert size == 1
