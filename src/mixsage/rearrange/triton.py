"""The triton engine, for CUDA: each shift of each pair is one program that visits the overlap once; and translation and blend in one pass.

Nothing but the values [B, N] is written, and the number of kernels does not depend on the number of shifts. Triton's interpreter
(TRITON_INTERPRET=1) runs the same kernels on the CPU, slowly: for tests.
"""

from __future__ import annotations

import os

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

_BLOCK = 1024
_MOST_PAIRS = 65535
"""What CUDA allows along the second axis of a launch."""


def total_saliency(first: Tensor, second: Tensor, shifts: Tensor) -> Tensor:
    """v [B, N] of every pair under every shift."""
    _check_device(first)
    if len(first) > _MOST_PAIRS:
        return torch.cat(
            [
                total_saliency(*maps, shifts)
                for maps in zip(torch.split(first, _MOST_PAIRS), torch.split(second, _MOST_PAIRS), strict=True)
            ]
        )
    batch, height, width = first.shape
    values = first.new_empty(batch, len(shifts))
    shifts = shifts.to(first.device, non_blocking=True).contiguous()
    with _device_of(first):
        _gained[(len(shifts), batch)](
            first.contiguous(), second.contiguous(), shifts, values, height, width, len(shifts), BLOCK=_BLOCK
        )
    return values.add_(first.sum(dim=(1, 2))[:, None])


def best(first: Tensor, second: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """The place [B] of each pair's best shift in the list, and its v [B]."""
    values, places = total_saliency(first, second, shifts).max(dim=1)
    return places, values


def bytes_per_pair(height: int, width: int, count: int, itemsize: int) -> int:
    """Copies of the maps where they are not contiguous, and the values."""
    return 2 * height * width * itemsize + count * itemsize


def blend(images: Tensor, partners: Tensor, first: Tensor, second: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Saliency-guided mixing in one pass: the mixed images [B, C, H, W] and the mask [B, H, W] of `Guided`.

    ``partners`` [B] says which image moves over each, ``offsets`` [B, 2] by how much; ``first`` and ``second`` are the rescaled maps.
    """
    _check_device(images)
    batch, channels, height, width = images.shape
    images, mixed = images.contiguous(), torch.empty_like(images, memory_format=torch.contiguous_format)
    mask = torch.empty_like(first, memory_format=torch.contiguous_format)
    with _device_of(images):
        _blended[(triton.cdiv(height * width, _BLOCK), batch)](
            images,
            partners.contiguous(),
            first.contiguous(),
            second.contiguous(),
            offsets.contiguous(),
            mixed,
            mask,
            channels,
            height,
            width,
            BLOCK=_BLOCK,
        )
    return mixed, mask


@triton.jit  # type: ignore[untyped-decorator]
def _gained(first, second, shifts, values, height, width, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Σ_overlap b - 2ab/(a+b) of one pair under one shift."""
    number = tl.program_id(0)
    pair = tl.program_id(1).to(tl.int64)
    row = tl.load(shifts + 2 * number)
    column = tl.load(shifts + 2 * number + 1)
    columns = tl.maximum(width - tl.abs(column), 0)
    pixels = tl.maximum(height - tl.abs(row), 0) * columns
    first += pair * height * width + tl.maximum(row, 0) * width + tl.maximum(column, 0)
    second += pair * height * width + tl.maximum(-row, 0) * width + tl.maximum(-column, 0)
    gained = tl.zeros([BLOCK], dtype=first.dtype.element_ty)
    for start in range(0, pixels, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < pixels
        at = place // columns * width + place % columns
        own = tl.load(first + at, mask=inside, other=0.0)
        other = tl.load(second + at, mask=inside, other=0.0)
        both = own + other
        gained += other - 2 * own * tl.where(both > 0, other / tl.where(both > 0, both, 1.0), 0.0)
    tl.store(values + pair * count + number, tl.sum(gained, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _blended(images, partners, first, second, offsets, mixed, mask, channels, height, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mask and mixed colours of a block of pixels of one pair."""
    pair = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixels = height * width
    inside = place < pixels
    row = place // width - tl.load(offsets + 2 * pair)
    column = place % width - tl.load(offsets + 2 * pair + 1)
    covered = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = row * width + column
    own = tl.load(first + pair * pixels + place, mask=inside, other=0.0)
    other = tl.load(second + pair * pixels + source, mask=covered, other=0.0)
    share = own / tl.maximum(own + other, 1e-16)
    tl.store(mask + pair * pixels + place, share, mask=inside)
    partner = tl.load(partners + pair)
    for channel in range(channels):
        target = (pair * channels + channel) * pixels + place
        mine = tl.load(images + target, mask=inside, other=0.0)
        theirs = tl.load(images + (partner * channels + channel) * pixels + source, mask=covered, other=0.0)
        tl.store(mixed + target, share * mine + (1 - share) * theirs, mask=inside)


def _device_of(tensor: Tensor) -> torch.cuda.device:
    """Triton launches on the current device, wherever the tensors lie."""
    return torch.cuda.device(tensor.device.index if tensor.device.type == "cuda" else -1)


def _check_device(tensor: Tensor) -> None:
    if tensor.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f'engine="triton" works on CUDA devices, the maps lie on {tensor.device}; use "direct", "fourier" or "auto" there'
        )
