"""Data sets by name, by folder and by hub id: `load` finds out which is meant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from mixsage.data import sample
from mixsage.data.collect import SMALL, usual_padding
from mixsage.data.dataset import Augmentation, DataError, DataSet, Images, hold_out, per_class
from mixsage.data.decode import decode
from mixsage.data.folders import load_folder
from mixsage.data.hub import load_hub
from mixsage.data.imagenets import load_mini, load_tiny, mini_imagenet_classes
from mixsage.data.normalise import Normalise
from mixsage.data.published import load_cifar, load_fashion
from mixsage.data.views import as_evaluated, resize
from mixsage.errors import unknown_name

__all__ = [
    "NAMES",
    "Augmentation",
    "DataError",
    "DataSet",
    "Images",
    "hold_out",
    "load",
    "mini_imagenet_classes",
    "per_class",
    "read_image",
]

NAMES = (
    "sample",
    "sample-tiny",
    "cifar10",
    "cifar100",
    "fashion-mnist",
    "tiny-imagenet",
    "mini-imagenet",
    "mini-imagenet-val",
    "mini-imagenet-test",
)
"""Data sets that go by a name."""


def load(data: str, *, folder: Path | None = None, image_size: int | None = None, skip_corrupt: bool = False) -> DataSet:
    """Load a data set by its name, its folder or its id on the Hugging Face hub.

    A folder holds one folder for each class, directly or within train/ and test/ (or val/). Where test/ and val/ both exist, the second
    is the validation split; the same holds for splits of the hub. Small images of one size are held in memory, others are read as they are wanted.

    Args:
        data: a name (see `NAMES`; "sample" is embedded, "sample-tiny" a part of it for trials), the path of a folder, or "hf:owner/name", "hf:owner/name:config",
            "hf:/a/folder" (where the columns cannot be guessed: "hf:owner/name?image=COLUMN&label=COLUMN").
        folder: where the files of named sets lie, or are downloaded to; otherwise the environment variable MIXSAGE_DATA says, or it is
            ~/.cache/mixsage. What comes from the hub lies in the cache of `datasets`, if there is no folder owner/name there.
        image_size: side of the images in a batch; the data decide if left out.
        skip_corrupt: leave out images that cannot be read, and log them, instead of failing. All images are read once to find them.

    >>> data = load("sample")
    >>> len(data.train), len(data.test), data.size
    (5000, 2000, (28, 28))
    """
    if image_size is not None and image_size < 1:
        raise DataError(f"image_size must be at least 1, got {image_size}")
    if data.startswith("hf:"):
        return load_hub(data, home(folder), image_size=image_size, skip_corrupt=skip_corrupt)
    if data not in NAMES:
        return load_folder(data, _path(data), image_size=image_size, skip_corrupt=skip_corrupt)
    if data == "tiny-imagenet":
        return load_tiny(data, home(folder), image_size=image_size, skip_corrupt=skip_corrupt)
    if data.startswith("mini-imagenet"):
        return load_mini(data, home(folder), image_size=image_size, skip_corrupt=skip_corrupt)
    if data in {"sample", "sample-tiny"}:
        return resized(load_embedded(data), image_size)
    return resized(load_fashion(data, home(folder)) if data == "fashion-mnist" else load_cifar(data, home(folder)), image_size)


def _path(data: str) -> Path:
    """The folder that is meant; what looks like a name, with no / in it, is taken for a misspelt one."""
    path = Path(data).expanduser()
    if not path.exists() and "/" not in data and os.sep not in data:
        raise DataError(f"{unknown_name('data set', data, NAMES)}, the path of a folder of class folders, or hf:owner/name")
    return path


def read_image(
    file: Path,
    *,
    channels: int,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    augmentation: Augmentation = "resize",
) -> Tensor:
    """One image file as float32 [C, H, W], as the evaluation of a data set of these settings shows it."""
    return Normalise(mean, std)(as_evaluated(decode(file, str(file), channels=channels), size, augmentation)[None])[0]


def home(folder: Path | None) -> Path:
    """Where the files of named sets lie."""
    if folder is not None:
        return folder.expanduser()
    named = os.environ.get("MIXSAGE_DATA")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mixsage"


def load_embedded(name: str) -> DataSet:
    """The sample that comes with the package; "sample-tiny" is the first images of each class of it."""
    side = sample.SIDE
    parts = sample.load_sample("train"), sample.load_sample("test")
    train, test = (Images(part.labels, pixels=part.images) for part in parts)
    if name == "sample-tiny":
        train, test = _first_of_each(train), _first_of_each(test)
    return DataSet(
        name=name,
        train=train,
        test=test,
        classes=sample.CLASSES,
        channels=1,
        mean=sample.MEAN,
        std=sample.STD,
        size=(side, side),
        padding=2,
    )


def _first_of_each(images: Images, count: int = 20) -> Images:
    assert images.pixels is not None
    rows = per_class(images.labels, count)
    return Images(images.labels[rows], pixels=images.pixels[rows])


def resized(dataset: DataSet, image_size: int | None) -> DataSet:
    """A data set in memory for batches of another size: scaled once where they stay small, or else whenever an image is wanted."""
    if image_size is None or dataset.size == (image_size, image_size):
        return dataset
    size = (image_size, image_size)
    if image_size > SMALL:
        return replace(dataset, size=size, augmentation="resize", padding=0)
    test = None if dataset.test is None else _scaled(dataset.test, size)
    return replace(dataset, train=_scaled(dataset.train, size), test=test, size=size, padding=usual_padding(size))


def _scaled(images: Images, size: tuple[int, int]) -> Images:
    assert images.pixels is not None
    return replace(images, pixels=resize(images.pixels, size))
