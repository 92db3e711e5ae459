"""A mixed batch as it was at the start of a run: the first thing to look at when a run goes wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mixsage.data.extras import need
from mixsage.plan import MixPlan

COUNT = 10
"""Images that are shown."""
SIDE = 112
"""Small images are enlarged to about so many pixels."""


def save_batch(path: Path, images: Tensor, plan: MixPlan, mean: Sequence[float], std: Sequence[float]) -> None:
    """Images above, what the network was given below; the images alone where their input is not mixed."""
    shown = [images[:COUNT]]
    if not plan.is_identity and plan.layer is None:
        shown.append(plan.apply(images)[:COUNT])
    rows = torch.cat([_pixels(row, mean, std) for row in shown])
    times = max(1, math.ceil(SIDE / max(rows.shape[-2:])))
    rows = rows.repeat_interleave(times, dim=2).repeat_interleave(times, dim=3)
    need("torchvision.utils").save_image(rows, path, nrow=len(shown[0]))


def _pixels(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    shape = (1, -1, 1, 1)
    return (images.float().cpu() * torch.tensor(std).view(shape) + torch.tensor(mean).view(shape)).clamp(0, 1)
