"""What a data set is to the rest: images and labels of its splits, and how its images are to be shown to a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mixsage.data.seeds import generator

Augmentation = Literal["crop", "resize"]


class DataError(ValueError):
    """Data that cannot be used as they are; the message says what, and the way out."""


@dataclass(frozen=True, eq=False)
class Images:
    """One split: labels in memory, images in memory or read one by one.

    >>> images = Images(labels=torch.tensor([1, 0]), pixels=torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    >>> len(images), images.read(1).shape
    (2, torch.Size([3, 32, 32]))
    """

    labels: Tensor
    """[N] int64, indices into the classes of the data set."""
    pixels: Tensor | None = None
    """[N, C, H, W] uint8, where all images have one size and are held in memory."""
    reader: Callable[[int], Tensor] | None = None
    """Reads image i from where it lies, where they are not held in memory."""
    names: Sequence[str] | None = None
    """Where each image comes from, for messages and predictions."""

    def __post_init__(self) -> None:
        if (self.pixels is None) == (self.reader is None):
            raise ValueError("Images need either pixels in memory or a reader, not both and not neither")
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64:
            raise ValueError(f"labels must be [N] int64, got {list(self.labels.shape)} {self.labels.dtype}")
        if self.pixels is not None and (
            self.pixels.ndim != 4 or self.pixels.dtype != torch.uint8 or len(self.pixels) != len(self.labels)
        ):
            raise ValueError(
                f"pixels must be [N, C, H, W] uint8 with N = {len(self.labels)}, got {list(self.pixels.shape)} {self.pixels.dtype}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> Tensor:
        """Image ``index`` as uint8 [C, H, W], in the size that it has."""
        if self.pixels is not None:
            return self.pixels[index]
        assert self.reader is not None
        return self.reader(index)

    def name(self, index: int) -> str:
        """What to call image ``index`` in a message."""
        return f"image {index}" if self.names is None else self.names[index]


@dataclass(frozen=True, eq=False, kw_only=True)
class DataSet:
    """A data set by name: its splits, its classes, and how its images become batches."""

    name: str
    """As it was asked for."""
    train: Images
    """What a model learns from; whatever is held out for choices is held out of these."""
    test: Images | None
    """What a model is judged by at the end, where there is such a split."""
    validation: Images | None = None
    """A split of its own for choices, where the data set brings one beside its test split."""
    classes: tuple[str, ...]
    """Names of the classes; a label is an index into them."""
    channels: int
    """1 for grey images, 3 for colour."""
    mean: tuple[float, ...]
    """Mean of each channel, of pixels in [0, 1]."""
    std: tuple[float, ...]
    """Standard deviation of each channel, of pixels in [0, 1]."""
    size: tuple[int, int]
    """Height and width of the images in a batch."""
    augmentation: Augmentation = "crop"
    """"crop" pads small images of one size and crops them at random; "resize" scales random parts of images of any size. Both may flip."""
    padding: int = 0
    """Black pixels on each side before a random crop, with "crop"."""
    flip: bool = True
    """Whether half of the training images are mirrored."""


def hold_out(labels: Tensor, share: float, seed: int, classes: Sequence[str] | None = None) -> tuple[Tensor, Tensor]:
    """Split into (train, validation) indices, in order, with the same share of every class in the second.

    A share above 0 takes at least one image of a class, and leaves at least one. An error calls a class by its name in ``classes``.

    >>> train, validation = hold_out(torch.tensor([0, 1] * 10), share=0.2, seed=0)
    >>> len(train), len(validation)
    (16, 4)
    """
    if not 0 <= share < 1:
        raise ValueError(f"the share that is held out must lie in [0, 1), got {share}")
    held = torch.zeros(len(labels), dtype=torch.bool)
    if share > 0:
        source = generator(seed, "hold-out")
        for label in _present(labels):
            rows = (labels == label).nonzero().flatten()
            if len(rows) < 2:
                raise DataError(
                    f"class {_called(label, classes)} has {len(rows)} image, too few to hold one out; "
                    "add images, or hold out nothing: a share of 0 (--val-share 0)"
                )
            count = min(max(round(share * len(rows)), 1), len(rows) - 1)
            held[rows[torch.randperm(len(rows), generator=source)[:count]]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def per_class(labels: Tensor, count: int, seed: int | None = None, classes: Sequence[str] | None = None) -> Tensor:
    """Indices, in order, of ``count`` images of every class: the first ones without a seed, random ones with it.

    An error calls a class by its name in ``classes``.

    >>> per_class(torch.tensor([0, 0, 1, 1, 1, 0]), 2)
    tensor([0, 1, 2, 3])
    """
    if count < 1:
        raise ValueError(f"count must be at least 1 image a class, got {count}")
    source = None if seed is None else generator(seed, "per-class")
    chosen = []
    for label in _present(labels):
        rows = (labels == label).nonzero().flatten()
        if len(rows) < count:
            raise DataError(f"class {_called(label, classes)} has {len(rows)} images, {count} of each class were asked for")
        chosen.append(rows[:count] if source is None else rows[torch.randperm(len(rows), generator=source)[:count]])
    return torch.cat(chosen).sort().values if chosen else torch.empty(0, dtype=torch.int64)


def _called(label: int, classes: Sequence[str] | None) -> str:
    return str(label) if classes is None else repr(classes[label])


def _present(labels: Tensor) -> list[int]:
    present: list[int] = torch.bincount(labels).nonzero().flatten().tolist()
    return present
