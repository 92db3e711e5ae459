"""The documents agree with the results that their tables were filled from."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from mixsage.bench import Comparison, Results, Row, Spread

ROOT = Path(__file__).resolve().parents[2]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fill_tables", ROOT / "tools" / "fill_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = _load()
SPREAD = Spread(median=1.974, low=1.9, high=2.1, count=9)
ROWS = (
    Row(name="sage", text="SAGE / plain", spread=SPREAD, goal=2.03),
    Row(name="sage one pass", text="SAGE, one pass", spread=Spread.exact(1.2), goal=1.08),
)
RESULTS = Results(
    machine={"machine": "m", "cores": 2, "threads": 2, "load": 0.1},
    settings={"quick": False},
    comparisons=(Comparison(name="steps", title="t", setting="s", rows=ROWS, notes=("a note",)),),
)
METHODS = """before
<!-- methods: begin -->
| method | passes | step / plain step |
|---|---|---|
| [`Clean`](docs/methods/clean.md) | 1 | 1 |
| [`SAGE`](docs/methods/sage.md) | 2 | {sage} |
| [`SAGE(passes=1)`](docs/methods/sage.md) | 1 | {once} |
| [`Mixup`](docs/methods/mixup.md) | 1 | {mixup} |
<!-- methods: end -->
after"""


@pytest.mark.parametrize("path", list(tables.documents()), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_document_agrees_with_the_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert tables.filled(text, tables.known()) == text, "run python tools/fill_tables.py"


def test_marks_are_there() -> None:
    assert "<!-- methods: begin -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "<!-- bench: begin -->" in (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")


def test_costs_are_written_and_replaced() -> None:
    fresh = METHODS.format(sage="1.97", once="1.20", mixup="–")
    assert tables.filled(METHODS.format(sage="9", once="8", mixup="7"), RESULTS) == fresh
    assert tables.filled(fresh, None) == METHODS.format(sage="–", once="–", mixup="–")


def test_all_numbers_stand_beside_their_goals_and_their_machine() -> None:
    text = tables.filled("<!-- bench: begin -->\nold\n<!-- bench: end -->", RESULTS)
    assert "| steps | SAGE / plain | 1.974 | 1.900 to 2.100 | 9 | ≤ 2.03 | pass |" in text
    assert "| 1 | ≤ 1.08 | miss |" in text
    assert "Measured on: m, 2 threads of 2 cores, load 0.1" in text and "- steps: a note" in text
    assert "old" not in text and tables.filled(text, RESULTS) == text


def test_a_card_says_what_a_step_costs() -> None:
    text = tables.filled("<!-- cost-mixup: begin -->\nold\n<!-- cost-mixup: end -->", RESULTS)
    assert tables.UNMEASURED in text, "no number that was not measured"
    measured = replace(
        RESULTS, comparisons=(replace(RESULTS.comparisons[0], rows=(Row(name="mixup", text="Mixup", spread=SPREAD),)),)
    )
    text = tables.filled(text, measured)
    assert "**1.97** times a plain one (5 % to 95 % of 9 rounds: 1.90 to 2.10)" in text and "m, 2 threads" in text
    for name in tables.CARDS:
        assert f"<!-- cost-{name}: begin -->" in (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")


def test_other_marks_stay() -> None:
    text = "<!-- study: begin -->\nold\n<!-- study: end -->"
    assert tables.filled(text, RESULTS) == text


def test_results_of_a_quick_run_are_refused(tmp_path: Path) -> None:
    Results(machine={}, settings={"quick": True}).write(tmp_path / "bench.json")
    with pytest.raises(ValueError, match="without --quick"):
        tables.known(tmp_path / "bench.json")
    assert tables.known(tmp_path / "none.json") is None
