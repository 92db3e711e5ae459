"""Whether a model's confidence is what it should be."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixsage.evaluation.pixels import Loader, batches, check_logits, device_of
from mixsage.saliency import evaluating


class Reliability(NamedTuple):
    """The reliability diagram: one entry a bin of confidence, equally wide, from 0 to 1."""

    confidence: list[float]
    """Mean confidence of the bin's images, in per cent; NaN where there are none."""
    accuracy: list[float]
    """Per cent of the bin's images that were classified correctly; NaN where there are none."""
    images: list[int]
    """Images in the bin."""


def calibration(model: nn.Module, loader: Loader, *, bins: int = 15) -> dict[str, float]:
    """How far confidence and accuracy lie apart; all but ``brier`` in per cent.

    ``ece`` is the mean distance over bins of confidence, ``mce`` the largest, ``overconfidence`` the mean confidence less the accuracy
    (negative for a model that doubts itself too much), ``brier`` the squared distance of the probabilities from the truth.
    """
    confidence, correct, brier = _confidences(model, loader)
    table = _table(confidence, correct, bins)
    gaps = [(abs(c - a), n) for c, a, n in zip(*table, strict=True) if n]
    return {
        "ece": sum(gap * n for gap, n in gaps) / len(confidence),
        "mce": max(gap for gap, _ in gaps),
        "overconfidence": 100 * float(confidence.mean() - correct.double().mean()),
        "brier": float(brier.mean()),
    }


def reliability(model: nn.Module, loader: Loader, *, bins: int = 15) -> Reliability:
    """The reliability diagram of a model."""
    confidence, correct, _ = _confidences(model, loader)
    return _table(confidence, correct, bins)


def _confidences(model: nn.Module, loader: Loader) -> tuple[Tensor, Tensor, Tensor]:
    """For every image, in float64: confidence, whether it was right, and its Brier score."""
    found = []
    with evaluating(model), torch.no_grad():
        for pixels, labels in batches(loader, device_of(model)):
            shares = check_logits(model(pixels), labels).double().softmax(dim=1)
            confidence, guess = shares.max(dim=1)
            true_share = shares.gather(1, labels[:, None])[:, 0]
            found.append(
                torch.stack([confidence, (guess == labels).double(), shares.square().sum(dim=1) - 2 * true_share + 1]).cpu()
            )
    confidence, correct, brier = torch.cat(found, dim=1)
    return confidence, correct, brier


def _table(confidence: Tensor, correct: Tensor, bins: int) -> Reliability:
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    # A confidence on the border between two bins belongs to the lower one, as in the usual definition of intervals open below.
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    count = torch.bincount(place, minlength=bins)
    mean_confidence = torch.bincount(place, weights=confidence, minlength=bins) / count
    accuracy = torch.bincount(place, weights=correct, minlength=bins) / count
    return Reliability((100 * mean_confidence).tolist(), (100 * accuracy).tolist(), count.tolist())
