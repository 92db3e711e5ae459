"""Images to saliency maps: where a model looks, as raw maps [B, H, W]; and what makes a distribution over pixels of a raw map.

A source of saliency is a small frozen value that turns a batch (and the gradient of the loss with respect to it, if it needs one) into raw
maps: `InputGradient`, `FineGrained`, `Uniform`. `smooth` and `normalise` are applied by whoever uses the maps.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mixsage.colours import check_statistics, colours
from mixsage.finegrained import fine_grained
from mixsage.loss import logits_of, scalar_of

Criterion = Callable[[Tensor, Tensor], Tensor]
"""``criterion(logits [B, C], soft targets [B, C]) -> scalar``."""
Mode = Literal["train", "eval"]
"""How the model runs in a clean pass: "train" leaves its training flags as the loop has them, "eval" clears them for the pass."""


class Saliency(ABC):
    """A source of raw saliency maps."""

    needs_gradient: ClassVar[bool]
    """Whether maps come from the gradient of the loss with respect to the images."""

    @abstractmethod
    def __call__(self, images: Tensor, gradient: Tensor | None = None) -> Tensor:
        """Raw maps [B, H, W] float32 of images [B, C, H, W], not yet smoothed or normalised."""


@dataclass(frozen=True, kw_only=True)
class InputGradient(Saliency):
    """The size of the loss's gradient at each pixel: a norm over the colours."""

    norm: Literal["l2", "l1"] = "l2"
    """"l2" as the paper has it; "l1", the mean of absolute values, as its authors' code has it."""
    mode: Mode = "train"
    """How the model runs while the gradient is taken: "train" as published, or "eval" (then BatchNorm statistics move once a step)."""
    needs_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_choice("norm", self.norm, ("l2", "l1"))
        _check_choice("mode", self.mode, ("train", "eval"))

    def __call__(self, images: Tensor, gradient: Tensor | None = None) -> Tensor:
        """Norm over colours of the gradient [B, C, H, W], in float32."""
        if gradient is None:
            raise ValueError("InputGradient needs the gradient of the loss with respect to the images, got None")
        gradient = gradient.detach().float()
        if self.norm == "l1":
            return gradient.abs().mean(dim=1)
        # Gradients below 1e-19 would vanish when squared, so each image is brought to a peak of 1 first. A peak of 0 or inf is left to
        # `normalise`, which makes a uniform map of it.
        highest, lowest = gradient.amax(dim=(1, 2, 3), keepdim=True), gradient.amin(dim=(1, 2, 3), keepdim=True)
        peak = torch.maximum(highest, -lowest).clamp_min_(torch.finfo(torch.float32).tiny)
        # Not torch.linalg.vector_norm: along a strided axis it is some eighty times slower than the same thing written out.
        return (gradient / peak).square_().sum(dim=1).sqrt_().mul_(peak[:, 0])


@dataclass(frozen=True, kw_only=True)
class FineGrained(Saliency):
    """How much brighter or darker a pixel is than its surroundings, at six sizes of these: no model and no gradient is needed.

    Example:
        >>> FineGrained()(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 32, 32])
    """

    mean: tuple[float, ...] | None = None
    """Mean that the images were normalised with, a value a channel; None takes them as colours from 0 to 1."""
    std: tuple[float, ...] | None = None
    """Standard deviation that the images were normalised with."""
    needs_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_statistics(self.mean, self.std)

    def __call__(self, images: Tensor, gradient: Tensor | None = None) -> Tensor:
        """Fine-grained static saliency, as OpenCV's contributed module computes it."""
        return fine_grained(colours(images, self.mean, self.std))


@dataclass(frozen=True, kw_only=True)
class Uniform(Saliency):
    """The same saliency everywhere: the control that shows what saliency itself adds."""

    needs_gradient: ClassVar[bool] = False

    def __call__(self, images: Tensor, gradient: Tensor | None = None) -> Tensor:
        """Maps of ones."""
        return torch.ones(len(images), *images.shape[-2:], dtype=torch.float32, device=images.device)


def smooth(maps: Tensor, variance: float = 1.0, size: int = 5) -> Tensor:
    """Gaussian blur of maps [B, H, W] with reflected borders; maps may be smaller than the kernel."""
    if not 0 < variance < math.inf:
        raise ValueError(f"variance must be positive and finite, got {variance}")
    if size < 1 or size % 2 == 0:
        raise ValueError(f"size must be odd and positive, got {size}")
    taps = _gaussian(variance, size)
    return _blur(_blur(maps.float(), taps, axis=1), taps, axis=2)


def normalise(maps: Tensor) -> Tensor:
    """Each map [B, H, W] divided by its sum, in float32: a distribution over its pixels.

    A map that is zero everywhere, or holds a value that is not finite, becomes the uniform map. Negative values count as none.
    """
    maps = maps.float()
    peak, least = maps.amax(dim=(1, 2), keepdim=True), maps.amin(dim=(1, 2), keepdim=True)
    # Against the peak first: sums of huge values overflow, and sums of denormal ones lose all precision.
    scaled = (maps / peak).clamp_min_(0)
    share = scaled / scaled.sum(dim=(1, 2), keepdim=True)
    usable = (peak > 0) & peak.isfinite() & least.isfinite()
    return torch.where(usable, share, 1 / (maps.shape[1] * maps.shape[2]))


