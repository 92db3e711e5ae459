"""Records by setting and arm, as tables and figures take them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mixsage.reports import published
from mixsage.reports.pictures import Curve, Point
from mixsage.study.cost import Cost, by_steps, by_times
from mixsage.study.records import Record, RecordError, select
from mixsage.study.statistics import Estimate, estimate


@dataclass(frozen=True, kw_only=True)
class Arm:
    """All finished runs of one arm in one setting."""

    label: str
    """Its name for people."""
    anchor: str
    """Where its configuration stands in the page."""
    records: tuple[Record, ...]
    """Its runs."""

    def values(self, metric: str) -> dict[int, float]:
        """The metric by seed, of the runs that have it."""
        return {record.seed: float(record.metrics[metric]) for record in self.records if metric in record.metrics}

    def estimate(self, metric: str) -> Estimate | None:
        """Its mean over the runs that have it; None where there are none."""
        values = self.values(metric)
        return estimate(list(values.values())) if values else None

    def published(self, metric: str) -> float | None:
        """The paper's number."""
        return published.published(self.records[0], self.label, metric)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set and a model, with the arms that were run on them."""

    data: str
    """The data."""
    model: str
    """The model."""
    arms: tuple[Arm, ...]
    """The paper's methods in its order, then the others."""

    @property
    def title(self) -> str:
        """Both for people."""
        return f"{self.data}, {self.model}"

    def baseline(self, wanted: str | None = None) -> Arm | None:
        """The arm that others are compared with: the one named, or no mixing."""
        for arm in self.arms:
            if wanted in {arm.label, arm.records[0].arm} or (wanted is None and arm.label == published.title("methods", "clean")):
                return arm
        plain = [arm for arm in self.arms if arm.records[0].method.strip().lower().rstrip("()") == "clean"]
        return plain[0] if wanted is None and plain else None


def settings_of(records: Sequence[Record]) -> list[Setting]:
    """The finished runs by data and model, and within these by arm. Two runs of an arm with one seed are an error."""
    found: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in select(records):
        arms = found.setdefault((record.data, record.model), {})
        runs = arms.setdefault(label_of(record), [])
        if any(run.seed == record.seed for run in runs):
            raise RecordError(
                f"two runs of {record.arm!r} on {record.data} with {record.model} have the seed {record.seed}: "
                f"{runs[0].run} and {record.run}; give arms that differ different names"
            )
        runs.append(record)
    settings, number = [], 0
    for (data, model), arms in found.items():
        entries = []
        for label in sorted(arms, key=published.order):  # stable: others keep the order of the records
            number += 1
            runs = sorted(arms[label], key=lambda record: record.seed)
            entries.append(Arm(label=label, anchor=f"configuration-{number}", records=tuple(runs)))
        settings.append(Setting(data=_title("data", data), model=_title("models", model), arms=tuple(entries)))
    return settings


def label_of(record: Record) -> str:
    """The arm's name without what the setting says already, one name for each method whatever the arm is called: "no mixing" for Vanilla."""
    said = {record.data, record.model, *(str(record.settings.get(name)) for name in ("data", "model"))}
    parts = [part for part in record.arm.split(", ") if part not in said]
    name = ", ".join(parts) or record.arm
    return published.name_of(published.title("methods", name))


def points(setting: Setting, x: str, y: str) -> list[Point]:
    """The arms in the plane of two metrics."""
    found = []
    for arm in setting.arms:
        across, up = arm.estimate(x), arm.estimate(y)
        if across is not None and up is not None:
            found.append(Point(arm=arm.label, x=across.mean, y=up.mean, x_error=across.half_width, y_error=up.half_width))
    return found


def paid_in(setting: Setting, reference: Arm, file: Path | None = None) -> dict[str, Cost]:
    """What arms cost beside one of them: by the runs' seconds, or by the step times in a file."""
    arms = {arm.label: arm.records for arm in setting.arms}
    return by_times(arms, reference.label) if file is None else by_steps(arms, reference.label, file)


def costs_of(setting: Setting, reference: Arm, file: Path | None = None, metric: str = "last") -> list[Point]:
    """The arms in the plane of their cost, the baseline's being 1, and a metric; arms whose cost is not known are left out."""
    paid = paid_in(setting, reference, file)
    found = []
    for arm in setting.arms:
        up = arm.estimate(metric)
        if up is not None and arm.label == reference.label:
            found.append(Point(arm=arm.label, x=1.0, y=up.mean, y_error=up.half_width))
        elif up is not None and arm.label in paid:
            ratio = paid[arm.label].ratio
            found.append(Point(arm=arm.label, x=ratio.mean, y=up.mean, x_error=ratio.half_width, y_error=up.half_width))
    return found


def mean_of(records: Sequence[Record], metric: str, scale: float = 1.0) -> float | None:
    """The mean over the runs that have the metric, in another unit if you like."""
    values = [float(record.metrics[metric]) * scale for record in records if metric in record.metrics]
    return estimate(values).mean if values else None


def curves(setting: Setting, value: str) -> list[Curve]:
    """A number of the history over the epochs, for arms whose runs have it at the same epochs."""
    found = []
    for arm in setting.arms:
        lines = [{int(epoch["epoch"]): float(epoch[value]) for epoch in run.history if value in epoch} for run in arm.records]
        epochs = sorted(set.intersection(*map(set, lines)))
        if len(epochs) > 1:
            found.append(
                Curve(arm=arm.label, epochs=tuple(epochs), values=np.array([[line[epoch] for epoch in epochs] for line in lines]))
            )
    return found


def _title(kind: str, name: str) -> str:
    """The first word of a name as the paper writes it: "cifar10, 500 a class" begins with CIFAR-10."""
    first = re.split(r"[,( ]", name, maxsplit=1)[0]
    return published.title(kind, first) + name[len(first) :]
