"""The mask problem of Puzzle Mix: from maps and images to costs of levels on a grid of blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mixsage.saliency import normalise
from mixsage.solvers.grid import LevelProblem
from mixsage.warp import block_of


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How much the terms of the mask's cost weigh."""

    smoothness: float
    """Of a difference between the shares of neighbouring blocks [β]."""
    data_smoothness: float
    """Of the difference between the colours that meet there, relative to the former [γ]."""
    prior: float
    """Of the prior on the shares [η]."""


def block_means(values: Tensor, side: int) -> Tensor:
    """Means [..., n, n] of the blocks of [..., H, W] when both sides are cut into n: pixel i lies in block ⌊i·n/H⌋."""
    return _averaging(values.shape[-2], side, values.device) @ values @ _averaging(values.shape[-1], side, values.device).T


def mask_problem(
    images: Tensor, maps: Tensor, partners: Tensor, share: Tensor, *, side: int, parts: int, levels: int, weights: Weights
) -> LevelProblem:
    """The problem whose best level, as a share i/(L - 1), is how much of each image shows at each block.

    Args:
        images: [B, C, H, W] float32, colours from 0 to 1.
        maps: [B, H, W] raw saliency.
        partners: [B] int64.
        share: [B] or [1], the share of the image itself that the prior expects [λ].
        side: blocks along a side [n].
        parts: sub-blocks along the side of a block, over which colours are averaged before they are compared.
        levels: number of levels L.
        weights: of the terms.
    """
    lost = normalise(block_means(normalise(maps), side))
    colours = block_means(images, side * parts)
    scale = weights.smoothness / (16 * side)
    # Index 0 is the partner, 1 the image itself: what it costs to show the one or the other, and what meets across borders.
    shown = [lost, lost[partners]]
    smoothness = []
    for axis in (1, 2):
        meeting = _colour_steps(colours, partners, parts, axis)
        data = {key: step * (scale * weights.data_smoothness) for key, step in meeting.items()}
        for which in (0, 1):
            # A cost over pairs of shares is one over each share alone, and one over their difference.
            before, after = (data[which, 0] + data[which, 1]) / 2, (data[0, which] + data[1, which]) / 2
            shown[which] = shown[which] + _beside(before, axis, first=True) + _beside(after, axis, first=False)
        smoothness.append((scale + (data[1, 0] + data[0, 1] - data[1, 1] - data[0, 0]) / 2).clamp_min(0))
    levels_of_share = torch.arange(levels, dtype=torch.float32, device=images.device) / (levels - 1)
    unary = torch.lerp(shown[0][..., None], shown[1][..., None], levels_of_share)
    unary = unary + (weights.prior / side**2) * _surprise(share.to(images.device), levels)[:, None, None]
    return LevelProblem(unary=unary, down=smoothness[0], across=smoothness[1])


def _averaging(size: int, side: int, device: torch.device) -> Tensor:
    """[n, size]: each row averages over one block."""
    member = functional.one_hot(block_of(size, side, device), side).T.to(torch.float32)
    return member / member.sum(dim=1, keepdim=True)


def _colour_steps(colours: Tensor, partners: Tensor, parts: int, axis: int) -> dict[tuple[int, int], Tensor]:
    """Mean absolute difference of colours across the borders of blocks along an axis, with image a before the border and image b after it.

    ``colours`` is [B, C, n·parts, n·parts]; each of the four answers is [B, n - 1, n] or [B, n, n - 1].
    """
    sides = colours.shape[-1]
    border = torch.arange(parts, sides, parts, device=colours.device)
    before, after = colours.index_select(axis + 1, border - 1), colours.index_select(axis + 1, border)

    def step(first: Tensor, second: Tensor) -> Tensor:
        difference = (first - second).abs().mean(dim=1)
        if axis == 1:
            return difference.view(*difference.shape[:2], sides // parts, parts).mean(dim=3)
        return difference.view(len(difference), sides // parts, parts, -1).mean(dim=2)

    own = step(before, after)
    return {
        (1, 1): own,
        (0, 0): own[partners],
        (1, 0): step(before, after[partners]),
        (0, 1): step(before[partners], after),
    }


def _beside(border: Tensor, axis: int, *, first: bool) -> Tensor:
    """Values of borders, at the blocks before them or after them along an axis: [B, n, n]."""
    padding = (0, 1) if first else (1, 0)
    return functional.pad(border, (0, 0, *padding) if axis == 1 else padding)


def _surprise(share: Tensor, levels: int) -> Tensor:
    """[B or 1, L]: -log of the probability of i successes in L - 1 draws that succeed with probability ``share``."""
    draws = levels - 1
    successes = torch.arange(levels, device=share.device)
    ways = torch.tensor([math.comb(draws, i) for i in range(levels)], dtype=torch.float32, device="cpu")
    share = share.to(torch.float32)[:, None]
    return -torch.log(ways.to(share.device, non_blocking=True) * share**successes * (1 - share) ** (draws - successes) + 1e-8)
