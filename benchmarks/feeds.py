"""Images a second of the feeds alone, without a model.

python benchmarks/feeds.py [--threads 1] [--device cpu] [--workers 0 2] [--seconds 1.5]

Resident: 50,000 images of CIFAR's size, batches of 100, padding 2, crop, flip, normalisation. Streamed: photographs of 375×500 as JPEG files,
a random part scaled to 224×224; beside it, what reading the same files takes with nothing done to them. Each number is a median over passes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from common import environment, median_and_spread
from torchvision.transforms.v2 import functional

from mixsage.data import DataSet, Feed, Images, feed, load

CIFAR_LIKE = {"classes": tuple("abcdefghij"), "channels": 3, "mean": (0.5,) * 3, "std": (0.25,) * 3}


def cifar_like(count: int = 50_000) -> DataSet:
    source = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=source, dtype=torch.uint8)
    images = Images(torch.randint(10, (count,), generator=source), pixels=pixels)
    return DataSet(name="made", train=images, test=None, size=(32, 32), padding=2, **CIFAR_LIKE)


def photographs(folder: Path, count: int = 96) -> DataSet:
    """Smooth pictures with some grain, which as JPEG files are about as large as photographs."""
    source = torch.Generator().manual_seed(0)
    for k in range(count):
        coarse = torch.randint(0, 256, (3, 24, 32), generator=source, dtype=torch.uint8)
        grain = torch.randint(-8, 9, (3, 375, 500), generator=source)
        picture = (functional.resize(coarse, [375, 500]).int() + grain).clamp(0, 255).to(torch.uint8)
        path = folder / "ab"[k % 2] / f"{k:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        functional.to_pil_image(picture).save(path, quality=90)
    return load(str(folder))


def rate(passes: Iterable[Callable[[], int]], seconds: float, device: str) -> dict[str, float]:
    """Images a second of each pass, after one to warm up, for as long as there is time."""
    rates: list[float] = []
    began = time.perf_counter()
    for number, run in enumerate(passes):
        start = time.perf_counter()
        count = run()
        if device != "cpu":
            torch.accelerator.synchronize()
        if number:
            rates.append(count / (time.perf_counter() - start))
        if rates and time.perf_counter() - began > seconds:
            break
    return median_and_spread(rates)


def epochs(batches: Feed, most: int | None = None) -> Iterable[Callable[[], int]]:
    """One pass an epoch, or the first batches of it."""

    def run(epoch: int) -> int:
        return sum(len(batch.labels) for batch in itertools.islice(batches.batches(epoch), most))

    return (lambda epoch=epoch: run(epoch) for epoch in itertools.count())


def show(what: str, numbers: dict[str, float]) -> None:
    print(
        f"{what:<58} {numbers['median']:>12,.0f} /s   ({numbers['low']:,.0f} to {numbers['high']:,.0f}, {numbers['count']} passes)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    parser.add_argument("--seconds", type=float, default=1.5, help="for each number")
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    print({**environment(), "cores": os.cpu_count()})
    common = {"seed": 0, "device": settings.device}

    small = cifar_like()
    for channels_last in (False, True):
        batches = feed(small.train, None, small, batch_size=100, train=True, channels_last=channels_last, **common)
        show(
            f"resident, training{', channels last' if channels_last else ''}",
            rate(epochs(batches, 100), settings.seconds, settings.device),
        )
    batches = feed(small.train, None, small, batch_size=500, train=False, **common)
    show("resident, evaluation", rate(epochs(batches, 100), settings.seconds, settings.device))

    with tempfile.TemporaryDirectory() as folder:
        large = photographs(Path(folder))
        kilobytes = sum(path.stat().st_size for path in Path(folder).rglob("*.jpg")) / len(large.train) / 1000
        show(
            f"reading alone, JPEG files of {kilobytes:.0f} kB",
            rate(
                itertools.repeat(lambda: sum(large.train.read(k) is not None for k in range(len(large.train)))),
                settings.seconds,
                "cpu",
            ),
        )
        for workers in settings.workers:
            for train in (True, False):
                batches = feed(large.train, None, large, batch_size=32, train=train, workers=workers, **common)
                what = f"streamed, {workers} workers, {'training' if train else 'evaluation'}"
                show(what, rate(epochs(batches), settings.seconds, settings.device))


if __name__ == "__main__":
    main()
