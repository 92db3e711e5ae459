"""The model that is to be judged: one of ours, timm's or anybody's, with weights from a file, as a model of pixels in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from mixsage.evaluation.pixels import Normalised
from mixsage.models.weights import fit_weights, read_weights
from mixsage.training.build import build_model


def load_model(
    notation: str,
    *,
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    weights: str | Path | None = None,
    width: int | None = None,
    pretrained: bool = False,
) -> Normalised:
    """A model by name, with its weights and with the normalisation that these were trained with, ready for any evaluator.

    Args:
        notation: one of ours, ``timm:NAME``, or ``package.module:factory``; with arguments if you like: ``preactresnet18(final_norm=True)``.
        num_classes: number of classes.
        mean: mean of each channel in [0, 1]; as many numbers as the images have channels.
        std: standard deviation of each channel in [0, 1].
        weights: a file: safetensors, or what `torch.save` wrote; prefixes and wrappings of the usual training scripts are taken off.
        width: channels at the start of one of our models.
        pretrained: take timm's published weights.

    Example:
        >>> from mixsage.data import MEAN, STD
        >>> model = load_model("small_convnet", num_classes=10, mean=MEAN, std=STD)
    """
    if weights is not None and pretrained:
        raise ValueError("weights and pretrained exclude one another: give a file, or take timm's weights")
    network: nn.Module = build_model(notation, num_classes=num_classes, channels=len(mean), width=width, pretrained=pretrained)
    if weights is not None:
        fit_weights(network, read_weights(weights), weights)
    return Normalised(network.eval(), mean=mean, std=std)
