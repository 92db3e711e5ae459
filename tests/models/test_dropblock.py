"""DropBlock, ResNet12's option: squares, at the rate asked for, while training only."""

import pytest
import torch

from mixsage.models import resnet12
from mixsage.models.resnet12 import DropBlock


def test_identity_in_evaluation_and_at_rate_zero():
    maps = torch.randn(2, 3, 10, 10)
    assert DropBlock(0.5, 5).eval()(maps) is maps
    assert DropBlock(0.0, 5)(maps) is maps


def test_drops_whole_squares_and_keeps_the_mean():
    torch.manual_seed(0)
    out = DropBlock(0.02, 3)(torch.ones(50, 20, 12, 15))
    gone = out == 0
    squares = torch.nn.functional.max_pool2d(gone.float().neg(), 3, stride=1).neg()  # 1 where a 3x3 window is all gone
    rebuilt = torch.nn.functional.max_pool2d(torch.nn.functional.pad(squares, (2, 2, 2, 2)), 3, stride=1) > 0
    assert torch.equal(gone, rebuilt)
    assert gone.any()
    assert out[~gone].unique().numel() == 1
    assert out.mean().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("rate", "size", "side"), [(0.1, 5, 5), (0.1, 5, 10), (0.1, 7, 3), (0.05, 3, 21), (0.3, 5, 1)])
def test_rate(rate, size, side):
    """Overlapping squares make the share a little smaller than the rate."""
    torch.manual_seed(0)
    share = (DropBlock(rate, size)(torch.ones(200, 50, side, side)) == 0).float().mean().item()
    assert 0.88 * rate < share < 1.05 * rate


def test_all_dropped_stays_finite():
    torch.manual_seed(0)
    maps = torch.ones(1, 1, 1, 1, requires_grad=True)
    out = DropBlock(1 - 1e-9, 5)(maps)
    out.sum().backward()
    assert out.item() == 0
    assert maps.grad.isfinite().all()


def test_float16_does_not_overflow():
    out = DropBlock(0.1, 5)(torch.ones(64, 64, 10, 10, dtype=torch.float16))
    assert out.dtype == torch.float16
    assert out.isfinite().all()
    assert out.float().mean().item() == pytest.approx(1, abs=1e-3)


def test_resnet12_drops_after_its_last_two_stages_only():
    model = resnet12(width=8, dropblock=0.3, dropblock_size=3)
    assert [(name, module.rate, module.size) for name, module in model.named_modules() if isinstance(module, DropBlock)] == [
        ("stage3.drop", 0.3, 3),
        ("stage4.drop", 0.3, 3),
    ]
    images = torch.randn(2, 3, 42, 42)
    torch.manual_seed(0)
    first = model(images)
    assert not torch.equal(first, model(images))
    torch.manual_seed(0)
    assert torch.equal(first, model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
    assert model.state_dict().keys() == resnet12(width=8).state_dict().keys()


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_bad_rate(rate):
    with pytest.raises(ValueError, match="dropblock must be a share"):
        resnet12(dropblock=rate)


def test_bad_size():
    with pytest.raises(ValueError, match="dropblock_size must be an integer of at least 1"):
        resnet12(dropblock=0.1, dropblock_size=0)
