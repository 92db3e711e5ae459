"""Losses on soft targets. Both work in float32 where the logits have less."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, class_weights: Tensor | None = None) -> Tensor:
    """Cross-entropy with soft targets, averaged over the batch.

    Args:
        logits: [B, C], any floating dtype.
        targets: [B, C], shares of the classes.
        label_smoothing: share of the target that is spread evenly over all classes.
        class_weights: [C], a factor for each class; the mean stays one over the batch.

    Example:
        >>> from functools import partial
        >>> smoothed = partial(cross_entropy, label_smoothing=0.1)
        >>> float(smoothed(torch.zeros(2, 4), torch.eye(4)[:2])) == float(torch.tensor(4.0).log())
        True
    """
    logits, targets = _at_the_door(logits, targets)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must lie in [0, 1], got {label_smoothing}")
    if class_weights is not None:
        if class_weights.shape != logits.shape[1:]:
            raise ValueError(
                f"class_weights must be [C] = [{logits.shape[1]}], got {list(class_weights.shape)}; give one factor for each class"
            )
        class_weights = class_weights.to(logits.dtype)
    return functional.cross_entropy(logits, targets, weight=class_weights, label_smoothing=label_smoothing)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of the softmax output, averaged over batch and classes: the loss of the published CIFAR experiments.

    Its gradient is smaller than cross-entropy's by about the number of classes: the learning rate of 0.2 belongs to it.
    """
    logits, targets = _at_the_door(logits, targets)
    log_share = functional.log_softmax(logits, dim=1)
    log_rest = _log_one_minus(log_share)
    return -(targets * log_share + (1 - targets) * log_rest).mean()


def pixel_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with soft targets for each pixel, averaged over the shares: a pixel that is ignored in part weighs less, one all zeros nothing.

    With targets that are zero or one it is torch's cross-entropy with ``ignore_index``. Without any share at all it is 0.

    Args:
        logits: [B, C, …], any floating dtype.
        targets: [B, C, …] shares of the classes, as `MixPlan.apply_masks` makes them.

    Example:
        >>> import mixsage
        >>> class_maps = torch.tensor([[[0, 1, 255]]])
        >>> targets = mixsage.MixPlan.identity(1).apply_masks(class_maps, num_classes=2)
        >>> float(pixel_cross_entropy(torch.zeros(1, 2, 1, 3), targets)) == float(torch.tensor(2.0).log())
        True
    """
    if logits.ndim < 3 or logits.shape != targets.shape:
        raise ValueError(
            f"logits and targets must both be [B, C, H, W], got {list(logits.shape)} and {list(targets.shape)}; "
            "enlarge the logits with torch.nn.functional.interpolate, and make targets with plan.apply_masks"
        )
    dtype = torch.promote_types(logits.dtype, torch.float32)
    targets = targets.to(dtype)
    total = functional.cross_entropy(logits.to(dtype), targets, reduction="sum")
    return total / targets.sum().clamp_min(torch.finfo(dtype).tiny)


def logits_of(output: object, way_out: str) -> Tensor:
    """What a model returned, if it is logits [B, C] that have gradients."""
    if not isinstance(output, Tensor):
        raise TypeError(f"the model returned {type(output).__name__}, expected logits [B, C]; {way_out}")
    if output.ndim != 2:
        raise ValueError(f"the model returned {list(output.shape)}, expected logits [B, C]; {way_out}")
    if output.is_inference():
        raise RuntimeError(
            "the model's output is an inference tensor without gradients; build and run the model outside torch.inference_mode()"
        )
    return output


def scalar_of(loss: object) -> Tensor:
    """What a criterion returned, if it is a single number."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"the criterion returned {type(loss).__name__}, expected a scalar tensor, part of the graph of the logits")
    if loss.ndim:
        raise ValueError(
            f"the criterion returned {list(loss.shape)}, expected a scalar; average it, for example with reduction='mean'"
        )
    if not loss.requires_grad:
        raise RuntimeError(
            "the loss has no graph to go backward through; let the criterion compute it from the logits as they are, "
            "and some parameter of the model require a gradient"
        )
    return loss


def _log_one_minus(log_share: Tensor) -> Tensor:
    """log(1 - p) for every class. Only the largest p can be close to 1; its complement is summed from the other classes, not subtracted."""
    largest = torch.zeros_like(log_share, dtype=torch.bool).scatter_(1, log_share.argmax(dim=1, keepdim=True), value=True)
    of_others = log_share.masked_fill(largest, -torch.inf).logsumexp(dim=1, keepdim=True)
    # The inner fill keeps log1p away from -1, whose infinite slope would reach the gradient as NaN though it is not selected.
    return torch.where(largest, of_others, torch.log1p(-log_share.masked_fill(largest, -torch.inf).exp()))


def _at_the_door(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float32, or in float64 where the logits are."""
    if logits.ndim != 2 or logits.shape != targets.shape:
        raise ValueError(
            f"logits and targets must both be [B, C], got {list(logits.shape)} and {list(targets.shape)}; make indices soft with one_hot"
        )
    if logits.shape[1] < 2:
        raise ValueError(f"a softmax needs at least 2 classes, the logits have {logits.shape[1]}")
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(dtype), targets.to(dtype)
