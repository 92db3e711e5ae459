"""What a method costs: seconds a training step, beside those of a plain step."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from statistics import median

import torch
from torch import Generator, Tensor, nn

from mixsage.loss import cross_entropy
from mixsage.methods import Mixer
from mixsage.methods.clean import Clean
from mixsage.saliency import Criterion
from mixsage.step import accumulate


def runtime(
    mixer: Mixer,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    criterion: Criterion = cross_entropy,
    steps: int = 20,
    warmup: int = 3,
    generator: Generator | None = None,
) -> dict[str, float]:
    """Median seconds of a training step with the mixer, ``seconds``, of one without mixing, ``plain``, and their quotient, ``ratio``.

    The two are timed in turn, so that whatever else the machine does falls on both. A copy of the model is trained; the model stays as it is.

    Args:
        mixer: the method.
        model: from images, as it is trained on them, to logits.
        images: a batch, normalised, on the model's device.
        labels: its class indices.
        criterion: the loss.
        steps: how many steps of each are timed.
        warmup: steps of each before that.
        generator: a CPU generator; torch's default one if left out.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    network = deepcopy(model).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step(method: Mixer) -> None:
        accumulate(method, network, images, labels, criterion=criterion, generator=generator)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds: dict[str, list[float]] = {"plain": [], "seconds": []}
    for number in range(warmup + steps):
        for name, method in (("plain", Clean()), ("seconds", mixer)):
            taken = _timed(lambda method=method: step(method), images.device)  # type: ignore[misc]  # the default binds the loop's variable
            if number >= warmup:
                seconds[name].append(taken)
    plain, mixed = median(seconds["plain"]), median(seconds["seconds"])
    return {"seconds": mixed, "plain": plain, "ratio": mixed / plain}


def _timed(work: Callable[[], None], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
