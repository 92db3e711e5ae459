"""Images found one by one become a data set: small ones of one size go into memory, others are read when they are wanted."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from mixsage.data.dataset import DataError, DataSet, Images
from mixsage.data.decode import CorruptImage
from mixsage.data.extras import need
from mixsage.data.views import as_evaluated

log = logging.getLogger(__name__)

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""The customary statistics of photographs."""
SMALL = 96
"""The longest side of images that are cropped from themselves; larger ones are scaled."""
USUAL_SIDE = 224
"""The side of batches of large images, if nothing else is said."""
MEMORY = 4 * 2**30
"""Bytes of pixels that are held in memory at most."""

T = TypeVar("T")


class Reader(Protocol):
    """Reads image i of a split."""

    def __call__(self, index: int) -> Tensor:
        """Its pixels, uint8 [3, H, W]."""

    def size(self, index: int) -> tuple[int, int]:
        """Its height and width, without its pixels."""


@dataclass(frozen=True, eq=False)
class Found:
    """A split whose images have not been looked at yet."""

    reader: Reader
    """Reads them."""
    labels: Tensor
    """[N] int64."""
    names: Sequence[str]
    """Where each lies."""


@dataclass(frozen=True)
class Kept:
    """A reader of some of another's images."""

    reader: Reader
    """The other."""
    rows: tuple[int, ...]
    """Which of its images."""

    def __call__(self, index: int) -> Tensor:
        """As the other reads it."""
        return self.reader(self.rows[index])

    def size(self, index: int) -> tuple[int, int]:
        """As the other says."""
        return self.reader.size(self.rows[index])


def collect(
    name: str,
    splits: Mapping[str, Found],
    classes: tuple[str, ...],
    *,
    image_size: int | None,
    skip_corrupt: bool,
    usual_side: int = USUAL_SIDE,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> DataSet:
    """A data set of colour images from the splits "train" and, where there are any, "test" and "validation"."""
    common = common_size(splits.values(), skip_corrupt)
    count = sum(len(found.labels) for found in splits.values())
    size, in_memory = shape_of(common, count, image_size, usual_side)
    log.info(
        "%s: %d images, %s",
        name,
        count,
        f"{size[0]}×{size[1]} in memory" if in_memory else f"read as they are wanted, scaled to {size[0]}×{size[1]}",
    )
    images = {
        split: hold(found, size, skip_corrupt) if in_memory else leave(found, skip_corrupt) for split, found in splits.items()
    }
    _check_classes(images["train"], classes)
    return DataSet(
        name=name,
        train=images["train"],
        test=images.get("test"),
        validation=images.get("validation"),
        classes=classes,
        channels=3,
        mean=mean,
        std=std,
        size=size,
        augmentation="crop" if in_memory else "resize",
        padding=usual_padding(size) if in_memory else 0,
    )


def shape_of(common: tuple[int, int] | None, count: int, image_size: int | None, usual_side: int) -> tuple[tuple[int, int], bool]:
    """Height and width of the images in a batch, and whether all ``count`` images are held in memory in that size."""
    if common is None:
        return (image_size or usual_side,) * 2, False
    side = image_size or min(usual_side, max(common))
    size = common if image_size is None and max(common) <= side else (side, side)
    keeps_aspect = size == common or common[0] == common[1]
    return size, keeps_aspect and max(*common, *size) <= SMALL and count * 3 * size[0] * size[1] <= MEMORY


def usual_padding(size: tuple[int, int]) -> int:
    """Pixels to pad images of this size with before a random crop: 2 at 32×32, as the paper has it."""
    return max(2, min(size) // 16)


def common_size(splits: Collection[Found], skip_corrupt: bool) -> tuple[int, int] | None:
    """The size that all images have, from their headers; None as soon as two differ."""
    common: tuple[int, int] | None = None
    for found in splits:
        for size in _each(found.reader.size, range(len(found.labels)), skip_corrupt):
            if isinstance(size, CorruptImage):
                continue
            if common is not None and size != common:
                return None
            common = size
    return common


def hold(found: Found, size: tuple[int, int], skip_corrupt: bool) -> Images:
    """Read a whole split into memory."""
    pixels = torch.empty(len(found.labels), 3, *size, dtype=torch.uint8)
    damaged = {}
    for row, image in enumerate(
        _each(lambda i: as_evaluated(found.reader(i), size, "crop"), range(len(found.labels)), skip_corrupt)
    ):
        if isinstance(image, CorruptImage):
            damaged[row] = image
        else:
            pixels[row] = image
    if not damaged:
        return Images(found.labels, pixels=pixels, names=found.names)
    found, rows = without(found, damaged)
    return Images(found.labels, pixels=pixels[list(rows)], names=found.names)


def leave(found: Found, skip_corrupt: bool) -> Images:
    """Leave a split where it is; every image is read once where damaged ones are to be skipped, as nothing less finds them."""
    if skip_corrupt:
        tried = _each(lambda i: found.reader(i) is None, range(len(found.labels)), skip_corrupt)
        damaged = {row: image for row, image in enumerate(tried) if isinstance(image, CorruptImage)}
        if damaged:
            found, _ = without(found, damaged)
    return Images(found.labels, reader=found.reader, names=found.names)


def without(found: Found, damaged: Mapping[int, CorruptImage]) -> tuple[Found, tuple[int, ...]]:
    """A split less its damaged images, and the rows that remain."""
    log.warning(
        "skipped %d of %d images:\n%s", len(damaged), len(found.labels), "\n".join(f"  {error}" for error in damaged.values())
    )
    rows = tuple(row for row in range(len(found.labels)) if row not in damaged)
    names = [found.names[row] for row in rows]
    return replace(found, reader=Kept(found.reader, rows), labels=found.labels[list(rows)], names=names), rows


def _each(look: Callable[[int], T], rows: Sequence[int], skip_corrupt: bool) -> Iterator[T | CorruptImage]:
    """Look at all images, in order, by several threads: decoders leave the interpreter to others while they work."""

    def attempt(row: int) -> T | CorruptImage:
        try:
            return look(row)
        except CorruptImage as error:
            if skip_corrupt:
                return error
            raise CorruptImage(
                f"{error}; repair or remove it, or leave out such images with skip_corrupt (--skip-corrupt)"
            ) from error

    need("PIL.Image").init()  # before the threads, which would each load the decoders
    waiting = iter(rows)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        # By portions, so that what was read ahead of its use stays small.
        while portion := list(islice(waiting, 512)):
            yield from pool.map(attempt, portion)


def _check_classes(train: Images, classes: tuple[str, ...]) -> None:
    counts = torch.bincount(train.labels, minlength=len(classes))
    empty = [label for label, count in zip(classes, counts.tolist(), strict=True) if count == 0]
    if empty:
        raise DataError(f"no readable training image remains of the class {empty[0]!r}; add some, or remove the class")
