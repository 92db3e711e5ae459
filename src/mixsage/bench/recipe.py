"""How long the paper's CIFAR-10 recipe takes on a GPU: PreActResNet18, bfloat16, compiled."""

from __future__ import annotations

import itertools

import torch

from mixsage import models
from mixsage.bench.feeds import BATCH, made
from mixsage.bench.results import Comparison, Row, Spread
from mixsage.bench.timing import Settings, Work, take_turns
from mixsage.data import feed
from mixsage.methods import Mixer
from mixsage.methods.clean import Clean
from mixsage.methods.sage import SAGE
from mixsage.step import accumulate

EPOCHS, IMAGES = 300, 50_000


def compare(settings: Settings) -> Comparison:
    """Images a second with batches, crops and steps, and the hours of 300 epochs that follow from them; only where there is CUDA."""
    title = f"The paper's recipe for CIFAR-10: {EPOCHS} epochs of {IMAGES:,} images"
    if settings.device.type != "cuda":
        return Comparison(name="recipe", title=title, setting="only on CUDA", notes=("not measured: this needs --device cuda",))
    steps = 5 if settings.quick else 100
    arms = {name: _steps(mixer, settings.device, steps) for name, mixer in {"clean": Clean(), "sage": SAGE()}.items()}
    times = take_turns(arms, settings.rounds_or(9), settings.device)
    rates = {name: [steps * BATCH / spent for spent in values] for name, values in times.items()}
    speeds = [Row(name=name, text=name, spread=Spread.of(values), unit="images/s") for name, values in rates.items()]
    hours = [
        Row(
            name=f"{name} hours",
            text=f"{name}, projected for {EPOCHS} epochs",
            spread=Spread.of([EPOCHS * IMAGES / rate / 3600 for rate in values]),
            unit="hours",
        )
        for name, values in rates.items()
    ]
    setting = f"PreActResNet18 of 64 channels, batches of {BATCH}, bfloat16, channels last, compiled; without evaluation"
    return Comparison(name="recipe", title=title, setting=setting, rows=(*speeds, *hours))


def _steps(mixer: Mixer, device: torch.device, count: int) -> Work:
    source = made(IMAGES)
    batches = feed(source.train, None, source, batch_size=BATCH, train=True, seed=0, device=device, channels_last=True)
    endless = (batch for epoch in itertools.count() for batch in batches.batches(epoch))
    model = models.preactresnet18(num_classes=10).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True)
    model.compile()
    generator = torch.Generator().manual_seed(0)

    def work() -> None:
        for batch in itertools.islice(endless, count):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                accumulate(mixer, model, batch.images, batch.labels, generator=generator)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return work
