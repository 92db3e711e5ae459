"""What a method costs, in plain training steps; and what judging a model costs, in forward passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from statistics import median

import torch
from torch import Generator, Tensor, nn

from mixsage.evaluation.accuracy import accuracy
from mixsage.evaluation.pixels import Loader, batches, device_of
from mixsage.evaluation.robustness import evaluate
from mixsage.loss import cross_entropy
from mixsage.methods import Mixer
from mixsage.methods.clean import Clean
from mixsage.saliency import Criterion, evaluating
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


def evaluation_cost(model: nn.Module, loader: Loader, *, rounds: int = 3, generator: Generator | None = None) -> dict[str, float]:
    """What judging a model costs, in the time of one plain forward pass over the same images (median of the rounds' quotients).

    ``evaluate`` is everything of `robustness.evaluate`: clean accuracy, likelihood, calibration and all three perturbations. ``perturbations``
    is what the perturbations add to the clean scores. ``forward`` is the seconds of the plain pass. The parts take turns, round by round.

    Args:
        model: from pixels in [0, 1] to logits, for example a `Normalised` network.
        loader: images and labels, as for `evaluate`; it is read anew for each part.
        rounds: how many rounds are timed, after one to warm up.
        generator: a CPU generator of the noise; torch's default one if left out.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    device = device_of(model)

    def forward() -> None:
        with evaluating(model), torch.no_grad():
            for pixels, _ in batches(loader, device):
                model(pixels)

    parts: dict[str, Callable[[], object]] = {
        "forward": forward,
        "clean": lambda: accuracy(model, loader),
        "evaluate": lambda: evaluate(model, loader, generator=generator),
    }
    rows = [{name: _timed(part, device) for name, part in parts.items()} for _ in range(rounds + 1)][1:]
    return {
        "forward": median(row["forward"] for row in rows),
        "evaluate": median(row["evaluate"] / row["forward"] for row in rows),
        "perturbations": median((row["evaluate"] - row["clean"]) / row["forward"] for row in rows),
    }


def _timed(work: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
