"""Feeds: from images to batches on the device. `feed` chooses between images that live there and images that stream."""

from __future__ import annotations

import logging
from typing import Literal

import torch
from torch import Tensor

from mixsage.data.dataset import DataSet, Images
from mixsage.data.resident import ResidentFeed
from mixsage.data.rota import Batch, Feed, Rota

__all__ = ["Batch", "Feed", "ResidentFeed", "Rota", "feed"]

log = logging.getLogger(__name__)


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
    """Batches of a split."""
    rota = Rota(
        indices=torch.arange(len(images)) if indices is None else indices,
        batch_size=batch_size,
        shuffle=train,
        drop_last=train if drop_last is None else drop_last,
        seed=seed,
        rank=rank,
        world=world,
    )
    return ResidentFeed(
        images, dataset, rota, device=torch.device(device), augment=augment and train, padding=padding, channels_last=channels_last
    )
