"""Feeds: from images to batches on the device. `feed` chooses between images that live there and images that stream."""

from __future__ import annotations

import logging
from typing import Literal

import torch
from torch import Tensor

from mixsage.data.dataset import DataError, DataSet, Images
from mixsage.data.resident import ResidentFeed
from mixsage.data.rota import Batch, Feed, Rota
from mixsage.data.streamed import StreamedFeed

__all__ = ["Batch", "Feed", "ResidentFeed", "Rota", "StreamedFeed", "feed"]

log = logging.getLogger(__name__)

SHARE = 0.5
"""Share of a device's free memory that images may take."""


def feed(
    images: Images,
    indices: Tensor | None,
    dataset: DataSet,
    *,
    batch_size: int,
    train: bool,
    seed: int,
    device: torch.device | str,
    augment: bool = True,
    padding: int | None = None,
    workers: int = 2,
    rank: int = 0,
    world: int = 1,
    drop_last: bool | None = None,
    channels_last: bool = False,
    resident: Literal["auto"] | bool = "auto",
) -> Feed:
    """Batches of a split on a device.

    Args:
        images: the split.
        indices: rows of the split that take part; None is all of them.
        dataset: the data set that the split is from: it says how its images are shown.
        batch_size: images in a batch, over all processes together.
        train: in a new random order each epoch, and augmented; otherwise in order, every image once, as it is.
        seed: of the orders and the augmentation.
        device: where the batches are wanted.
        augment: False trains on the images as they are.
        padding: black pixels around an image before the random crop, if not those of the data set.
        workers: processes that read ahead, for images that stream.
        rank: which process this is.
        world: how many processes share every batch.
        drop_last: leave out a last batch that is not full; by default in training.
        channels_last: the memory format of the batches.
        resident: whether the images live on the device as bytes; "auto" finds out whether they can.

    >>> from mixsage.data import load
    >>> data = load("sample")
    >>> batches = feed(data.train, None, data, batch_size=100, train=True, seed=0, device="cpu")
    >>> for images, labels, index in batches.batches(epoch=0):
    ...     pass
    """
    device = torch.device(device)
    if padding is not None and padding < 0:
        raise DataError(f"padding must be at least 0 pixels, got {padding}")
    rota = Rota(
        indices=torch.arange(len(images)) if indices is None else indices,
        batch_size=batch_size,
        shuffle=train,
        drop_last=train if drop_last is None else drop_last,
        seed=seed,
        rank=rank,
        world=world,
    )
    obstacle = why_not_resident(images, len(rota.indices), dataset, device)
    if resident is True and obstacle is not None:
        raise DataError(f"{dataset.name}: resident=True, but {obstacle}; leave the choice open with resident='auto'")
    if resident is False or obstacle is not None:
        log.info(
            "%s: %d images stream through %d workers: %s", dataset.name, len(rota.indices), workers, obstacle or "resident=False"
        )
        return StreamedFeed(
            images,
            dataset,
            rota,
            device=device,
            augment=augment and train,
            padding=padding,
            workers=workers,
            channels_last=channels_last,
        )
    log.debug("%s: %d images live on %s", dataset.name, len(rota.indices), device)
    return ResidentFeed(
        images, dataset, rota, device=device, augment=augment and train, padding=padding, channels_last=channels_last
    )


def why_not_resident(images: Images, count: int, dataset: DataSet, device: torch.device) -> str | None:
    """What keeps the images from living on the device, if anything does."""
    if dataset.augmentation == "resize":
        return "its images are scaled one by one"
    if images.pixels is None:
        return "its images are not held in memory"
    if device.type == "cuda":
        wanted, free = count * images.pixels[0].numel(), torch.cuda.mem_get_info(device)[0]
        if wanted > SHARE * free:
            return f"its {wanted / 2**30:.1f} GiB are more than half of the {free / 2**30:.1f} GiB that are free on {device}"
    return None
