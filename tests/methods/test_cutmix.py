"""CutMix: a box of the partner, clipped at the border; the label share is the area that remains."""

import math

import pytest
import torch

from helpers import assert_valid_plan, seeded
from mixsage import Boxes, CutMix, sampling

SIDES = [(32, 32), (8, 20), (33, 17), (1, 9)]


def pasted(images, plan):
    """Pixel by pixel: the partner inside the box, the image itself outside."""
    height, width = images.shape[-2:]
    out = images.clone()
    for b in range(len(images)):
        top, left, bottom, right = plan.masks.corners[b if len(plan.masks.corners) > 1 else 0].tolist()
        for i in range(height):
            for j in range(width):
                if top <= i < bottom and left <= j < right:
                    out[b, :, i, j] = images[plan.sources[b, 1], :, i, j]
    return out


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize(("height", "width"), SIDES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_formula(per_sample, height, width, channels_last):
    images = torch.randn(4, 3, height, width, generator=seeded())
    if channels_last:
        images = images.to(memory_format=torch.channels_last)
    labels = torch.tensor([0, 1, 2, 3])
    mixer = CutMix(per_sample=per_sample, num_classes=4)
    for seed in range(5):
        plan = mixer.plan(images, labels, generator=seeded(seed))
        assert_valid_plan(plan, 4)
        assert isinstance(plan.masks, Boxes)
        assert plan.masks.corners.shape == (4 if per_sample else 1, 4)
        mixed, targets = mixer(images, labels, generator=seeded(seed))
        assert torch.equal(mixed, pasted(images, plan))
        for b in range(4):
            top, left, bottom, right = plan.masks.corners[b if per_sample else 0].tolist()
            share = (bottom - top) * (right - left) / (height * width)
            wanted = torch.zeros(4)
            wanted[b] += 1 - share
            wanted[int(plan.sources[b, 1])] += share
            torch.testing.assert_close(targets[b], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize(("height", "width"), SIDES)
def test_area_before_and_after_clipping(monkeypatch, share, height, width):
    """λ is the share of the image itself: the box has sides of √(1-λ), its centre anywhere, and what lies outside is cut off."""
    monkeypatch.setattr(sampling, "beta", lambda concentration, count, generator: torch.full((count,), share))
    images = torch.zeros(400, 1, height, width)
    plan = CutMix(per_sample=True).plan(images, generator=seeded())
    side = math.sqrt(1 - float(torch.tensor(share)))
    half_rows, half_columns = math.floor(height * side) // 2, math.floor(width * side) // 2
    top, left, bottom, right = plan.masks.corners.unbind(1)
    assert (bottom - top).max() <= 2 * half_rows
    assert (right - left).max() <= 2 * half_columns
    assert ((bottom - top == 2 * half_rows) | (top == 0) | (bottom == height)).all()
    assert ((right - left == 2 * half_columns) | (left == 0) | (right == width)).all()
    whole = (top > 0) & (bottom < height) & (left > 0) & (right < width)
    area = (bottom - top) * (right - left)
    assert (area[whole] == 4 * half_rows * half_columns).all()
    torch.testing.assert_close(plan.weights[:, 0], 1 - area / (height * width), rtol=0, atol=1e-6)


def test_expected_area():
    """λ is uniform and so is the centre: clipping leaves √a - a/4 of a side √a on average, and (√a - a/4)² of the area a."""
    plan = CutMix(per_sample=True).plan(torch.zeros(1).expand(20_000, 1, 200, 200), generator=seeded())
    assert float(plan.weights[:, 1].mean()) == pytest.approx(1 / 2 - 1 / 5 + 1 / 48, abs=0.01)


def test_one_box_a_batch_as_published():
    plan = CutMix().plan(torch.zeros(6, 3, 16, 16), generator=seeded())
    assert len(plan.weights[:, 0].unique()) == 1
    assert len(plan.dense_masks()) == 6


def test_settings_as_published():
    assert CutMix().alpha == 1.0
    assert not CutMix().per_sample
    assert CutMix().clean is None


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_alpha_out_of_range(alpha):
    with pytest.raises(ValueError, match="alpha must be positive and finite, got"):
        CutMix(alpha=alpha)
