"""What each engine should take, in seconds: the model that `engine="auto"` chooses by.

The constants are fitted by benchmarks/fit_engines.py, to a CPU and to a CUDA GPU. Other devices are taken for a GPU that has no triton.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mixsage.rearrange import direct, fourier

CONSTANTS = {
    "cpu": {
        "direct": (1.06e-4, 1.06e-5, 1.92e-10),
        "fourier": (6.61e-4, 9.31e-11, 4.27e-9, 3.13e-6),
    },
    "cuda": {
        "direct": (6.82e-4, 3.35e-5, 3.30e-12),
        "fourier": (7.17e-3, 2.43e-12, 1.72e-10, 0.0),
        "triton": (2.30e-4, 2.28e-9, 2.46e-12),
    },
}
"""Seconds by device and engine: a call, a shift and group of pairs (of triton: a shift of a pair), a pixel of an overlap; of the fourier
engine a call, a point of the transforms (times its logarithm), a value of the surface, a pair.
"""


def estimate(device: str, shape: tuple[int, int, int], shifts: Tensor) -> dict[str, float]:
    """Seconds by engine. ``shifts`` [N, 2] lies on the CPU."""
    constants = CONSTANTS.get(device, CONSTANTS["cuda"])
    amounts = amounts_of_work(device, shape, shifts)
    return {name: sum(cost * work for cost, work in zip(each, amounts[name], strict=True)) for name, each in constants.items()}


def amounts_of_work(device: str, shape: tuple[int, int, int], shifts: Tensor) -> Mapping[str, tuple[float, ...]]:
    """What the constants are multiplied with, by engine."""
    batch, height, width = shape
    sides = torch.tensor([height, width], device="cpu")
    overlaps = float(batch * int((sides - shifts.abs()).clamp(min=0).prod(dim=1).sum()))
    groups = math.ceil(batch / direct.pairs_at_a_time(height, width, 4)) if device == "cpu" else 1
    points, transforms = fourier.work(height, width, shifts)
    values = float(batch * len(shifts))
    return {
        "direct": (1.0, float(groups * len(shifts)), overlaps),
        "fourier": (1.0, batch * transforms * points * math.log2(points), values, float(batch)),
        "triton": (1.0, values, overlaps),
    }
