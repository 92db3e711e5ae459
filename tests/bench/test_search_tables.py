"""The tables of the page on the search, and the script that measures regrets."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mixsage.bench import Comparison, Curve, Results, Row, Spread

ROOT = Path(__file__).resolve().parents[2]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables, fill = _load("search_tables"), _load("fill_tables")


def record() -> dict[str, Any]:
    row = {"mean": 0.0012, "median": 0.0, "low": -1e-8, "high": 0.004, "count": 10, "max": 0.0251, "found": 0.9}
    candidates = {"median": 15, "max": 1158, "crowded": 1, "of": 199809}
    found = {
        "regret": {"Full(reduce=2)": row},
        "without_a_look": row,
        "candidates": candidates,
        "pairs": 10,
        "model": "a model",
        "loss": 0.5,
    }
    return {"quick": False, "sets": {"maps": found}}


def test_what_was_measured_stands_in_the_tables() -> None:
    assert "| `Full(reduce=2)` | maps | 0.120 % | 0.400 % | 2.510 % | 90 % |" in tables.regret(record())
    assert "- maps: 10 pairs; a model (loss 0.50)." in tables.regret(record())
    assert "| maps | 199,809 | 15 | 1,158 | 1 of 10 | 2.5e-02 |" in tables.rescored(record())
    assert tables.regret(None) == tables.rescored(None) == "Not measured yet."


def test_the_model_is_judged_in_words() -> None:
    ratio = {"median": 1.04, "low": 0.8, "high": 1.3, "count": 59}
    choices = {"points": 59, "slower": 4, "median_loss": 0.12, "largest_loss": 0.4}
    record = {"predicted_over_measured": {"direct": ratio}, "choices": choices, "machine": "m", "threads": 2, "torch": "2"}
    gpu = record | {"gpu": "G", "choices": choices | {"slower": 0}}
    text = tables.model([record, None, gpu])
    assert "| m | direct | 59 | 1.04 | 0.80 to 1.30 |" in text and "| G | direct | 59 | 1.04 | 0.80 to 1.30 |" in text
    assert (
        "m, 2 threads, torch 2: a slower engine is chosen in 4 of 59 searches, which then take 12 % longer on the median, 40 % at most."
        in text
    )
    assert "G, 2 threads, torch 2: a slower engine is chosen in 0 of 59 searches." in text
    assert tables.model([None, None]) == "Not measured yet."


def test_a_quick_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "regret.json").write_text(json.dumps(record() | {"quick": True}))
    with pytest.raises(ValueError, match="without --quick"):
        tables.known(tmp_path / "regret.json")
    assert tables.known(tmp_path / "none.json") is None


def test_costs_of_the_search_are_those_of_the_benchmark() -> None:
    def comparison(name: str, curves: tuple[Curve, ...] = ()) -> Comparison:
        row = Row(name="full", text=f"{name} / step", spread=Spread.exact(1.25), goal=1.2)
        return Comparison(name=name, title="t", setting=f"pairs of {name}", rows=(row,), curves=curves)

    curve = Curve(name="100 %", sides=(32, 64), seconds=(0.0025, 0.01), power=2.0)
    machine = {"machine": "m", "cores": 2, "threads": 2, "load": 0.1}
    results = Results(
        machine=machine,
        settings={"quick": False},
        comparisons=(comparison("steps"), comparison("search"), comparison("growth", (curve,))),
    )
    text = fill.filled("<!-- search-cost: begin -->\nold\n<!-- search-cost: end -->", results)
    assert "| search | search / step | 1.250 | 1.250 to 1.250 | 1 | ≤ 1.2 | miss |" in text
    assert "- 100 %: 2.5 ms at 32×32, 10 ms at 64×64" in text
    assert "- growth: pairs of growth" in text and "Measured on: m" in text
    assert "steps" not in text and "old" not in text and fill.filled(text, results) == text
    for unknown in (None, Results(machine={}, settings={}, comparisons=(comparison("steps"),))):
        assert "\nNot measured yet.\n" in fill.filled(text, unknown)


def test_the_page_has_the_marks() -> None:
    page = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    assert all(f"<!-- {name}: begin -->" in page for name in ("search-cost", "search-regret", "search-rescored", "search-model"))


def test_the_script_in_its_quick_form(tmp_path: Path) -> None:
    out = tmp_path / "regret.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "search_regret.py"), "--quick", "--json", str(out)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(out.read_text())["sets"]["sample, 28×28"]
    regret = found["regret"]
    # No search beats the best of all; the finer the search, the less it misses; and what is measured is no constant.
    assert min(row["low"] for row in regret.values()) > -1e-6
    assert 0 <= regret["Full(reduce=2)"]["mean"] <= regret["Full(reduce=4)"]["mean"] < regret["Sampled(0.01)"]["mean"] < 1
    assert regret["Full(stride=2)"]["mean"] < regret["Full(stride=4)"]["mean"] < regret["NoShift()"]["mean"]
    assert found["without_a_look"]["max"] < 1e-4
    assert 1 <= found["candidates"]["median"] <= found["candidates"]["max"] <= found["candidates"]["of"] == 55 * 55
