"""What things cost, measured in one run: `mixsage bench`.

A comparison is a function from `Settings` to a `Comparison`, in a module of its own; `COMPARISONS` has them by name. Each lets its arms take
turns and reports quotients within the rounds, with their spread, beside the goal where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mixsage.bench import feeds, overhead, recipe, search, steps, trainer, transforms
from mixsage.bench.results import Comparison, Curve, Results, Row, Spread
from mixsage.bench.timing import Settings, environment
from mixsage.errors import unknown_name

__all__ = ["COMPARISONS", "Comparison", "Curve", "Results", "Row", "Settings", "Spread", "check", "machine_of", "results_of", "run"]

COMPARISONS: dict[str, Callable[[Settings], Comparison]] = {
    "overhead": overhead.compare,
    "steps": steps.compare,
    "search": search.compare,
    "growth": search.growth,
    "transforms": transforms.compare,
    "feeds": feeds.compare,
    "trainer": trainer.compare,
    "recipe": recipe.compare,
}
"""The comparisons by name, in the order in which they run."""


def check(names: Sequence[str], settings: Settings) -> None:
    """Say what is wrong before anything is measured."""
    for name in names:
        if name not in COMPARISONS:
            raise ValueError(unknown_name("comparison", name, COMPARISONS))
    if settings.rounds is not None and settings.rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {settings.rounds}")


def run(names: Sequence[str], settings: Settings) -> Iterator[Comparison]:
    """Make comparisons, one after the other; all of them if none is named.

    >>> [found.name for found in run(["recipe"], Settings(quick=True))]
    ['recipe']
    """
    check(names, settings)
    return (COMPARISONS[name](settings) for name in names or COMPARISONS)


def machine_of(settings: Settings) -> dict[str, Any]:
    """Machine and versions, with the load before anything is measured."""
    return environment(settings.device, ("torchvision", "timm", "kornia", "lightning", "numpy"))


def results_of(comparisons: Sequence[Comparison], settings: Settings, machine: Mapping[str, Any]) -> Results:
    """Comparisons with the machine and the settings that they were made with."""
    return Results(
        machine=machine,
        settings={"device": str(settings.device), "rounds": settings.rounds, "quick": settings.quick},
        comparisons=tuple(comparisons),
    )
