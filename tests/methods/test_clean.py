"""The baseline: the loop of the methods, and nothing mixed."""

import pytest
import torch

from helpers import seeded
from mixsage import Clean


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (5, 3, 4, 4), (3, 7), (2, 5, 6)])
def test_images_and_labels_stay_what_they_are(shape):
    images = torch.randn(*shape, generator=seeded())
    labels = torch.arange(len(images)) % 3
    generator = seeded()
    state = generator.get_state()
    plan = Clean().plan(images, labels, generator=generator)
    assert plan.is_identity
    assert torch.equal(generator.get_state(), state), "the baseline draws nothing"
    mixed, targets = Clean(num_classes=3)(images, labels)
    assert torch.equal(mixed, images)
    assert mixed.data_ptr() != images.data_ptr()
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, 3).float())


def test_an_ordinary_step():
    assert Clean().clean is None
    assert Clean().source is None
    assert Clean().mixed_weight == 1
