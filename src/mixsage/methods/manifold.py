"""Manifold Mixup (Verma et al., ICML 2019)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

from torch import Generator, Tensor, nn

from mixsage import sampling
from mixsage.hidden import check_layers, find_stages
from mixsage.methods.base import Mixer, check_kind, check_positive
from mixsage.methods.mixup import blend_plan
from mixsage.plan import MixPlan

_log = logging.getLogger("mixsage")


@dataclass(frozen=True, kw_only=True)
class ManifoldMixup(Mixer):
    """Mixup of the input or of a hidden layer, drawn anew for each batch.

    Hidden layers are mixed by `mixsage.accumulate`, in any model, by a hook that lives as long as the pass. A plain call has no model to
    mix in, and mixes the input.

    Example:
        >>> import mixsage, torch
        >>> model = mixsage.models.preactresnet18(width=8)
        >>> step = mixsage.accumulate(ManifoldMixup(), model, torch.rand(4, 3, 32, 32), torch.arange(4))
        >>> step.plan.layer in {None, "stage1", "stage2"}
        True
    """

    alpha: float = 2.0
    """Concentration of the Beta distribution that the share of the image itself is drawn from [α]."""
    layers: tuple[str, ...] | None = None
    """Where to mix: "input", or dotted names of modules. None takes the input, the first and the second stage of the model."""

    spatial: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("alpha", self.alpha)
        _check_form(self.layers)

    def bind(self, model: nn.Module) -> ManifoldMixup:
        """These settings with the layers of this model."""
        check_kind("model", model, nn.Module, "the network that you train")
        if self.layers is not None:
            check_layers(model, self.layers)
            return self
        stages = find_stages(model)[:2]
        if not stages:
            raise ValueError(
                "no stages were found in the model; name the layers to mix: ManifoldMixup(layers=('input', 'features.3'))"
            )
        return replace(self, layers=("input", *stages))

    def draw(self, images: Tensor, labels: Tensor | None, saliency: Tensor | None, generator: Generator | None) -> MixPlan:
        """A layer, partners, and shares."""
        if self.layers is None:
            _say_input_only()
        layers = self.layers or ("input",)
        layer = layers[sampling.choice(len(layers), generator)]
        plan = blend_plan(len(images), self.alpha, self.per_sample, generator).to(images.device)
        return plan if layer == "input" else replace(plan, layer=layer)

    def __call__(self, images: Tensor, labels: Tensor, **options: object) -> tuple[Tensor, Tensor]:
        """Mix the input: a call returns images, so there is no hidden layer to mix."""
        at_input = replace(self, layers=("input",))
        if self.layers != ("input",):
            _say_input_only()
        return super(ManifoldMixup, at_input).__call__(images, labels, **options)  # type: ignore[arg-type]  # the base checks the options


def _check_form(layers: object) -> None:
    if layers is not None and not (isinstance(layers, tuple) and layers and all(isinstance(layer, str) for layer in layers)):
        raise ValueError(
            f"layers must name at least one layer in a tuple, got {layers!r}; for example ('input', 'layer1', 'layer2')"
        )


@cache
def _say_input_only() -> None:
    _log.warning("ManifoldMixup without a model mixes the input only; hidden layers are mixed by mixsage.accumulate")
