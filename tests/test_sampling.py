"""Distributions of what is drawn: moments, and the largest gap between the empirical and the true distribution function."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import seeded
from mixsage import sampling

MANY = 20_000
LARGEST_GAP = 1.95 / math.sqrt(MANY)
"""Of Kolmogorov and Smirnov: exceeded by one sample in a thousand; the seeds here are fixed."""


def beta_below(x, concentration, steps=2000):
    """The distribution function of the symmetric Beta, by quadrature after x = t^(1/α), which takes the pole at 0 away."""
    if x > 0.5:
        return 1 - beta_below(1 - x, concentration, steps)
    top = x**concentration
    width = top / steps
    total = (
        sum((1 - ((i + 0.5) * width) ** (1 / concentration)) ** (concentration - 1) for i in range(steps)) * width / concentration
    )
    return total * math.gamma(2 * concentration) / math.gamma(concentration) ** 2


def largest_gap(samples, below, points):
    """Between the share of the samples and the probability below each of these points."""
    ordered = samples.double().sort().values
    shares = torch.searchsorted(ordered, torch.tensor(points, dtype=torch.float64), right=True) / len(samples)
    return max(abs(float(share) - below(point)) for share, point in zip(shares, points, strict=True))


def test_the_reference_itself():
    for x in (0.01, 0.3, 0.5, 0.8):
        assert beta_below(x, 1.0) == pytest.approx(x, abs=1e-6)
        assert beta_below(x, 2.0) == pytest.approx(3 * x**2 - 2 * x**3, abs=1e-6)
        assert beta_below(x, 0.5) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)), abs=1e-4)


@pytest.mark.parametrize("concentration", [0.2, 0.5, 1.0, 2.0, 8.0])
def test_beta(concentration):
    samples = sampling.beta(concentration, MANY, seeded())
    assert samples.dtype == torch.float32
    assert samples.shape == (MANY,)
    assert samples.min() >= 0
    assert samples.max() <= 1
    variance = 1 / (4 * (2 * concentration + 1))
    assert float(samples.double().mean()) == pytest.approx(0.5, abs=4 * math.sqrt(variance / MANY))
    assert float(samples.double().var()) == pytest.approx(variance, rel=0.05)
    points = [i / 200 for i in range(1, 200)]
    assert largest_gap(samples, lambda x: beta_below(x, concentration), points) < LARGEST_GAP


@pytest.mark.parametrize("concentration", [1e-300, 1e-30, 1e-8, 1e-3, 1e4, 1e300])
def test_beta_at_the_ends(concentration):
    """Concentrations near 0 give 0 or 1 and never 0/0; huge ones a half."""
    samples = sampling.beta(concentration, 4000, seeded())
    assert samples.isfinite().all()
    assert samples.min() >= 0
    assert samples.max() <= 1
    if concentration < 1:
        at_the_ends = ((samples < 1e-6) | (samples > 1 - 1e-6)).double().mean()
        assert at_the_ends > 0.95
        assert float((samples > 0.5).double().mean()) == pytest.approx(0.5, abs=0.04)
    else:
        torch.testing.assert_close(samples, torch.full_like(samples, 0.5), rtol=0, atol=0.02)


def test_beta_draws_are_independent():
    samples = sampling.beta(2.0, MANY, seeded()).double() - 0.5
    assert abs(float((samples[1:] * samples[:-1]).mean() / samples.var())) < 4 / math.sqrt(MANY)


@pytest.mark.parametrize("high", [0.0, 0.5, 1.0])
def test_uniform(high):
    samples = sampling.uniform(high, MANY, seeded())
    assert samples.min() >= 0
    assert samples.max() <= high
    if high:
        points = [high * i / 100 for i in range(1, 100)]
        assert largest_gap(samples, lambda x: x / high, points) < LARGEST_GAP


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_coin(probability):
    generator = seeded()
    heads = sum(sampling.coin(probability, generator) for _ in range(4000)) / 4000
    assert heads == pytest.approx(probability, abs=0.03 if 0 < probability < 1 else 0)


def test_choice_reaches_everything_alike():
    generator = seeded()
    counts = torch.bincount(torch.tensor([sampling.choice(4, generator) for _ in range(4000)]), minlength=4)
    assert ((counts - 1000).abs() < 120).all()


def test_partners_are_a_plain_permutation():
    """Every image is a partner once; an image may meet itself, on average once a batch."""
    generator = seeded()
    met_itself = 0
    for _ in range(2000):
        partners = sampling.partners(6, generator)
        assert partners.sort().values.tolist() == list(range(6))
        met_itself += int((partners == torch.arange(6)).sum())
    assert met_itself / 2000 == pytest.approx(1, abs=0.1)


# -------------------------------------------------------------------------------------------------------------------------------- boxes


def box_around(row, column, area, height, width):
    """Corners of a box as METHODS has them: half-sides ⌊⌊side·√area⌋/2⌋ about the centre, clipped."""
    half_rows = math.floor(math.floor(height * math.sqrt(area)) / 2)
    half_columns = math.floor(math.floor(width * math.sqrt(area)) / 2)
    return [max(0, row - half_rows), max(0, column - half_columns), min(height, row + half_rows), min(width, column + half_columns)]


@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 20), (33, 17), (1, 7), (1, 1)])
def test_boxes_around_a_centre(height, width):
    generator = seeded()
    row, column = torch.randint(height, (500,), generator=generator), torch.randint(width, (500,), generator=generator)
    area = torch.cat([torch.tensor([0.0, 1.0, 0.25, 0.0625]), torch.rand(496, generator=generator)])
    corners = sampling.boxes_around(row, column, area, height, width)
    expected = [box_around(int(i), int(j), float(a), height, width) for i, j, a in zip(row, column, area, strict=True)]
    assert corners.tolist() == expected


def test_box_centres_are_uniform():
    """A box of one row and column to each side shows its centre, as far as it is not clipped."""
    height, width = 5, 8
    corners = sampling.boxes(torch.full((MANY,), 0.17), height, width, seeded())
    assert ((corners[:, 2] - corners[:, 0]) <= 2).all()
    row = torch.where(corners[:, 0] == 0, corners[:, 2] - 1, corners[:, 0] + 1)
    column = torch.where(corners[:, 1] == 0, corners[:, 3] - 1, corners[:, 1] + 1)
    counts = torch.bincount(row * width + column, minlength=height * width).double()
    expected = MANY / (height * width)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 73, "more than one sample in a thousand has 73, at 39 degrees of freedom"


def test_the_area_of_a_box_that_is_not_clipped():
    area = torch.rand(200, generator=seeded())
    rows, columns = sampling.box_sides(area, 1000, 500)
    assert ((rows * columns / 500_000 - area).abs() < 0.004).all()
    assert ((rows - 2 * columns).abs() <= 2).all(), "boxes have the aspect of the picture"


# ------------------------------------------------------------------------------------------------------------------------------- subset


@pytest.mark.parametrize(
    ("total", "portion", "count"),
    [
        (63 * 63, 0.01, 39),
        (63 * 63, 0.1, 396),
        (63 * 63, 0.5, 1984),
        (100, 0.29, 29),
        (100, 0.07, 7),
        (9, 0.01, 1),
        (1, 0.5, 1),
        (9, 1.0, 9),
    ],
)
def test_size_of_a_subset(total, portion, count):
    drawn = sampling.subset(total, portion, seeded())
    assert len(drawn) == count
    assert len(set(drawn.tolist())) == count
    assert drawn.min() >= 0
    assert drawn.max() < total


def test_a_subset_is_drawn_anew_and_reaches_everything_alike():
    generator = seeded()
    counts = torch.zeros(20)
    for _ in range(4000):
        counts[sampling.subset(20, 0.25, generator)] += 1
    assert ((counts - 1000).abs() < 120).all()


def test_all_of_them_come_in_order():
    assert sampling.subset(12, 1.0, seeded()).tolist() == list(range(12))


# ------------------------------------------------------------------------------------------------------------------------------- states

DRAWS = {
    "coin": lambda generator: sampling.coin(0.5, generator),
    "partners": lambda generator: sampling.partners(8, generator),
    "choice": lambda generator: sampling.choice(1000, generator),
    "uniform": lambda generator: sampling.uniform(0.6, 4, generator),
    "beta": lambda generator: sampling.beta(0.3, 4, generator),
    "beta, uniform": lambda generator: sampling.beta(1.0, 4, generator),
    "boxes": lambda generator: sampling.boxes(torch.full((4,), 0.2), 32, 32, generator),
    "subset": lambda generator: sampling.subset(3969, 0.01, generator),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_given_is_the_only_one_used(name):
    draw = DRAWS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first = torch.as_tensor(draw(seeded(5)))
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(2)
        assert torch.equal(torch.as_tensor(draw(seeded(5))), first)


@pytest.mark.parametrize("name", DRAWS)
def test_the_default_generator_otherwise(name):
    draw = DRAWS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = torch.as_tensor(draw(None))
        torch.manual_seed(1)
        assert torch.equal(torch.as_tensor(draw(None)), first)
        assert torch.equal(torch.as_tensor(draw(torch.Generator().manual_seed(1))), first)


def test_other_threads_do_not_change_a_draw():
    """Large draws must not be split among threads in an order that varies."""
    first = sampling.beta(0.3, 100_000, seeded())
    assert torch.equal(sampling.beta(0.3, 100_000, seeded()), first)


@settings(deadline=None, max_examples=80)
@given(
    row=st.integers(0, 39),
    column=st.integers(0, 39),
    area=st.floats(0, 1, width=32),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
)
def test_any_box_lies_in_the_picture_and_is_no_larger_than_asked(row, column, area, height, width):
    row, column = min(row, height - 1), min(column, width - 1)
    top, left, bottom, right = sampling.boxes_around(
        torch.tensor([row]), torch.tensor([column]), torch.tensor([area]), height, width
    )[0].tolist()
    assert 0 <= top <= row <= bottom <= height
    assert 0 <= left <= column <= right <= width
    assert (bottom - top) * (right - left) <= area * height * width * (1 + 1e-6)
