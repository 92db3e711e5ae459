"""What the tests of a step share: methods, models, batches, and the step by hand."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

import mixsage
from helpers import seeded, small_model
from mixsage import SAGE, CleanPass, InputGradient, ManifoldMixup, ScalerHost, Uniform, accumulate
from plain_passes import Tokens, gradients, plain_passes, precise

CLASSES = 5
MIXERS = {name: mixsage.get(name)() for name in mixsage.available()} | {
    "sage, half": SAGE(mixed_share=0.5),
    "sage, no reuse": SAGE(mixed_share=1.0),
    "sage, eval": SAGE(saliency=InputGradient(mode="eval")),
    "sage, no reuse, eval": SAGE(mixed_share=1.0, saliency=InputGradient(mode="eval")),
    "sage, one pass": SAGE(passes=1),
    "sage, uniform maps": SAGE(saliency=Uniform()),
    "sage, uniform maps, no reuse": SAGE(mixed_share=1.0, saliency=Uniform()),
    "manifold, hidden only": ManifoldMixup(layers=("stage1",)),
}
WITHOUT_CLEAN_GRADIENT = [name for name, mixer in MIXERS.items() if mixer.clean is not None and mixer.clean.weight == 0]


def vit(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Tokens(classes=CLASSES)


MODELS = {"convnet": small_model, "vit": vit}


@dataclass
class Case:
    """A model, a batch, and what its parameters have accumulated before the step."""

    model: nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    before: dict


def case(make=small_model, *, batch=6, dtype=torch.float64, accumulated=True, seed=0) -> Case:
    model = make().to(dtype)
    generator = seeded(seed + 100)
    images = torch.randn(batch, 3, 16, 16, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(CLASSES, (batch,), generator=generator)
    if accumulated:
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    return Case(model, images, labels, gradients(model))


def mixer_for(name, make):
    mixer = MIXERS[name]
    return replace(mixer, layers=("blocks.0",)) if name == "manifold, hidden only" and make is vit else mixer


def weights_of(mixer):
    """The weights of the clean and the mixed gradient."""
    return (mixer.clean.weight if mixer.clean else 0.0), mixer.mixed_weight


def by_hand(case, mixer, plan, criterion=precise, **options):
    clean = mixer.clean or CleanPass()
    return plain_passes(
        case.model, case.images, case.labels, plan, criterion, clean_mode=clean.mode, clean_criterion=clean.criterion, **options
    )


def plus(before, step, weight=1.0):
    return {name: before[name] + weight * step[name] for name in before}


AUTOCAST = partial(torch.autocast, "cpu", torch.bfloat16)
SURROUNDINGS = ["plain", "scaler", "autocast"]


def run_in(surroundings, *arguments, **options):
    if surroundings == "autocast":
        with AUTOCAST():
            return accumulate(*arguments, **options)
    if surroundings == "scaler":
        options["host"] = ScalerHost(torch.amp.GradScaler("cpu", init_scale=1024.0))
    return accumulate(*arguments, **options)


def count_forwards(model):
    counted = [0]

    def count(*_):
        counted[0] += 1

    model.register_forward_pre_hook(count)
    return counted
