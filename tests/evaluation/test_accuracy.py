"""Accuracy is exact to the image, and every slip at the door is said."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from evaluation_models import MEAN, STD, ByteReader, Table, loader, numbered
from mixsage.evaluation.accuracy import accuracy
from mixsage.evaluation.pixels import Normalised
from mixsage.models import small_convnet


def byte_images(count):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("as_floats", [False, True])
@pytest.mark.parametrize("batch_size", [1, 100, 2000])
def test_exact_to_the_image_with_a_short_last_batch(batch_size, as_floats):
    images = byte_images(1003)
    labels = images[:, 0, 0, 0].long()
    wrong = torch.tensor([0, 555, 1002])  # the first, one in the middle, the very last
    labels[wrong] = (labels[wrong] + 100) % 256
    model = Normalised(ByteReader(), mean=MEAN, std=STD)
    found = accuracy(model, loader(images.float() / 255 if as_floats else images, labels, batch_size))
    assert found["top1"] == 100 * 1000 / 1003
    assert found["top5"] == 100 * 1000 / 1003


def test_another_normalisation_would_be_noticed():
    images = byte_images(300).clamp(1, 250)
    off = Normalised(ByteReader(), mean=[m + 1 / 255 for m in MEAN], std=STD)
    assert accuracy(off, loader(images, images[:, 0, 0, 0].long()))["top1"] == 0


def test_numbers_by_hand():
    # Four images, three classes. Shares of the first: ½, ¼, ¼.
    shares = torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1], [0.1, 0.3, 0.6], [0.9, 0.05, 0.05]])
    labels = torch.tensor([0, 1, 2, 0])
    found = accuracy(Table(shares.log()), loader(numbered(4), labels, batch_size=3))
    assert found["top1"] == 75
    assert found["top5"] == 100  # five guesses among three classes
    expected = -sum(math.log(p) for p in (0.5, 0.1, 0.6, 0.9)) / 4
    assert found["nll"] == pytest.approx(expected, rel=1e-6)
    # Each of the four confidences lies in a bin of its own.
    gaps = [abs(0.5 - 1), abs(0.8 - 0), abs(0.6 - 1), abs(0.9 - 1)]
    assert found["ece"] == pytest.approx(100 * sum(gaps) / 4, rel=1e-5)


def test_top5_counts_the_fifth_and_not_the_sixth():
    logits = torch.tensor([[6.0, 5, 4, 3, 2, 1, 0]]).repeat(7, 1)
    found = accuracy(Table(logits), loader(numbered(7), torch.arange(7), batch_size=2))
    assert found["top1"] == pytest.approx(100 / 7)
    assert found["top5"] == pytest.approx(500 / 7)


def test_probabilities_that_happen_to_be_logits_are_not_mistaken():
    """Logits between 0 and 1 look like probabilities; they are none."""
    logits = torch.tensor([[0.9, 0.1], [0.2, 0.3]])
    found = accuracy(Table(logits), loader(numbered(2), torch.tensor([0, 1])))
    confidence = logits.softmax(dim=1).amax(dim=1)
    assert found["ece"] == pytest.approx(100 * float((1 - confidence).mean()), rel=1e-5)


def test_batchnorm_and_dropout_are_off_and_the_model_stays_as_it_was():
    model = nn.Sequential(small_convnet(in_channels=3, num_classes=4), nn.Dropout(0.9)).train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images, labels = byte_images(30), torch.arange(30) % 4
    images = functional.interpolate(images, scale_factor=2)
    pixels = Normalised(model, mean=MEAN, std=STD)
    whole, split = accuracy(pixels, loader(images, labels, 30)), accuracy(pixels, loader(images, labels, 7))
    assert whole["nll"] == pytest.approx(split["nll"], rel=1e-5)
    assert model.training
    assert model[0].training
    assert not model[1].training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.randn(4, 1, 2, 2), torch.zeros(4).long(), r"in \[0, 1\]; these go from .* Normalised"),
        (torch.rand(4, 2, 2), torch.zeros(4).long(), r"\[B, C, H, W\], got \[4, 2, 2\]"),
        (numbered(4), torch.zeros(4), "class indices"),
        (numbered(4), torch.tensor([0, 1, 2, 3]), "labels go from 0 to 3, but the model knows 3 classes"),
        (numbered(4), torch.tensor([0, 1, 2, -1]), "labels go from -1"),
    ],
)
def test_bad_input(images, labels, message):
    with pytest.raises(ValueError, match=message):
        accuracy(Table(torch.eye(4)[:, :3]), loader(images, labels))


def test_nothing_to_evaluate():
    with pytest.raises(ValueError, match="no images"):
        accuracy(Table(torch.eye(2)), [])


def test_a_diverged_model_is_an_error_not_a_number():
    with pytest.raises(ValueError, match="not finite"):
        accuracy(Table(torch.full((2, 2), torch.nan)), loader(numbered(2), torch.tensor([0, 1])))


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.0,)), ((0.5, 0.5), (0.1,)), ((125.3,), (63.0,)), ((), ())])
def test_normalisation_must_be_that_of_pixels(mean, std):
    with pytest.raises(ValueError, match="mean and std"):
        Normalised(nn.Identity(), mean=mean, std=std)


def test_channels_must_match():
    with pytest.raises(ValueError, match="3 channels, the images have 1"):
        accuracy(Normalised(ByteReader(), mean=MEAN, std=STD), loader(numbered(2), torch.tensor([0, 1])))
