"""Records to one self-contained HTML page, and to the same tables and figures as files."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixsage.errors import not_installed
from mixsage.reports import figures
from mixsage.reports.arms import Arm, Setting, curves, points, settings_of
from mixsage.reports.figures import as_svg
from mixsage.reports.tables import tables
from mixsage.reports.text import to_latex, to_markdown
from mixsage.study.records import Record, latest

try:
    import jinja2
except ModuleNotFoundError as error:  # pragma: no cover - the tests have it
    raise ModuleNotFoundError(not_installed("a report", "jinja2", "report")) from error

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, kw_only=True)
class Shown:
    """A figure with its caption."""

    name: str
    """Of its files."""
    caption: str
    """What it shows; also what is read to people who cannot see it."""
    figure: Figure
    """The figure."""
    wide: bool = False
    """Whether it needs the whole width of the page."""

    @property
    def address(self) -> str:
        """The figure itself, as an address that needs no network."""
        return "data:image/svg+xml;base64," + base64.b64encode(as_svg(self.figure).encode()).decode()


def page(
    records: Sequence[Record],
    *,
    title: str = "Comparison of mixing methods",
    baseline: str | None = None,
    pictures: Sequence[Shown] = (),
) -> str:
    """One HTML page with all that the records show. It needs no network; names in it are escaped.

    Args:
        records: the records, failed ones too: these are listed.
        title: a heading.
        baseline: the arm that others are compared with; no mixing if left out.
        pictures: further figures, for example a gallery.
    """
    return _render(records, title, baseline, [*charts(records), *pictures])


def report(
    records: Sequence[Record],
    out: str | Path,
    *,
    title: str = "Comparison of mixing methods",
    baseline: str | None = None,
    pictures: Sequence[Shown] = (),
) -> list[Path]:
    """Write the page to ``out``, and beside it, in a folder of its name, the tables as Markdown and LaTeX and the figures as SVG and PNG."""
    out = Path(out)
    if out.suffix.lower() not in {".html", ".htm"}:
        raise ValueError(f"the report is an HTML page, so its name must end in .html; got {out.name!r}")
    shown = [*charts(records), *pictures]
    folder = out.with_suffix("")
    made = {out: _render(records, title, baseline, shown)}
    for table in tables(records, baseline=baseline):
        made[folder / f"{table.name}.md"] = to_markdown(table)
        made[folder / f"{table.name}.tex"] = to_latex(table)
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    drawn = [figures.save(one.figure, folder / f"{one.name}.{kind}") for one in shown for kind in ("svg", "png")]
    return [*made, *drawn]


def charts(records: Sequence[Record]) -> list[Shown]:
    """The figures that the records themselves can fill: accuracy against robustness and time, and the course of training."""
    found = []
    settings = settings_of(records)
    for number, setting in enumerate(settings, start=1):
        tail = "" if len(settings) == 1 else f"-{number}"
        about = "" if len(settings) == 1 else f": {setting.title}"
        found += _charts_of(setting, tail, about)
    return found


def _charts_of(setting: Setting, tail: str, about: str) -> list[Shown]:
    found = []
    against = (
        ("robustness", "ood", "accuracy on perturbed images (%)", "Accuracy against robustness", 1.0, False),
        ("time", "seconds", "training time (minutes)", "Accuracy against training time", 1 / 60, True),
    )
    for name, metric, axis, heading, scale, log in against:
        places = points(setting, metric, "last", scale=scale)
        if len(places) > 1:
            figure = figures.tradeoff(places, x=axis, y="test accuracy (%)", title=heading, log_x=log and _spread(places) > 3)
            caption = f"{heading}{about}. A point a method; thin lines are 95 % intervals."
            found.append(Shown(name=f"accuracy-{name}{tail}", caption=caption, figure=figure))
    for value, what in (("test_top1", "test accuracy (%)"), ("train_loss", "training loss")):
        lines = curves(setting, value)
        if lines:
            figure = figures.training_curves(lines, y=what, title=f"{what[0].upper()}{what[1:].removesuffix(' (%)')} over training")
            caption = f"{what[0].upper()}{what[1:]} over the epochs{about}: the mean of the runs, and their range as a band."
            found.append(Shown(name=f"curves-{value.replace('_', '-')}{tail}", caption=caption, figure=figure))
    return found


def _render(records: Sequence[Record], title: str, baseline: str | None, shown: Sequence[Shown]) -> str:
    template = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    settings = settings_of(records)
    return environment.from_string(template).render(
        title=title,
        summary=_summary(records, settings),
        tables=tables(records, baseline=baseline),
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
