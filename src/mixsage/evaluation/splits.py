"""A split of a data set as evaluators take it: pixels in [0, 1], in order, every image once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixsage.data import DataSet, Images, feed


@dataclass(frozen=True, eq=False)
class Pixels:
    """Batches (pixels [B, C, H, W] in [0, 1], labels [B]) of a split, as often as asked for.

    >>> from mixsage import data
    >>> sample = data.load("sample")
    >>> pixels, labels = next(iter(Pixels(sample.test, sample)))
    >>> pixels.shape, bool(pixels.min() >= 0), bool(pixels.max() <= 1)
    (torch.Size([500, 1, 28, 28]), True, True)
    """

    images: Images
    """The split."""
    dataset: DataSet
    """The data set that it belongs to."""
    device: torch.device | str = "cpu"
    """Where the batches are wanted."""
    batch_size: int = 500
    """Images at a time."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        channels = self.dataset.channels
        # Normalised by 0 and 1, the feed's images are the pixels themselves, to the bit.
        plain = replace(self.dataset, mean=(0.0,) * channels, std=(1.0,) * channels)
        batches = feed(self.images, None, plain, batch_size=self.batch_size, train=False, seed=0, device=self.device)
        for batch in batches.batches(0):
            yield batch.images, batch.labels
