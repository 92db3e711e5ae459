"""The forms that the parts of a plan take: how each source moves, and boxes where dense masks would only cost time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixsage import warp as geometry


@dataclass(frozen=True, eq=False)
class Shift:
    """Each source moves by a whole number of pixels; what comes in from outside is zero."""

    offsets: Tensor
    """[B, K, 2] int64, rows first: pixel (i, j) shows the source at (i - offset_i, j - offset_j)."""
    still: tuple[int, ...] = ()
    """Sources whose offsets are known to be zero, so that nothing is done for them where a look at the offsets would wait for a device."""

    def moves(self, k: int) -> bool:
        """Whether source ``k`` moves at all, as far as can be told without waiting for a device."""
        if k in self.still:
            return False
        return self.offsets.device.type != "cpu" or bool(self.offsets[:, k].any())

    def index(self, k: int, height: int, width: int) -> tuple[Tensor, Tensor | None]:
        """Flat source positions [B, H·W] of source ``k``, and [B, H, W] whether they lie inside it."""
        return geometry.shift_index(self.offsets[:, k], height, width)

    def to(self, device: torch.device | str) -> Shift:
        """The same shift on another device."""
        return replace(self, offsets=moved(self.offsets, device))


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of an n×n grid change places; the grid may be finer than the mask's."""

    order: Tensor
    """[B, K, n·n] int64: target block t (row by row) shows block ``order[b, k, t]`` of the source."""

    def moves(self, k: int) -> bool:
        """Whether source ``k`` moves at all, as far as can be told without waiting for a device."""
        order = self.order[:, k]
        return order.device.type != "cpu" or bool((order != torch.arange(order.shape[1], device="cpu")).any())

    def index(self, k: int, height: int, width: int) -> tuple[Tensor, Tensor | None]:
        """Flat source positions [B, H·W] of source ``k``; nothing comes from outside."""
        return geometry.block_index(self.order[:, k], height, width), None

    def to(self, device: torch.device | str) -> Blocks:
        """The same order on another device."""
        return Blocks(moved(self.order, device))


@dataclass(frozen=True, eq=False)
class Boxes:
    """The masks of two sources where one box of the second shows in the first, without a value for each pixel."""

    corners: Tensor
    """[B, 4] int64, or [1, 4] for one box that all images share: top, left, bottom, right; bottom and right lie outside the box."""
    height: int
    """Rows of the picture that the box lies in."""
    width: int
    """Columns of the picture that the box lies in."""

    def inside(self) -> Tensor:
        """[B, H, W] (or [1, H, W]) bool: which pixels the box covers."""
        top, left, bottom, right = self.corners.unsqueeze(-1).unbind(1)
        rows = torch.arange(self.height, device=self.corners.device)
        columns = torch.arange(self.width, device=self.corners.device)
        return ((rows >= top) & (rows < bottom))[:, :, None] & ((columns >= left) & (columns < right))[:, None, :]

    def weights(self) -> Tensor:
        """[B, 2] (or [1, 2]) float32: share of the picture outside and inside the box."""
        if len(self.corners) == 1 and self.corners.device.type == "cpu":  # plain numbers are quicker than tensors of one
            top, left, bottom, right = self.corners[0].tolist()
            inside = (bottom - top) * (right - left) / (self.height * self.width)
            return torch.tensor([[1 - inside, inside]], dtype=torch.float32, device="cpu")
        top, left, bottom, right = self.corners.unbind(1)
        share = ((bottom - top) * (right - left)).to(torch.float32) / (self.height * self.width)
        return torch.stack([1 - share, share], dim=1)

    def to(self, device: torch.device | str) -> Boxes:
        """The same boxes on another device."""
        return replace(self, corners=moved(self.corners, device))


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copies to a device wait for nothing; one back to the host must, or its values would be read before they are there."""
    device = torch.device(device)
    return tensor if tensor.device == device else tensor.to(device, non_blocking=device.type != "cpu")


def describe(value: Tensor) -> str:
    """Shape and dtype, as errors name them."""
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
