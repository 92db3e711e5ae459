"""What all evaluators share: a model of pixels in [0, 1], and batches of such pixels.

Perturbations are defined on pixels, networks take normalised images: `Normalised` puts the one before the other, so that an attack reaches
through the normalisation, and a stranger's network is judged with the numbers that it was trained with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

Loader = Iterable[Sequence[Tensor]]
"""Yields batches of images [B, C, H, W], bytes or floating point in [0, 1], and labels [B]."""


class Normalised(nn.Module):
    """A network that takes pixels in [0, 1]: ``network((pixels - mean) / std)``.

    Example:
        >>> from mixsage.data import MEAN, STD
        >>> from mixsage.models import small_convnet
        >>> model = Normalised(small_convnet(), mean=MEAN, std=STD)
        >>> model(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise ValueError(f"mean and std need one number for each channel, got {list(mean)} and {list(std)}")
        # Asked the other way round, as NaN is neither more nor less than anything.
        if not (all(0 < value < math.inf for value in std) and all(abs(value) <= 1 for value in mean)):
            raise ValueError(
                f"mean and std are those of pixels in [0, 1], got {list(mean)} and {list(std)}; divide numbers of bytes by 255"
            )
        self.network = network
        # Not part of the weights: a state_dict of the network stays what it was.
        self.register_buffer("mean", torch.tensor(list(mean)).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(list(std)).view(-1, 1, 1), persistent=False)
        self.to(device_of(network))

    def normalise(self, pixels: Tensor) -> Tensor:
        """What the network sees of pixels [B, C, H, W] in [0, 1]."""
        if pixels.shape[1] != len(self.mean):
            raise ValueError(f"mean and std are for {len(self.mean)} channels, the images have {pixels.shape[1]}")
        return (pixels - self.mean) / self.std

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits [B, classes] of pixels [B, C, H, W] in [0, 1]."""
        logits: Tensor = self.network(self.normalise(pixels))
        return logits


def device_of(model: nn.Module) -> torch.device:
    """Where the model lies; a model without tensors lies on the CPU."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def batches(loader: Loader, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Pixels [B, C, H, W] float32 in [0, 1] and labels [B] int64 of every batch, the last and shorter one too, on the device."""
    count = 0
    for images, labels, *_ in loader:
        if len(images) != len(labels):
            raise ValueError(f"the loader yielded {len(images)} images with {len(labels)} labels")
        if count == 0:
            _check(images, labels)
        count += len(images)
        yield as_pixels(images.to(device, non_blocking=True)), labels.to(device, dtype=torch.int64, non_blocking=True)
    if count == 0:
        raise ValueError("the loader yielded no images: nothing to evaluate")


def as_pixels(images: Tensor) -> Tensor:
    """Bytes or floating point to float32 in [0, 1]."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def check_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits must be [B, classes], numbers, and have a class for every label."""
    if logits.ndim != 2 or len(logits) != len(labels):
        raise ValueError(f"the model returned {list(logits.shape)} for {len(labels)} images, expected logits [B, classes]")
    if int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
        raise ValueError(
            f"the labels go from {int(labels.min())} to {int(labels.max())}, but the model knows {logits.shape[1]} classes; "
            "is this the data that it was trained for?"
        )
    if not bool(torch.isfinite(logits).all()):
        raise ValueError(
            "the model returned logits that are not finite (NaN or infinite); its weights are damaged or its training diverged"
        )
    return logits.float()


def _check(images: Tensor, labels: Tensor) -> None:
    """Of the first batch: the form, and whether the pixels are pixels. Normalised images would be normalised again, unnoticed."""
    if images.ndim != 4:
        raise ValueError(f"the loader must yield images [B, C, H, W], got {list(images.shape)}")
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(f"the loader must yield class indices [B], got labels {list(labels.shape)} {labels.dtype}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"images are bytes or floating point in [0, 1], got {images.dtype}")
    if images.is_floating_point() and len(images) and (float(images.min()) < 0 or float(images.max()) > 1):
        raise ValueError(
            f"images must be bytes, or floating point in [0, 1]; these go from {float(images.min()):.3g} to {float(images.max()):.3g}. "
            "Evaluate images before normalisation, and wrap the network in Normalised(network, mean=…, std=…)"
        )
