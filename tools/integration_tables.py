"""The table of docs/integrations/index.md, from benchmarks/results/integrations_cpu.jsonl, which benchmarks/integrations.py wrote; `fill_tables.py` puts it in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORD = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "integrations_cpu.jsonl"


def overhead(path: Path = RECORD) -> str:
    """What each integration adds to a step of the raw loop, the newest measurement of each."""
    if not path.exists():
        return "Not measured yet."
    records = {record["integration"]: record for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    lines = [
        "| integration | added to a step, ms | 5 % to 95 % | of a step of PreActResNet18 | both timed directly | 5 % to 95 % |",
        "|---|---|---|---|---|---|",
        *(_line(name, record) for name, record in records.items()),
    ]
    last = list(records.values())[-1]
    machine = f"{last['machine']}, {last['threads']} threads, torch {last['torch']}; {last['rounds']} rounds"
    return "\n".join([*lines, "", f"Measured on: {machine}."])


def _line(name: str, record: Mapping[str, Any]) -> str:
    added, implied, direct = record["added_ms"], record["implied_ratio"], record["ratio"]
    cells = (
        name,
        f"{added['median']:.2f}",
        f"{added['low']:.2f} to {added['high']:.2f}",
        f"{100 * (implied['median'] - 1):+.1f} %",
        f"{100 * (direct['median'] - 1):+.1f} %",
        f"{100 * (direct['low'] - 1):+.1f} % to {100 * (direct['high'] - 1):+.1f} %",
    )
    return "| " + " | ".join(cells) + " |"
