"""Accuracy under common corruptions (Hendrycks & Dietterich, 2019): from the published files, or made by `imagecorruptions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mixsage.errors import not_installed, unknown_name
from mixsage.evaluation.accuracy import accuracy
from mixsage.evaluation.pixels import Loader, batches

SEVERITIES = (1, 2, 3, 4, 5)
"""From light to strong."""


def corrupted_files(
    model: nn.Module, folder: str | Path, *, names: Sequence[str] | None = None, batch_size: int = 500
) -> dict[str, float]:
    """Accuracy in per cent on the files of CIFAR-10-C or CIFAR-100-C, a number a corruption, and their mean, ``corruptions``.

    Args:
        model: from pixels in [0, 1] to logits.
        folder: holds ``labels.npy`` and a file for each corruption, all severities one after another, as published.
        names: the corruptions; all in the folder if left out.
        batch_size: images at a time.
    """
    folder = Path(folder)
    if not (folder / "labels.npy").is_file():
        raise FileNotFoundError(f"{folder} has no labels.npy; give the folder that CIFAR-10-C or CIFAR-100-C was unpacked to")
    known = sorted(file.stem for file in folder.glob("*.npy") if file.stem != "labels")
    for name in names or ():
        if name not in known:
            raise ValueError(unknown_name("corruption", name, known))
    labels = np.load(folder / "labels.npy", allow_pickle=False)
    found = {}
    for name in names or known:
        images = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        if images.ndim != 4 or len(images) != len(labels):
            raise ValueError(
                f"{name}.npy holds {list(images.shape)}, expected [{len(labels)}, H, W, C] as labels.npy has {len(labels)} labels"
            )
        found[name] = accuracy(model, _slices(images, labels, batch_size))["top1"]
    if not found:
        raise ValueError(f"{folder} holds no corruptions, only labels")
    return {**found, "corruptions": sum(found.values()) / len(found)}


def common_corruptions(
    model: nn.Module, loader: Loader, *, names: Sequence[str] | None = None, severities: Sequence[int] = SEVERITIES, seed: int = 0
) -> dict[str, float]:
    """Accuracy in per cent under corruptions of the loader's own images, a number a corruption over all severities, and their mean.

    Images need at least 32 pixels a side. Slow, as the corruptions are made image by image: for published data sets use `corrupted_files`.
    """
    try:
        library = import_module("imagecorruptions")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(not_installed("corrupting images", "imagecorruptions-imaug", "corruptions")) from error
    known = library.get_corruption_names("all")
    for name in names or ():
        if name not in known:
            raise ValueError(unknown_name("corruption", name, known))
    found = {}
    for name in names or library.get_corruption_names():
        with _numpy_seeded(seed):
            shares = [accuracy(model, _corrupted(loader, library.corrupt, name, severity))["top1"] for severity in severities]
        found[name] = sum(shares) / len(shares)
    return {**found, "corruptions": sum(found.values()) / len(found)}


def _slices(images: NDArray[np.uint8], labels: NDArray[np.integer[Any]], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(images), size):
        part = torch.from_numpy(np.array(images[start : start + size]))
        yield part.permute(0, 3, 1, 2), torch.from_numpy(np.array(labels[start : start + size])).long()


def _corrupted(loader: Loader, corrupt: Any, name: str, severity: int) -> Iterator[tuple[Tensor, Tensor]]:
    for pixels, labels in batches(loader, torch.device("cpu")):
        pictures = (pixels * 255).round().byte().permute(0, 2, 3, 1).numpy()
        made = [
            torch.from_numpy(np.asarray(corrupt(np.ascontiguousarray(one), corruption_name=name, severity=severity)))
            for one in pictures
        ]
        changed = torch.stack(made).permute(0, 3, 1, 2)[:, : pixels.shape[1]]
        yield changed.byte(), labels


@contextmanager
def _numpy_seeded(seed: int) -> Iterator[None]:
    """imagecorruptions draws from NumPy's global generator: seeded for the time being, and afterwards as it was."""
    state = np.random.get_state()  # noqa: TID251, NPY002  # the library leaves no other way
    np.random.seed(seed)  # noqa: TID251, NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: TID251, NPY002
