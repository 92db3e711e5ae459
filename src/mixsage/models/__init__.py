"""Models for small images, as the methods' authors have them, narrow where you ask: they know nothing of mixing.

| name | parameters at 10 / 100 classes | `width` |
|---|---|---|
| `preactresnet18` | 11,171,146 / 11,217,316 | 64 |
| `wrn16_8` | 10,965,866 / 11,012,036 | 128 |
| `resnext29_4_24` | 4,845,002 / 4,937,252 | 64 |
| `resnet12` | 12,430,730 / 12,488,420 | 64 |
| `small_convnet` (1 channel) | 24,058 / 29,908 | 16 |

Each is an `ImageClassifier`: children `stage1`, `stage2`, …, a linear `head`, `features(images)`, and any image size from
8x8 pixels. `width` is the number of channels at the start, to which all others are proportional.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mixsage.errors import unknown_name
from mixsage.models.classifier import ImageClassifier
from mixsage.models.preactresnet import preactresnet18
from mixsage.models.resnet12 import resnet12
from mixsage.models.resnext import resnext29_4_24
from mixsage.models.small import small_convnet
from mixsage.models.wideresnet import wrn16_8

__all__ = [
    "ImageClassifier",
    "available",
    "create",
    "preactresnet18",
    "resnet12",
    "resnext29_4_24",
    "small_convnet",
    "wrn16_8",
]

_FACTORIES: dict[str, Callable[..., ImageClassifier]] = {
    factory.__name__: factory for factory in (preactresnet18, resnet12, resnext29_4_24, small_convnet, wrn16_8)
}


def available() -> tuple[str, ...]:
    """The names that `create` takes, in alphabetical order."""
    return tuple(sorted(_FACTORIES))


def create(name: str, num_classes: int, *, width: int | None = None, in_channels: int = 3, **options: Any) -> ImageClassifier:
    """Make a model by its name; `width=None` is the model's own width, `options` are further arguments of its function.

    >>> from mixsage.models import create
    >>> model = create("preactresnet18", num_classes=10, width=16, final_norm=True)
    >>> model.head
    Linear(in_features=128, out_features=10, bias=True)
    """
    if name not in _FACTORIES:
        raise ValueError(unknown_name("model", name, _FACTORIES))
    if width is not None:
        options["width"] = width
    return _FACTORIES[name](num_classes=num_classes, in_channels=in_channels, **options)
