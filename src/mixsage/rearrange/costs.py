"""What each engine should take, in seconds: the model that `engine="auto"` chooses by.

The constants of the CPU are fitted by benchmarks/fit_engines.py. Those of other devices are not fits: they count the kernels that the host
launches, four for each shift that the direct engine visits and a fixed number for the fourier engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mixsage.rearrange import direct, fourier

DIRECT_CPU = (1.06e-4, 1.06e-5, 1.92e-10)
"""Seconds a call, a shift and group of pairs, a pixel of an overlap."""
FOURIER_CPU = (6.61e-4, 9.31e-11, 4.27e-9, 3.13e-6)
"""Seconds a call, a point of the transforms (times its logarithm), a value of the surface, a pair."""
_LAUNCH = 5e-6
_LAUNCHES_PER_SHIFT, _LAUNCHES_FOURIER = 4, 400


def estimate(device: str, shape: tuple[int, int, int], shifts: Tensor) -> dict[str, float]:
    """Seconds by engine. ``shifts`` [N, 2] lies on the CPU."""
    if device != "cpu":
        return {"direct": _LAUNCH * _LAUNCHES_PER_SHIFT * len(shifts), "fourier": _LAUNCH * _LAUNCHES_FOURIER}
    return {
        name: sum(cost * work for cost, work in zip(constants, amounts, strict=True))
        for (name, amounts), constants in zip(amounts_of_work(shape, shifts).items(), (DIRECT_CPU, FOURIER_CPU), strict=True)
    }


def amounts_of_work(shape: tuple[int, int, int], shifts: Tensor) -> Mapping[str, tuple[float, ...]]:
    """What the constants are multiplied with, by engine."""
    batch, height, width = shape
    sides = torch.tensor([height, width], device="cpu")
    overlaps = int((sides - shifts.abs()).clamp(min=0).prod(dim=1).sum())
    groups = math.ceil(batch / direct.pairs_at_a_time(height, width, 4))
    points, transforms = fourier.work(height, width, shifts)
    return {
        "direct": (1.0, float(groups * len(shifts)), float(batch * overlaps)),
        "fourier": (1.0, batch * transforms * points * math.log2(points), float(batch * len(shifts)), float(batch)),
    }
