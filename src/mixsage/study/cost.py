"""What an arm costs beside the baseline. Seconds are compared only between runs with the same seed on the same machine at the same precision;
where there are none, step times that were measured elsewhere may stand in, and are called that.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixsage.study.records import Record, RecordError
from mixsage.study.statistics import Estimate, estimate

Arms = Mapping[str, Sequence[Record]]
"""The finished runs of each arm."""

_ELSEWHERE = frozenset(
    {"precision", "channels_last", "compile", "device", "devices", "data_dir", "out", "seed", "workers", "resident"}
)
"""Settings that change where and how fast a run is made, not what it does."""
_SPELLINGS = {"sageonepass": "sage(passes=1)", "sageuniformmaps": "sage(saliency=uniform())"}
"""Names in the results of `mixsage bench` that are no notation."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """An arm's time over the baseline's."""

    ratio: Estimate
    """The mean over pairs of runs; of measured steps a single number."""
    by_place: Mapping[str, Estimate] = field(default_factory=dict)
    """The same for each machine and precision that pairs were made on; empty for measured steps."""


def place_of(record: Record) -> str | None:
    """What a run's seconds depend on besides its work: the machine and the precision. None where the record does not tell.

    >>> machine = {"gpu": "NVIDIA H200", "cores": 16}
    >>> place_of(Record(run="r", arm="a", data="d", model="m", seed=0, epochs=1, machine=machine, settings={"precision": "bf16"}))
    'NVIDIA H200, bf16'
    """
    machine = record.machine
    precision = str(record.settings.get("precision", "fp32"))
    if machine.get("gpu") and str(record.settings.get("device", "auto")) != "cpu":
        return f"{machine['gpu']}, {precision}"
    name = machine.get("processor") or machine.get("system")
    if not name:
        return None
    threads = f", {machine['threads']} threads" if machine.get("threads") else ""
    return f"{name}, {machine.get('cores', '?')} cores{threads}, {precision}".replace(" 1 threads", " 1 thread").replace(
        " 1 cores", " 1 core"
    )


def places(records: Sequence[Record]) -> dict[str, int]:
    """How many runs were made where, the most common place first."""
    return dict(Counter(place_of(record) or "an unknown machine" for record in records).most_common())


def by_times(arms: Arms, baseline: str) -> dict[str, Cost]:
    """The cost of each arm that has a run with the same seed in the same place as the baseline.

    A run that does the baseline's work at another precision under another arm's name serves the arms of that precision.
    """
    if baseline not in arms:
        return {}
    reference: dict[tuple[str | None, int], float] = {}
    model = arms[baseline][0]
    for record in [*arms[baseline], *(record for runs in arms.values() for record in runs if _same_work(record, model))]:
        if "seconds" in record.metrics:
            reference.setdefault((place_of(record), record.seed), float(record.metrics["seconds"]))
    found = {}
    for arm, runs in arms.items():
        ratios: dict[str, list[float]] = {}
        for record in runs:
            place = place_of(record)
            if place is not None and "seconds" in record.metrics and (place, record.seed) in reference:
                ratios.setdefault(place, []).append(float(record.metrics["seconds"]) / reference[place, record.seed])
        if arm != baseline and ratios:
            everywhere = [ratio for own in ratios.values() for ratio in own]
            found[arm] = Cost(ratio=estimate(everywhere), by_place={place: estimate(own) for place, own in ratios.items()})
    return found


def mixed_pairs(arms: Arms, baseline: str) -> dict[str, tuple[int, int]]:
    """How many of an arm's pairs with the baseline were made in different places, and how many pairs there are; arms without any are left out."""
    there = {record.seed: place_of(record) for record in arms[baseline]}
    found = {}
    for arm, own in arms.items():
        pairs = [record for record in own if record.seed in there and arm != baseline]
        mixed = sum(place_of(record) != there[record.seed] for record in pairs)
        if mixed:
            found[arm] = (mixed, len(pairs))
    return found


def by_steps(arms: Arms, baseline: str, file: Path) -> dict[str, Cost]:
    """The cost of each arm whose method's step was measured: the step's ratio times the number of steps.

    Args:
        arms: the runs of each arm.
        baseline: the arm whose cost is 1.
        file: what `mixsage bench steps --json FILE` wrote; or ``{"ratios": {"sage": 1.97}}``, by the notation of the method.
    """
    ratios = read_steps(file)
    whole = {
        arm: ratios[_spelt(runs[0].method)] * _steps(runs[0]) for arm, runs in arms.items() if _spelt(runs[0].method) in ratios
    }
    if baseline not in whole:
        raise RecordError(
            f"{file} has no step of {arms[baseline][0].method!r}, the baseline's method; it has {', '.join(sorted(ratios))}"
        )
    return {arm: Cost(ratio=estimate([value / whole[baseline]])) for arm, value in whole.items() if arm != baseline}


def read_steps(file: Path) -> dict[str, float]:
    """Step time over plain step time by method, from a file of measurements."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"there is no file of step times {file}") from None
    except ValueError as error:
        raise RecordError(f"{file} is no JSON: {error}") from None
    found: dict[str, Any] = {}
    if isinstance(content, dict) and isinstance(content.get("ratios"), dict):
        found = content["ratios"]
    elif isinstance(content, dict):
        tables = [one for one in content.get("comparisons", []) if one.get("name") == "steps"]
        found = {row["name"]: row["spread"] for one in tables for row in one["rows"]}
    values: dict[str, Any] = {_spelt(name): one.get("median") if isinstance(one, dict) else one for name, one in found.items()}
    if not values or not all(isinstance(value, (int, float)) and value > 0 for value in values.values()):
        raise RecordError(
            f'{file} holds no step times; give what `mixsage bench steps --json` writes, or {{"ratios": {{"sage": 1.97}}}}'
        )
    return {"clean": 1.0, **values}


def _same_work(record: Record, other: Record) -> bool:
    """Whether two runs differ in nothing but where and at what precision they were made."""

    def work(one: Record) -> tuple[Any, ...]:
        settings = {name: value for name, value in one.settings.items() if name not in _ELSEWHERE}
        return one.method, one.epochs, one.data, one.model, settings

    return bool(record.settings) and work(record) == work(other)


def _steps(record: Record) -> float:
    """In proportion to the number of steps, for runs on the same data."""
    return record.epochs / float(record.settings.get("batch_size", 1))


def _spelt(method: str) -> str:
    """One spelling for a method: no spaces, no capitals, no empty brackets."""
    name = "".join(method.lower().split()).removesuffix("()")
    return _SPELLINGS.get(name, name)
