"""What a trained model sees in images."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixsage.training.build import build_model, load_weights
from mixsage.training.runs import RunFolder

ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


def load_model(run: Path, device: str = "cpu") -> tuple[nn.Module, dict[str, Any]]:
    """The model of a complete run in evaluation mode, and the description of the run."""
    folder = RunFolder(run)
    description, weights = folder.read(), folder.final_weights()
    settings = description["settings"]
    model = build_model(
        settings["model"], num_classes=len(description["classes"]), channels=description["channels"], width=settings["width"]
    )
    load_weights(model, weights, folder.weights)
    return model.to(device).eval(), description


def predict(
    run: Path, images: Sequence[Path], *, top_k: int = 1, form: str = "csv", device: str = "cpu", batch_size: int = 64
) -> Iterator[str]:
    """Lines of CSV or JSON, one an image: the most likely classes with their shares."""
    model, description = load_model(run, device)
    classes = description["classes"]
    if not 1 <= top_k <= len(classes):
        raise ValueError(f"top_k must lie in [1, {len(classes)}], the number of classes; got {top_k}")
    files = list(_files(images))
    if not files:
        raise ValueError(f"no images in {', '.join(map(str, images))}; give image files, or folders of them")
    if form == "csv":
        yield _row(["image", *(f"{what}_{k + 1}" for k in range(top_k) for what in ("class", "share"))])
    for start in range(0, len(files), batch_size):
        part = files[start : start + batch_size]
        batch = torch.stack([_read(file, description) for file in part]).to(device)
        with torch.no_grad():
            shares, places = model(batch).softmax(dim=1).topk(top_k)
        for file, row, place in zip(part, shares.tolist(), places.tolist(), strict=True):
            named = [(classes[index], share) for index, share in zip(place, row, strict=True)]
            if form == "csv":
                yield _row([str(file), *(value for name, share in named for value in (name, f"{share:.4f}"))])
            else:
                yield json.dumps(
                    {"image": str(file), "classes": [{"class": name, "share": round(share, 6)} for name, share in named]}
                )


def _files(images: Sequence[Path]) -> Iterator[Path]:
    for path in images:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS)
        elif path.is_file():
            yield path
        else:
            raise ValueError(f"there is no image {path}")


def _read(file: Path, description: dict[str, Any]) -> Tensor:
    """An image as the evaluation of the run saw it."""
    from mixsage.data.sources import read_image

    return read_image(
        file, channels=description["channels"], size=tuple(description["size"]), mean=description["mean"], std=description["std"]
    )


def _row(values: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
