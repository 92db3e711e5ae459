"""The tables of the solvers' cards: what is measured stands in them, and they agree with what was measured."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("solver_tables", ROOT / "tools" / "solver_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record():
    gaps = {"mean": 0.0012, "median": 0.0, "q90": 0.25, "q99": 0.004, "max": 0.005, "exact": 0.9, "count": 100}
    row = {"times_faster": {"low": 5.1, "median": 6.2, "high": 7.3}, "ours_ms": 10.0, "graph_cuts_ms": 62.0, "goal": 5.0}
    return {
        "speed": {"Puzzle Mix: masks and transport": row, "Co-Mixup: joint problems": row},
        "energy": {
            "masks": {"real, 8×8": {"ours": gaps}},
            "transport": {"real, 8×8": {"ours": gaps}},
            "joint": {"real": {"two starts": {**gaps, "graph_cuts": -1.5}}},
        },
        "images": 100,
        "rounds": 5,
        "real": "cifar10",
        "machine": "a machine",
        "torch": "2",
        "threads": 2,
    }


def test_what_was_measured_stands_in_the_tables(tables):
    puzzle, comixup = tables.puzzle(record()), tables.comixup(record())
    assert "| masks, real, 8×8 | ours | 0.120 % | 0.400 % | 0.500 % | 90 % |" in puzzle
    assert "| Puzzle Mix: masks and transport | 6.2 | 5.1 to 7.3 | 10.0 | 62.0 |" in puzzle
    assert "Co-Mixup" not in puzzle
    assert "| real | two starts | +0.001 | +0.000 | +0.250 | -1.500 |" in comixup
    assert "2 threads" in comixup


def test_the_cards_agree_with_what_was_measured(tables):
    for name, make in (("puzzle", tables.puzzle), ("comixup", tables.comixup)):
        card = (ROOT / "docs" / "methods" / {"puzzle": "puzzlemix.md", "comixup": "comixup.md"}[name]).read_text()
        between = card.split(f"<!-- solvers-{name}: begin -->\n")[1].split(f"\n<!-- solvers-{name}: end -->")[0]
        assert between == make(tables.known()), "run python tools/fill_tables.py"
