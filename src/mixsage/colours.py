"""Normalised images back to colours between 0 and 1, for methods that look at the picture itself."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized

import torch
from torch import Tensor


def colours(images: Tensor, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Tensor:
    """Images [B, C, H, W] as float32 colours in [0, 1]: multiplied by ``std``, shifted by ``mean``, clamped.

    Without mean and std the images are taken as they are. What is not a number counts as 0.

    >>> colours(torch.tensor([[[[-0.5, 0.0]]]]), mean=(0.5,), std=(0.25,))
    tensor([[[[0.3750, 0.5000]]]])
    """
    pixels = images.detach().float()
    if mean is not None and std is not None:
        channels = images.shape[1]
        if not len(mean) == len(std) == channels:
            raise ValueError(
                f"mean and std have {len(mean)} and {len(std)} values, the images {channels} channels; give one of each a channel"
            )
        scale, shift = (
            torch.tensor(values, dtype=torch.float32, device="cpu").view(-1, 1, 1).to(images.device, non_blocking=True)
            for values in (std, mean)
        )
        pixels = torch.addcmul(shift, pixels, scale)
    return pixels.nan_to_num(nan=0.0, posinf=1.0, neginf=0.0).clamp_(0, 1)


def check_statistics(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    """Mean and std belong together: both or neither, finite, std positive."""
    if (mean is None) != (std is None):
        raise ValueError(
            f"mean and std belong together, got mean={mean}, std={std}; give both, as the loader normalised with them, or neither"
        )
    if mean is None or std is None:
        return
    kept: tuple[object, ...] = (mean, std)
    if not all(isinstance(values, Sized) for values in kept):
        raise TypeError(f"mean and std have one value a channel, got mean={mean}, std={std}; for grey images write mean=(0.5,)")
    if len(mean) != len(std) or not all(map(math.isfinite, mean)) or not all(0 < value < math.inf for value in std):
        raise ValueError(f"mean and std must be finite, one value each a channel, std positive; got mean={mean}, std={std}")
