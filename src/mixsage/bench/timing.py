"""How everything here is timed: the arms of a comparison take turns, round after round, so that whatever else the machine does falls on all."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch

from mixsage.bench.results import Spread

Work = Callable[[], object]
"""Something to be timed."""
Times = dict[str, list[float]]
"""Seconds of each arm, a value a round."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to measure."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where."""
    rounds: int | None = None
    """How many rounds; each comparison's own number if left out."""
    quick: bool = False
    """Make everything tiny: to see that it runs, not what it costs."""

    def rounds_or(self, usual: int) -> int:
        """The number of rounds of a comparison that usually has ``usual``."""
        return self.rounds or (2 if self.quick else usual)


def take_turns(arms: Mapping[str, Work], rounds: int, device: torch.device, *, calls: Mapping[str, int] | int = 1) -> Times:
    """Seconds of one call of each arm, a value a round, after a round to warm up.

    Where an arm has several calls a round, the value is their median, and one more before them is not measured: the arm before it has
    emptied the caches. Every other round goes backwards, so that a machine that grows faster or slower favours none.

    >>> times = take_turns({"a": lambda: None, "b": lambda: None}, 3, torch.device("cpu"))
    >>> {name: len(values) for name, values in times.items()}
    {'a': 3, 'b': 3}
    """
    times: Times = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name in list(arms) if number % 2 else reversed(list(arms)):
            wanted = calls if isinstance(calls, int) else calls.get(name, 1)
            spent = [seconds(arms[name], device) for _ in range(wanted + (wanted > 1))]
            if number:
                times[name].append(median(spent[-wanted:]))
    return times


def seconds(work: Work, device: torch.device) -> float:
    """Seconds of one call, with all that it started on the device."""
    wait(device)
    begin = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begin


def wait(device: torch.device) -> None:
    """Until a device that works on its own is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def ratio(times: Times, arm: str, base: str) -> Spread:
    """One arm beside another: the spread of the quotients within the rounds."""
    return Spread.of([mine / other for mine, other in zip(times[arm], times[base], strict=True)])


def environment(device: torch.device | None = None, packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """Machine and versions: what a number is worth nothing without."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found: dict[str, Any] = {
        "machine": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": None if load is None else round(load, 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device is not None and device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    for package in ("mixsage", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()
