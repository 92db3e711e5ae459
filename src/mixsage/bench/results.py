"""What was measured: numbers with their spread beside their goals, as values that become a table, a picture or a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

Unit = Literal["ratio", "share", "copies", "power", "seconds", "images/s", "hours"]
"""What a number counts. A share is shown in per cent."""

SCHEMA = 1
"""Number of the JSON form; another form has another number."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Repeated measurements of one thing."""

    median: float
    """Their median."""
    low: float
    """Their 5 % quantile."""
    high: float
    """Their 95 % quantile."""
    count: int
    """How many there were."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some measurements.

        >>> Spread.of([1.0, 2.0, 3.0]).median
        2.0
        """
        if not values:
            raise ValueError("there are no measurements; a comparison needs at least one round")
        ranked = sorted(values)
        return cls(median=median(ranked), low=_quantile(ranked, 0.05), high=_quantile(ranked, 0.95), count=len(ranked))

    @classmethod
    def exact(cls, value: float) -> Spread:
        """A number that comes out the same every time."""
        return cls(median=value, low=value, high=value, count=1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a comparison."""

    name: str
    """What tables and documents find it by."""
    text: str
    """What it is, to a reader."""
    spread: Spread
    """The number."""
    unit: Unit = "ratio"
    """What it counts."""
    goal: float | None = None
    """What it should not exceed, or fall below; None where there is no goal."""
    at_least: bool = False
    """The goal is a lower bound."""

    @property
    def met(self) -> bool | None:
        """Whether the median keeps to the goal; None without one."""
        if self.goal is None:
            return None
        return self.spread.median >= self.goal if self.at_least else self.spread.median <= self.goal


@dataclass(frozen=True, kw_only=True)
class Curve:
    """How seconds grow with the side of the images."""

    name: str
    """What grows."""
    sides: tuple[int, ...]
    """Sides in pixels."""
    seconds: tuple[float, ...]
    """Median seconds at each."""
    power: float
    """The fitted exponent: seconds grow as side to this power."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What one comparison found."""

    name: str
    """The name that `mixsage bench` takes."""
    title: str
    """What is compared, in a line."""
    setting: str
    """Model, images, batch, arithmetic."""
    rows: tuple[Row, ...] = ()
    """Its numbers."""
    curves: tuple[Curve, ...] = ()
    """Its growth curves."""
    notes: tuple[str, ...] = ()
    """What a reader must know beside the numbers: what was left out, and why."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """One run of `mixsage bench`."""

    machine: Mapping[str, Any]
    """Where and with what it was measured: see `mixsage.bench.timing.environment`."""
    settings: Mapping[str, Any]
    """Device, rounds, and whether the run was a quick one, whose times mean nothing."""
    comparisons: tuple[Comparison, ...] = ()
    """What was found, in order."""
    schema: int = field(default=SCHEMA)
    """Number of the form."""

    def row(self, comparison: str, name: str) -> Row | None:
        """A number by the names of its comparison and of itself, if it was measured."""
        rows = [row for one in self.comparisons if one.name == comparison for row in one.rows if row.name == name]
        return rows[0] if rows else None

    def write(self, path: Path) -> None:
        """Write all of it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        """What `write` wrote."""
        table = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(table, dict) or table.get("schema") != SCHEMA:
            raise ValueError(
                f"{path} does not hold results of `mixsage bench` in form {SCHEMA}; write it again with --json {path.name}"
            )
        found = tuple(
            Comparison(
                **{
                    **one,
                    "rows": tuple(Row(**{**row, "spread": Spread(**row["spread"])}) for row in one["rows"]),
                    "curves": tuple(
                        Curve(**{**curve, "sides": tuple(curve["sides"]), "seconds": tuple(curve["seconds"])})
                        for curve in one["curves"]
                    ),
                    "notes": tuple(one["notes"]),
                }
            )
            for one in table["comparisons"]
        )
        return cls(machine=table["machine"], settings=table["settings"], comparisons=found)


def _quantile(ranked: Sequence[float], share: float) -> float:
    """Between the two nearest of values in rising order."""
    place = share * (len(ranked) - 1)
    below = int(place)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (place - below) * (ranked[above] - ranked[below])
