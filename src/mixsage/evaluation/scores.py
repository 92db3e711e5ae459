"""Numbers from logits, added up batch by batch through torchmetrics."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from mixsage.errors import not_installed
from mixsage.evaluation.pixels import check_logits

try:
    from torchmetrics.aggregation import MeanMetric
    from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError
except ModuleNotFoundError as error:  # pragma: no cover - the tests have it
    raise ModuleNotFoundError(not_installed("evaluation", "torchmetrics", "train")) from error


class Share:
    """Per cent of the images that are classified correctly."""

    def __init__(self, top: int = 1) -> None:
        self.top = top
        self._metric: MulticlassAccuracy | None = None

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """One batch."""
        if self._metric is None:
            classes = logits.shape[1]
            # With fewer classes than guesses, every guess is among them.
            self._metric = MulticlassAccuracy(classes, top_k=min(self.top, classes), average="micro").to(logits.device)
        self._metric.update(logits, labels)

    def value(self) -> float:
        """In per cent, of all batches."""
        assert self._metric is not None
        # The counts, not their float32 quotient: 9,999 of 10,000 is 99.99 and nothing else.
        correct, wrong = int(cast("Tensor", self._metric.tp).sum()), int(cast("Tensor", self._metric.fn).sum())
        return 100 * correct / (correct + wrong)


class Probabilities:
    """Negative log-likelihood, and how far the confidence is from the share of correct answers."""

    def __init__(self, bins: int = 15) -> None:
        self.bins = bins
        self._nll: MeanMetric | None = None
        self._ece: MulticlassCalibrationError | None = None

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """One batch."""
        if self._nll is None or self._ece is None:
            self._nll = MeanMetric().to(logits.device)
            self._nll.set_dtype(torch.float64)
            self._ece = MulticlassCalibrationError(logits.shape[1], n_bins=self.bins, norm="l1").to(logits.device)
        self._nll.update(functional.cross_entropy(logits.double(), labels, reduction="none"))
        # Probabilities, not logits: torchmetrics looks at the values of each batch to find out which it was given.
        self._ece.update(logits.softmax(dim=1), labels)

    def nll(self) -> float:
        """Mean negative log-likelihood of the true class, in nats."""
        assert self._nll is not None
        return float(self._nll.compute())

    def ece(self) -> float:
        """Expected calibration error in per cent."""
        assert self._ece is not None
        return 100 * float(self._ece.compute())


class Scores:
    """`top1`, `top5`, `nll` and `ece` of all batches."""

    def __init__(self) -> None:
        self._top1, self._top5, self._probabilities = Share(1), Share(5), Probabilities()

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """One batch, checked."""
        logits = check_logits(logits, labels)
        for part in (self._top1, self._top5, self._probabilities):
            part.add(logits, labels)

    def values(self) -> dict[str, float]:
        """Shares in per cent, the likelihood in nats."""
        return {
            "top1": self._top1.value(),
            "top5": self._top5.value(),
            "nll": self._probabilities.nll(),
            "ece": self._probabilities.ece(),
        }
