"""CIFAR and Fashion-MNIST, read by torchvision: used where their files lie, downloaded where they do not, and compared with their checksums."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from mixsage.data.dataset import DataError, DataSet, Images
from mixsage.data.extras import need
from mixsage.data.fetch import fetch

# Of the training images, as the authors of SAGE have them: in 255ths.
CIFAR_STATISTICS = {
    "cifar10": ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    "cifar100": ((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
}
# Of the unpacked files: archives of the same content differ, depending on who packed them.
FASHION_MD5 = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
FASHION_MEAN, FASHION_STD = (0.2860,), (0.3530,)


def load_cifar(name: str, root: Path) -> DataSet:
    """CIFAR-10 or CIFAR-100. Torchvision compares the files with the published MD5 sums before it reads them."""
    kind = getattr(need("torchvision.datasets"), name.upper())
    if root.name == kind.base_folder:
        root = root.parent
    fetch(
        name,
        kind.url,
        root,
        present=(root / kind.base_folder).is_dir,
        download=lambda: kind(root, train=True, download=True),
    )
    train, test = _read_cifar(kind, root)
    mean, std = CIFAR_STATISTICS[name]
    return DataSet(
        name=name,
        train=_cifar_images(train),
        test=_cifar_images(test),
        classes=tuple(train.classes),
        channels=3,
        mean=tuple(value / 255 for value in mean),
        std=tuple(value / 255 for value in std),
        size=(32, 32),
        padding=2,
    )


def load_fashion(name: str, root: Path) -> DataSet:
    """Fashion-MNIST, from the four files as published, packed or unpacked."""
    kind = need("torchvision.datasets").FashionMNIST
    fetch(
        name,
        kind.mirrors[0],
        root,
        present=lambda: _fashion_folder(root) is not None,
        download=lambda: kind(root, download=True),
    )
    folder = _fashion_folder(root)
    assert folder is not None
    mnist = need("torchvision.datasets.mnist")
    with TemporaryDirectory() as scratch:
        train_images, train_labels, test_images, test_labels = (_unpacked(folder, file, Path(scratch)) for file in FASHION_MD5)
        train = Images(mnist.read_label_file(train_labels), pixels=mnist.read_image_file(train_images)[:, None])
        test = Images(mnist.read_label_file(test_labels), pixels=mnist.read_image_file(test_images)[:, None])
    return DataSet(
        name=name,
        train=train,
        test=test,
        classes=tuple(kind.classes),
        channels=1,
        mean=FASHION_MEAN,
        std=FASHION_STD,
        size=(28, 28),
        padding=2,
    )


def _fashion_folder(root: Path) -> Path | None:
    places = (root, root / "FashionMNIST" / "raw", root / "fashion-mnist", root / "raw")
    first = next(iter(FASHION_MD5))
    return next((place for place in places if (place / first).is_file() or (place / f"{first}.gz").is_file()), None)


def _read_cifar(kind: Any, root: Path) -> tuple[Any, Any]:
    try:
        return kind(root, train=True), kind(root, train=False)
    except RuntimeError:
        # Torchvision says that a file is wrong, not which.
        for file, md5 in [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]:
            _check(root / kind.base_folder / file, md5)
        raise


def _cifar_images(data: Any) -> Images:
    pixels: Tensor = torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous()
    return Images(torch.tensor(data.targets, dtype=torch.int64), pixels=pixels)


def _unpacked(folder: Path, file: str, scratch: Path) -> str:
    """The path of an unpacked file, checked."""
    path = folder / file
    packed = folder / f"{file}.gz"
    if packed.is_file() and not path.is_file():
        try:
            need("torchvision.datasets.utils").extract_archive(str(packed), str(scratch))
        except (OSError, EOFError) as error:
            raise DataError(f"{packed} cannot be unpacked ({error}); put the original in its place") from error
        path = scratch / file
    _check(path, FASHION_MD5[file])
    return str(path)


def _check(path: Path, md5: str) -> None:
    if not need("torchvision.datasets.utils").check_integrity(path, md5):
        wrong = f"is damaged: its MD5 sum is not the published {md5}" if path.is_file() else "is missing"
        raise DataError(f"{path} {wrong}; put the original in its place, or remove {path.parent} to have it downloaded again")
