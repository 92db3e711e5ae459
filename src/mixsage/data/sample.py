"""The embedded sample: a small, balanced part of Fashion-MNIST, shipped with the package so that nothing need be downloaded.

It holds the first 500 training images and the first 200 test images of each of the ten classes, unchanged and in their
original order: enough for demos, tests and small comparisons, not for published numbers. Fashion-MNIST is by Zalando SE,
MIT licence: the text lies beside the data in `fashion_mnist_sample.LICENSE`.
"""

from __future__ import annotations

import hashlib
import lzma
from functools import lru_cache
from importlib import resources
from typing import Literal, NamedTuple

import torch
from torch import Tensor

CLASSES: tuple[str, ...] = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
"""The names of the classes; a label is an index into them."""
MEAN: tuple[float, ...] = (0.2873,)
"""Mean of the sample's training images, scaled to [0, 1], for each channel."""
STD: tuple[float, ...] = (0.3544,)
"""Standard deviation of the sample's training images, scaled to [0, 1], for each channel."""

FILE = "fashion_mnist_sample.xz"
PAYLOAD_SHA256 = "3f2d3e0335099fa8ec1d779d6c414da51f9073999a1b23aa0b96040413d0d560"
SIDE = 28
SIZES = {"train": 5000, "test": 2000}


class Sample(NamedTuple):
    """Images and labels of one split; unpacks as `images, labels = load_sample("train")`."""

    images: Tensor
    """uint8 [N, 1, 28, 28], 0 (background) to 255."""
    labels: Tensor
    """int64 [N], indices into `CLASSES`."""


def load_sample(split: Literal["train", "test"]) -> Sample:
    """Load one split of the embedded sample: 5000 training or 2000 test images, the classes equally frequent.

    The tensors are fresh at every call: change them as you like.

    >>> from mixsage.data import MEAN, STD, load_sample
    >>> images, labels = load_sample("train")
    >>> images.shape, images.dtype, labels.shape
    (torch.Size([5000, 1, 28, 28]), torch.uint8, torch.Size([5000]))
    >>> inputs = (images / 255 - MEAN[0]) / STD[0]  # what a model takes
    """
    if split not in SIZES:
        raise ValueError(f"the sample has the splits {' and '.join(map(repr, SIZES))}, got {split!r}")
    values = torch.frombuffer(bytearray(_payload()), dtype=torch.uint8)
    parts = torch.split(values, [size for count in SIZES.values() for size in (count * SIDE * SIDE, count)])
    at = 2 * list(SIZES).index(split)
    images, labels = parts[at], parts[at + 1]
    return Sample(images.reshape(-1, 1, SIDE, SIDE).clone(), labels.long())


def _payload() -> bytes:
    """The unpacked bytes of the sample's file, checked."""
    file = resources.files(__package__) / FILE
    try:
        payload = _unpacked(file.read_bytes())
    except FileNotFoundError:
        raise RuntimeError(f"the embedded sample is missing: no file {file}; reinstall mixsage") from None
    except lzma.LZMAError as error:
        raise RuntimeError(f"the embedded sample is damaged: {file} does not unpack ({error}); reinstall mixsage") from error
    digest = hashlib.sha256(payload).hexdigest()
    if digest != PAYLOAD_SHA256:
        raise RuntimeError(
            f"the embedded sample is damaged: the contents of {file} have SHA-256 {digest}, "
            f"expected {PAYLOAD_SHA256}; reinstall mixsage"
        )
    return payload


@lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> bytes:
    """Half a second's work, which a study would do for every run; 5 MiB are kept instead."""
    return lzma.decompress(packed)
