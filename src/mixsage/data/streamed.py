"""Batches from images that are read when they are wanted, by worker processes ahead of the training."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import parent_process

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from mixsage.data.dataset import DataError, DataSet, Images
from mixsage.data.decode import CorruptImage
from mixsage.data.normalise import Normalise
from mixsage.data.rota import Batch, Feed, Rota
from mixsage.data.seeds import generator
from mixsage.data.views import middle, random_part, shifted

Call = tuple[int, int]
"""Epoch and row of an image: all that its view depends on, beside the seed."""
AHEAD = 4
"""Batches that each worker prepares ahead of their use."""


class StreamedFeed(Feed):
    """Images of any number and size, read one by one; only bytes travel to the device, which normalises them."""

    def __init__(
        self,
        images: Images,
        dataset: DataSet,
        rota: Rota,
        *,
        device: torch.device,
        augment: bool = True,
        padding: int | None = None,
        workers: int = 2,
        channels_last: bool = False,
    ) -> None:
        super().__init__(rota)
        self._labels = images.labels
        self._device = device
        self._normalise = Normalise(dataset.mean, dataset.std, device, channels_last=channels_last)
        self._calls = _Calls(rota)
        self._pass: object = None
        self._loader: DataLoader[Tensor | DataError] = DataLoader(
            _Views(images, dataset, rota.seed, augment, dataset.padding if padding is None else padding),
            batch_sampler=self._calls,
            num_workers=workers,
            collate_fn=_stack,
            pin_memory=device.type == "cuda",
            persistent_workers=workers > 0,
            prefetch_factor=AHEAD if workers else None,
            # Unused by the views; without one, the loader would draw from the global generator.
            generator=generator(rota.seed, "workers"),
            worker_init_fn=_leave_signals_to_the_parent,
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from batch ``start`` on; a new pass ends one that is not finished."""
        self._pass = current = object()
        self._calls.prepare(epoch, start)
        loader = iter(self._loader)
        for rows in self._calls.rows:
            if self._pass is not current:
                raise RuntimeError(
                    "a newer pass over this feed has ended the one that is being read; read one to its end first, or make two feeds"
                )
            pixels = next(loader)
            if isinstance(pixels, DataError):
                raise pixels
            images = self._normalise(pixels.to(self._device, non_blocking=True))
            yield Batch(images, *(part.to(self._device, non_blocking=True) for part in (self._labels[rows], rows)))


class _Calls(Sampler[list[Call]]):
    """Says which images come next. The workers stay from epoch to epoch, so the epoch travels with every call."""

    def __init__(self, rota: Rota) -> None:
        self.rota = rota
        self.epoch = 0
        self.rows: list[Tensor] = []

    def prepare(self, epoch: int, start: int) -> None:
        order = self.rota.indices[self.rota.order(epoch)]
        self.epoch = epoch
        self.rows = [order[part] for part in self.rota.parts(start)]

    def __iter__(self) -> Iterator[list[Call]]:
        return ([(self.epoch, row) for row in rows.tolist()] for rows in self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class _Views(Dataset[Tensor | DataError]):
    """Reads an image and draws its view, within a worker."""

    def __init__(self, images: Images, dataset: DataSet, seed: int, augment: bool, padding: int) -> None:
        self.images = images
        self.size = dataset.size
        self.resizes = dataset.augmentation == "resize"
        self.flip = dataset.flip
        self.seed = seed
        self.augment = augment
        self.padding = padding

    def __getitem__(self, call: Call) -> Tensor | DataError:
        epoch, row = call
        try:
            image = self.images.read(row)
        except CorruptImage as error:
            return error.with_way_out()  # as a value: raised in a worker, it would arrive with the worker's traceback for a message
        source = generator(self.seed, "view", epoch, row)
        if self.resizes:
            return random_part(image, self.size, self.flip, source) if self.augment else middle(image, self.size)
        if image.shape[1:] != torch.Size(self.size):
            asked = "×".join(map(str, self.size))
            return DataError(
                f"{self.images.name(row)} has {image.shape[1]}×{image.shape[2]} pixels, crops of {asked} need images of that size; "
                "images of other sizes are scaled: augmentation='resize'"
            )
        return shifted(image, self.padding, self.flip, source) if self.augment else image


def _leave_signals_to_the_parent(worker: int) -> None:
    """What stops a run reaches all of its processes: Ctrl-C, `timeout`, a cluster. The parent still needs its workers then, to save first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Obey SIGTERM from the parent alone, which ends with it a worker that does not come to its end by itself."""
    parent = parent_process()
    while parent is not None and signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        pass
    os._exit(0)


def _stack(views: list[Tensor | DataError]) -> Tensor | DataError:
    images = [view for view in views if isinstance(view, Tensor)]
    return torch.stack(images) if len(images) == len(views) else next(view for view in views if isinstance(view, DataError))
