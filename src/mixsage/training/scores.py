"""How good a model is, during a run and at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from mixsage.data import Feed
from mixsage.saliency import evaluating
from mixsage.training.session import Session

LAST_EPOCHS = 10
"""Epochs at the end that are always evaluated: the median of their accuracies is reported beside the last."""


def evaluate(session: Session, feed: Feed, between_batches: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Top-1 accuracy in per cent and mean cross-entropy of the current weights, or of their average where one is kept."""
    model = session.model if session.average is None else session.average
    device = session.fabric.device
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    with torch.no_grad(), evaluating(model):
        for batch in feed.batches(0):
            with session.fabric.autocast():
                logits = model(batch.images).float()
            loss = functional.cross_entropy(logits, batch.labels, reduction="sum")
            correct = (logits.argmax(1) == batch.labels).sum()
            sums += torch.stack([correct.double(), loss.double(), torch.full((), len(logits), dtype=torch.float64, device=device)])
            between_batches()
    correct, loss, count = session.sum(sums).tolist()
    return {"top1": 100 * correct / count, "loss": loss / count}


def result(history: Sequence[Mapping[str, Any]], split: str = "test") -> dict[str, float]:
    """The three accuracies of a run: after the last epoch, the best of all, and the median of the last ten.

    >>> result([{"test_top1": 50.0}, {"test_top1": 80.0}, {"test_top1": 70.0}])
    {'last': 70.0, 'best': 80.0, 'median_of_last_ten': 70.0}
    """
    values = [record[f"{split}_top1"] for record in history if f"{split}_top1" in record]
    if not values:
        return {}
    tail = sorted(values[-LAST_EPOCHS:])
    middle = len(tail) // 2
    median = tail[middle] if len(tail) % 2 else (tail[middle - 1] + tail[middle]) / 2
    return {"last": values[-1], "best": max(values), "median_of_last_ten": median}
