"""v(τ) of every rearrangement of small maps, against the definition in loops over every pixel in double precision."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import ENGINES_HERE, seeded
from mixsage.rearrange import Guided, Paste, all_shifts, sample_shifts, total_saliency

SIDES = [(1, 1), (1, 5), (4, 1), (2, 3), (4, 5), (5, 4), (4, 4)]
BLENDS = [Guided(), Paste()]


# ------------------------------------------------------------------------------------------------------------------------------ oracles


def shifted(b, row, column):
    """T(b, τ)[i, j] = b[i - τ_i, j - τ_j], zero where that falls outside; and where it does not."""
    height, width = b.shape
    out, covered = torch.zeros(height, width, dtype=torch.float64), torch.zeros(height, width, dtype=torch.bool)
    for i, j in itertools.product(range(height), range(width)):
        if 0 <= i - row < height and 0 <= j - column < width:
            out[i, j], covered[i, j] = float(b[i - row, j - column]), True
    return out, covered


def mask_by_hand(blend, a, b, row, column):
    """The share of the first image at each pixel: its part of the saliency there, or all of it wherever the other does not lie over it."""
    moved, covered = shifted(b, row, column)
    if isinstance(blend, Paste):
        return (~covered).double(), moved
    a = a.double()
    return a / (a + moved).clamp(min=1e-16), moved


def value_by_hand(blend, a, b, row, column):
    """v(τ) = Σ M·a + (1 - M)·T(b, τ)."""
    mask, moved = mask_by_hand(blend, a, b, row, column)
    return float((mask * a.double() + (1 - mask) * moved).sum())


def surface_by_hand(blend, first, second, shifts):
    return torch.tensor(
        [[value_by_hand(blend, a, b, *shift) for shift in shifts.tolist()] for a, b in zip(first, second, strict=True)],
        dtype=torch.float64,
    )


def pair_of_maps(height, width, batch=2, share=0.4, seed=0, power=4):
    """Two batches of distributions, rescaled by λ and 1 - λ; a power makes them as uneven as saliency is."""
    maps = torch.rand(2, batch, height, width, generator=seeded(seed), dtype=torch.float64) ** power
    maps /= maps.sum(dim=(2, 3), keepdim=True)
    return maps[0] * share, maps[1] * (1 - share)


# --------------------------------------------------------------------------------------------------------------------- the shifts themselves


@pytest.mark.parametrize(("height", "width"), SIDES)
def test_all_shifts(height, width):
    expected = list(itertools.product(range(1 - height, height), range(1 - width, width)))
    assert [tuple(shift) for shift in all_shifts(height, width).tolist()] == expected
    assert len(expected) == (2 * height - 1) * (2 * width - 1)


@pytest.mark.parametrize(
    ("height", "width", "portion", "count"),
    [(32, 32, 0.01, 39), (32, 32, 0.1, 396), (32, 32, 0.5, 1984), (84, 84, 0.01, 278), (5, 7, 0.01, 1), (2, 3, 1.0, 15)],
)
def test_number_of_shifts(height, width, portion, count):
    """⌊(2H-1)(2W-1)·portion⌋, at least one, none of them twice."""
    shifts = sample_shifts(height, width, portion, seeded())
    assert shifts.shape == (count, 2)
    assert shifts.dtype == torch.int64
    assert len({tuple(shift) for shift in shifts.tolist()}) == count
    assert (shifts.abs() <= torch.tensor([height - 1, width - 1])).all()


def test_shifts_are_drawn_from_all_of_them_alike():
    generator = seeded()
    counts = torch.zeros(5, 9)
    for _ in range(9000):
        row, column = sample_shifts(3, 5, 0.03, generator)[0].tolist()
        counts[row + 2, column + 4] += 1
    assert ((counts - 200).abs() < 4.5 * 200**0.5).all()


# ------------------------------------------------------------------------------------------------------------------------------ engines


@pytest.mark.parametrize("engine", ["auto", *ENGINES_HERE])
@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
@pytest.mark.parametrize(("height", "width"), SIDES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_every_shift(engine, blend, height, width, dtype, tolerance):
    first, second = (maps.to(dtype) for maps in pair_of_maps(height, width))
    kept = first.clone(), second.clone()
    shifts = all_shifts(height, width)
    values = total_saliency(first, second, shifts, engine=engine, blend=blend)
    assert values.dtype == dtype
    assert values.shape == (2, len(shifts))
    torch.testing.assert_close(
        values.double(), surface_by_hand(blend, first, second, shifts), rtol=0, atol=tolerance_of(engine, blend, tolerance)
    )
    assert torch.equal(first, kept[0])
    assert torch.equal(second, kept[1])


def tolerance_of(engine, blend, exact):
    """Engines that approximate by design say so in their own test file; here they are held to what the search can notice."""
    return exact if engine == "direct" or isinstance(blend, Paste) else max(exact, 1e-3)


@pytest.mark.parametrize("engine", ["auto", *ENGINES_HERE])
@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
def test_no_blend_named_is_guided(engine, blend):
    first, second = pair_of_maps(3, 4)
    shifts = all_shifts(3, 4)
    assert torch.equal(
        total_saliency(first, second, shifts, engine=engine), total_saliency(first, second, shifts, engine=engine, blend=Guided())
    )


@pytest.mark.parametrize("engine", ["auto", *ENGINES_HERE])
@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
def test_maps_with_zeros(engine, blend):
    """Where both vanish, where one does, a map of one pixel, a map of nothing."""
    shapes = torch.zeros(4, 3, 4, dtype=torch.float64)
    shapes[0, 1, 2] = 0.4
    shapes[1, :, 1] = torch.tensor([0.1, 0.2, 0.1])
    shapes[2] = torch.rand(3, 4, generator=seeded(), dtype=torch.float64) / 10
    pairs = list(itertools.product(range(4), range(4)))
    first, second = shapes[[i for i, _ in pairs]], shapes[[j for _, j in pairs]] * 1.5
    shifts = all_shifts(3, 4)
    for dtype, tolerance in [(torch.float64, 1e-13), (torch.float32, 1e-6)]:
        values = total_saliency(first.to(dtype), second.to(dtype), shifts, engine=engine, blend=blend)
        torch.testing.assert_close(
            values.double(), surface_by_hand(blend, first, second, shifts), rtol=0, atol=tolerance_of(engine, blend, tolerance)
        )


@pytest.mark.parametrize("engine", ["auto", *ENGINES_HERE])
@pytest.mark.parametrize("share", [1e-12, 1e-6, 0.5, 1 - 1e-6, 1.0])
def test_any_rescaling(engine, share):
    first, second = pair_of_maps(4, 5, share=share)
    shifts = all_shifts(4, 5)
    values = total_saliency(first.float(), second.float(), shifts, engine=engine)
    torch.testing.assert_close(
        values.double(), surface_by_hand(Guided(), first, second, shifts), rtol=0, atol=tolerance_of(engine, Guided(), 1e-6)
    )


@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded"])
def test_maps_of_any_layout(blend, layout):
    first, second = pair_of_maps(4, 5, batch=3)
    make = {
        "transposed": lambda maps: maps.transpose(1, 2).contiguous().transpose(1, 2),
        "sliced": lambda maps: torch.stack([maps, maps], dim=-1)[..., 0],
        "expanded": lambda maps: maps[:1].expand(3, -1, -1),
    }[layout]
    first, second = make(first), make(second)
    shifts = all_shifts(4, 5)
    torch.testing.assert_close(
        total_saliency(first, second, shifts, engine="direct", blend=blend),
        surface_by_hand(blend, first, second, shifts),
        rtol=0,
        atol=1e-13,
    )


@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
def test_any_list_of_shifts(blend):
    """In any order, with repetitions, of one or of none; and shifts so far that nothing of the second remains."""
    first, second = pair_of_maps(3, 4)
    for shifts in ([[2, -3], [0, 0], [2, -3]], [[0, 1]], [[3, 0], [0, -4], [7, 9], [-3, 4], [1, 1]]):
        shifts = torch.tensor(shifts)
        expected = surface_by_hand(blend, first, second, shifts)
        torch.testing.assert_close(
            total_saliency(first, second, shifts, blend=blend, engine="direct"), expected, rtol=0, atol=1e-13
        )
    assert total_saliency(first, second, torch.empty(0, 2, dtype=torch.int64), blend=blend).shape == (2, 0)


@pytest.mark.parametrize("blend", BLENDS, ids=["guided", "paste"])
def test_masks(blend):
    first, second = pair_of_maps(3, 4, batch=35)
    offsets = all_shifts(3, 4)
    masks = blend.mask(first, second, offsets)
    for b, (row, column) in enumerate(offsets.tolist()):
        expected, moved = mask_by_hand(blend, first[b], second[b], row, column)
        torch.testing.assert_close(masks[b].double(), expected, rtol=0, atol=1e-12)
        kept = float((masks[b] * first[b] + (1 - masks[b]) * moved).sum())
        assert kept == pytest.approx(
            float(total_saliency(first[b : b + 1], second[b : b + 1], offsets[b : b + 1], blend=blend)), abs=1e-3
        )


def test_the_guided_mask_where_both_vanish_is_that_of_the_second():
    nothing = torch.zeros(1, 2, 2)
    assert torch.equal(Guided().mask(nothing, nothing, torch.zeros(1, 2, dtype=torch.int64)), nothing)


def test_large_maps_in_float32():
    """Sums over many pixels must not drift: a few shifts of a large picture, against a vectorised double-precision definition."""
    height, width = 112, 96
    first, second = pair_of_maps(height, width, batch=2, power=6)
    shifts = sample_shifts(height, width, 0.0005, seeded())
    values = total_saliency(first.float(), second.float(), shifts, engine="direct").double()
    for n, (row, column) in enumerate(shifts.tolist()):
        moved = torch.zeros_like(second)
        rows, columns = slice(max(0, row), height + min(0, row)), slice(max(0, column), width + min(0, column))
        moved[:, rows, columns] = second[:, max(0, -row) : height - max(0, row), max(0, -column) : width - max(0, column)]
        mask = first / (first + moved)
        torch.testing.assert_close(values[:, n], (mask * first + (1 - mask) * moved).sum(dim=(1, 2)), rtol=0, atol=1e-5)


# --------------------------------------------------------------------------------------------------------------------------- properties


@settings(deadline=None, max_examples=40)
@given(
    height=st.integers(1, 5),
    width=st.integers(1, 5),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**31),
    power=st.integers(1, 30),
)
def test_identities_of_total_saliency(height, width, share, seed, power):
    first, second = pair_of_maps(height, width, batch=1, share=share, seed=seed, power=power)
    shifts = all_shifts(height, width)
    values = total_saliency(first, second, shifts, engine="direct")
    # Between the larger of the two maps everywhere and their sum; at least half of what lies there.
    visible = torch.stack([shifted(second[0], *shift)[0] for shift in shifts.tolist()])
    larger = torch.maximum(first, visible).sum(dim=(1, 2))
    both = (first + visible).sum(dim=(1, 2))
    assert (values[0] <= larger + 1e-12).all()
    assert (values[0] >= both / 2 - 1e-12).all()
    # To move the second by τ is to move the first by -τ, once both have their whole picture in view.
    swapped = total_saliency(second, first, -shifts, engine="direct")
    lost_of_first = share - torch.stack([shifted(first[0], *shift)[0].sum() for shift in (-shifts).tolist()])
    lost_of_second = (1 - share) - visible.sum(dim=(1, 2))
    torch.testing.assert_close(values[0] - lost_of_first, swapped[0] - lost_of_second, rtol=0, atol=1e-12)
    # Twice the saliency, twice the value.
    torch.testing.assert_close(total_saliency(2 * first, 2 * second, shifts, engine="direct"), 2 * values, rtol=0, atol=1e-12)
    # Pasting keeps all of the second that is visible, and what it does not cover of the first.
    pasted = total_saliency(first, second, shifts, blend=Paste())[0]
    assert (pasted >= visible.sum(dim=(1, 2)) - 1e-12).all()
    assert (pasted <= both + 1e-12).all()


# ------------------------------------------------------------------------------------------------------------------------------- errors


MAPS = torch.rand(2, 3, 4)


@pytest.mark.parametrize(
    ("first", "second", "shifts", "message"),
    [
        (
            MAPS,
            MAPS[:1],
            all_shifts(3, 4),
            r"maps must be two floating-point tensors \[B, H, W\] of one shape, got \[2, 3, 4\] and \[1, 3, 4\]",
        ),
        (MAPS, MAPS.transpose(1, 2), all_shifts(3, 4), r"of one shape, got \[2, 3, 4\] and \[2, 4, 3\]"),
        (MAPS[0], MAPS[0], all_shifts(3, 4), r"\[B, H, W\] of one shape, got \[3, 4\]"),
        (MAPS.long(), MAPS.long(), all_shifts(3, 4), "floating-point"),
        (MAPS, MAPS, torch.zeros(4, dtype=torch.int64), r"shifts must be \[N, 2\] whole numbers, rows first; got \[4\]"),
        (MAPS, MAPS, torch.zeros(4, 3, dtype=torch.int64), r"shifts must be \[N, 2\] whole numbers, rows first; got \[4, 3\]"),
        (MAPS, MAPS, torch.zeros(4, 2), r"shifts must be \[N, 2\] whole numbers, rows first; got \[4, 2\] torch.float32"),
    ],
)
def test_wrong_shapes(first, second, shifts, message):
    with pytest.raises(ValueError, match=message):
        total_saliency(first, second, shifts)


def test_unknown_engine():
    with pytest.raises(ValueError, match="unknown engine 'directt'; did you mean 'direct'\\? valid: auto, direct"):
        total_saliency(MAPS, MAPS, all_shifts(3, 4), engine="directt")
