"""What SAGE costs beside its two passes: smoothing, normalising, searching 1 % of the rearrangements, mixing, targets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from mixsage import models
from mixsage.bench.results import Comparison, Row, Spread
from mixsage.bench.timing import Settings, Work, ratio, take_turns
from mixsage.methods.clean import Clean
from mixsage.methods.sage import SAGE
from mixsage.rearrange import search
from mixsage.saliency import normalise, smooth
from mixsage.step import accumulate

PASSES = "forward and backward"


def compare(settings: Settings) -> Comparison:
    """The whole and its parts as shares of one forward and backward pass of the same batch, and the memory of search and mix in copies of it."""
    batch, side, width = (8, 16, 4) if settings.quick else (100, 32, 64)
    arms = _arms(batch, side, width, settings.device)
    calls = {name: 1 if name == PASSES else 5 for name in arms}
    times = take_turns(arms, settings.rounds_or(15), settings.device, calls=calls)
    shares = [
        Row(
            name=name,
            text=f"{name} / {PASSES}",
            spread=ratio(times, name, PASSES),
            unit="share",
            goal=0.004 if name == "whole" else None,
        )
        for name in arms
        if name != PASSES
    ]
    shapes = ((8, 16), (2, 48)) if settings.quick else ((100, 32), (16, 224))
    return Comparison(
        name="overhead",
        title="What SAGE does beside its two passes, as a share of one pass",
        setting=f"PreActResNet18 of {width} channels, {batch} images of 3×{side}×{side}, float32; 1 % of the rearrangements",
        rows=(*shares, *(_memory(batch, side, settings.device) for batch, side in shapes)),
    )


def _arms(batch: int, side: int, width: int, device: torch.device) -> dict[str, Work]:
    generator = torch.Generator().manual_seed(0)
    model = models.preactresnet18(num_classes=10, width=width).to(device)
    images = torch.randn(batch, 3, side, side, generator=generator).to(device)
    labels = torch.randint(10, (batch,), generator=generator).to(device)
    gradient = (1e-4 * torch.randn(batch, 3, side, side, generator=generator)).to(device)
    sage = SAGE()
    raw = sage.saliency(images, gradient)
    plan = sage.plan(images, saliency=raw, generator=generator)
    smoothed = smooth(raw)
    maps = normalise(smoothed)
    first, second = 0.3 * maps, 0.7 * maps.flip(0)

    def passes() -> None:
        accumulate(Clean(), model, images, labels)
        model.zero_grad(set_to_none=True)

    def whole() -> tuple[Tensor, Tensor]:
        drawn = sage.draw_from(images, labels, None, gradient, generator)
        return drawn.apply(images), drawn.targets(labels, 10)

    return {
        "whole": whole,
        "norm over colours": lambda: sage.saliency(images, gradient),
        "smooth": lambda: smooth(raw),
        "normalise": lambda: normalise(smoothed),
        "search": lambda: search(first, second, 0.01, generator=generator),
        "mix": lambda: plan.apply(images),
        "targets": lambda: plan.targets(labels, 10),
        PASSES: passes,
    }


def _memory(batch: int, side: int, device: torch.device) -> Row:
    """Peak of the memory that search and mix allocate."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, side, side, generator=generator).to(device)
    maps = torch.rand(batch, side, side, generator=generator).to(device)
    sage = SAGE()

    def work() -> None:
        sage.plan(images, saliency=maps, generator=generator).apply(images)

    peak = _peak_on_gpu(work, device) if device.type == "cuda" else _peak_on_host(work)
    return Row(
        name=f"memory {side}",
        text=f"peak extra memory of search and mix, {batch}×3×{side}×{side}",
        spread=Spread.exact(peak / (images.numel() * images.element_size())),
        unit="copies",
        goal=10,
    )


def _peak_on_host(work: Work) -> float:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        work()
    assert log.profiler is not None
    held = peak = 0
    for event in log.profiler.kineto_results.events():  # the raw events, in order
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def _peak_on_gpu(work: Work, device: torch.device) -> float:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before
