"""Published data sets by name, read by torchvision: used where their files lie, downloaded where they do not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor

from mixsage.data.dataset import DataError, DataSet, Images
from mixsage.data.extras import need

log = logging.getLogger(__name__)

# Of the training images, as the authors of SAGE have them: in 255ths.
CIFAR_STATISTICS = {
    "cifar10": ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    "cifar100": ((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
}


def load_cifar(name: str, root: Path) -> DataSet:
    """CIFAR-10 or CIFAR-100. Torchvision compares the files with the published MD5 sums before it reads them."""
    kind = getattr(need("torchvision.datasets"), name.upper())
    if root.name == kind.base_folder:
        root = root.parent
    if (root / kind.base_folder).is_dir():
        train, test = _read(kind, root)
    else:
        log.info("%s: no %s in %s; downloading %s", name, kind.base_folder, root, kind.url)
        train, test = _download(kind, root)
    mean, std = CIFAR_STATISTICS[name]
    return DataSet(
        name=name,
        train=_images(train),
        test=_images(test),
        classes=tuple(train.classes),
        channels=3,
        mean=tuple(value / 255 for value in mean),
        std=tuple(value / 255 for value in std),
        size=(32, 32),
        padding=2,
    )


def _images(data: Any) -> Images:
    pixels: Tensor = torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous()
    return Images(torch.tensor(data.targets, dtype=torch.int64), pixels=pixels)


def _read(kind: Any, root: Path) -> tuple[Any, Any]:
    try:
        return kind(root, train=True), kind(root, train=False)
    except RuntimeError as error:
        # Torchvision says that a file is wrong, not which.
        check = need("torchvision.datasets.utils").check_integrity
        for file, md5 in [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]:
            path = root / kind.base_folder / file
            if not check(path, md5):
                wrong = f"is damaged: its MD5 sum is not the published {md5}" if path.is_file() else "is missing"
                way_out = f"remove {path.parent} to have it downloaded again, or put the original in its place"
                raise DataError(f"{path} {wrong}; {way_out}") from error
        raise


def _download(kind: Any, root: Path) -> tuple[Any, Any]:
    try:
        return kind(root, train=True, download=True), kind(root, train=False)
    except (URLError, TimeoutError, ConnectionError) as error:
        raise DataError(
            f"{kind.__name__} is not in {root}, and downloading it failed ({error}); get {kind.url} where there is a network and put it "
            f"into {root}, or say where the files are: MIXSAGE_DATA, or --data-dir"
        ) from error
