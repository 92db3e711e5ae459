"""The learning rate of a step, as a pure function of its place in the run: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from mixsage.training.config import Optimisation


def learning_rate(settings: Optimisation, step: int, steps_per_epoch: int) -> float:
    """The learning rate of step ``step``, counted from 0 over the whole run."""
    total = settings.epochs * steps_per_epoch
    if settings.schedule == "constant":
        return settings.lr
    if settings.schedule == "step":
        return settings.lr * settings.lr_decay ** sum(step >= epoch * steps_per_epoch for epoch in settings.milestones)
    # One cycle starts at 1/25 of the peak and ends near zero, as torch's OneCycleLR does; cosine with warm-up rises from near zero in a line.
    rising = max(1, round(settings.warmup * total)) if settings.warmup else 0
    if step < rising:
        return settings.lr * ((step + 1) / rising if settings.schedule == "cosine" else _cosine(1 / 25, 1, step / rising))
    return settings.lr * _cosine(1, 0 if settings.schedule == "cosine" else 4e-6, (step - rising) / max(1, total - rising))


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
