"""Data sets of the Hugging Face hub, and what `datasets` keeps on a disk."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import torch
from torch import Tensor

from mixsage.data.collect import Found, collect
from mixsage.data.dataset import DataError, DataSet
from mixsage.data.decode import CorruptImage, decode, size_of
from mixsage.data.extras import need
from mixsage.errors import unknown_name

log = logging.getLogger(__name__)

TEST_NAMES = ("test", "validation", "valid", "val", "dev")
"""Splits that a model may be judged by, in the order in which they are looked for."""
LABEL_NAMES = ("label", "labels", "fine_label")
"""Columns that are the classes where there are several candidates."""


@dataclass(frozen=True)
class Address:
    """What is meant by `hf:owner/name:config?image=…&label=…`."""

    path: str
    """Id on the hub, or a folder."""
    config: str | None
    """Which of its configurations, where it has several."""
    image: str | None
    """The column of the images, where it cannot be guessed."""
    label: str | None
    """The column of the labels, where it cannot be guessed."""

    @classmethod
    def of(cls, text: str) -> Address:
        """Read an address."""
        rest, _, query = text.removeprefix("hf:").partition("?")
        columns = dict(parse_qsl(query))
        for name in columns:
            if name not in ("image", "label"):
                raise DataError(unknown_name(f"column in {text!r}:", name, ("image", "label")))
        path, config = (rest, "") if Path(rest).expanduser().is_dir() else (rest.partition(":")[0], rest.partition(":")[2])
        if not path:
            raise DataError(f"{text!r} names no data set; expected hf:owner/name or hf:owner/name:config")
        return cls(path, config or None, columns.get("image"), columns.get("label"))


@dataclass(frozen=True, eq=False)
class RowReader:
    """Reads the images of a column."""

    rows: Any
    """A `datasets.Dataset` whose images are left undecoded."""
    column: str
    """Its column of images."""
    place: str
    """What to call it in messages."""

    def __call__(self, index: int) -> Tensor:
        """The pixels of row ``index``."""
        return decode(self._file(index), f"{self.place}[{index}]")

    def size(self, index: int) -> tuple[int, int]:
        """Height and width in row ``index``."""
        return size_of(self._file(index), f"{self.place}[{index}]")

    def _file(self, index: int) -> bytes | Path:
        cell = self.rows[index][self.column]
        if cell is None:
            raise CorruptImage(f"{self.place}[{index}] holds no image")
        content: bytes | None = cell["bytes"]
        return Path(cell["path"]) if content is None else content


def load_hub(name: str, root: Path, *, image_size: int | None, skip_corrupt: bool) -> DataSet:
    """A data set by its id, from ``root`` where it lies there, otherwise through the cache of `datasets`."""
    address = Address.of(name)
    splits = _splits(name, address, root)
    if "train" not in splits:
        raise DataError(f"{name} has no split 'train' to learn from; it has {', '.join(splits)}")
    image, label = _image_column(name, address, splits["train"]), _label_column(name, address, splits["train"])
    classes = _classes(name, splits, label)
    found = {"train": _found(f"{name} train", splits["train"], image, label, classes)}
    others = [split for split in TEST_NAMES if split in splits and not _is_withheld(name, split, splits[split], label)]
    for role, split in zip(("test", "validation"), others, strict=False):
        found[role] = _found(f"{name} {split}", splits[split], image, label, classes)
        log.info("%s: the %s split is %r", name, role, split)
    return collect(name, found, classes, image_size=image_size, skip_corrupt=skip_corrupt)


def _splits(name: str, address: Address, root: Path) -> dict[str, Any]:
    datasets = need("datasets")
    here = [path for path in (Path(address.path).expanduser(), root / address.path) if path.is_dir()]
    where = str(here[0]) if here else address.path
    try:
        if here and any((here[0] / marker).is_file() for marker in ("state.json", "dataset_dict.json")):
            kept = datasets.load_from_disk(where)
        else:
            kept = datasets.load_dataset(where, address.config)
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{name} cannot be loaded: {error}") from error
    return {"train": kept} if isinstance(kept, datasets.Dataset) else dict(kept)


def _image_column(name: str, address: Address, rows: Any) -> str:
    images = [column for column, feature in rows.features.items() if isinstance(feature, need("datasets").Image)]
    return _pick(name, "image", address.image, images, ("image", "img"), rows)


def _label_column(name: str, address: Address, rows: Any) -> str:
    labels = [column for column, feature in rows.features.items() if isinstance(feature, need("datasets").ClassLabel)]
    labels = labels or [column for column in LABEL_NAMES if column in rows.features]
    chosen = address.label if address.label in rows.features else None
    return chosen or _pick(name, "label", address.label, labels, LABEL_NAMES, rows)


def _pick(name: str, kind: str, asked: str | None, candidates: list[str], usual: tuple[str, ...], rows: Any) -> str:
    """The column that was asked for, or the only candidate, or the one that has a usual name."""
    if asked is not None and asked in candidates:
        return asked
    likely = candidates if len(candidates) == 1 else [column for column in usual if column in candidates]
    if asked is not None or not likely:
        what = "none" if not candidates else " or ".join(candidates)
        wrong = "" if asked is None else f"no {kind} column {asked!r}; "
        raise DataError(
            f"{name}: {wrong}which column is the {kind}? It may be: {what}. There are {', '.join(rows.features)}; say {name.partition('?')[0]}?{kind}=COLUMN"
        )
    return likely[0]


def _classes(name: str, splits: dict[str, Any], label: str) -> tuple[str, ...]:
    feature = splits["train"].features[label]
    if isinstance(feature, need("datasets").ClassLabel):
        return tuple(feature.names)
    values = sorted(set(splits["train"][label][:]))
    if len(values) < 2:
        raise DataError(f"{name}: all images have one label, {values}; a classifier needs at least 2 classes")
    return tuple(str(value) for value in values)


def _found(place: str, rows: Any, image: str, label: str, classes: tuple[str, ...]) -> Found:
    datasets = need("datasets")
    given = rows[label][:]
    if not isinstance(rows.features[label], datasets.ClassLabel):
        known = {value: number for number, value in enumerate(classes)}
        unknown = next((value for value in given if str(value) not in known), None)
        if unknown is not None:
            raise DataError(f"{place} has the label {unknown!r}, which the training images do not have")
        given = [known[str(value)] for value in given]
    labels = torch.tensor(given, dtype=torch.int64)
    if labels.numel() and int(labels.min()) < 0:
        raise DataError(
            f"{place} has images without a label (−1); leave them out first, or choose another label column with ?label=COLUMN"
        )
    plain = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    return Found(RowReader(plain, image, place), labels, [f"{place}[{row}]" for row in range(len(labels))])


def _is_withheld(name: str, split: str, rows: Any, label: str) -> bool:
    """Competitions publish test images without their labels, which are then −1 or missing."""
    withheld = label not in rows.features or all(value is None or value == -1 for value in rows[label][:])
    if withheld:
        log.info("%s: the split %r has no labels, and is left aside", name, split)
    return withheld
