"""Records to one self-contained HTML page, and to the same tables and figures as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from mixsage.errors import not_installed
from mixsage.reports import figures
from mixsage.reports.arms import Arm, Setting, costs_of, curves, points, settings_of
from mixsage.reports.figures import has_gaps
from mixsage.reports.shown import Shown
from mixsage.reports.tables import Table, tables
from mixsage.reports.text import to_latex, to_markdown
from mixsage.study.records import Record, latest

try:
    import jinja2
except ModuleNotFoundError as error:  # pragma: no cover - the tests have it
    raise ModuleNotFoundError(not_installed("a report", "jinja2", "report")) from error


def page(
    records: Sequence[Record],
    *,
    title: str = "Comparison of mixing methods",
    baseline: str | None = None,
    costs: Path | None = None,
    pictures: Sequence[Shown] = (),
) -> str:
    """One HTML page with all that the records show. It needs no network; names in it are escaped.

    Args:
        records: the records, failed ones too: these are listed.
        title: a heading.
        baseline: the arm that others are compared with; no mixing if left out.
        costs: a file of step times: what methods cost by these, beside what the runs took.
        pictures: further figures, for example a gallery.
    """
    shown = [*charts(records, baseline=baseline, costs=costs), *pictures]
    return _render(records, title, tables(records, baseline=baseline, costs=costs), shown)


def report(
    records: Sequence[Record],
    out: str | Path,
    *,
    title: str = "Comparison of mixing methods",
    baseline: str | None = None,
    costs: Path | None = None,
    pictures: Sequence[Shown] = (),
) -> list[Path]:
    """Write the page to ``out``, and beside it, in a folder of its name, the tables as Markdown and LaTeX and the figures as SVG and PNG."""
    out = Path(out)
    if out.suffix.lower() not in {".html", ".htm"}:
        raise ValueError(f"the report is an HTML page, so its name must end in .html; got {out.name!r}")
    shown = [*charts(records, baseline=baseline, costs=costs), *pictures]
    told = tables(records, baseline=baseline, costs=costs)
    folder = out.with_suffix("")
    made = {out: _render(records, title, told, shown)}
    for table in told:
        made[folder / f"{table.name}.md"] = to_markdown(table)
        made[folder / f"{table.name}.tex"] = to_latex(table)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    drawn = [figures.save(one.figure, folder / f"{one.name}.{kind}") for one in shown for kind in ("svg", "png")]
    return [*made, *drawn]


def charts(records: Sequence[Record], *, baseline: str | None = None, costs: Path | None = None) -> list[Shown]:
    """The figures that the records themselves can fill: accuracy against robustness and cost, and the course of training."""
    found = []
    settings = settings_of(records)
    for number, setting in enumerate(settings, start=1):
        tail = "" if len(settings) == 1 else f"-{number}"
        about = "" if len(settings) == 1 else f": {setting.title}"
        made = [_against_robustness(setting, about), _against_cost(setting, about, baseline, costs), *_courses(setting, about)]
        found += [replace(one, name=f"{one.name}{tail}") for one in made if one is not None]
    return found


def _against_robustness(setting: Setting, about: str) -> Shown | None:
    places = points(setting, "ood", "last")
    if len(places) < 2:
        return None
    figure = figures.tradeoff(
        places, x="accuracy on perturbed images (%)", y="test accuracy (%)", title="Accuracy against robustness"
    )
    caption = f"Accuracy against robustness{about}. A point a method; thin lines are 95 % intervals."
    return Shown(name="accuracy-robustness", caption=caption, figure=figure)


def _against_cost(setting: Setting, about: str, baseline: str | None, costs: Path | None) -> Shown | None:
    """Against time as a multiple of the baseline's: minutes of several machines could not stand on one axis."""
    reference = setting.baseline(baseline)
    if reference is None:
        return None
    places = costs_of(setting, reference, costs)
    if len(places) < 2:
        return None
    how = "in pairs of runs with the same seed on the same machine at the same precision"
    if costs is not None:
        how = "by step times that were measured apart from the runs, and the number of steps"
    missing = [arm.label for arm in setting.arms if arm.label not in {place.arm for place in places}]
    figure = figures.tradeoff(
        places,
        x=f"training time / {reference.label}",
        y="test accuracy (%)",
        title="Accuracy against training time",
        log_x=_spread(places) > 3,
    )
    caption = f"Accuracy against training time{about}, that of {reference.label} being 1, {how}. Thin lines are 95 % intervals."
    if missing:
        caption += f" Not shown, as there is no such {'pair' if costs is None else 'measurement'}: {', '.join(missing)}."
    return Shown(name="accuracy-time", caption=caption, figure=figure)


