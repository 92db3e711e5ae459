"""Batches from images that live on the device as bytes: crop, flip and normalisation run there, for the whole batch at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mixsage.data.dataset import DataError, DataSet, Images
from mixsage.data.normalise import Normalise
from mixsage.data.rota import Batch, Feed, Rota
from mixsage.data.seeds import generator


class Crops(NamedTuple):
    """Where the crop of each image begins in its padded image, and whether it is mirrored."""

    top: Tensor
    """[B] int64, from 0 to twice the padding."""
    left: Tensor
    """[B] int64, from 0 to twice the padding."""
    flip: Tensor
    """[B] bool."""

    def part(self, rows: slice) -> Crops:
        """Those of some images."""
        return Crops(self.top[rows], self.left[rows], self.flip[rows])

    def to(self, device: torch.device) -> Crops:
        """The same on another device."""
        return Crops(*(part.to(device, non_blocking=True) for part in self))


def draw_crops(count: int, padding: int, flip: bool, source: torch.Generator) -> Crops:
    """Uniform crops, half of them mirrored."""
    top, left = torch.randint(2 * padding + 1, (2, count), generator=source)
    mirrored = torch.randint(2, (count,), generator=source).bool()
    return Crops(top, left, mirrored if flip else torch.zeros_like(mirrored))


def crop(images: Tensor, crops: Crops, padding: int, *, channels_last: bool = False) -> Tensor:
    """Pad [B, C, H, W] with zeros on all sides, and crop each image back to H×W where ``crops`` says; then mirror it if that says so."""
    batch, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    rows = torch.arange(height, device=images.device) + crops.top[:, None]
    columns = torch.arange(width, device=images.device)
    columns = torch.where(crops.flip[:, None], columns.flip(0), columns) + crops.left[:, None]
    # One index says for every pixel where it comes from, so that crop and flip are a single pass.
    pixels = (rows[:, :, None] * padded.shape[3] + columns[:, None, :]).flatten(1)
    if not channels_last:
        index = pixels[:, None].expand(-1, channels, -1)
        return padded.flatten(2).gather(2, index).view(images.shape)
    planes = torch.arange(channels, device=images.device) * (padded.shape[2] * padded.shape[3])
    index = (pixels[:, :, None] + planes).flatten(1)
    return padded.flatten(1).gather(1, index).view(batch, height, width, channels).permute(0, 3, 1, 2)


class ResidentFeed(Feed):
    """Images of one size, all on the device as bytes."""

    def __init__(
        self,
        images: Images,
        dataset: DataSet,
        rota: Rota,
        *,
        device: torch.device,
        augment: bool = True,
        padding: int | None = None,
        channels_last: bool = False,
    ) -> None:
        super().__init__(rota)
        if images.pixels is None:
            raise DataError(
                f"{dataset.name}: only images that are held in memory can live on the device; stream them: resident=False"
            )
        if images.pixels.shape[2:] != torch.Size(dataset.size):
            raise DataError(
                f"{dataset.name}: the images are {list(images.pixels.shape[2:])}, batches of {dataset.size} were asked for"
            )
        # Another device gets no more than the images that are asked for; where the pixels lie already, nothing is copied.
        here = images.pixels.device == device
        self._pixels = images.pixels if here else images.pixels[rota.indices].to(device)
        self._places = rota.indices.to(device) if here else None
        self._rows = rota.indices.to(device)
        self._labels = images.labels.to(device)
        self._device = device
        self._augment = augment
        self._flip = dataset.flip
        self._padding = dataset.padding if padding is None else padding
        self._channels_last = channels_last
        self._normalise = Normalise(dataset.mean, dataset.std, device, channels_last=channels_last)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on."""
        order = self.rota.order(epoch).to(self._device, non_blocking=True)
        # All of the epoch's choices at once: two draws and four copies an epoch, and none waits for the device.
        crops = self._draw(epoch).to(self._device) if self._augment else None
        for part in self.rota.parts(start):
            places = order[part]
            rows = self._rows[places]
            pixels = self._pixels.index_select(0, places if self._places is None else rows)
            if crops is not None:
                pixels = crop(pixels, crops.part(part), self._padding, channels_last=self._channels_last)
            yield Batch(self._normalise(pixels), self._labels[rows], rows)

    def _draw(self, epoch: int) -> Crops:
        return draw_crops(self.samples, self._padding, self._flip, generator(self.rota.seed, "crops", epoch))
