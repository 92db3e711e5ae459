"""The tables of docs/search.md from search_regret.json, fit_engines_cpu.json and fit_engines_cuda.json in benchmarks/results, which the scripts
of these names wrote; `fill_tables.py` puts them in.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
REGRET, MODELS = RESULTS / "search_regret.json", (RESULTS / "fit_engines_cpu.json", RESULTS / "fit_engines_cuda.json")
UNKNOWN = "Not measured yet."


def regret(record: dict[str, Any] | None) -> str:
    """What each lesser search gives up, on each set of maps."""
    if record is None:
        return UNKNOWN
    lines = [
        "| search | maps | mean regret | 95 % of pairs below | largest | pairs without |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in next(iter(record["sets"].values()))["regret"]:
        for title, found in record["sets"].items():
            row = found["regret"][name]
            # A search that was lucky may beat the best by the rounding of float32.
            shares = " | ".join(f"{100 * max(0.0, row[key]):.3f} %" for key in ("mean", "high", "max"))
            lines.append(f"| `{name}` | {title} | {shares} | {100 * row['found']:.0f} % |")
    return "\n".join([*lines, "", *_sources(record)])


def rescored(record: dict[str, Any] | None) -> str:
    """How many shifts the first look leaves; and what is missed where the host takes none."""
    if record is None:
        return UNKNOWN
    lines = [
        "| maps | shifts in all | rescored, median | at most | pairs that needed the finer sum |",
        "| --- | --- | --- | --- | --- |",
    ]
    for title, found in record["sets"].items():
        looked = found["candidates"]
        crowded = f"{looked['crowded']} of {found['pairs']}"
        missed = f"{max(0.0, found['without_a_look']['max']):.1e}"
        lines.append(f"| {title} | {looked['of']:,} | {looked['median']:,} | {looked['max']:,} | {crowded} | {missed} |")
    return "\n".join(lines)


def model(records: Sequence[dict[str, Any] | None]) -> str:
    """How well the cost model predicts on each machine, and what its mistakes cost."""
    found = [record for record in records if record is not None]
    if not found:
        return UNKNOWN
    lines = ["| where | engine | searches | predicted / measured, median | 5 % to 95 % |", "| --- | --- | --- | --- | --- |"]
    for record in found:
        for engine, ratio in record["predicted_over_measured"].items():
            spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
            lines.append(f"| {_place(record)} | {engine} | {ratio['count']} | {ratio['median']:.2f} | {spread} |")
    return "\n".join([*lines, "", *(_mistakes(record) for record in found)])


def _place(record: dict[str, Any]) -> str:
    return str(record.get("gpu", record["machine"]))


def _mistakes(record: dict[str, Any]) -> str:
    choices = record["choices"]
    said = f"a slower engine is chosen in {choices['slower']} of {choices['points']} searches"
    if choices["slower"]:
        said += f", which then take {100 * choices['median_loss']:.0f} % longer on the median, {100 * choices['largest_loss']:.0f} % at most"
    return f"- {_place(record)}, {record['threads']} threads, torch {record['torch']}: {said}."


def known(path: Path) -> dict[str, Any] | None:
    """The record, if there is one; a quick one is refused, as it means nothing."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if found["quick"]:
        raise ValueError(f"{path} was written by a quick run; write it again without --quick")
    return found


def _sources(record: dict[str, Any]) -> list[str]:
    return [
        f"- {title}: {found['pairs']} pairs; {found['model']} (loss {found['loss']:.2f})."
        for title, found in record["sets"].items()
    ]
