"""Bytes to what a model takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Normalise:
    """uint8 [B, C, H, W] to normalised float32, on the device that the images are on.

    >>> Normalise(mean=(0.5,), std=(0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[[[-2.,  2.]]]])
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], device: torch.device | str = "cpu", *, channels_last: bool = False
    ) -> None:
        spread = torch.tensor(std, dtype=torch.float64).view(1, -1, 1, 1)
        self.scale = (1 / (255 * spread)).to(device, torch.float32)
        self.offset = (-torch.tensor(mean, dtype=torch.float64).view(1, -1, 1, 1) / spread).to(device, torch.float32)
        self.layout = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, images: Tensor) -> Tensor:
        """(images / 255 − mean) / std."""
        return images.to(torch.float32, memory_format=self.layout).mul_(self.scale).add_(self.offset)
