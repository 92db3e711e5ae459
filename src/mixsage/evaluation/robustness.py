"""Accuracy on perturbed images."""

from __future__ import annotations

import torch
from torch import Generator, nn

from mixsage.evaluation import attacks
from mixsage.evaluation.pixels import Loader, batches, check_logits, device_of
from mixsage.evaluation.scores import Scores, Share
from mixsage.saliency import evaluating

PERTURBATIONS = ("gaussian", "fgsm", "fgm")
"""What the OOD score is the mean of."""


def robustness(
    model: nn.Module,
    loader: Loader,
    *,
    generator: Generator | None = None,
    variance: float = attacks.VARIANCE,
    linf: float = attacks.LINF,
    l2: float = attacks.L2,
) -> dict[str, float]:
    """Accuracy in per cent under three perturbations of the pixels, ``gaussian``, ``fgsm``, ``fgm``, and their mean, ``ood``.

    Args:
        model: from pixels in [0, 1] to logits, for example a `Normalised` network.
        loader: yields images [B, C, H, W], bytes or floating point in [0, 1], and class indices [B].
        generator: a CPU generator of the noise; torch's default one if left out.
        variance: of the noise.
        linf: how far FGSM moves each pixel.
        l2: how far FGM moves each image.
    """
    return {
        name: value
        for name, value in evaluate(model, loader, generator=generator, variance=variance, linf=linf, l2=l2).items()
        if name in _KEYS
    }


def evaluate(
    model: nn.Module,
    loader: Loader,
    *,
    generator: Generator | None = None,
    variance: float = attacks.VARIANCE,
    linf: float = attacks.LINF,
    l2: float = attacks.L2,
) -> dict[str, float]:
    """`accuracy` and `robustness` in one sweep over the data, in four forward passes and one backward: the attacks share one gradient."""
    clean = Scores()
    perturbed = {name: Share() for name in PERTURBATIONS}
    with evaluating(model):
        for pixels, labels in batches(loader, device_of(model)):
            logits, gradient = attacks.gradient_of(model, pixels, labels)
            clean.add(logits, labels)
            images = {
                "gaussian": attacks.gaussian_noise(pixels, variance, generator=generator),
                "fgsm": attacks.fgsm(pixels, gradient, linf),
                "fgm": attacks.fgm(pixels, gradient, l2),
            }
            with torch.no_grad():
                for name, share in perturbed.items():
                    share.add(check_logits(model(images[name]), labels), labels)
    found = {name: share.value() for name, share in perturbed.items()}
    return {**clean.values(), **found, "ood": sum(found.values()) / len(found)}


_KEYS = (*PERTURBATIONS, "ood")
