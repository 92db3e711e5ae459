"""What records support: means with intervals, paired differences, ranks, gain for cost. Where there are too few seeds, it says so instead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mixsage.errors import not_installed, unknown_name
from mixsage.study.records import Record, RecordError, latest

try:
    from scipy import stats  # type: ignore[import-untyped]  # it has no types of its own
except ModuleNotFoundError as error:  # pragma: no cover - the tests have it
    raise ModuleNotFoundError(not_installed("statistics", "scipy", "report")) from error

LEAST_SEEDS = 3
"""With fewer runs of an arm nothing is claimed: no interval, no p-value."""

Values = Mapping[int, float]
"""A number for each seed."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds, and how well it is known."""

    mean: float
    """The mean."""
    half_width: float | None
    """Half the width of the t-interval; None where there are too few seeds for one."""
    count: int
    """How many seeds."""
    level: float = 0.95
    """Of the interval."""

    @property
    def note(self) -> str | None:
        """What keeps this from being a claim."""
        if self.half_width is not None:
            return None
        return f"{_seeds(self.count)}: no interval (needs {LEAST_SEEDS})"

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.half_width is None else f"{self.mean:.2f} ± {self.half_width:.2f}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An arm against the baseline, by pairs of runs with the same seed."""

    arm: str
    """The arm."""
    baseline: str
    """What it is compared with."""
    difference: Estimate
    """Mean of the arm less the baseline, over the seeds that both have."""
    p: float | None
    """Of the paired t-test; None where nothing can be tested."""
    corrected: float | None
    """The same after Holm's correction for all comparisons made together."""
    note: str | None
    """What keeps this from being a claim."""

    def significant(self, level: float = 0.05) -> bool:
        """Whether the difference is one at this level, after the correction."""
        return self.corrected is not None and self.corrected < level


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What an arm gains for what it costs."""

    arm: str
    """The arm."""
    gain: float
    """Points above the baseline, over pairs of runs with the same seed."""
    cost: float
    """Its time over the baseline's."""
    gain_per_cost: float | None
    """Points gained for each time the cost of the baseline that is spent; None where nothing is gained: a loss is no better for being dear."""


def estimate(values: Sequence[float], level: float = 0.95) -> Estimate:
    """The mean of some runs with its t-interval, which needs three of them.

    >>> print(estimate([95.0, 95.2, 95.1]), estimate([95.0, 95.2]), sep="; ")
    95.10 ± 0.25; 95.10
    """
    _check(values)
    count = len(values)
    mean = math.fsum(values) / count
    if count < LEAST_SEEDS:
        return Estimate(mean=mean, half_width=None, count=count, level=level)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return Estimate(mean=mean, half_width=float(stats.t.ppf((1 + level) / 2, count - 1)) * error, count=count, level=level)


def compare(arms: Mapping[str, Values], baseline: str, level: float = 0.95) -> list[Comparison]:
    """Every arm against the baseline, by the paired t-test over the seeds that both have, corrected after Holm."""
    if baseline not in arms:
        raise RecordError(unknown_name("arm among the records:", baseline, arms))
    found = [_paired(arm, values, baseline, arms[baseline], level) for arm, values in arms.items() if arm != baseline]
    corrected = iter(holm([entry.p for entry in found if entry.p is not None]))
    return [_with_correction(entry, None if entry.p is None else next(corrected)) for entry in found]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, which neither SciPy nor NumPy has.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = running
    return corrected


def ranks(values: Mapping[str, float], *, higher_is_better: bool = True) -> dict[str, float]:
    """The rank of each arm, 1 for the best; arms that are equal share the mean of their ranks.

    >>> ranks({"a": 3.0, "b": 5.0, "c": 3.0})
    {'a': 2.5, 'b': 1.0, 'c': 2.5}
    """
    _check(list(values.values()))
    sign = -1 if higher_is_better else 1
    return dict(zip(values, map(float, stats.rankdata([sign * value for value in values.values()])), strict=True))


def worth(gains: Mapping[str, float], costs: Mapping[str, float]) -> list[Worth]:
    """What each arm that has both gains over the baseline for each unit of cost, the baseline's own cost being the unit.

    >>> [one.gain_per_cost for one in worth({"sage": 3.0, "cutmix": -1.0, "mixup": 1.0}, {"sage": 2.0, "cutmix": 1.0})]
    [1.5, None]
    """
    return [
        Worth(arm=arm, gain=gain, cost=costs[arm], gain_per_cost=gain / costs[arm] if gain > 0 else None)
        for arm, gain in gains.items()
        if arm in costs
    ]


def by_arm(records: Sequence[Record], metric: str = "last") -> dict[str, dict[int, float]]:
    """The metric of each arm by seed, of runs on the same data with the same model; arms in the order of the records."""
    records = [record for record in latest(records) if record.status == "ok"]
    settings = {(record.data, record.model) for record in records}
    if len(settings) > 1:
        listed = "; ".join(f"{data} with {model}" for data, model in sorted(settings))
        raise RecordError(f"these records are of several settings, which must not be thrown together: {listed}; select one")
    found: dict[str, dict[int, float]] = {}
    for record in records:
        if metric not in record.metrics:
            continue
        values = found.setdefault(record.arm, {})
        if record.seed in values:
            raise RecordError(f"two runs of {record.arm!r} have the seed {record.seed}; give arms that differ different names")
        values[record.seed] = record.metrics[metric]
    if not found:
        there = {name for record in records for name in record.metrics}
        raise RecordError(unknown_name("metric", metric, there) if there else "there are no finished runs among the records")
    return found


def _paired(arm: str, values: Values, baseline: str, reference: Values, level: float) -> Comparison:
    seeds = sorted(values.keys() & reference.keys())
    if not seeds:
        raise RecordError(
            f"{arm!r} and {baseline!r} have no seed in common ({sorted(values)} and {sorted(reference)}), so there are no pairs"
        )
    differences = [values[seed] - reference[seed] for seed in seeds]
    difference = estimate(differences, level)
    p, note = None, None
    if len(seeds) < LEAST_SEEDS:
        note = f"{_seeds(len(seeds))} in common: nothing can be claimed (needs {LEAST_SEEDS})"
    elif max(differences) == min(differences):
        note = "all differences are the same: nothing to test"
    else:
        p = float(stats.ttest_rel([values[seed] for seed in seeds], [reference[seed] for seed in seeds]).pvalue)
    return Comparison(arm=arm, baseline=baseline, difference=difference, p=p, corrected=None, note=note)


def _with_correction(entry: Comparison, corrected: float | None) -> Comparison:
    return Comparison(
        arm=entry.arm, baseline=entry.baseline, difference=entry.difference, p=entry.p, corrected=corrected, note=entry.note
    )


def _check(values: Sequence[float]) -> None:
    if not values:
        raise RecordError("there are no values to work with")
    if not all(math.isfinite(value) for value in values):
        raise RecordError(f"the values hold numbers that are not finite: {list(values)}")


def _seeds(count: int) -> str:
    return f"{count} seed" if count == 1 else f"{count} seeds"
