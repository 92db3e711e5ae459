"""From settings to objects: model, optimiser, criterion, method."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mixsage import loss, models
from mixsage.errors import not_installed, unknown_name
from mixsage.methods import Mixer
from mixsage.saliency import Criterion, evaluating
from mixsage.training.config import Config, Method, Optimisation
from mixsage.training.notation import Call, read_call, read_mixer


def check_names(config: Config) -> None:
    """Whether method and model can be read, before anything is loaded for them."""
    read_mixer(config.method.method)
    name = read_call(config.model.model).name
    if ":" not in name and name not in models.available():
        raise ValueError(f"{unknown_name('model', name, models.available())}, timm:NAME, or package.module:factory")


def build_model(
    notation: str, *, num_classes: int, channels: int = 3, width: int | None = None, pretrained: bool = False
) -> nn.Module:
    """One of our models by name, ``timm:NAME``, or what a function of the user's returns: ``package.module:factory``.

    Arguments stand in brackets: ``preactresnet18(final_norm=True)``. A factory is given ``num_classes`` if it takes that.
    """
    call = read_call(notation)
    if pretrained and not call.name.startswith("timm:"):
        raise ValueError(f"pretrained weights exist for timm models, not for {call.name!r}; use weights for a file of your own")
    if call.name.startswith("timm:"):
        _refuse_width(call, width)
        return _from_timm(call, num_classes=num_classes, channels=channels, pretrained=pretrained)
    if ":" in call.name:
        _refuse_width(call, width)
        return _from_factory(call, num_classes)
    try:
        return models.create(
            call.name, num_classes, in_channels=channels, **({} if width is None else {"width": width}), **call.arguments
        )
    except TypeError as error:
        raise ValueError(f"the model {call.name!r} does not take these arguments: {error}") from None


def try_model(model: nn.Module, name: str, *, channels: int, size: tuple[int, int], num_classes: int) -> None:
    """Whether the model takes such images and has such classes: found out with two black ones, before anything is written or trained."""
    if any(is_lazy(one) for one in [*model.parameters(), *model.buffers()]):
        raise ValueError(
            f"the model {name!r} has layers that do not know their sizes yet; have it see an image before its function returns it: "
            f"model(torch.zeros(1, {channels}, {size[0]}, {size[1]}))"
        )
    images = torch.zeros(2, channels, *size)
    with torch.no_grad(), evaluating(model):
        try:
            logits = model(images)
        except (RuntimeError, ValueError, TypeError, AssertionError, LookupError) as error:
            raise ValueError(f"the model {name!r} cannot take images {list(images.shape)}: {error}") from error
    shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != [2, num_classes]:
        raise ValueError(
            f"the model {name!r} makes {shape} of 2 images, expected logits [2, {num_classes}], as the data have {num_classes} classes; "
            "a function of yours is told the number if it takes num_classes"
        )


def _refuse_width(call: Call, width: int | None) -> None:
    if width is not None:
        raise ValueError(f"width narrows mixsage's own models, {call.name!r} is none of them; give arguments in brackets instead")


def _from_timm(call: Call, *, num_classes: int, channels: int, pretrained: bool) -> nn.Module:
    try:
        import timm
    except ModuleNotFoundError:
        raise ModuleNotFoundError(not_installed(f"the model {call.name!r}", "timm", "timm")) from None
    name = call.name.removeprefix("timm:")
    if not timm.is_model(name):
        raise ValueError(unknown_name("timm model", name, get_close_matches(name, timm.list_models(), n=5) or ["resnet50"]))
    model: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=num_classes, in_chans=channels, **call.arguments)
    return model


def _from_factory(call: Call, num_classes: int) -> nn.Module:
    module_name, _, attribute = call.name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"cannot import {module_name!r} for the model {call.name!r}: {error}; is its folder on PYTHONPATH, as in PYTHONPATH=. mixsage …?"
        ) from error
    except AttributeError:
        raise ValueError(f"the module {module_name!r} has no {attribute!r}") from None
    arguments = dict(call.arguments)
    if "num_classes" in inspect.signature(factory).parameters:
        arguments.setdefault("num_classes", num_classes)
    model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{call.name!r} returned {type(model).__name__}, expected a torch.nn.Module")
    return model


def build_optimizer(settings: Optimisation, parameters: Iterable[nn.Parameter], device: torch.device) -> torch.optim.Optimizer:
    """The optimiser, in its fused form where there is one for the device."""
    fused = device.type in {"cuda", "cpu"}
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=settings.lr, weight_decay=settings.weight_decay, fused=fused)
    nesterov = settings.nesterov and settings.momentum > 0
    return torch.optim.SGD(
        parameters, lr=settings.lr, momentum=settings.momentum, nesterov=nesterov, weight_decay=settings.weight_decay, fused=fused
    )


def build_criterion(settings: Method) -> Criterion:
    """The loss of both passes."""
    if settings.loss == "bce":
        return loss.binary_cross_entropy
    return partial(loss.cross_entropy, label_smoothing=settings.label_smoothing)


def build_mixer(notation: str, mean: tuple[float, ...], std: tuple[float, ...]) -> Mixer:
    """The method; those that look at pixels are told how the images were normalised."""
    mixer = read_mixer(notation)
    names = {setting.name for setting in fields(mixer)}
    known: dict[str, Any] = {
        name: value for name, value in {"mean": mean, "std": std}.items() if name in names and getattr(mixer, name) is None
    }
    return replace(mixer, **known)
