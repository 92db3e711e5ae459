"""Every comparison in its quick form: what it reports, and that it can be true; no times."""

from __future__ import annotations

import math

import pytest

import mixsage
from mixsage import bench
from mixsage.bench import Comparison, Settings
from mixsage.bench.search import power
from mixsage.bench.steps import GOALS

NEEDS = {"feeds": ["torchvision"], "trainer": ["lightning"], "transforms": ["torchvision", "timm", "kornia"]}


@pytest.fixture(scope="module", params=list(bench.COMPARISONS))
def found(request: pytest.FixtureRequest) -> Comparison:
    for package in NEEDS.get(request.param, []):
        pytest.importorskip(package)
    return next(bench.run([request.param], Settings(quick=True)))


def test_numbers_are_plausible_and_their_names_unique(found: Comparison) -> None:
    names = [row.name for row in found.rows]
    assert len(set(names)) == len(names)
    for row in found.rows:
        assert row.spread.low <= row.spread.median <= row.spread.high
        assert math.isfinite(row.spread.high)
        assert row.unit == "power" or row.spread.low > 0
        assert row.spread.count == (1 if row.unit == "copies" else 2)
    assert found.name in bench.COMPARISONS and found.title and found.setting


def test_every_number_that_must_hold_has_its_goal(found: Comparison) -> None:
    goals = {
        "overhead": {"whole": 0.004, "memory 16": 10, "memory 48": 10},
        "steps": {"sage": 2.03, "sage one pass": 1.08, "puzzlemix": 1.8, "comixup": 2.1, "saliencymix": 1.05},
        "search": {"full large": 1.2, "full small": 0.025},
        "growth": {"power": 2.3},
        "transforms": {f"{kind} {side}": 1.0 for kind in ("mixup", "cutmix") for side in (16, 32)},
        "feeds": {"feed": 20},
        "trainer": {"trainer": 1.05},
        "recipe": {},
    }
    assert {row.name: row.goal for row in found.rows if row.goal is not None} == goals[found.name]
    assert [row.name for row in found.rows if row.at_least] == (["feed"] if found.name == "feeds" else [])


def test_what_belongs_to_each(found: Comparison) -> None:
    names = {row.name for row in found.rows}
    if found.name == "steps":
        assert names == {*mixsage.available(), "sage one pass", "sage uniform maps"} - {"clean"}
        assert names >= GOALS.keys()
    if found.name == "growth":
        assert [curve.sides for curve in found.curves] == [(8, 12, 16), (8, 12)]
    if found.name == "transforms":
        assert names >= {
            f"{kind} {side} {library}" for kind in ("mixup", "cutmix") for side in (16, 32) for library in NEEDS[found.name]
        }
        assert not found.notes, "an output is not what its targets say"
        in_place = {row.name for row in found.rows if "in place" in row.text}
        assert in_place == {f"{kind} {side} timm" for kind in ("mixup", "cutmix") for side in (16, 32)}
    if found.name == "recipe":
        assert "--device cuda" in found.notes[0]


def test_a_power_law_is_fitted() -> None:
    assert power((32, 64, 512), [3 * side**2.25 for side in (32, 64, 512)]) == pytest.approx(2.25)


def test_unknown_names_and_rounds_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="did you mean 'steps'"):
        bench.run(["step"], Settings(quick=True))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        bench.run(["steps"], Settings(rounds=0))
