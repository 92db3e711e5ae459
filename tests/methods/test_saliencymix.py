"""SaliencyMix: a box at the most salient pixel of the partner, clipped at the border; the label share is the area that remains."""

import math

import pytest
import torch

import mixsage
from helpers import assert_valid_plan, seeded, small_model
from mixsage import Boxes, FineGrained, SaliencyMix, sampling


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (8, 20), (33, 17), (1, 9)])
def test_the_box_lies_around_the_peak_of_the_partner(per_sample, height, width):
    images, maps = torch.rand(5, 3, height, width, generator=seeded()), torch.rand(5, height, width, generator=seeded(1))
    mixer = SaliencyMix(prob=1.0, per_sample=per_sample)
    for seed in range(8):
        plan = mixer.plan(images, saliency=maps, generator=seeded(seed))
        draw = seeded(seed)
        partners = sampling.partners(5, draw)
        share = sampling.beta(1.0, 5 if per_sample else 1, draw)
        assert_valid_plan(plan, 5)
        assert isinstance(plan.masks, Boxes)
        assert torch.equal(plan.sources[:, 1], partners)
        for box, corners in enumerate(plan.masks.corners.tolist()):
            peak = int(maps[partners[box]].argmax())
            row, column, side = peak // width, peak % width, math.sqrt(1 - float(share[box]))
            half_rows, half_columns = math.floor(height * side) // 2, math.floor(width * side) // 2
            wanted = (
                max(0, row - half_rows),
                max(0, column - half_columns),
                min(height, row + half_rows),
                min(width, column + half_columns),
            )
            assert tuple(corners) == wanted
        area = [(bottom - top) * (right - left) / (height * width) for top, left, bottom, right in plan.masks.corners.tolist()]
        torch.testing.assert_close(plan.weights[:, 1], torch.tensor(area).expand(5))


def test_maps_are_fine_grained_saliency_of_the_picture():
    images = torch.rand(6, 3, 24, 24, generator=seeded())
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    normalised = (images - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    given = SaliencyMix(prob=1.0, per_sample=True).plan(images, saliency=FineGrained()(images, None), generator=seeded(0))
    for mixer, batch in (
        (SaliencyMix(prob=1.0, per_sample=True), images),
        (SaliencyMix(prob=1.0, per_sample=True, mean=mean, std=std), normalised),
    ):
        assert torch.equal(mixer.plan(batch, generator=seeded(0)).masks.corners, given.masks.corners)


def test_no_pass_of_the_model_is_needed():
    model = small_model(classes=3)
    asked = []
    model.register_forward_pre_hook(lambda *_: asked.append(1))
    step = mixsage.accumulate(SaliencyMix(prob=1.0), model, torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 0]))
    assert len(asked) == 1
    assert step.clean_loss is None
    assert SaliencyMix().clean is None


def test_half_of_the_batches_are_mixed():
    images, draw = torch.rand(3, 3, 8, 8, generator=seeded()), seeded(0)
    mixed = [not SaliencyMix().plan(images, generator=draw).is_identity for _ in range(400)]
    assert 0.4 < sum(mixed) / len(mixed) < 0.6


def test_a_picture_without_anything_in_it():
    """All pixels are alike: the first one is the peak."""
    plan = SaliencyMix(prob=1.0).plan(torch.full((3, 3, 10, 10), 0.5), generator=seeded(0))
    assert plan.masks.corners[0, :2].tolist() == [0, 0]


def test_settings_out_of_range():
    with pytest.raises(ValueError, match="alpha must be positive"):
        SaliencyMix(alpha=0)
    with pytest.raises(ValueError, match="mean and std belong together"):
        SaliencyMix(std=(0.5,))
