"""Perturbed pixels: noise, and one step along the gradient. Pixels lie in [0, 1] before and after."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from mixsage.evaluation.pixels import check_logits

LINF = 8 / 255
"""The usual size of a step that changes each pixel by the same amount."""
L2 = 0.5
"""The usual length of a step along the gradient."""
VARIANCE = 0.01
"""The variance of the noise."""


def gaussian_noise(pixels: Tensor, variance: float = VARIANCE, *, generator: Generator | None = None) -> Tensor:
    """Pixels with Gaussian noise added.

    The noise of an image depends on its place in the data, not on the size of the batches: it is drawn image by image, on the CPU.
    """
    if variance < 0:
        raise ValueError(f"variance must not be negative, got {variance}")
    noise = torch.empty(pixels.shape)
    for one in noise:
        one.normal_(generator=generator)
    return noise.to(pixels.device).mul_(math.sqrt(variance)).add_(pixels).clamp_(0, 1)


def fgsm(pixels: Tensor, gradient: Tensor, epsilon: float = LINF) -> Tensor:
    """Each pixel changed by ``epsilon`` in the direction in which the loss grows (Goodfellow et al., 2015)."""
    return (pixels + epsilon * gradient.sign()).clamp_(0, 1)


def fgm(pixels: Tensor, gradient: Tensor, epsilon: float = L2) -> Tensor:
    """Each image moved by a length of ``epsilon`` along its gradient; an image without a gradient stays."""
    # To a peak of 1 first: squares of small gradients would vanish.
    peak = gradient.abs().amax(dim=(1, 2, 3), keepdim=True)
    scaled = gradient / peak.clamp_min(torch.finfo(gradient.dtype).tiny)
    length = scaled.square().sum(dim=(1, 2, 3), keepdim=True).sqrt_()
    step = scaled / length.clamp_min(torch.finfo(gradient.dtype).tiny)
    return (pixels + epsilon * step).clamp_(0, 1)


def gradient_of(model: nn.Module, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of each image's cross-entropy with respect to its pixels; no gradient of a parameter is computed."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError("attacks need gradients, but torch.inference_mode() is on; call the evaluator outside of it")
    with torch.enable_grad():
        leaf = pixels.detach().requires_grad_()
        logits = model(leaf)
        # The sum, so that an image's gradient does not shrink with the size of its batch.
        loss = functional.cross_entropy(check_logits(logits, labels), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, leaf)
    return logits.detach(), gradient
