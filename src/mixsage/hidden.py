"""Mixing inside a model: finding its stages, and mixing the output of one of them for a single forward pass."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from mixsage.errors import unknown_name
from mixsage.plan import MixPlan

_log = logging.getLogger("mixsage")
_WRAPPERS = frozenset({"module", "_forward_module", "_original_module"})
"""Names under which DataParallel, DistributedDataParallel and Fabric keep the model that they wrap."""
_PART_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Names under which torch.compile, activation checkpointing and FSDP keep what they wrap: the model, or any part of it."""


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model by dotted name, as its author knows them: without the names that wrappers put in front."""
    return {_unwrapped(name): module for name, module in model.named_modules() if _unwrapped(name)}


def find_stages(model: nn.Module) -> list[str]:
    """Dotted names of the stages of a model in order: ``layer1, layer2, …``, ``stages.0, stages.1, …`` or a transformer's blocks.

    The stages are the shallowest run of at least two numbered siblings that are more than single layers.
    """
    runs: dict[str, list[tuple[int, str]]] = {}
    for name, module in layers_of(model).items():
        stem, number = re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL).groups()  # type: ignore[union-attr]  # matches every string
        if number and any(True for _ in module.children()) and any(True for _ in module.parameters()):
            runs.setdefault(stem, []).append((int(number), name))
    runs = {stem: run for stem, run in runs.items() if len(run) >= 2}
    if not runs:
        return []
    shallowest = min(runs, key=lambda stem: stem.count("."))
    return [name for _, name in sorted(runs[shallowest])]


def check_layers(model: nn.Module, layers: tuple[str, ...]) -> None:
    """Each layer must be "input" or a module of the model."""
    known = layers_of(model)
    for layer in layers:
        if layer != "input" and layer not in known:
            raise ValueError(unknown_name("layer", layer, ["input", *known]))


@contextmanager
def mixed_at(model: nn.Module, plan: MixPlan) -> Iterator[Callable[[], None]]:
    """Within this context the output of ``plan.layer`` is mixed by the plan; nothing stays hooked afterwards.

    Call what the context gives once the forward pass is over: it makes sure that the layer ran, and that what runs from then on is mixed
    too, as backward runs a layer again where activations are checkpointed. A plan that mixes the input hooks nothing.
    """
    if plan.layer is None:
        yield lambda: None
        return
    module = layers_of(model).get(plan.layer)
    if module is None:
        raise ValueError(unknown_name("layer", plan.layer, layers_of(model)))
    mixing = _Mixing(plan, plan.layer)
    handle = module.register_forward_hook(mixing)
    try:
        if _is_compiled(model):
            _say_uncompiled()
            with torch.compiler.set_stance("force_eager"):
                yield mixing.forward_is_over
        else:
            yield mixing.forward_is_over
    finally:
        handle.remove()


class _Mixing:
    """The hook: mixes what its layer returns, once in a forward pass."""

    def __init__(self, plan: MixPlan, layer: str) -> None:
        self.plan = plan
        self.layer = layer
        self.ran = False
        self.over = False

    def __call__(self, _module: nn.Module, _arguments: object, output: object) -> Tensor:
        if self.ran and not self.over:  # weights that are used twice: mixed twice over, images would no longer go with their labels
            raise RuntimeError(
                f"the layer {self.layer!r} ran more than once in one pass, so it is not clear what to mix; choose another layer"
            )
        self.ran = True
        if not isinstance(output, Tensor):
            raise TypeError(
                f"the layer {self.layer!r} returned {type(output).__name__}, only a tensor can be mixed; choose another layer"
            )
        batch = len(self.plan.sources)
        if not output.ndim or len(output) != batch:
            raise ValueError(
                f"the layer {self.layer!r} returned {list(output.shape)} for a batch of {batch}; only an output whose first axis is the batch "
                "can be mixed; choose another layer"
            )
        return self.plan.apply(output)

    def forward_is_over(self) -> None:
        if not self.ran:
            raise RuntimeError(
                f"the layer {self.layer!r} did not run in this pass, so nothing was mixed; choose a layer that every pass goes through, "
                "and where model.forward is compiled, compile with model.compile() instead"
            )
        self.over = True


def _unwrapped(name: str) -> str:
    parts = [part for part in name.split(".") if part not in _PART_WRAPPERS]
    while parts and parts[0] in _WRAPPERS:
        parts.pop(0)
    return ".".join(parts)


def _is_compiled(model: nn.Module) -> bool:
    """Whether any part runs through torch.compile, which does not see hooks that were added after its first call."""
    return any(isinstance(part, torch._dynamo.OptimizedModule) or part._compiled_call_impl is not None for part in model.modules())


@cache
def _say_uncompiled() -> None:
    _log.warning(
        "mixing a hidden layer runs the model uncompiled for that pass, as a compiled one ignores hooks added after its first call"
    )
