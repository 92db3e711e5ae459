"""The losses against their formulas in Python's own double precision, at logits that no float16 forgives."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import seeded
from mixsage import binary_cross_entropy, cross_entropy

LOSSES = [cross_entropy, binary_cross_entropy]
HALVES = [torch.float16, torch.bfloat16]


def log_softmax(row):
    largest = max(row)
    total = math.fsum(math.exp(x - largest) for x in row)
    return [x - largest - math.log(total) for x in row]


def log_of_the_rest(row, c):
    """log(1 - p_c), from the other classes."""
    others = [x for k, x in enumerate(log_softmax(row)) if k != c]
    largest = max(others)
    return largest + math.log(math.fsum(math.exp(x - largest) for x in others))


def cross_entropy_by_hand(logits, targets, smoothing=0.0, factors=None):
    """Mean over the batch of -Σ_c w_c·t_c·log p_c."""
    classes = logits.shape[1]
    factors = [1.0] * classes if factors is None else factors.tolist()
    losses = []
    for row, shares in zip(logits.double().tolist(), targets.double().tolist(), strict=True):
        shares = [(1 - smoothing) * share + smoothing / classes for share in shares]
        losses.append(-math.fsum(w * t * logp for w, t, logp in zip(factors, shares, log_softmax(row), strict=True)))
    return math.fsum(losses) / len(losses)


def binary_by_hand(logits, targets):
    """Mean over batch and classes of -t·log p - (1 - t)·log(1 - p)."""
    losses = []
    for row, shares in zip(logits.double().tolist(), targets.double().tolist(), strict=True):
        log_share = log_softmax(row)
        losses += [-t * log_share[c] - (1 - t) * log_of_the_rest(row, c) for c, t in enumerate(shares)]
    return math.fsum(losses) / len(losses)


BY_HAND = {cross_entropy: cross_entropy_by_hand, binary_cross_entropy: binary_by_hand}


def soft_targets(rows, classes, generator):
    """Two classes a row, as mixing makes them; the first row is one class alone."""
    share = torch.rand(rows, 1, generator=generator)
    share[0] = 1
    first, second = (torch.nn.functional.one_hot(torch.randint(classes, (rows,), generator=generator), classes) for _ in range(2))
    return share * first + (1 - share) * second


def problem(classes=7, rows=5, scale=3.0, seed=0):
    generator = seeded(seed)
    return torch.randn(rows, classes, generator=generator) * scale, soft_targets(rows, classes, generator)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("classes", [2, 3, 100])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 10.0, 1e3])
def test_formula(loss, classes, scale):
    logits, targets = problem(classes, scale=scale)
    assert float(loss(logits, targets)) == pytest.approx(BY_HAND[loss](logits, targets), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_label_smoothing_and_class_weights(smoothing, weighted):
    logits, targets = problem()
    factors = torch.tensor([0.0, 0.5, 1.0, 2.0, 3.0, 1.0, 1.0]) if weighted else None
    loss = cross_entropy(logits, targets, label_smoothing=smoothing, class_weights=factors)
    assert float(loss) == pytest.approx(cross_entropy_by_hand(logits, targets, smoothing, factors), rel=1e-5)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64])
def test_class_weights_go_with_any_logits(dtype):
    logits, targets = problem()
    factors = torch.rand(7, generator=seeded())
    loss = cross_entropy(logits.to(dtype), targets, class_weights=factors)
    assert float(loss) == pytest.approx(cross_entropy_by_hand(logits.to(dtype), targets, 0.0, factors), rel=1e-5)


def test_binary_cross_entropy_is_that_of_torch_where_torch_can():
    """Of probabilities that are not near 0 or 1: the published code takes them from the softmax and forgets how they came about."""
    logits, targets = problem(scale=1.0)
    expected = torch.nn.functional.binary_cross_entropy(logits.softmax(dim=1), targets)
    torch.testing.assert_close(binary_cross_entropy(logits, targets), expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_summed_in_float32(loss, dtype):
    logits, targets = problem(classes=100, rows=64)
    logits = logits.to(dtype)
    value = loss(logits, targets)
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(BY_HAND[loss](logits, targets), rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_double_precision_is_kept(loss):
    logits, targets = problem()
    value = loss(logits.double(), targets.double())
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx(BY_HAND[loss](logits, targets), rel=1e-13)


EXTREMES = [
    (torch.float16, 6e4),
    (torch.float16, 1e4),
    (torch.bfloat16, 1e4),
    (torch.float32, 1e4),
    (torch.float32, 1e30),
    (torch.float64, 1e4),
]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("dtype", "size"), EXTREMES)
def test_stable_at_extreme_logits(loss, dtype, size):
    """Rows of one certain class (right, wrong, half right), of two, of all alike, and all of one sign."""
    rows = torch.tensor(
        [[1.0, -1.0, -1.0], [1.0, -1.0, -1.0], [1.0, 1.0, -1.0], [1.0, 1.0, 1.0], [-1.0, -1.0, -1.0], [1.0, 0.0, -1.0]]
    )
    logits = (rows.double() * size).to(dtype).requires_grad_()
    targets = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5], [0, 0, 1.0], [0.3, 0, 0.7]])
    value = loss(logits, targets)
    assert value.isfinite()
    assert float(value.detach()) == pytest.approx(BY_HAND[loss](logits.detach(), targets), rel=1e-5)
    value.backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[1].abs().sum() > 0, "a certain, wrong answer must still be pulled back"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_right_and_certain_answer_costs_nothing(loss):
    logits = torch.tensor([[1e4, 0.0, 0.0], [0.0, 0.0, 1e4]], requires_grad=True)
    value = loss(logits, torch.tensor([[1.0, 0, 0], [0, 0, 1.0]]))
    value.backward()
    assert float(value.detach()) == 0
    assert (logits.grad == 0).all()


@pytest.mark.parametrize(
    "loss",
    [*LOSSES, partial(cross_entropy, label_smoothing=0.1), partial(cross_entropy, class_weights=torch.rand(4, generator=seeded()))],
)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_gradcheck(loss, scale):
    logits, targets = problem(classes=4, scale=scale)
    logits = logits.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, targets.double()), logits)
    if loss in LOSSES:
        assert torch.autograd.gradgradcheck(lambda z: loss(z, targets.double()), logits)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_in_half_precision(loss, dtype):
    logits, targets = problem(scale=5.0)
    half = logits.to(dtype).requires_grad_()
    twin = half.detach().double().requires_grad_()
    loss(half, targets).backward()
    loss(twin, targets).backward()
    torch.testing.assert_close(half.grad.double(), twin.grad, rtol=0.01, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_ties_share_the_gradient(loss):
    """Classes that are exactly alike must be treated alike, though only one of them can be found as the largest."""
    logits = torch.tensor([[2.0, 2.0, -1.0, 2.0]], requires_grad=True)
    loss(logits, torch.tensor([[0.0, 0.0, 1.0, 0.0]])).backward()
    assert float(logits.grad[0, 0]) == pytest.approx(float(logits.grad[0, 1]), rel=1e-5)
    assert float(logits.grad[0, 0]) == pytest.approx(float(logits.grad[0, 3]), rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_inputs_are_left_alone(loss):
    logits, targets = problem()
    kept = logits.clone(), targets.clone()
    loss(logits, targets)
    assert torch.equal(logits, kept[0]) and torch.equal(targets, kept[1])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (
            torch.zeros(4, 3),
            torch.zeros(4, dtype=torch.int64),
            r"logits and targets must both be \[B, C\], got \[4, 3\] and \[4\]; make indices soft with one_hot",
        ),
        (torch.zeros(4, 3), torch.zeros(4, 5), r"must both be \[B, C\], got \[4, 3\] and \[4, 5\]"),
        (torch.zeros(4, 3, 2), torch.zeros(4, 3, 2), r"must both be \[B, C\], got \[4, 3, 2\]"),
        (torch.zeros(4, 1), torch.zeros(4, 1), "a softmax needs at least 2 classes, the logits have 1"),
    ],
)
def test_wrong_shapes(loss, logits, targets, message):
    with pytest.raises(ValueError, match=message):
        loss(logits, targets)


@pytest.mark.parametrize("smoothing", [-0.1, 1.1])
def test_smoothing_out_of_range(smoothing):
    with pytest.raises(ValueError, match="label_smoothing"):
        cross_entropy(*problem(), label_smoothing=smoothing)


def test_class_weights_of_other_classes():
    with pytest.raises(ValueError, match=r"class_weights must be \[C\] = \[7\], got \[5\]"):
        cross_entropy(*problem(), class_weights=torch.ones(5))


@settings(deadline=None, max_examples=60)
@given(
    row=st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=6),
    shares=st.lists(st.floats(0, 1, width=32), min_size=6, max_size=6),
)
def test_any_logits(row, shares):
    targets = torch.tensor([shares[: len(row)]])
    total = float(targets.sum())
    targets = targets / total if total > 1e-3 else torch.full_like(targets, 1 / len(row))
    logits = torch.tensor([row], requires_grad=True)
    for loss in LOSSES:
        value = loss(logits, targets)
        assert float(value.detach()) == pytest.approx(BY_HAND[loss](logits.detach(), targets), rel=1e-4, abs=1e-5)
        (gradient,) = torch.autograd.grad(value, logits)
        assert gradient.isfinite().all()
        assert float(gradient.sum()) == pytest.approx(0, abs=1e-5), "a constant added to all logits changes nothing"
