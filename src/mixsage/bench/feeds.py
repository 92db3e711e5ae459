"""Images a second of the feeds alone, beside what a small model consumes."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from mixsage import models
from mixsage.bench.results import Comparison, Row, Spread
from mixsage.bench.timing import Settings, Work, take_turns
from mixsage.data import DataSet, Feed, Images, feed, load

BATCH = 100


def compare(settings: Settings) -> Comparison:
    """Batches of images that live on the device, augmented as in training, and of photographs that stream; beside a model's training step."""
    small = made(1_000 if settings.quick else 50_000)
    width = 4 if settings.quick else 16
    parts = {"resident, training": True, "resident, evaluation": False}
    feeds = {
        name: feed(small.train, None, small, batch_size=BATCH, train=train, seed=0, device=settings.device)
        for name, train in parts.items()
    }
    arms: dict[str, Work] = {name: _some(_for_ever(batches), 5 if settings.quick else 50) for name, batches in feeds.items()}
    images = dict.fromkeys(arms, BATCH * (5 if settings.quick else 50))
    with tempfile.TemporaryDirectory() as folder:
        photos = photographs(Path(folder), 6 if settings.quick else 64)
        batches = feed(
            photos.train, None, photos, batch_size=min(32, len(photos.train)), train=True, seed=0, device=settings.device, workers=0
        )
        arms["reading files alone"] = lambda: [photos.train.read(k) for k in range(len(photos.train))]
        arms["streamed, training"] = lambda: list(batches.batches(0))
        images |= {"reading files alone": len(photos.train), "streamed, training": len(batches) * min(32, len(photos.train))}
        arms["model"] = _training(small, width, settings.device)
        images["model"] = BATCH
        times = take_turns(arms, settings.rounds_or(9), settings.device)
    rates = {name: [images[name] / spent for spent in times[name]] for name in arms}
    consumed = [mine / model for mine, model in zip(rates["resident, training"], rates["model"], strict=True)]
    return Comparison(
        name="feeds",
        title="Images a second of the feeds alone",
        setting=f"resident: 3×32×32, batches of {BATCH}, crop, flip, normalisation; streamed: JPEG files of 375×500 to 224×224, in this "
        f"process; model: a training step of PreActResNet18 of {width} channels",
        rows=(
            Row(name="feed", text="resident feed / what the model consumes", spread=Spread.of(consumed), goal=20, at_least=True),
            *(Row(name=name, text=name, spread=Spread.of(values), unit="images/s") for name, values in rates.items()),
        ),
    )


def made(count: int) -> DataSet:
    """Random images of CIFAR's form."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    images = Images(torch.randint(10, (count,), generator=generator), pixels=pixels)
    return DataSet(
        name="made",
        train=images,
        test=None,
        size=(32, 32),
        padding=2,
        classes=tuple("abcdefghij"),
        channels=3,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
    )


def photographs(folder: Path, count: int) -> DataSet:
    """Smooth pictures with some grain, which as JPEG files are about as large as photographs."""
    from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]  # it has no stubs

    generator = torch.Generator().manual_seed(0)
    for k in range(count):
        coarse = torch.randint(0, 256, (3, 24, 32), generator=generator, dtype=torch.uint8)
        grain = torch.randint(-8, 9, (3, 375, 500), generator=generator)
        picture = (functional.resize(coarse, [375, 500]).int() + grain).clamp(0, 255).to(torch.uint8)
        path = folder / "ab"[k % 2] / f"{k:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        functional.to_pil_image(picture).save(path, quality=90)
    return load(str(folder))


def _for_ever(batches: Feed) -> Iterator[object]:
    return (batch for epoch in itertools.count() for batch in batches.batches(epoch))


def _some(batches: Iterator[object], count: int) -> Work:
    def work() -> None:
        for _ in range(count):
            next(batches)

    return work


def _training(data: DataSet, width: int, device: torch.device) -> Work:
    model = models.preactresnet18(num_classes=10, width=width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = next(iter(feed(data.train, None, data, batch_size=BATCH, train=True, seed=0, device=device).batches(0)))

    def work() -> None:
        cross_entropy(model(batch.images), batch.labels).backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return work
