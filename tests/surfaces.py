"""v of every rearrangement in double precision, one shift after the other; and maps that are hard on engines."""

import torch

from helpers import seeded


def v(a, b, row, column):
    """The total saliency of a pair [H, W] under one shift: Σ a + Σ_overlap b - 2ab/(a+b), in double precision."""
    a, b = a.double(), b.double()
    height, width = a.shape
    if abs(row) >= height or abs(column) >= width:
        return float(a.sum())
    own = a[max(0, row) : height + min(0, row), max(0, column) : width + min(0, column)]
    other = b[max(0, -row) : height - max(0, row), max(0, -column) : width - max(0, column)]
    both = own + other
    lost = torch.where(both > 0, own * (other / both.clamp(min=5e-324)), 0.0)
    return float(a.sum() + other.sum() - 2 * lost.sum())


def every_v(first, second, shifts):
    """[B, N] float64."""
    values = [[v(a, b, *shift) for shift in shifts.tolist()] for a, b in zip(first, second, strict=True)]
    return torch.tensor(values, dtype=torch.float64)


def random_maps(batch, height, width, seed=0, power=4.0):
    """Distributions over pixels, the more uneven the higher the power."""
    maps = torch.rand(batch, height, width, generator=seeded(seed), dtype=torch.float64) ** power
    return (maps / maps.sum(dim=(1, 2), keepdim=True)).float()


def pixel(height, width, row, column):
    maps = torch.zeros(1, height, width)
    maps[0, row, column] = 1
    return maps


def hostile_pairs(height, width):
    """Name → two maps [1, H, W] that no engine may stumble over."""
    noise, other = random_maps(1, height, width, 1), random_maps(1, height, width, 2)
    zero, flat = torch.zeros(1, height, width), torch.full((1, height, width), 1 / 1024)
    spot = pixel(height, width, height // 2, width // 3)
    half = noise.clone()
    half[:, :, : width // 2] = 0
    return {
        "nothing at all": (zero, zero),
        "nothing under noise": (zero, noise),
        "noise under nothing": (noise, zero),
        "one pixel each": (0.4 * spot, 0.6 * pixel(height, width, 0, width - 1)),
        "one pixel on noise": (0.4 * spot, 0.6 * noise),
        "a peak above dust": (0.4 * (spot + 1e-7 * noise), 0.6 * (other + 1e3 * spot)),
        "half of it empty": (0.3 * half, 0.7 * other),
        "a vanishing share": (1e-12 * noise, other),
        "nearly all of it": ((1 - 1e-12) * noise, 1e-12 * other),
        "denormal": (1e-40 * noise / noise.max(), 1e-40 * other / other.max()),
        "tiny": (1e-30 * noise, 1e-30 * other),
        "huge": (1e30 * noise, 1e30 * other),
        "uniform": (0.25 * flat, 0.75 * flat),
        "uniform, every shift alike": (0.5 * flat, 0.5 * flat),
        "thirty powers of ten": (0.5 * random_maps(1, height, width, 3, 80), 0.5 * random_maps(1, height, width, 4, 80)),
    }
