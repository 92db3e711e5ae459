"""How often a model is right, and how well it knows that."""

from __future__ import annotations

import torch
from torch import nn

from mixsage.evaluation.pixels import Loader, batches, device_of
from mixsage.evaluation.scores import Scores
from mixsage.saliency import evaluating


def accuracy(model: nn.Module, loader: Loader) -> dict[str, float]:
    """``top1``, ``top5`` (per cent), ``nll`` (nats) and ``ece`` (per cent, 15 bins) over all images of the loader.

    Args:
        model: from pixels in [0, 1] to logits, for example a `Normalised` network.
        loader: yields images [B, C, H, W], bytes or floating point in [0, 1], and class indices [B].

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from mixsage.data import MEAN, STD, load_sample
        >>> from mixsage.evaluation.pixels import Normalised
        >>> from mixsage.models import small_convnet
        >>> model = Normalised(small_convnet(), mean=MEAN, std=STD)
        >>> sorted(accuracy(model, DataLoader(TensorDataset(*load_sample("test")), batch_size=500)))
        ['ece', 'nll', 'top1', 'top5']
    """
    scores = Scores()
    with evaluating(model), torch.no_grad():
        for pixels, labels in batches(loader, device_of(model)):
            scores.add(model(pixels), labels)
    return scores.values()
