"""Mixup: λ·x0 + (1 - λ)·x1, labels alike, λ from Beta(α, α)."""

import pytest
import torch

from helpers import seeded
from mixsage import Mixup


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("shape", [(6, 3, 4, 5), (6, 9), (6, 4, 9)])
def test_formula(per_sample, shape):
    images = torch.randn(*shape, generator=seeded())
    labels = torch.arange(6)
    mixer = Mixup(per_sample=per_sample, num_classes=6)
    plan = mixer.plan(images, labels, generator=seeded(1))
    mixed, targets = mixer(images, labels, generator=seeded(1))
    shares = plan.weights[:, 0]
    assert len(shares.unique()) == (6 if per_sample else 1)
    assert plan.warp is None
    assert torch.equal(plan.dense_masks().flatten(1), plan.weights)
    assert plan.sources[:, 0].tolist() == list(range(6))
    assert sorted(plan.sources[:, 1].tolist()) == list(range(6))
    for b in range(6):
        share, partner = float(shares[b]), int(plan.sources[b, 1])
        expected = share * images[b].double() + (1 - share) * images[partner].double()
        torch.testing.assert_close(mixed[b].double(), expected, rtol=0, atol=1e-6)
        wanted = torch.zeros(6)
        wanted[b] += share
        wanted[partner] += 1 - share
        torch.testing.assert_close(targets[b], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
@pytest.mark.parametrize("per_sample", [False, True])
def test_distribution_of_the_share(alpha, per_sample):
    """Mean ½, variance 1/(4(2α+1)), and the image itself is not favoured."""
    generator, images = seeded(), torch.zeros(20, 1)
    mixer = Mixup(alpha=alpha, per_sample=per_sample)
    steps = 150 if per_sample else 3000
    shares = torch.cat([mixer.plan(images, generator=generator).weights[:, 0][: None if per_sample else 1] for _ in range(steps)])
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.03)
    assert float(shares.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.08)


def test_partners_are_drawn_anew():
    generator, images = seeded(), torch.zeros(20, 1)
    one, two = (Mixup().plan(images, generator=generator).sources[:, 1].tolist() for _ in range(2))
    assert one != two


def test_settings_as_published():
    assert Mixup().alpha == 1.0
    assert Mixup().clean is None
    assert Mixup().source is None


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_alpha_out_of_range(alpha):
    with pytest.raises(ValueError, match="alpha must be positive and finite, got"):
        Mixup(alpha=alpha)
