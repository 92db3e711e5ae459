"""On a device no choice may wait for a value: plans are drawn and applied on torch's device without values, where any look at one is an error."""

import pytest
import torch

from mixsage import CoMixup, PuzzleMix, SaliencyMix


@pytest.mark.parametrize(
    "mixer",
    [
        *(PuzzleMix(grids=(side,), levels=levels) for side in (2, 4, 8, 16) for levels in (2, 3)),
        PuzzleMix(per_sample=True, moved_block=None),
        CoMixup(),
        CoMixup(part=5),
        SaliencyMix(),
        SaliencyMix(per_sample=True),
    ],
)
def test_no_value_is_looked_at(mixer):
    images, labels = torch.empty(12, 3, 32, 28, device="meta"), torch.empty(12, dtype=torch.int64, device="meta")
    maps = torch.empty(12, 32, 28, device="meta") if mixer.source.needs_gradient else mixer.source(images)
    plan = mixer.draw(images, labels, maps, torch.Generator().manual_seed(0))
    assert plan.apply(images).shape == images.shape
    assert plan.targets(labels, 5).shape == (12, 5)
