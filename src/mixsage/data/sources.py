"""Data sets by name, by folder and by hub id: `load` finds out which is meant."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from mixsage.data import sample
from mixsage.data.collect import SMALL, resize, usual_padding
from mixsage.data.dataset import Augmentation, DataError, DataSet, Images, hold_out, per_class
from mixsage.data.folders import load_folder
from mixsage.data.published import load_cifar
from mixsage.errors import unknown_name

__all__ = ["NAMES", "Augmentation", "DataError", "DataSet", "Images", "hold_out", "load", "per_class"]

NAMES = ("sample", "cifar10", "cifar100")
"""Data sets that go by a name."""


def load(data: str, *, folder: Path | None = None, image_size: int | None = None, skip_corrupt: bool = False) -> DataSet:
    """Load a data set.

    Args:
        data: a name ("sample" is embedded), or the path of a folder of class folders, which may lie in train/ and test/ (or val/) within it.
        folder: where the files of named sets lie or are downloaded to; otherwise the environment variable MIXSAGE_DATA says, or it is ~/.cache/mixsage.
        image_size: side of the images in a batch; chosen by the data if left out.
        skip_corrupt: leave out images that cannot be read, and log them, instead of failing.

    >>> data = load("sample")
    >>> len(data.train), len(data.test), data.size
    (5000, 2000, (28, 28))
    """
    if image_size is not None and image_size < 1:
        raise DataError(f"image_size must be at least 1, got {image_size}")
    if data == "sample":
        return resized(load_embedded(), image_size)
    if data in ("cifar10", "cifar100"):
        return resized(load_cifar(data, home(folder)), image_size)
    path = Path(data).expanduser()
    if path.exists() or len(path.parts) != 1:
        return load_folder(data, path, image_size=image_size, skip_corrupt=skip_corrupt)
    raise DataError(f"{unknown_name('data set', data, NAMES)}; or the path of a folder of class folders, or hf:owner/name")


def home(folder: Path | None) -> Path:
    """Where the files of named sets lie."""
    if folder is not None:
        return folder.expanduser()
    named = os.environ.get("MIXSAGE_DATA")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mixsage"


def load_embedded() -> DataSet:
    """The sample that comes with the package."""
    train, test = sample.load_sample("train"), sample.load_sample("test")
    side = sample.SIDE
    return DataSet(
        name="sample",
        train=Images(train.labels, pixels=train.images),
        test=Images(test.labels, pixels=test.images),
        classes=sample.CLASSES,
        channels=1,
        mean=sample.MEAN,
        std=sample.STD,
        size=(side, side),
        padding=2,
    )


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
