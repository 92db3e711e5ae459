"""What the trainer costs beside the barest loop over the same tensors, made beforehand."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from mixsage import data, models
from mixsage.bench.results import Comparison, Row, Spread
from mixsage.bench.timing import Settings, Work, seconds
from mixsage.training import Config, train, with_settings
from mixsage.training.build import build_optimizer
from mixsage.training.progress import Progress


def compare(settings: Settings) -> Comparison:
    """A whole epoch of the trainer, with its batches, records and checkpoint, / an epoch of the barest loop, in turn in one process."""
    rounds = settings.rounds_or(9)
    width, batch, per_class = (4, 20, 10) if settings.quick else (16, 100, None)
    config = with_settings(
        Config(),
        {
            "data": "sample",
            "per_class": per_class,
            "val_share": 0.0,
            "model": "preactresnet18",
            "width": width,
            "method": "clean",
            "batch_size": batch,
            # The last ten epochs are always evaluated, and none before them here: what is compared is training.
            "epochs": rounds + 11,
            "eval_every": rounds + 11,
            "device": settings.device.type,
        },
    )
    turns = _Turns(_barest(config, settings.device), settings.device, rounds)
    with tempfile.TemporaryDirectory() as folder, suppress(_EnoughError):
        train(replace(config, run=replace(config.run, out=Path(folder) / "run")), progress=turns)
    images = 10 * (per_class or 500)
    return Comparison(
        name="trainer",
        title="An epoch of the trainer / the barest loop over the same tensors",
        setting=f"PreActResNet18 of {width} channels, {images:,} images of 1×28×28, batches of {batch}, float32, no mixing; the trainer's "
        "epoch with crop, flip, records and a checkpoint",
        rows=(Row(name="trainer", text="epoch of the trainer / barest loop", spread=Spread.of(turns.ratios), goal=1.05),),
    )


class _EnoughError(Exception):
    """Every round is done."""


class _Turns(Progress):
    """Runs an epoch of the barest loop between the epochs of the trainer, and times both."""

    def __init__(self, bare: Work, device: torch.device, rounds: int) -> None:
        self.bare, self.device, self.rounds = bare, device, rounds
        self.ratios: list[float] = []
        self.before: float | None = None
        self.began = 0.0

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch of the trainer is over; the first warms up."""
        spent = time.perf_counter() - self.began
        after = seconds(self.bare, self.device)
        if self.before is not None:
            # The mean of the bare epochs on both sides, so that a machine that grows faster or slower favours neither.
            self.ratios.append(2 * spent / (self.before + after))
        if len(self.ratios) == self.rounds:
            raise _EnoughError
        self.before = after
        self.began = time.perf_counter()


def _barest(config: Config, device: torch.device) -> Work:
    dataset = data.load("sample")
    chosen = None if config.data.per_class is None else data.per_class(dataset.train.labels, config.data.per_class)
    batches = list(
        data.feed(
            dataset.train,
            chosen,
            dataset,
            batch_size=config.optimisation.batch_size,
            train=True,
            seed=0,
            device=device,
            channels_last=config.hardware.channels_last,
        ).batches(0)
    )
    model = models.preactresnet18(num_classes=10, width=config.model.width or 64, in_channels=dataset.channels).to(device)
    if config.hardware.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = build_optimizer(config.optimisation, model.parameters(), device)

    def work() -> None:
        for batch in batches:
            cross_entropy(model(batch.images), batch.labels).backward()  # type: ignore[no-untyped-call]  # torch's own
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return work
