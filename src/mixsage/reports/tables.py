"""Records to tables shaped as the paper's: our number with its interval, the published one beside it, what is missing shown as missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mixsage.reports import published
from mixsage.reports.arms import Arm, Setting, mean_of, paid_in, settings_of
from mixsage.study.cost import Cost, mixed_pairs, place_of, places
from mixsage.study.records import Record, RecordError
from mixsage.study.statistics import LEAST_SEEDS, Estimate, compare, ranks, worth

MISSING = "–"
"""In the place of a number that is not there."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number as text."""

    text: str
    """Our number, or what is missing."""
    published: str | None = None
    """The paper's."""
    note: str | None = None
    """What keeps the number from being a claim."""
    anchor: str | None = None
    """Where the configuration behind it stands."""
    strong: bool = False
    """The best of its column."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under headings."""

    name: str
    """For files and anchors: lower case, no spaces."""
    title: str
    """A heading."""
    columns: tuple[str, ...]
    """Headings of the columns, without that of the row names."""
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    """The name of a row, and its cells."""
    notes: tuple[str, ...] = ()
    """What a reader has to know."""
    setting: str = ""
    """Data and model, where there are tables of several."""

    @property
    def heading(self) -> str:
        """Title and setting."""
        return f"{self.title}: {self.setting}" if self.setting else self.title


def tables(records: Sequence[Record], *, baseline: str | None = None, costs: Path | None = None) -> list[Table]:
    """All tables that the records can fill.

    Args:
        records: the records; failed runs and earlier tries are left out.
        baseline: the arm that others are compared with; no mixing if left out.
        costs: a file of step times: what methods cost by these, beside what the runs took.
    """
    settings = settings_of(records)
    if baseline is not None and not any(setting.baseline(baseline) for setting in settings):
        there = sorted({arm.label for setting in settings for arm in setting.arms})
        raise RecordError(f"the baseline {baseline!r} is not among the arms: {', '.join(there)}")
    found = [accuracy(settings)]
    for setting in settings:
        made = [
            robustness(setting),
            calibration(setting),
            accuracies(setting),
            fewshot(setting),
            comparison(setting, baseline),
            cost(setting, baseline, costs),
        ]
        found += [table if len(settings) == 1 else _told_apart(table, setting) for table in made if table is not None]
    return found


def accuracy(settings: Sequence[Setting]) -> Table:
    """Test accuracy after the last epoch: a row a method, a column a setting."""
    labels = _labels(settings)
    columns = [_column(setting, labels, "last", "accuracy") for setting in settings]
    rows = tuple((label, tuple(column[i] for column in columns)) for i, label in enumerate(labels))
    return Table(
        name="accuracy",
        title="Test accuracy after the last epoch (%)",
        columns=tuple(setting.title for setting in settings),
        rows=rows,
        notes=_notes(rows, settings),
    )


def robustness(setting: Setting) -> Table | None:
    """Accuracy on perturbed images, their mean, and the ranks by it."""
    metrics = {"fgsm": "FGSM", "fgm": "FGM", "gaussian": "Gaussian noise", "ood": "OOD score"}
    table = _metrics(setting, "robustness", "Accuracy on perturbed test images (%)", metrics)
    if table is None:
        return None
    scores = {arm.label: score.mean for arm in setting.arms if (score := arm.estimate("ood"))}
    places = ranks(scores) if scores else {}
    rows = tuple((label, (*cells, Cell(text=f"{places[label]:g}" if label in places else MISSING))) for label, cells in table.rows)
    notes = (
        "FGSM moves each pixel by 8/255, FGM each image by a length of 0.5, the noise has variance 0.01; all in pixels from 0 to 1.",
        "The OOD score is the mean of the three; ranks are by it.",
    )
    return replace(table, columns=(*table.columns, "rank"), rows=rows, notes=notes + table.notes)


def calibration(setting: Setting) -> Table | None:
    """Top-5 accuracy, likelihood and calibration."""
    metrics = {"top5": "top-5 accuracy (%)", "nll": "negative log-likelihood", "ece": "calibration error (%)"}
    return _metrics(setting, "calibration", "Top-5 accuracy and calibration of the final weights", metrics, lower=("nll", "ece"))


def accuracies(setting: Setting) -> Table | None:
    """The three accuracies, told apart."""
    metrics = {"last": "last epoch", "median_of_last_ten": "median of the last ten", "best": "best epoch"}
    table = _metrics(setting, "accuracies", "Test accuracy: which epoch (%)", metrics)
    note = "The best epoch was chosen on the test set, so it flatters; it stands here for comparison with papers that report it."
    return None if table is None else replace(table, notes=(note, *table.notes))


def fewshot(setting: Setting) -> Table | None:
    """Few-shot accuracy of the frozen features."""
    metrics = {"fewshot_1": "1 shot", "fewshot_5": "5 shots"}
    return _metrics(
        setting, "few-shot", "Few-shot accuracy, 5 ways, nearest prototype (%)", metrics, paper={"fewshot_5": "fewshot"}
    )


