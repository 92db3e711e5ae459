"""Where a pixel comes from: translation with zero fill, and blocks that change places.

Everything here is geometry on the last two axes, rows first, and knows nothing of images, labels or mixing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def shift_index(offsets: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Flat source position of every pixel under a shift, and whether it lies inside the picture.

    Pixel ``(i, j)`` comes from ``(i - offset_i, j - offset_j)``. ``offsets`` is [B, 2]; the answers are [B, H·W] int64 (0 where the source
    lies outside) and [B, H, W] bool.
    """
    rows = torch.arange(height, device=offsets.device) - offsets[:, :1]
    columns = torch.arange(width, device=offsets.device) - offsets[:, 1:]
    # Clamping each axis by itself keeps the index valid, so that no second pass over [B, H, W] is needed to repair it.
    near_rows, near_columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    index = near_rows[:, :, None] * width + near_columns[:, None, :]
    return index.flatten(1), (rows == near_rows)[:, :, None] & (columns == near_columns)[:, None, :]


def block_of(size: int, blocks: int, device: torch.device | None = None) -> Tensor:
    """The block that each of ``size`` pixels belongs to when a side is cut into ``blocks``: pixel i lies in block ⌊i·blocks/size⌋.

    Where ``blocks`` does not divide ``size``, the blocks differ by one pixel.
    """
    return torch.arange(size, device=device) * blocks // size


def block_edges(size: int, blocks: int, device: torch.device | None = None) -> Tensor:
    """The first pixel of each block when a side of ``size`` pixels is cut into ``blocks``, with the end as a last entry."""
    return -(-torch.arange(blocks + 1, device=device) * size // blocks)


def enlarge(values: Tensor, height: int, width: int) -> Tensor:
    """[B, h, w] to [B, H, W], each value covering its block."""
    if values.shape[1] != height:
        values = values.index_select(1, block_of(height, values.shape[1], values.device))
    if values.shape[2] != width:
        values = values.index_select(2, block_of(width, values.shape[2], values.device))
    return values


def _inside_block(size: int, blocks: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For one side: the block of each pixel, its place inside that block, and the first pixel of each block (with the end as a last entry)."""
    block = block_of(size, blocks, device)
    starts = block_edges(size, blocks, device)
    return block, torch.arange(size, device=device) - starts[block], starts


def block_index(order: Tensor, height: int, width: int) -> Tensor:
    """Flat source position [B, H·W] of every pixel when blocks change places: target block t shows block ``order[:, t]`` ([B, n·n], row by row).

    Where n does not divide a side, a block that is one pixel too short for its target repeats its last row or column.
    """
    grid = side_of(order.shape[1])
    block_row, row, row_starts = _inside_block(height, grid, order.device)
    block_column, column, column_starts = _inside_block(width, grid, order.device)
    source = order[:, (block_row[:, None] * grid + block_column[None, :]).flatten()].view(-1, height, width)
    return (
        _within(row[:, None], source // grid, row_starts)
        .mul_(width)
        .add_(_within(column[None, :], source % grid, column_starts))
        .flatten(1)
    )


def _within(place: Tensor, block: Tensor, starts: Tensor) -> Tensor:
    return torch.minimum(starts[block] + place, starts[block + 1] - 1)


def side_of(count: int) -> int:
    """n, where a grid of n×n blocks has ``count`` of them."""
    side = math.isqrt(count)
    if side * side != count:
        raise ValueError(f"Blocks order names {count} blocks an image, which is no square grid; give n·n of them")
    return side


def translate(maps: Tensor, offsets: Tensor) -> Tensor:
    """Shift each map by its own whole number of pixels, zero where nothing lies: ``out[b, i, j] = maps[b, i - offset_i, j - offset_j]``.

    ``maps`` is [B, H, W], ``offsets`` [B, 2] int64, rows first.

    >>> translate(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[1, 0]]))
    tensor([[[0., 0.],
             [1., 2.]]])
    """
    index, inside = shift_index(offsets, maps.shape[-2], maps.shape[-1])
    return torch.where(inside, maps.flatten(1).gather(1, index).view_as(maps), 0)
