"""Calibration against torchmetrics and by hand."""

import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from evaluation_models import Table, loader, numbered
from mixsage.evaluation.accuracy import accuracy
from mixsage.evaluation.calibration import calibration, reliability


def case():
    generator = torch.Generator().manual_seed(0)
    return Table(2 * torch.randn(250, 6, generator=generator)), loader(
        numbered(250), torch.randint(6, (250,), generator=generator), 64
    )


@pytest.mark.parametrize("bins", [5, 15])
def test_agrees_with_torchmetrics(bins):
    model, data = case()
    found = calibration(model, data, bins=bins)
    shares, labels = model.logits.softmax(dim=1), torch.cat([labels for _, labels in data])
    for key, norm in (("ece", "l1"), ("mce", "max")):
        expected = multiclass_calibration_error(shares, labels, num_classes=6, n_bins=bins, norm=norm)
        assert found[key] == pytest.approx(100 * float(expected), rel=1e-4)
    assert calibration(model, data)["ece"] == pytest.approx(accuracy(model, data)["ece"], rel=1e-4)


def test_by_hand():
    shares = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    found = calibration(Table(shares.log()), loader(numbered(3), torch.tensor([0, 1, 0])), bins=10)
    assert found["mce"] == pytest.approx(40, rel=1e-5)  # 90 % sure twice, right once; 60 % sure once, and right
    assert found["ece"] == pytest.approx(40, rel=1e-5)
    assert found["overconfidence"] == pytest.approx(100 * (0.8 - 2 / 3), rel=1e-5)
    assert found["brier"] == pytest.approx((2 * 0.1**2 + 2 * 0.9**2 + 2 * 0.4**2) / 3, rel=1e-5)


def test_reliability_counts_every_image_once():
    model, data = case()
    table = reliability(model, data, bins=15)
    assert sum(table.images) == 250
    assert len(table.confidence) == len(table.accuracy) == 15
    for low, mean, images in zip(range(15), table.confidence, table.images, strict=True):
        assert math.isnan(mean) if images == 0 else 100 * low / 15 < mean <= 100 * (low + 1) / 15 + 1e-9


def test_a_perfectly_sure_model_stays_in_the_last_bin():
    table = reliability(Table(torch.tensor([[1000.0, 0.0]])), loader(numbered(1), torch.tensor([0])), bins=4)
    assert table.images == [0, 0, 0, 1]


def test_bins_must_be_there():
    model, data = case()
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        calibration(model, data, bins=0)