def check_maps(maps: Tensor, images: Tensor) -> None:
    """Saliency handed in must be one raw map for each image."""
    expected = (len(images), *images.shape[-2:])
    if not isinstance(maps, Tensor):
        raise TypeError(
            f"saliency must be a tensor of raw maps [B, H, W] = {list(expected)}, got {type(maps).__name__}; pass torch.as_tensor(maps)"
        )
    if maps.shape != expected:
        raise ValueError(
            f"saliency must be raw maps [B, H, W] = {list(expected)}, got {list(maps.shape)}; for maps [B, 1, H, W] pass maps.squeeze(1)"
        )
    if not maps.is_floating_point():
        raise TypeError(f"saliency must be floating point, got {maps.dtype}; pass maps.float()")
    if maps.device != images.device:
        raise ValueError(f"saliency lies on {maps.device}, the images on {images.device}; move it with maps.to(images.device)")


def input_gradient(
    model: nn.Module, images: Tensor, targets_of: Callable[[Tensor], Tensor], criterion: Criterion, mode: Mode = "train"
) -> Tensor:
    """Gradient of the loss with respect to the images, leaving the model exactly as it was.

    `.grad`, parameters, buffers (BatchNorm statistics: the pass runs on clones) and training flags are untouched. ``targets_of(logits)``
    gives the soft targets.
    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "saliency needs gradients, but torch.inference_mode() is on; leave it, or use torch.no_grad() where you need none"
        )
    model = _without_data_parallel(model)
    leaf = detached(images).requires_grad_()
    with torch.enable_grad(), _buffers_aside(model), evaluating(model) if mode == "eval" else nullcontext():
        logits = logits_of(model(leaf), "wrap it in a module that returns them")
        loss = scalar_of(criterion(logits, targets_of(logits)))
        (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return arrived(gradient)


def arrived(gradient: Tensor | None) -> Tensor:
    """The gradient of the loss with respect to the images, if the model lets one through to them."""
    if gradient is None:
        raise RuntimeError(
            "no gradient of the loss arrived at the images, so there is no saliency: a part of the model detaches them or runs under "
            "no_grad; freeze its parameters with requires_grad_(False) instead, or take a method that looks at no gradient"
        )
    return gradient


def detached(images: Tensor) -> Tensor:
    """The images without their graph, which is the caller's; ones made in inference mode, which no graph takes in, are copied."""
    return images.clone() if images.is_inference() else images.detach()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Evaluation mode for all modules of the model, and each one's own flag afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def _buffers_aside(model: nn.Module) -> Iterator[None]:
    """Clones in the place of the model's buffers, and the buffers themselves afterwards."""
    # Not torch.func.functional_call: of a module that two parents share it does not put the buffers back.
    kept = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    ]
    clones = {id(buffer): buffer.clone() for _, _, buffer in kept}
    try:
        for module, name, buffer in kept:
            setattr(module, name, clones[id(buffer)])
        yield
    finally:
        for module, name, buffer in kept:
            setattr(module, name, buffer)


def _without_data_parallel(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, which would wait for parameter gradients that this pass does not make."""
    wrapped = getattr(model, "_orig_mod", model)
    return wrapped.module if isinstance(wrapped, DistributedDataParallel) else model


def _gaussian(variance: float, size: int) -> list[float]:
    """The right half of a normalised Gaussian kernel, its centre first."""
    half = size // 2
    taps = [math.exp(-(i**2) / (2 * variance)) for i in range(half + 1)]
    total = taps[0] + 2 * sum(taps[1:])
    return [tap / total for tap in taps]


def _blur(maps: Tensor, taps: Sequence[float], axis: int) -> Tensor:
    """One axis of the blur, as a weighted sum of slices: exact in float32, where a convolution on CUDA may round to TF32."""
    size, half = maps.shape[axis], len(taps) - 1
    padded = maps.index_select(axis, _reflected(size, half, maps.device))
    blurred = maps * taps[0]
    for i in range(1, half + 1):
        pair = padded.narrow(axis, half - i, size) + padded.narrow(axis, half + i, size)
        blurred.add_(pair, alpha=taps[i])
    return blurred


def _reflected(size: int, half: int, device: torch.device) -> Tensor:
    """Indices of an axis with ``half`` reflected ones on each side; reflection repeats where the axis is shorter than that."""
    places = torch.arange(-half, size + half, device=device)
    if size == 1:
        return torch.zeros_like(places)
    period = 2 * (size - 1)
    folded = places.remainder(period)
    return torch.minimum(folded, period - folded)


def _check_choice(field: str, value: str, valid: Sequence[str]) -> None:
    if value not in valid:
        raise ValueError(f"{field} must be one of {', '.join(map(repr, valid))}; got {value!r}")
