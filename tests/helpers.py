"""What the tests of several folders share: plans compared tensor by tensor, and models small enough to run everywhere."""

import warnings
from contextlib import contextmanager
from dataclasses import fields

import torch
from torch import Tensor, nn

from mixsage import Boxes, MixPlan
from mixsage.rearrange import ENGINES

ENGINES_HERE = [name for name in ENGINES if name != "triton"]
"""Engines that a CPU can run."""


def seeded(seed: int = 0) -> torch.Generator:
    """A CPU generator of one's own."""
    return torch.Generator().manual_seed(seed)


def tensors_of(plan: MixPlan) -> dict[str, Tensor]:
    """All tensors of a plan by name, those of its warp and of its boxes too."""
    found = {}
    for field in fields(plan):
        value = getattr(plan, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        elif value is not None and hasattr(value, "__dataclass_fields__"):
            inner = {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
            found |= {name: tensor for name, tensor in inner.items() if isinstance(tensor, Tensor)}
    return found


def assert_same_plan(one: MixPlan, other: MixPlan) -> None:
    """Every tensor equal to the bit, the layer and the form too."""
    first, second = tensors_of(one), tensors_of(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")
    assert one.layer == other.layer
    assert type(one.warp) is type(other.warp)


def assert_valid_plan(plan: MixPlan, pool: int) -> None:
    """What holds of every plan: rows that exist, shares that are shares and sum to one, label shares likewise."""
    assert plan.sources.dtype == torch.int64
    assert plan.sources.min() >= 0
    assert plan.sources.max() < pool
    masks, weights = plan.dense_masks(), plan.weights
    for shares in (masks, weights):
        assert shares.dtype == torch.float32
        assert shares.isfinite().all()
        assert shares.min() >= 0
        assert shares.max() <= 1
        torch.testing.assert_close(shares.sum(dim=1), torch.ones_like(shares[:, 0]), rtol=0, atol=2e-6)
    if isinstance(plan.masks, Boxes):
        top, left, bottom, right = plan.masks.corners.unbind(1)
        assert ((top >= 0) & (top <= bottom) & (bottom <= plan.masks.height)).all()
        assert ((left >= 0) & (left <= right) & (right <= plan.masks.width)).all()


class Small(nn.Module):
    """A network for pictures of any size, with BatchNorm and two stages."""

    def __init__(self, channels: int = 3, classes: int = 5, *, norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 4, 3, padding=1)
        self.stage1 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.Tanh())
        self.stage2 = nn.Sequential(
            nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6) if norm else nn.Identity(), nn.Tanh()
        )
        self.head = nn.Linear(6, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stage2(self.stage1(self.stem(images))).mean(dim=(2, 3)))


def small_model(channels: int = 3, classes: int = 5, *, norm: bool = True, seed: int = 0) -> Small:
    """`Small` with weights that are the same every time; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Small(channels, classes, norm=norm)


@contextmanager
def nothing_may_wait():
    """Within this context whatever makes the host wait for the CUDA device is an error."""
    torch.cuda.synchronize()
    _on_waiting("error")
    try:
        yield
    finally:
        _on_waiting("default")


def _on_waiting(mode):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
        torch.cuda.set_sync_debug_mode(mode)
