"""Spreads, rows and files of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mixsage.bench import Comparison, Curve, Results, Row, Spread
from mixsage.bench.text import goal, machine, number, table, verdict


def row(value: float, **settings: object) -> Row:
    return Row(name="a", text="a / b", spread=Spread.exact(value), **settings)  # type: ignore[arg-type]


RESULTS = Results(
    machine={"machine": "m", "cores": 2, "threads": 1, "load": 0.5, "torch": "2"},
    settings={"device": "cpu", "rounds": None, "quick": False},
    comparisons=(
        Comparison(
            name="steps",
            title="Steps",
            setting="small",
            rows=(row(2.0, goal=2.03), row(0.0026, unit="share", goal=0.004)),
            curves=(Curve(name="100 %", sides=(8, 16), seconds=(0.1, 0.4), power=2.0),),
            notes=("a note",),
        ),
    ),
)


def test_a_spread_has_the_quantiles_of_its_values() -> None:
    values = torch.rand(37, generator=torch.Generator().manual_seed(0)).double()
    low, median, high = values.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    spread = Spread.of(values.tolist())
    assert (spread.low, spread.median, spread.high) == pytest.approx((low, median, high))
    assert spread.count == 37


def test_a_spread_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        Spread.of([])


@pytest.mark.parametrize(
    ("value", "bound", "at_least", "met"),
    [(2.0, 2.03, False, True), (2.1, 2.03, False, False), (30, 20, True, True), (10, 20, True, False), (1.0, None, False, None)],
)
def test_goals_are_judged_in_their_direction(value: float, bound: float | None, at_least: bool, met: bool | None) -> None:
    judged = row(value, goal=bound, at_least=at_least)
    assert judged.met is met
    assert verdict(judged) == {True: "pass", False: "miss", None: ""}[met]
    assert not verdict(judged, quick=True)


def test_shares_are_shown_in_per_cent_with_their_goals() -> None:
    share = row(0.0026, unit="share", goal=0.004)
    assert (number(share, share.spread.median), goal(share)) == ("0.260 %", "≤ 0.4 %")


def test_a_table_has_numbers_goals_verdicts_curves_and_notes() -> None:
    text = table(RESULTS.comparisons[0])
    assert "≤ 2.03  pass" in text
    assert "8: 0.1 s, 16: 0.4 s; grows as the side to the power of 2.00" in text
    assert "note: a note" in text
    assert machine(RESULTS.machine) == "m, 1 threads of 2 cores, load 0.5; torch 2"


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "bench.json"
    RESULTS.write(path)
    assert Results.read(path) == RESULTS
    assert RESULTS.row("steps", "a") == RESULTS.comparisons[0].rows[0]
    assert RESULTS.row("steps", "b") is None and RESULTS.row("other", "a") is None


@pytest.mark.parametrize("content", [{"schema": 99}, {"ratios": {}}, []])
def test_a_file_of_another_form_is_an_error(tmp_path: Path, content: object) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="write it again with --json"):
        Results.read(path)
