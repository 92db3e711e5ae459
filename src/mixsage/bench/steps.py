"""What a training step costs with each method, beside a step without mixing."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from mixsage import methods, models
from mixsage.bench.results import Comparison, Row
from mixsage.bench.timing import Settings, Work, ratio, take_turns
from mixsage.methods import Mixer
from mixsage.methods.sage import SAGE
from mixsage.saliency import Uniform
from mixsage.step import accumulate

GOALS = {"sage": 2.03, "sage one pass": 1.08, "puzzlemix": 1.8, "comixup": 2.1, "saliencymix": 1.05}
"""What a step may cost at most, a plain step being 1; methods that are not named have no goal."""
COMPILED, GRAPHS = ", compiled", ", CUDA graphs"
"""What the names of arms end in whose model is compiled, or compiled and replayed as CUDA graphs."""
REPLAYED = ("clean", "mixup", "cutmix", "sage", "sage one pass", "sage uniform maps")
"""Arms that are measured with CUDA graphs too: hidden passes of Manifold Mixup run uncompiled, and the others spend their time beside the model."""


def compare(settings: Settings) -> Comparison:
    """Every method's step (`accumulate` and the optimiser's step) / the plain step of the same round; on CUDA also with compiled models, and
    with models that are replayed as CUDA graphs.
    """
    batch, side, width = (8, 16, 4) if settings.quick else (100, 32, 64)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, side, side, generator=generator).to(settings.device)
    labels = torch.randint(10, (batch,), generator=generator).to(settings.device)
    model = models.preactresnet18(num_classes=10, width=width).to(settings.device)
    endings: dict[str, nn.Module] = {"": model}
    if settings.device.type == "cuda":
        for ending, mode in {COMPILED: "default", GRAPHS: "reduce-overhead"}.items():
            endings[ending] = copy.deepcopy(model)
            endings[ending].compile(mode=mode)
    rows = [row for ending, network in endings.items() for row in _rows(network, ending, images, labels, settings)]
    return Comparison(
        name="steps",
        title="A training step with each method / a plain step",
        setting=f"PreActResNet18 of {width} channels, {batch} images of 3×{side}×{side}, float32, SGD",
        rows=tuple(rows),
    )


def mixers() -> dict[str, Mixer]:
    """Every method with its own settings, and SAGE in a single pass and without saliency; no mixing first."""
    names = [name for name in methods.available() if name != "clean"]
    return {
        "clean": methods.get("clean")(),
        **{name: methods.get(name)() for name in names},
        "sage one pass": SAGE(passes=1),
        "sage uniform maps": SAGE(saliency=Uniform()),
    }


def _rows(model: nn.Module, ending: str, images: Tensor, labels: Tensor, settings: Settings) -> list[Row]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(1)
    # What a graph has written, its next replay overwrites: two passes that add up need gradients with memory of their own.
    if ending == GRAPHS:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def step(mixer: Mixer) -> Work:
        def work() -> None:
            accumulate(mixer, model, images, labels, generator=generator)
            optimizer.step()
            optimizer.zero_grad(set_to_none=ending != GRAPHS)

        return work

    known = {name: mixer for name, mixer in mixers().items() if ending != GRAPHS or name in REPLAYED}
    times = take_turns({name: step(mixer) for name, mixer in known.items()}, settings.rounds_or(9), settings.device)
    return [
        Row(
            name=name + ending,
            text=f"{_title(name, mixer)}{ending} / plain step{ending}",
            spread=ratio(times, name, "clean"),
            goal=GOALS.get(name),
        )
        for name, mixer in known.items()
        if name != "clean"
    ]


def _title(name: str, mixer: Mixer) -> str:
    return type(mixer).__name__ + {
        "sage": ", two passes",
        "sage one pass": ", one pass",
        "sage uniform maps": ", two passes, uniform maps",
    }.get(name, "")