def _courses(setting: Setting, about: str) -> list[Shown]:
    found = []
    for value, what in (("test_top1", "test accuracy (%)"), ("train_loss", "training loss")):
        lines = curves(setting, value)
        if lines:
            figure = figures.training_curves(lines, y=what, title=f"{what[0].upper()}{what[1:].removesuffix(' (%)')} over training")
            caption = f"{what[0].upper()}{what[1:]} over the epochs{about}: the mean of the runs, and their range as a band."
            caption += " Where epochs were not measured, the line has a gap." if any(has_gaps(line) for line in lines) else ""
            found.append(Shown(name=f"curves-{value.replace('_', '-')}", caption=caption, figure=figure))
    return found


def _render(records: Sequence[Record], title: str, told: Sequence[Table], shown: Sequence[Shown]) -> str:
    template = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    settings = settings_of(records)
    return environment.from_string(template).render(
        title=title,
        summary=_summary(records, settings),
        tables=told,
        figures=shown,
        settings=settings,
        failed=[record for record in latest(records) if record.status == "failed"],
        configuration=_configuration,
    )


def _summary(records: Sequence[Record], settings: Sequence[Setting]) -> str:
    """How much stands behind the page."""
    runs = sum(len(arm.records) for setting in settings for arm in setting.arms)
    arms = {arm.label for setting in settings for arm in setting.arms}
    done = [record for record in latest(records) if record.status == "ok"]
    hours = sum(float(record.metrics.get("seconds", 0)) for record in done) / 3600
    versions = sorted({f"mixsage {record.versions['mixsage']}" for record in done if "mixsage" in record.versions})
    finished = sorted(record.finished[:10] for record in done if record.finished)
    parts = [
        f"{runs} {'run' if runs == 1 else 'runs'} of {len(arms)} {'arm' if len(arms) == 1 else 'arms'}",
        "; ".join(setting.title for setting in settings),
        *([f"{hours:.1f} hours of training"] if hours >= 0.05 else []),
        *versions,
        *([f"finished {finished[-1]}"] if finished else []),
    ]
    return " · ".join(parts)


def _configuration(arm: Arm) -> list[tuple[str, str]]:
    """What the runs of an arm were: the settings that all share, then what each has of its own."""
    first = arm.records[0]
    rows: list[tuple[str, Any]] = [
        ("runs", ", ".join(record.run for record in arm.records)),
        ("seeds", ", ".join(str(record.seed) for record in arm.records)),
        ("method", first.method or first.arm),
        ("data", first.data),
        ("model", first.model),
        ("epochs", first.epochs),
    ]
    said = {name for name, _ in rows} | {"seed", "out"}
    rows += [(name, _shared(arm, "settings", name)) for name in first.settings if name not in said]
    rows += [(f"version of {name}", _shared(arm, "versions", name)) for name in first.versions]
    rows += [(f"machine: {name}", _shared(arm, "machine", name)) for name in first.machine]
    rows += [("commit", ", ".join(sorted({str(record.commit) for record in arm.records if record.commit})))]
    return [(name, str(value)) for name, value in rows if value not in {None, ""}]


def _shared(arm: Arm, table: str, name: str) -> str | None:
    """A value of all runs; where they differ, each of them once."""
    values: list[str] = []
    for record in arm.records:
        content: Mapping[str, Any] = getattr(record, table)
        value = content.get(name)
        text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else None if value is None else str(value)
        if text is not None and text not in values:
            values.append(text)
    return " / ".join(values) or None


def _spread(places: Sequence[Any]) -> float:
    low = min(place.x for place in places)
    return float("inf") if low <= 0 else max(place.x for place in places) / low
