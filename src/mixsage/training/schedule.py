"""The learning rate of a step, as a pure function of its place in the run: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from mixsage.training.config import Optimisation


def learning_rate(settings: Optimisation, step: int, steps_per_epoch: int) -> float:
    """The learning rate of step ``step``, counted from 0 over the whole run.

    >>> learning_rate(Optimisation(schedule="step", lr=0.2, milestones=(100, 200)), step=150 * 500, steps_per_epoch=500)
    0.020000000000000004
    """
    total = settings.epochs * steps_per_epoch
    if settings.schedule == "constant":
        return settings.lr
    if settings.schedule == "step":
        return settings.lr * settings.lr_decay ** sum(step >= epoch * steps_per_epoch for epoch in settings.milestones)
    return settings.lr * (_one_cycle if settings.schedule == "onecycle" else _cosine_decay)(step, total, settings.warmup)


def _cosine_decay(step: int, total: int, warmup: float) -> float:
    """From near zero in a line to 1, then down along half a cosine."""
    rising = round(warmup * total)
    return (step + 1) / rising if step < rising else _cosine(1, 0, (step - rising) / (total - rising))


def _one_cycle(step: int, total: int, warmup: float) -> float:
    """As torch's OneCycleLR has it: from 1/25 to 1 and down to 1/250,000, along half a cosine each."""
    peak, end = max(warmup * total - 1, 0), total - 1
    if step < peak:
        return _cosine(1 / 25, 1, step / peak)
    return _cosine(1, 1 / 25 / 1e4, (step - peak) / max(end - peak, 1e-9))


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
