"""What a person sees of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

EVERY = 0.3
"""Seconds between changes of the bar."""
NEWS = 60.0
"""Seconds between plain lines within an epoch."""


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
    """A line an epoch, and one a minute within long ones: for logs."""

    def begin(self, *, epochs: int, steps: int, done: int, title: str) -> None:
        """Say what begins."""
        self.epochs, self.steps, self.done = epochs, steps, done
        self.began, self.shown, self.images = time.monotonic(), time.monotonic(), 0
        self.first = done
        self.say(title)

    def step(self, epoch: int, loss: Tensor, images: int) -> None:
        """Say where the run is, if nothing was said for long; only then is the loss fetched from its device."""
        self.done += 1
        self.images += images
        now = time.monotonic()
        if now - self.shown >= NEWS:
            left = (now - self.began) / (self.done - self.first) * (self.epochs * self.steps - self.done)
            self.say(
                f"epoch {epoch:>{len(str(self.epochs))}}/{self.epochs}  step {self.done - (epoch - 1) * self.steps}/{self.steps}  "
                f"loss {float(loss):.4f}  {self.images / (now - self.shown):,.0f} img/s  about {_duration(left)} left"
            )
            self.shown, self.images = now, 0

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Say how the epoch went."""
        self.say(_line(record, self.epochs))
        self.shown, self.images = time.monotonic(), 0

    def say(self, text: str) -> None:
        """Write a line at once."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class Bar(Progress):
    """A bar with accuracy, speed and time left, and a line an epoch above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.console = Console(highlight=False)
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[note]}"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
            # The estimate is of the last half minute's speed, or of a hundred steps' where these take longer.
            speed_estimate_period=30,
        )
        self.accuracy = ""

    def begin(self, *, epochs: int, steps: int, done: int, title: str) -> None:
        """Show the bar."""
        self.epochs = epochs
        self.say(title)
        self.task = self.bar.add_task(f"epoch {min(done // steps + 1, epochs)}/{epochs}", total=epochs * steps, note="")
        self.bar.update(self.task, completed=done)
        self.shown, self.images = time.monotonic(), 0
        self.bar.start()

    def step(self, epoch: int, loss: Tensor, images: int) -> None:
        """Move on; the loss is fetched from its device a few times a second only."""
        self.images += images
        self.bar.advance(self.task)
        now = time.monotonic()
        if now - self.shown > EVERY:
            speed = f"{self.images / (now - self.shown):,.0f} img/s"
            note = "  ".join(part for part in (f"loss {float(loss):.3f}", self.accuracy, speed) if part)
            self.bar.update(self.task, description=f"epoch {epoch}/{self.epochs}", note=note)
            self.shown, self.images = now, 0

    def epoch(self, record: Mapping[str, Any]) -> None:
        """A line above the bar."""
        self.accuracy = next((f"{name} {value}" for name, value in _accuracies(record)), self.accuracy)
        self.say(_line(record, self.epochs))
        self.shown, self.images = time.monotonic(), 0

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
    accuracies = [f"{name} {value}" for name, value in _accuracies(record)]
    speed = [f"lr {record['lr']:.4g}", f"{record['images_per_second']:,.0f} img/s", f"{record['seconds']:.1f} s"]
    return "  ".join([f"loss {record['train_loss']:.4f}", *accuracies, *speed])


def _accuracies(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(split, f"{record[f'{split}_top1']:.2f} %") for split in ("val", "test", "train") if f"{split}_top1" in record]


def _line(record: Mapping[str, Any], epochs: int) -> str:
    return f"epoch {record['epoch']:>{len(str(epochs))}}/{epochs}  {summary(record)}"


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{hours} h {minutes % 60:02} min" if hours else f"{minutes} min" if minutes else f"{int(seconds)} s"
