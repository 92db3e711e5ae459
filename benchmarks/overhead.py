"""What SAGE costs beside its two passes: smoothing, normalising, searching 1 % of the rearrangements, mixing, targets.

python benchmarks/overhead.py [--device cuda] [--json FILE]

Prints each part, and the whole as a share of one forward and backward pass of PreActResNet18 on the same batch, measured in turn in one run;
then the peak of extra memory of search and mix, in copies of the batch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import environment, median_and_spread
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import mixsage
from mixsage.saliency import normalise, smooth


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def measure(device: torch.device, repeats: int) -> dict[str, dict[str, float]]:
    """Medians and spreads of the parts and of a plain pass, interleaved."""
    generator = torch.Generator().manual_seed(0)
    model = mixsage.models.preactresnet18(num_classes=10).to(device)
    images = torch.randn(100, 3, 32, 32, generator=generator).to(device)
    labels = torch.randint(10, (100,), generator=generator).to(device)
    gradient = (1e-4 * torch.randn(100, 3, 32, 32, generator=generator)).to(device)
    sage = mixsage.SAGE()
    raw = sage.saliency(images, gradient)
    plan = sage.plan(images, saliency=raw, generator=generator)
    maps = normalise(smooth(raw))
    first, second = 0.3 * maps, 0.7 * maps.flip(0)

    def passes() -> None:
        mixsage.accumulate(mixsage.Clean(), model, images, labels)
        model.zero_grad(set_to_none=True)

    def whole() -> Tensor:
        drawn = sage.draw_from(images, labels, None, gradient, generator)
        return drawn.apply(images) + drawn.targets(labels, 10).sum()

    parts: dict[str, Callable[[], object]] = {
        "norm over colours": lambda: sage.saliency(images, gradient),
        "smooth": lambda: smooth(raw),
        "normalise": lambda: normalise(smooth(raw)),
        "search 1 %": lambda: mixsage.rearrange.search(first, second, 0.01, generator=generator),
        "mix": lambda: plan.apply(images),
        "targets": lambda: plan.targets(labels, 10),
        "whole": whole,
        "forward and backward": passes,
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for round_number in range(repeats + 2):
        for name, work in parts.items():
            # A few calls a round for what is short, and the first of them unmeasured: the pass before has emptied the caches.
            calls = 1 if name == "forward and backward" else 6
            spent = [timed(work, device) for _ in range(calls)]
            if round_number >= 2:
                times[name] += spent[-5:]
    return {name: median_and_spread(values) for name, values in times.items()}


def peak_copies(batch: int, side: int) -> float:
    """Peak of the memory that search and mix allocate, in copies of the batch of images."""
    generator = torch.Generator().manual_seed(0)
    images, maps = torch.randn(batch, 3, side, side), torch.rand(batch, side, side)
    sage = mixsage.SAGE()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        sage.plan(images, saliency=maps, generator=generator).apply(images)
    held = peak = 0
    for event in log.profiler.kineto_results.events():  # type: ignore[union-attr]  # the raw events, in order
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / (images.numel() * images.element_size())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    times = measure(device, options.repeats)
    share = times["whole"]["median"] / times["forward and backward"]["median"]
    print(f"{'100 images of 3×32×32':<24}{'median ms':>12}{'5 %':>10}{'95 %':>10}")
    for name, numbers in times.items():
        print(f"{name:<24}{numbers['median']:>12.3f}{numbers['low']:>10.3f}{numbers['high']:>10.3f}")
    print(f"\nwhole / (forward and backward of PreActResNet18): {100 * share:.2f} %")
    memory = {}
    if device.type == "cpu":
        memory = {f"{batch}×3×{side}×{side}": peak_copies(batch, side) for batch, side in ((100, 32), (16, 224))}
        for shape, copies in memory.items():
            print(f"peak extra memory of search and mix, {shape}: {copies:.1f} copies of the batch")
    record = {"times_ms": times, "share": share, "peak_copies": memory, **environment()}
    print(f"\n{record['machine']}, torch {record['torch']}, {record['threads']} threads, {options.repeats} rounds")
    if options.json:
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
