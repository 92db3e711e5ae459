"""The small ImageNets: Tiny-ImageNet, and mini-ImageNet for few-shot learning."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import torch

from mixsage.data.collect import Found, Kept, collect
from mixsage.data.dataset import DataError, DataSet
from mixsage.data.extras import need
from mixsage.data.fetch import fetch
from mixsage.data.folders import FileReader, class_names, find

TINY = "tiny-imagenet-200"
TINY_URL = f"http://cs231n.stanford.edu/{TINY}.zip"
TINY_MD5 = "90528d7ca1a48142e341f4ef8d21d0de"
TINY_COUNTS = {"train": 100_000, "val": 10_000}
"""Images of each split: what tells whether the archive was unpacked to its end."""
TINY_MEAN, TINY_STD = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
MINI_MEAN = (120.39586422 / 255, 115.59361427 / 255, 104.54012653 / 255)
MINI_STD = (70.68188272 / 255, 68.27635443 / 255, 72.54505529 / 255)
MINI_SIDE = 84


def load_tiny(name: str, root: Path, *, image_size: int | None, skip_corrupt: bool) -> DataSet:
    """Tiny-ImageNet: 200 classes at 64×64. Its labelled validation images are the test split, as the test images have no labels."""
    folder = root if (root / "wnids.txt").is_file() else root / TINY
    fetch(name, TINY_URL, root, present=folder.is_dir, download=lambda: _download(root))
    classes = class_names(folder / "train")
    splits = {"train": find(folder / "train", classes), "test": _tiny_test(folder / "val", classes)}
    for split, part in (("train", "train"), ("test", "val")):
        if len(splits[split].labels) != TINY_COUNTS[part]:
            raise DataError(
                f"{folder / part} holds {len(splits[split].labels)} images, the published set has {TINY_COUNTS[part]}; "
                f"remove {folder} to have it unpacked or downloaded again"
            )
    return collect(
        name, splits, classes, image_size=image_size, skip_corrupt=skip_corrupt, usual_side=64, mean=TINY_MEAN, std=TINY_STD
    )


def load_mini(name: str, root: Path, *, image_size: int | None, skip_corrupt: bool) -> DataSet:
    """The images of mini-ImageNet's 64 base classes, or of its 16 validation or 20 test classes, all as the split to learn from."""
    part = name.removeprefix("mini-imagenet").removeprefix("-") or "train"
    classes = mini_imagenet_classes()[part]
    folder = next((at for at in _mini_folders(root, part) if (at / classes[0]).is_dir()), None)
    if folder is None:
        raise DataError(
            f"no images of mini-ImageNet in {root}: they may not be passed on, so bring your own, in class folders that are named by their ids "
            f"({classes[0]}, …), in {root / 'mini-imagenet'}, or say where they are: MIXSAGE_DATA, or --data-dir"
        )
    missing = [label for label in classes if not (folder / label).is_dir()]
    if missing:
        raise DataError(f"{folder} has no folder for {len(missing)} of the {len(classes)} classes, {missing[0]} among them")
    found = {"train": _of_classes(folder, classes)}
    return collect(
        name, found, classes, image_size=image_size, skip_corrupt=skip_corrupt, usual_side=MINI_SIDE, mean=MINI_MEAN, std=MINI_STD
    )


def mini_imagenet_classes() -> dict[str, tuple[str, ...]]:
    """The ids of mini-ImageNet's 64 classes to train on, 16 to choose by and 20 to test on.

    >>> {part: len(classes) for part, classes in mini_imagenet_classes().items()}
    {'train': 64, 'val': 16, 'test': 20}
    """
    text = (resources.files("mixsage.data") / "mini_imagenet.json").read_text(encoding="utf-8")
    return {part: tuple(classes) for part, classes in json.loads(text).items()}


def _of_classes(folder: Path, classes: tuple[str, ...]) -> Found:
    """The images of some of the classes that lie in a folder."""
    present = class_names(folder)
    found = find(folder, present)
    number = torch.full((len(present),), -1)
    for label, name in enumerate(classes):
        number[present.index(name)] = label
    labels = number[found.labels]
    rows = tuple((labels >= 0).nonzero().flatten().tolist())
    return Found(Kept(found.reader, rows), labels[list(rows)], [found.names[row] for row in rows])


def _mini_folders(root: Path, part: str) -> list[Path]:
    tops = [root, *(root / name for name in ("mini-imagenet", "miniimagenet", "mini_imagenet", "miniImageNet"))]
    return [folder for top in tops for folder in (top, top / part)]


def _tiny_test(folder: Path, classes: tuple[str, ...]) -> Found:
    """As published, all images in one folder and their classes in a table; or sorted into class folders, as many keep them."""
    table = folder / "val_annotations.txt"
    if not table.is_file():
        return find(folder, classes)
    number = {name: label for label, name in enumerate(classes)}
    rows = [line.split("\t")[:2] for line in table.read_text(encoding="utf-8").splitlines() if line]
    paths = tuple(str(folder / "images" / file) for file, _ in rows)
    return Found(FileReader(paths), torch.tensor([number[name] for _, name in rows], dtype=torch.int64), paths)


def _download(root: Path) -> None:
    need("torchvision.datasets.utils").download_and_extract_archive(TINY_URL, str(root), md5=TINY_MD5)
