"""A folder of class folders: every image in `cats/` is a cat."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mixsage.data.collect import Found, collect
from mixsage.data.dataset import DataError, DataSet
from mixsage.data.decode import decode, size_of
from mixsage.data.extras import need

log = logging.getLogger(__name__)

TEST_NAMES = ("test", "val", "valid", "validation")
"""Folders beside train/ that may hold what a model is judged by, in the order in which they are looked for."""


@dataclass(frozen=True)
class FileReader:
    """Reads image files."""

    paths: tuple[str, ...]
    """Where they lie."""

    def __call__(self, index: int) -> Tensor:
        """The pixels of file ``index``."""
        return decode(Path(self.paths[index]), self.paths[index])

    def size(self, index: int) -> tuple[int, int]:
        """Height and width of file ``index``."""
        return size_of(Path(self.paths[index]), self.paths[index])


def load_folder(name: str, root: Path, *, image_size: int | None, skip_corrupt: bool) -> DataSet:
    """Class folders directly in ``root``, or in ``root``/train and ``root``/test or val."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder" if root.exists() else f"there is no folder {root}")
    if not _is_split(root / "train"):
        classes = class_names(root)
        return collect(name, {"train": find(root, classes)}, classes, image_size=image_size, skip_corrupt=skip_corrupt)
    classes = class_names(root / "train")
    splits = {"train": find(root / "train", classes)}
    others = [root / other for other in TEST_NAMES if _is_split(root / other)]
    for split, folder in zip(("test", "validation"), others, strict=False):
        splits[split] = find(folder, classes)
        log.info("%s: the %s split is %s", name, split, folder)
    return collect(name, splits, classes, image_size=image_size, skip_corrupt=skip_corrupt)


def class_names(folder: Path) -> tuple[str, ...]:
    """The classes of a folder: its folders, in order of their names, without hidden ones."""
    names = _visible_folders(folder)
    if not names:
        seen = "images lie in it directly" if any(_is_image(entry.name) for entry in folder.iterdir()) else "it has none"
        raise DataError(f"{folder} must hold one folder for each class, with the images of the class in it; {seen}")
    if len(names) == 1:
        raise DataError(f"{folder} holds one class only, {names[0]!r}; a classifier needs at least 2 class folders")
    return names


def find(folder: Path, classes: Sequence[str]) -> Found:
    """The images of a folder of class folders, class by class, in order of their paths."""
    ignored: list[str] = []

    def is_wanted(path: str) -> bool:
        parts = Path(path).relative_to(folder).parts
        if any(_is_hidden(part) for part in parts):
            return False
        if not _is_image(path):
            ignored.append(path)
            return False
        return True

    unknown = [name for name in _visible_folders(folder) if name not in classes]
    if unknown:
        raise DataError(f"{folder / unknown[0]} is a class that the training images do not have; remove it, or add it to them")
    labels = {name: label for label, name in enumerate(classes)}
    samples = need("torchvision.datasets.folder").make_dataset(str(folder), labels, is_valid_file=is_wanted, allow_empty=True)
    counts = torch.bincount(torch.tensor([label for _, label in samples], dtype=torch.int64), minlength=len(classes)).tolist()
    empty = [name for name, count in zip(classes, counts, strict=True) if count == 0 and (folder / name).is_dir()]
    if empty:
        raise DataError(
            f"no image in the class folder {folder / empty[0]}; add some, or remove the folder. Read are {', '.join(_endings())}"
        )
    absent = [name for name in classes if not (folder / name).is_dir()]
    if absent:
        log.warning("%s has no images of %d of %d classes, %r among them", folder, len(absent), len(classes), absent[0])
    if ignored:
        log.info("%s: ignored %d files that are not images, %s among them", folder, len(ignored), ignored[0])
    paths = tuple(path for path, _ in samples)
    return Found(FileReader(paths), torch.tensor([label for _, label in samples], dtype=torch.int64), paths)


def _visible_folders(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not _is_hidden(entry.name)))


def _is_split(folder: Path) -> bool:
    """Whether a folder holds class folders, and is not itself a class that happens to be called train."""
    if not folder.is_dir():
        return False
    entries = [entry for entry in folder.iterdir() if not _is_hidden(entry.name)]
    return any(entry.is_dir() for entry in entries) and not any(_is_image(entry.name) for entry in entries)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _is_image(name: str) -> bool:
    return name.lower().endswith(_endings())


def _endings() -> tuple[str, ...]:
    endings: tuple[str, ...] = need("torchvision.datasets.folder").IMG_EXTENSIONS
    return endings
