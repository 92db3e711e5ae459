"""What the last layer of a network sees: a vector an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from mixsage.evaluation.pixels import Loader, Normalised, batches, device_of
from mixsage.saliency import evaluating


class Features(NamedTuple):
    """Frozen features of a data set."""

    vectors: Tensor
    """[N, D] float32, on the CPU."""
    labels: Tensor
    """[N] int64."""


def features(model: nn.Module, loader: Loader) -> Features:
    """The vector that the model's last linear layer classifies, for every image of the loader, computed once.

    The model is one of ours or of timm's, or any other with a linear layer that runs once in a pass, at its end; or a `Normalised` one of these.
    """
    found: list[Tensor] = []
    seen: list[Tensor] = []
    with evaluating(model), torch.no_grad():
        for pixels, labels in batches(loader, device_of(model)):
            found.append(_vectors(model, pixels).flatten(1).float().cpu())
            seen.append(labels.cpu())
    return Features(torch.cat(found), torch.cat(seen))


def _vectors(model: nn.Module, pixels: Tensor) -> Tensor:
    network, inputs = model, pixels
    if isinstance(model, Normalised):
        network, inputs = model.network, model.normalise(pixels)
    own = getattr(network, "features", None)
    # torchvision calls a *part* of some networks `features`; that is a module, and not what is meant here.
    if callable(own) and not isinstance(own, nn.Module):
        return cast("Callable[[Tensor], Tensor]", own)(inputs)
    if hasattr(network, "forward_features") and hasattr(network, "forward_head"):
        vectors: Tensor = network.forward_head(network.forward_features(inputs), pre_logits=True)  # type: ignore[operator]  # timm's protocol
        return vectors
    return _before_last_linear(network, inputs)


def _before_last_linear(network: nn.Module, inputs: Tensor) -> Tensor:
    """What went into the linear layer that ran last."""
    last: list[Tensor] = []

    def keep(_module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        last[:] = [arguments[0]]

    handles = [module.register_forward_pre_hook(keep) for module in network.modules() if isinstance(module, nn.Linear)]
    try:
        network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not last or last[0].ndim != 2:
        raise ValueError(
            f"{type(network).__name__} has no linear layer at its end; give it a method features(images) that returns vectors [B, D]"
        )
    return last[0]
