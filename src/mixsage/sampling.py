"""Everything random: partners, shares, boxes. All of it comes from a generator on the CPU, and `None` is torch's default one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator, Tensor

# Said each time: the caller may have set another default type or device, and neither may change what is drawn.
_HOST: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
_WIDE: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}


def coin(probability: float, generator: Generator | None = None) -> bool:
    """Whether an event of this probability happens; certain events draw nothing."""
    if probability >= 1:
        return True
    return bool(torch.rand((), generator=generator, **_HOST) < probability)


def partners(batch: int, generator: Generator | None = None) -> Tensor:
    """A partner for each image of a batch, by a plain random permutation: an image may meet itself."""
    return torch.randperm(batch, generator=generator, device="cpu")


def choice(count: int, generator: Generator | None = None) -> int:
    """One of ``count`` things, all equally likely."""
    return int(torch.randint(count, (), generator=generator, device="cpu"))


def uniform(high: float, count: int, generator: Generator | None = None) -> Tensor:
    """[count] shares, uniform between 0 and ``high``."""
    return torch.rand(count, generator=generator, **_HOST) * high


def beta(concentration: float, count: int, generator: Generator | None = None) -> Tensor:
    """[count] shares from the symmetric Beta distribution; a concentration of 1 is uniform.

    Formed from the logarithms of two Gamma variates, so that concentrations far below 1 give values near 0 and 1 instead of 0/0.
    """
    if concentration == 1:
        return torch.rand(count, generator=generator, **_HOST)
    # torch.distributions takes no generator; `_standard_gamma` is the kernel beneath it, and has taken one through every release.
    shape = torch.full((2, count), concentration + 1, **_WIDE)
    gamma = torch._standard_gamma(shape, generator=generator)
    # Gamma(c) is distributed as Gamma(c + 1)·U^(1/c). 1 - rand lies in (0, 1], so that its logarithm is finite.
    boost = torch.log1p(-torch.rand((2, count), generator=generator, **_WIDE)) / concentration
    first, second = (gamma.log() + boost).unbind(0)
    return torch.sigmoid(first - second).to(torch.float32)


def dirichlet(concentration: float, member: Tensor, generator: Generator | None = None) -> Tensor:
    """[n, m] shares from symmetric Dirichlet distributions over the members [n, m] bool of each row; others get 0."""
    # From logarithms, as above: a small concentration gives one share near 1 instead of 0/0.
    gamma = torch._standard_gamma(torch.full(member.shape, concentration + 1, **_WIDE), generator=generator)
    boost = torch.log1p(-torch.rand(member.shape, generator=generator, **_WIDE)) / concentration
    return (gamma.log() + boost).masked_fill(~member, -torch.inf).softmax(dim=1).to(torch.float32)


def box_sides(area: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Whole numbers of rows and columns of boxes that cover a share ``area`` of the picture and have its aspect."""
    side = area.clamp(0, 1).sqrt()
    return (height * side).long(), (width * side).long()


def boxes_around(row: Tensor, column: Tensor, area: Tensor, height: int, width: int) -> Tensor:
    """Corners [n, 4] of boxes of a share ``area`` around a centre, clipped at the border of the picture."""
    if len(area) == 1 and area.device.type == "cpu" and row.device.type == "cpu":
        # For a single box tensors of one number would take longer than everything else together.
        side = math.sqrt(min(max(float(area), 0.0), 1.0))
        half_row, half_column = int(height * side) // 2, int(width * side) // 2
        middle_row, middle_column = int(row), int(column)
        top, left = max(middle_row - half_row, 0), max(middle_column - half_column, 0)
        bottom, right = min(middle_row + half_row, height), min(middle_column + half_column, width)
        return torch.tensor([[top, left, bottom, right]], device="cpu")
    rows, columns = box_sides(area, height, width)
    half_rows, half_columns = rows // 2, columns // 2
    return torch.stack(
        [
            (row - half_rows).clamp(0, height),
            (column - half_columns).clamp(0, width),
            (row + half_rows).clamp(0, height),
            (column + half_columns).clamp(0, width),
        ],
        dim=1,
    )


def boxes(area: Tensor, height: int, width: int, generator: Generator | None = None) -> Tensor:
    """Corners [n, 4] of boxes of a share ``area`` [n] of the picture, their centres uniform, clipped at the border."""
    row = torch.randint(height, (len(area),), generator=generator, device="cpu")
    column = torch.randint(width, (len(area),), generator=generator, device="cpu")
    return boxes_around(row, column, area, height, width)


def subset(total: int, portion: float, generator: Generator | None = None) -> Tensor:
    """Indices of a random subset of ``total`` things, without repetition: ⌊total·portion⌋ of them, at least one; all in order when 1."""
    if portion >= 1:
        return torch.arange(total, device="cpu")
    # The small addend undoes the rounding of products such as 0.29·100 = 28.999….
    count = max(1, math.floor(total * portion + 1e-9))
    return torch.randperm(total, generator=generator, device="cpu")[:count]