def comparison(setting: Setting, baseline: str | None = None) -> Table | None:
    """Paired differences of the last accuracy to the baseline."""
    reference = setting.baseline(baseline)
    values = {arm.label: arm.values("last") for arm in setting.arms if arm.values("last")}
    if reference is None or reference.label not in values or len(values) < 2:
        return None
    usable = {label: table for label, table in values.items() if table.keys() & values[reference.label].keys()}
    anchors = {arm.label: arm.anchor for arm in setting.arms}
    rows = []
    for entry in compare(usable, reference.label):
        verdict = entry.note or ("yes" if entry.significant() else "no")
        cells = (
            Cell(text=_signed(entry.difference), anchor=anchors[entry.arm]),
            Cell(text=str(entry.difference.count)),
            Cell(text=_p(entry.p)),
            Cell(text=_p(entry.corrected)),
            Cell(text=verdict),
        )
        rows.append((entry.arm, cells))
    unpaired = [label for label in values if label not in usable]
    notes = [f"Runs with the same seed saw the same images in the same order; differences are taken within such pairs. {_t_note()}"]
    notes += [f"No seed in common with {reference.label}: {', '.join(unpaired)}."] if unpaired else []
    mixed = mixed_pairs({arm.label: arm.records for arm in setting.arms}, reference.label)
    notes += [
        f"{label}: {count} of {of} pairs compare runs of different machines or precisions." for label, (count, of) in mixed.items()
    ]
    return Table(
        name="differences",
        title=f"Difference to {reference.label} (points)",
        columns=("difference", "pairs", "p", "p after Holm", "significant at 5 %"),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def cost(setting: Setting, baseline: str | None = None, costs: Path | None = None) -> Table | None:
    """Training time, and what is gained for it: a row an arm and place, as seconds of different machines or precisions are not comparable."""
    timed = {arm.label: arm for arm in setting.arms if arm.values("seconds")}
    if not timed:
        return None
    reference = setting.baseline(baseline)
    paid = paid_in(setting, reference) if reference else {}
    steps = paid_in(setting, reference, costs) if reference and costs else {}
    gains = _gains(setting, reference)
    name = reference.label if reference else "no mixing"
    rows = []
    for arm in timed.values():
        for place in dict.fromkeys(place_of(record) for record in arm.records):
            ratio = paid[arm.label].by_place.get(place or "") if arm.label in paid else None
            cells = _cost_cells(arm, place, ratio, gains.get(arm.label), reference)
            rows.append((arm.label, (*cells, *_step_cells(steps, arm, reference)) if costs else cells))
    unpaid = [label for label in timed if reference and label not in paid and label != reference.label]
    notes = [
        "Time without evaluations, other work on the machine included.",
        f"Time / {name}: the mean over runs with the same seed on the same machine at the same precision.",
        f"Gain: over pairs with the same seed, in points. Gain / cost: points gained for each time the cost of {name}; only where something is gained.",
    ]
    notes += [f"No pair to take a cost from: {', '.join(unpaid)}."] if unpaid else []
    notes += [f"By step times: {costs.name}, measured apart from these runs, times the number of steps."] if costs else []
    columns = (
        "machine, precision",
        "minutes a run",
        "images a second",
        f"time / {name}",
        f"gain over {name} (points)",
        "gain / cost",
    )
    return Table(
        name="cost",
        title="Training time, and what is gained for it",
        columns=(*columns, f"cost / {name}, by step times") if costs else columns,
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _gains(setting: Setting, reference: Arm | None) -> dict[str, float]:
    """Points above the baseline, over the seeds that both have."""
    values = {arm.label: arm.values("last") for arm in setting.arms}
    if reference is None or not values[reference.label]:
        return {}
    usable = {label: own for label, own in values.items() if own.keys() & values[reference.label].keys()}
    return {entry.arm: entry.difference.mean for entry in compare(usable, reference.label)}


def _cost_cells(arm: Arm, place: str | None, ratio: Estimate | None, gain: float | None, reference: Arm | None) -> tuple[Cell, ...]:
    own = [record for record in arm.records if place_of(record) == place]
    minutes, speed = mean_of(own, "seconds", 1 / 60), mean_of(own, "images_per_second")
    theirs = _published_ratio(arm, reference) if reference else None
    (worthy,) = worth({arm.label: gain}, {arm.label: ratio.mean}) if ratio and gain is not None else (None,)
    is_reference = reference is not None and arm.label == reference.label
    return (
        Cell(text=place or "not recorded"),
        Cell(text=MISSING if minutes is None else f"{minutes:.1f}", anchor=arm.anchor),
        Cell(text=MISSING if speed is None else f"{speed:,.0f}"),
        Cell(
            text="1" if is_reference else MISSING if ratio is None else str(ratio),
            published=None if theirs is None or is_reference else f"{theirs:.2f}",
            note=f"{ratio.count} {'pair' if ratio.count == 1 else 'pairs'}" if ratio and ratio.half_width is None else None,
        ),
        Cell(text=MISSING if gain is None else f"{gain:+.2f}"),
        Cell(text=MISSING if worthy is None or worthy.gain_per_cost is None else f"{worthy.gain_per_cost:+.2f}"),
    )


def _step_cells(steps: Mapping[str, Cost], arm: Arm, reference: Arm | None) -> tuple[Cell]:
    if reference is not None and arm.label == reference.label:
        return (Cell(text="1"),)
    return (Cell(text=str(steps[arm.label].ratio) if arm.label in steps else MISSING),)


def _metrics(
    setting: Setting,
    name: str,
    title: str,
    metrics: dict[str, str],
    *,
    lower: Sequence[str] = (),
    paper: dict[str, str] | None = None,
) -> Table | None:
    """A row an arm, a column a metric; None where no run has any of them."""
    metrics = {metric: heading for metric, heading in metrics.items() if any(arm.values(metric) for arm in setting.arms)}
    if not metrics:
        return None
    labels = [arm.label for arm in setting.arms]
    theirs = paper or {}
    columns = [_column(setting, labels, metric, theirs.get(metric, metric), lower=metric in lower) for metric in metrics]
    rows = tuple((label, tuple(column[i] for column in columns)) for i, label in enumerate(labels))
    return Table(name=name, title=title, columns=tuple(metrics.values()), rows=rows, notes=_notes(rows, [setting]))


def _column(setting: Setting, labels: Sequence[str], metric: str, paper: str, *, lower: bool = False) -> list[Cell]:
    arms = {arm.label: arm for arm in setting.arms}
    found = {label: arm.estimate(metric) for label, arm in arms.items()}
    means = [value.mean for value in found.values() if value is not None]
    best = (min if lower else max)(means) if len(means) > 1 else None
    return [_cell(arms.get(label), found.get(label), metric, paper, best) for label in labels]


def _cell(arm: Arm | None, value: Estimate | None, metric: str, paper: str, best: float | None) -> Cell:
    if arm is None or value is None:
        return Cell(text=MISSING)
    theirs = arm.published(paper)
    return Cell(
        text=str(value) if metric != "nll" else _with_digits(value, 3),
        published=None if theirs is None else f"{theirs:.2f}",
        note=None if value.half_width is not None else f"{value.count} {'seed' if value.count == 1 else 'seeds'}",
        anchor=arm.anchor,
        strong=best is not None and value.mean == best,
    )


def _notes(rows: Sequence[tuple[str, Sequence[Cell]]], settings: Sequence[Setting]) -> tuple[str, ...]:
    cells = [cell for _, row in rows for cell in row]
    counts = sorted({len(arm.records) for setting in settings for arm in setting.arms})
    epochs = sorted({record.epochs for setting in settings for arm in setting.arms for record in arm.records})
    where = places([record for setting in settings for arm in setting.arms for record in arm.records])
    notes = [
        f"Mean ± half width of the 95 % t-interval over {_span(counts)} seeds; runs of {' or '.join(map(str, epochs))} epochs."
    ]
    if len(where) > 1:
        notes.append(
            f"Runs of several machines or precisions: {'; '.join(f'{count} on {place}' for place, count in where.items())}."
        )
    if any(cell.note for cell in cells):
        notes.append(f"A number with fewer than {LEAST_SEEDS} seeds has no interval, and supports no claim.")
    if any(cell.published for cell in cells):
        notes.append(f"Published numbers, in brackets or marked as the paper's: {published.source()}.")
    if any(cell.text == MISSING for cell in cells):
        notes.append(f"{MISSING}: not run, or not measured.")
    return tuple(notes)


def _labels(settings: Sequence[Setting]) -> list[str]:
    labels = dict.fromkeys(arm.label for setting in settings for arm in setting.arms)
    return sorted(labels, key=published.order)


def _told_apart(table: Table, setting: Setting) -> Table:
    slug = re.sub(r"[^a-z0-9]+", "-", setting.title.lower()).strip("-")
    return replace(table, name=f"{table.name}-{slug}", setting=setting.title)


def _published_ratio(arm: Arm, reference: Arm) -> float | None:
    theirs, plain = arm.published("hours"), reference.published("hours")
    return None if theirs is None or plain is None else theirs / plain


def _with_digits(value: Estimate, digits: int) -> str:
    return f"{value.mean:.{digits}f}" + ("" if value.half_width is None else f" ± {value.half_width:.{digits}f}")


def _signed(value: Estimate) -> str:
    return f"{value.mean:+.2f}" + ("" if value.half_width is None else f" ± {value.half_width:.2f}")


def _p(value: float | None) -> str:
    if value is None:
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _t_note() -> str:
    return (
        f"Paired t-test, 95 % t-interval, Holm's correction over all rows; with fewer than {LEAST_SEEDS} pairs nothing is tested."
    )


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
