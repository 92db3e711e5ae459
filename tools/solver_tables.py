"""The tables of the cards of Puzzle Mix and Co-Mixup, from benchmarks/results/solvers_cpu.json, which benchmarks/solvers.py wrote; `fill_tables.py` puts them in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORD = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "solvers_cpu.json"
UNKNOWN = "Not measured on a quiet machine yet."


def puzzle(record: dict[str, Any] | None) -> str:
    """Gaps of masks and of transport, and how much faster than graph cuts they are found."""
    if record is None:
        return UNKNOWN
    lines = ["| problem | solver | mean gap | 99 % | largest | no gap |", "|---|---|---|---|---|---|"]
    for kind in ("masks", "transport"):
        for origin, arms in record["energy"][kind].items():
            for arm, gaps in arms.items():
                shares = " | ".join(f"{100 * max(0.0, gaps[key]):.3f} %" for key in ("mean", "q99", "max"))
                lines.append(f"| {kind}, {origin} | {arm} | {shares} | {100 * gaps['exact']:.0f} % |")
    faster = [name for name in record["speed"] if not name.startswith("Co-Mixup")]
    return "\n".join([*lines, "", *_speed(record, faster)])


def comixup(record: dict[str, Any] | None) -> str:
    """Differences of objectives, and how much faster than with graph cuts they are reached."""
    if record is None:
        return UNKNOWN
    lines = ["| problems | starts | mean | median | 90 % | objective with graph cuts |", "|---|---|---|---|---|---|"]
    for origin, arms in record["energy"]["joint"].items():
        for arm, gaps in arms.items():
            numbers = " | ".join(f"{gaps[key]:+.3f}" for key in ("mean", "median", "q90"))
            lines.append(f"| {origin} | {arm} | {numbers} | {gaps['graph_cuts']:.3f} |")
    faster = [name for name in record["speed"] if name.startswith("Co-Mixup")]
    return "\n".join([*lines, "", *_speed(record, faster)])


def known(path: Path = RECORD) -> dict[str, Any] | None:
    """The record, if there is one."""
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


def _speed(record: dict[str, Any], names: list[str]) -> list[str]:
    lines = [
        f"| {record['images']} images | times as fast as image by image | 5 % to 95 % | ours, ms | theirs, ms |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        row = record["speed"][name]
        ratio = row["times_faster"]
        spread = f"{ratio['low']:.1f} to {ratio['high']:.1f}"
        lines.append(f"| {name} | {ratio['median']:.1f} | {spread} | {row['ours_ms']:.1f} | {row['graph_cuts_ms']:.1f} |")
    where = f"Measured on: {record['machine']}, {record['threads']} threads, torch {record['torch']}; {record['rounds']} rounds. Real problems: {record['real']}."
    return [*lines, "", where]
