"""Which image goes into which batch, in which epoch, on which process; and what a feed of batches is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mixsage.data.dataset import DataError
from mixsage.data.seeds import generator


class Batch(NamedTuple):
    """What a model is fed with; unpacks as `images, labels, index = batch`."""

    images: Tensor
    """[B, C, H, W] float32, normalised, on the device."""
    labels: Tensor
    """[B] int64, on the device."""
    index: Tensor  # type: ignore[assignment]  # a tuple's method of this name is of no use here
    """[B] int64, on the device: rows of the split, for methods with a memory."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Rota:
    """The order of every epoch, a function of seed and epoch alone; the same on all processes, each of which takes its part of every batch."""

    indices: Tensor
    """[n] int64: the rows of the split that take part."""
    batch_size: int
    """Images in a batch, over all processes together."""
    shuffle: bool
    """A new order in each epoch, or that of `indices`."""
    drop_last: bool
    """Leave out the last images of an epoch where they fill no batch."""
    seed: int = 0
    """Seed of the orders."""
    rank: int = 0
    """Which process this is."""
    world: int = 1
    """How many processes share each batch."""

    def __post_init__(self) -> None:
        if self.indices.ndim != 1 or self.indices.dtype != torch.int64:
            raise ValueError(f"indices must be [n] int64, got {list(self.indices.shape)} {self.indices.dtype}")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must lie in [0, {self.world}), got {self.rank}")
        if self.batch_size < self.world:
            raise DataError(f"batch_size {self.batch_size} is less than the {self.world} processes that share each batch; raise it")
        if len(self.indices) == 0:
            raise DataError("a feed needs at least one image, got none")
        if self.samples == 0:
            raise DataError(
                f"{len(self.indices)} images fill no batch of {self.batch_size}; lower batch_size, or set drop_last=False"
            )
        if self.shuffle and self.batch_size % self.world:
            raise DataError(
                f"batch_size {self.batch_size} cannot be shared equally by {self.world} processes; make it a multiple of {self.world}"
            )
        last = self.samples % self.batch_size
        if self.shuffle and last % self.world:
            raise DataError(
                f"the last batch of an epoch has {last} images, which {self.world} processes cannot share equally; set drop_last=True"
            )

    @property
    def samples(self) -> int:
        """Images of an epoch, over all processes together."""
        count = len(self.indices)
        return count - count % self.batch_size if self.drop_last else count

    def __len__(self) -> int:
        """Batches of an epoch on this process."""
        return sum(1 for _ in self.parts())

    def order(self, epoch: int) -> Tensor:
        """[samples] int64: the epoch's images in order, as places in `indices`."""
        if not self.shuffle:
            return torch.arange(self.samples)
        return torch.randperm(len(self.indices), generator=generator(self.seed, "order", epoch))[: self.samples]

    def parts(self, start: int = 0) -> Iterator[slice]:
        """What this process takes of the epoch's order, batch by batch, from batch ``start`` on."""
        for first in range(start * self.batch_size, self.samples, self.batch_size):
            count = min(self.batch_size, self.samples - first)
            part = slice(first + count * self.rank // self.world, first + count * (self.rank + 1) // self.world)
            # Only the last batch of an evaluation can be smaller than the number of processes.
            if part.start < part.stop:
                yield part


class Feed(ABC):
    """Batches of an epoch, as often as asked for: the same seed, epoch and batch number give the same batch to the bit.

    Example:
        >>> from mixsage.data import feed, load
        >>> data = load("sample")
        >>> batches = feed(data.train, None, data, batch_size=100, train=True, seed=0, device="cpu")
        >>> len(batches), batches.samples
        (50, 5000)
        >>> images, labels, index = next(batches.batches(epoch=0))
        >>> images.shape
        torch.Size([100, 1, 28, 28])
    """

    def __init__(self, rota: Rota) -> None:
        self.rota = rota

    @property
    def samples(self) -> int:
        """Images of an epoch, over all processes together."""
        return self.rota.samples

    def __len__(self) -> int:
        """Batches of an epoch on this process."""
        return len(self.rota)

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on."""
