"""Fine-grained static saliency (Montabone & Soto, 2010) as OpenCV's contributed module computes it, for a batch of images at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_REACHES = (12, 24, 48, 28, 56, 112)
"""How far the surroundings reach whose mean, without the pixel itself, a pixel is compared with."""
_LUMA = (9798, 19235, 3735)
"""Red, green and blue in grey, in 1/32768."""


def fine_grained(pixels: Tensor) -> Tensor:
    """Maps [B, H, W] in steps of 1/255 of colours [B, C, H, W] from 0 to 1: red, green and blue, or of any other number their mean."""
    brightness = _blurred(_blurred(_grey(pixels)))
    brighter, darker = torch.zeros_like(brightness), torch.zeros_like(brightness)
    summed = functional.pad(brightness.int().cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32), (1, 0, 1, 0))
    # The edges of all squares at once: on a GPU, each of these small sums costs as much as one over the pictures.
    reaches = torch.tensor(_REACHES, device="cpu").to(pixels.device, non_blocking=True)[:, None]
    (tops, bottoms), (lefts, rights) = (_edges(size, reaches) for size in brightness.shape[1:])
    others = ((bottoms - tops)[:, :, None] * (rights - lefts)[:, None, :] - 1).clamp_min_(1)
    for top, bottom, left, right, count in zip(tops, bottoms, lefts, rights, others, strict=True):
        band = summed.index_select(1, bottom) - summed.index_select(1, top)
        # Sums may wrap around in int32 in pictures of many millions of pixels; their differences are right all the same.
        around = band.index_select(2, right) - band.index_select(2, left)
        difference = brightness - (around - brightness) / count
        brighter += difference.clamp_min(0).floor_()
        darker += difference.neg_().clamp_min_(0).floor_()
    # OpenCV adds the two as bytes, where a sum above 255 starts again at 0.
    return (_stretched(brighter) + _stretched(darker)).clamp_max_(255).div_(255)


def _grey(pixels: Tensor) -> Tensor:
    """[B, H, W] whole numbers from 0 to 255."""
    levels = (pixels * 255).round_()
    if levels.shape[1] != 3:
        return levels.mean(dim=1).round_()
    red, green, blue = levels.unbind(1)
    # All sums are below 2²⁴, so that float32 holds them exactly.
    return ((red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2] + 16384) / 32768).floor_()


def _blurred(levels: Tensor) -> Tensor:
    """A 3×3 binomial blur with reflected borders, rounded to whole numbers."""
    sums = levels
    for axis in (1, 2):
        size = levels.shape[axis]
        place = torch.arange(size, device=levels.device)
        before, after = (place - 1).abs().clamp_max(size - 1), (size - 1 - (size - 2 - place).abs()).clamp_min(0)
        sums = sums.index_select(axis, before) + 2 * sums + sums.index_select(axis, after)
    return ((sums + 8) / 16).floor_()


def _edges(size: int, reaches: Tensor) -> tuple[Tensor, Tensor]:
    """First line [R, size] of the square around each pixel, and the first after it, for each reach; the square ends at the border."""
    place = torch.arange(1, size + 1, device=reaches.device)
    return (place - reaches).clamp_min_(0), (place + reaches).clamp_max_(size)


def _stretched(values: Tensor) -> Tensor:
    """Each map stretched so that its peak is 255, in whole numbers."""
    return (values * 255 / values.amax(dim=(1, 2), keepdim=True).clamp_min(1)).floor_()
