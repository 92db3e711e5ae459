"""What a person sees of a run: a bar on a terminal, a plain line an epoch elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor


class Progress:
    """Shows nothing: the base, and what tests and other processes use."""

    def begin(self, *, epochs: int, steps: int, done: int, title: str) -> None:
        """A run of so many epochs begins, at step ``done``."""

    def step(self, epoch: int, loss: Tensor, images: int) -> None:
        """A step is done; the loss may still be on a device."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is done."""

    def say(self, text: str) -> None:
        """A message."""

    def end(self) -> None:
        """The run is over."""


class Lines(Progress):
    """A line an epoch, for logs."""

    def begin(self, *, epochs: int, steps: int, done: int, title: str) -> None:
        """Say what begins."""
        self.epochs = epochs
        self.say(title)

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Say how the epoch went."""
        self.say(f"epoch {record['epoch']:>{len(str(self.epochs))}}/{self.epochs}  {summary(record)}")

    def say(self, text: str) -> None:
        """Write a line at once."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class Bar(Progress):
    """A bar with accuracy, speed and time left, and a line an epoch above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.console = Console(highlight=False)
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
        )
        self.shown = 0.0
        self.images = 0

    def begin(self, *, epochs: int, steps: int, done: int, title: str) -> None:
        """Show the bar."""
        self.epochs = epochs
        self.console.print(title)
        self.task = self.bar.add_task("", total=epochs * steps, completed=done, note="")
        self.shown = time.monotonic()
        self.bar.start()

    def step(self, epoch: int, loss: Tensor, images: int) -> None:
        """Move on; the loss is fetched from its device a few times a second only."""
        self.images += images
        self.bar.advance(self.task)
        now = time.monotonic()
        if now - self.shown > 0.3:
            note = f"loss {float(loss):.3f}  {self.images / (now - self.shown):,.0f} img/s"
            self.bar.update(self.task, description=f"epoch {epoch}/{self.epochs}", note=note)
            self.shown, self.images = now, 0

    def epoch(self, record: Mapping[str, Any]) -> None:
        """A line above the bar."""
        self.say(f"epoch {record['epoch']:>{len(str(self.epochs))}}/{self.epochs}  {summary(record)}")

    def say(self, text: str) -> None:
        """A line above the bar."""
        self.console.print(text, soft_wrap=True, markup=False)

    def end(self) -> None:
        """Take the bar away."""
        self.bar.stop()


def for_stream() -> Progress:
    """A bar on a terminal, lines elsewhere."""
    return Bar() if sys.stdout.isatty() else Lines()


def summary(record: Mapping[str, Any]) -> str:
    """The numbers of an epoch in one line."""
    parts = [f"loss {record['train_loss']:.4f}"]
    for split in ("val", "test"):
        if f"{split}_top1" in record:
            parts.append(f"{split} {record[f'{split}_top1']:.2f} %")
    return "  ".join([*parts, f"lr {record['lr']:.4g}", f"{record['images_per_second']:,.0f} img/s", f"{record['seconds']:.1f} s"])
