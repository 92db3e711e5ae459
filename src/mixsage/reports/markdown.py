"""Records to one page of Markdown, for a site or a repository: the tables of the HTML page, its figures in a folder beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from mixsage.reports import figures
from mixsage.reports.arms import Setting, settings_of
from mixsage.reports.page import charts
from mixsage.reports.shown import Shown
from mixsage.reports.tables import Cell, Table, tables
from mixsage.reports.text import escape_markdown, to_markdown
from mixsage.study.records import Record, latest

RECIPE = (
    "data", "per_class", "val_share", "padding", "model", "width", "loss", "label_smoothing", "batch_size", "optimizer", "lr", "momentum",
    "nesterov", "weight_decay", "schedule", "warmup", "precision",
)  # fmt: skip
"""Settings that a reader wants to know, in this order."""


def markdown(
    records: Sequence[Record],
    folder: str,
    *,
    title: str = "Comparison of mixing methods",
    baseline: str | None = None,
    costs: Path | None = None,
) -> str:
    """The page as text. It says first what was run, then what came out.

    Args:
        records: the records, failed ones too: these are listed.
        folder: where the figures will lie, as seen from the page.
        title: a heading.
        baseline: the arm that others are compared with; no mixing if left out.
        costs: a file of step times: what methods cost by these, beside what the runs took.
    """
    shown = charts(records, baseline=baseline, costs=costs)
    return _assembled(records, folder, title, tables(records, baseline=baseline, costs=costs), shown)


def report(
    records: Sequence[Record],
    out: str | Path,
    *,
    title: str = "Comparison of mixing methods",
    baseline: str | None = None,
    costs: Path | None = None,
    pictures: Sequence[Shown] = (),
) -> list[Path]:
    """Write the page to ``out``, and its figures as SVG into a folder of its name beside it."""
    out = Path(out)
    shown = [*charts(records, baseline=baseline, costs=costs), *pictures]
    told = tables(records, baseline=baseline, costs=costs)
    text = _assembled(records, out.with_suffix("").name, title, told, shown)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    return [out, *(figures.save(one.figure, out.with_suffix("") / f"{one.name}.svg") for one in shown)]


def _assembled(records: Sequence[Record], folder: str, title: str, told: Sequence[Table], shown: Sequence[Shown]) -> str:
    settings = settings_of(records)
    runs = sum(len(arm.records) for setting in settings for arm in setting.arms)
    where = "; ".join(_running(setting.title) for setting in settings)
    parts = [
        f"# {escape_markdown(title)}",
        "<!-- Written by `mixsage report`: what is changed here by hand is lost. -->",
        f"{runs} runs on {where}. {_recipe(settings)}",
        *(_section(_arms(setting)) for setting in settings),
        *(_section(table) for table in told),
        *(_picture(one, folder) for one in shown),
    ]
    failed = [record for record in latest(records) if record.status == "failed"]
    if failed:
        parts += ["## Failed runs", "\n".join(f"- {_code(record.run)}: {_code(str(record.error))}" for record in failed)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _picture(one: Shown, folder: str) -> str:
    caption = escape_markdown(one.caption)
    return f"![{caption.partition('.')[0]}]({quote(folder)}/{one.name}.svg)\n\n*{caption}*"


def _running(text: str) -> str:
    """Names in a sentence, where an underscore inside a word is a plain sign."""
    return escape_markdown(text).replace(r"\_", "_")


def _code(text: str) -> str:
    """Text as code, on one line, between more backticks than it holds."""
    line = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{fence}{line}{fence}" if len(fence) == 1 else f"{fence} {line} {fence}"


def _section(table: Table) -> str:
    return to_markdown(table).replace("### ", "## ", 1)


def _arms(setting: Setting) -> Table:
    """What was run."""
    rows = []
    for arm in setting.arms:
        epochs = sorted({record.epochs for record in arm.records})
        cells = (arm.records[0].method, ", ".join(map(str, epochs)), ", ".join(str(record.seed) for record in arm.records))
        rows.append((arm.label, tuple(Cell(text=text) for text in cells)))
    return Table(
        name="arms",
        title=f"What was run: {setting.title}",
        columns=("method, as the command takes it", "epochs", "seeds"),
        rows=tuple(rows),
    )


def _recipe(settings: Sequence[Setting]) -> str:
    """The settings that a reader wants to know; where runs differ, each value once."""
    values: dict[str, dict[str, None]] = {}
    for record in (record for setting in settings for arm in setting.arms for record in arm.records):
        given: Mapping[str, object] = record.settings
        for name in RECIPE:
            if given.get(name) is not None:
                values.setdefault(name, {})[str(given[name])] = None
    listed = ", ".join(f"`{name}` {_running(' or '.join(found))}" for name, found in values.items())
    return f"Settings: {listed}." if listed else ""
