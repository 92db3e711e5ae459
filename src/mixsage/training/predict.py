"""What a trained model sees in images."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mixsage.data import CorruptImage, read_image
from mixsage.models.weights import fit_weights
from mixsage.training.build import build_model
from mixsage.training.runs import RunFolder
from mixsage.training.session import usable_device

_log = logging.getLogger("mixsage")
ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})
"""What counts as an image in a folder; a file that is named is read whatever it is called."""
_READERS = 4
Which = Literal["final", "best"]


def load_model(run: Path, device: str = "cpu", which: Which = "final") -> tuple[nn.Module, dict[str, Any]]:
    """The model of a complete run in evaluation mode, and the description of the run.

    Args:
        run: folder of the run.
        device: where to put the model.
        which: the weights after the last epoch, or those of the epoch that was best on the validation split.
    """
    folder = RunFolder(run)
    source, weights = folder.kept(which)
    description = folder.read()
    settings = description["settings"]
    model = build_model(
        settings["model"], num_classes=len(description["classes"]), channels=description["channels"], width=settings["width"]
    )
    fit_weights(model, weights, source)
    return model.to(device).eval(), description


def predict(
    run: Path,
    images: Sequence[Path],
    *,
    top_k: int = 1,
    form: Literal["csv", "jsonl"] = "csv",
    device: str = "cpu",
    batch_size: int = 64,
    which: Which = "final",
    skip_corrupt: bool = False,
) -> Iterator[str]:
    """Lines of CSV or JSON, one an image: the most likely classes with their shares.

    Args:
        run: folder of a complete run.
        images: image files, and folders to look for image files in.
        top_k: how many classes to name for each image.
        form: "csv" with a header, or "jsonl", an object a line.
        device: where the model runs: auto, cpu, cuda, cuda:1, …
        batch_size: images at a time.
        which: which of the run's weights.
        skip_corrupt: log and leave out images that cannot be read, instead of failing.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    device = place(device)
    model, about = load_model(run, device, which)
    classes: list[str] = about["classes"]
    if not 1 <= top_k <= len(classes):
        raise ValueError(f"top_k must lie in [1, {len(classes)}], the number of classes; got {top_k}")
    files = list(_files(images))
    if not files:
        where = f" in {', '.join(map(str, images))}" if images else ""
        raise ValueError(f"no images{where}; give image files, or folders of them")
    return _lines(model, classes, _batches(files, about, batch_size, skip_corrupt), top_k, form, device)


def place(name: str) -> str:
    """The device of this name for a single process: "auto", "cpu", or a kind of which a number may say which one, as in "cuda:1"."""
    kind, colon, number = name.partition(":")
    if colon and not number.isdecimal():
        raise ValueError(f"unknown device {name!r}; behind the colon stands which one it is, as in cuda:1")
    return f"{usable_device(kind)}{colon}{number}"


def _lines(
    model: nn.Module,
    classes: Sequence[str],
    batches: Iterator[tuple[list[Path], Tensor]],
    top_k: int,
    form: Literal["csv", "jsonl"],
    device: str,
) -> Iterator[str]:
    if form == "csv":
        yield _row(["image", *(f"{what}_{k + 1}" for k in range(top_k) for what in ("class", "share"))])
    for files, batch in batches:
        with torch.no_grad():
            shares, places = model(batch.to(device)).softmax(dim=1).topk(top_k)
        for file, row, place in zip(files, shares.tolist(), places.tolist(), strict=True):
            named = [(classes[index], share) for index, share in zip(place, row, strict=True)]
            if form == "csv":
                yield _row([str(file), *(value for name, share in named for value in (name, f"{share:.4f}"))])
            else:
                yield json.dumps(
                    {"image": str(file), "classes": [{"class": name, "share": round(share, 6)} for name, share in named]}
                )


def _batches(
    files: Sequence[Path], about: dict[str, Any], batch_size: int, skip_corrupt: bool
) -> Iterator[tuple[list[Path], Tensor]]:
    """Images as the evaluation of the run saw them, read by several threads."""
    read = partial(
        read_image,
        channels=about["channels"],
        size=tuple(about["size"]),
        mean=about["mean"],
        std=about["std"],
        augmentation=about["augmentation"],
    )
    look = partial(_read_or_skip, read) if skip_corrupt else read
    with ThreadPoolExecutor(_READERS) as pool:
        for start in range(0, len(files), batch_size):
            part = files[start : start + batch_size]
            found = [(file, image) for file, image in zip(part, pool.map(look, part), strict=True) if image is not None]
            if found:
                yield [file for file, _ in found], torch.stack([image for _, image in found])


def _read_or_skip(read: Callable[[Path], Tensor], file: Path) -> Tensor | None:
    try:
        return read(file)
    except CorruptImage as error:
        _log.warning("skipped: %s", error)
        return None


def _files(images: Sequence[Path]) -> Iterator[Path]:
    for path in images:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and not file.name.startswith("."))
        elif path.is_file():
            yield path
        else:
            raise ValueError(f"there is no image {path}")


def _row(values: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
