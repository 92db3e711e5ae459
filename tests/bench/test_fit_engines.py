"""The fit of the cost model: that it finds constants that are known, judges choices, and agrees with the constants in use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mixsage.rearrange import costs, sample_shifts

pytest.importorskip("scipy")

ROOT = Path(__file__).resolve().parents[2]
RECORDS = {device: ROOT / "benchmarks" / "results" / f"fit_engines_{device}.json" for device in ("cpu", "cuda")}
KNOWN = {"direct": (1e-4, 2e-6, 3e-10), "fourier": (1e-3, 4e-10, 5e-9, 6e-6)}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import fit_engines
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return fit_engines


def test_known_constants_are_found_again(script: ModuleType) -> None:
    grid = list(script.points("cpu", quick=False))
    for point in grid:
        for engine in script.engines_of("cpu", point):
            point.seconds[engine] = script.predicted(point, engine, KNOWN[engine])
    for engine, constants in KNOWN.items():
        assert script.fit(grid, engine) == pytest.approx(constants, rel=0.01)
    found = script.judge(grid, KNOWN)
    assert found["choices"]["slower"] == 0 < found["choices"]["points"]
    assert found["predicted_over_measured"]["direct"]["median"] == pytest.approx(1)


def test_a_wrong_choice_is_counted_with_what_it_costs(script: ModuleType) -> None:
    point = script.Point(
        side=8, batch=1, portion=1.0, shifts=225, work={"direct": (1.0, 0.0, 0.0), "fourier": (1.0, 0.0, 0.0, 0.0)}
    )
    point.seconds.update(direct=1.0, fourier=4.0)
    found = script.judge([point], {"direct": (2.0, 0.0, 0.0), "fourier": (1.0, 0.0, 0.0, 0.0)})
    assert found["choices"] == {"points": 1, "slower": 1, "median_loss": 3.0, "largest_loss": 3.0}
    assert found["predicted_over_measured"]["direct"]["median"] == 2.0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_engine_is_timed_and_the_predictions_are_those_of_the_cost_model(script: ModuleType, device: str) -> None:
    grid = list(script.points(device, quick=True))
    assert all(script.engines_of(device, point) == list(costs.CONSTANTS[device]) for point in grid)
    for point in grid:
        expected = costs.estimate(device, (point.batch, point.side, point.side), script.tried(point.side, point.portion))
        assert expected.keys() == costs.CONSTANTS[device].keys()
        for engine, constants in costs.CONSTANTS[device].items():
            assert script.predicted(point, engine, constants) == pytest.approx(expected[engine])


def test_the_quick_form(tmp_path: Path) -> None:
    out = tmp_path / "fit.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "fit_engines.py"), "--quick", "--rounds", "1", "--json", str(out)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert '"direct": (' in ended.stdout and '"fourier": (' in ended.stdout
    record = json.loads(out.read_text())
    assert record["quick"] is True
    for engine in ("direct", "fourier"):
        assert any(value > 0 for value in record["constants"][engine]) and min(record["constants"][engine]) >= 0
        # Times of a quick run say nothing, but no fit is off by orders of magnitude.
        assert 0.1 < record["predicted_over_measured"][engine]["median"] < 10
    assert all(point["seconds"].keys() == {"direct", "fourier"} for point in record["points"])


@pytest.mark.parametrize("device", RECORDS)
def test_the_constants_in_use_are_the_measured_ones(device: str) -> None:
    record = json.loads(RECORDS[device].read_text())
    assert not record["quick"]
    assert {engine: tuple(values) for engine, values in record["constants"].items()} == costs.CONSTANTS[device], (
        "copy them to mixsage.rearrange.costs"
    )


def test_what_the_page_on_the_search_says_of_a_gpu() -> None:
    """docs/search.md: where the model changes from one engine to the other."""
    for side, portion, engine in (
        (32, 0.01, "triton"),
        (32, 1.0, "triton"),
        (64, 1.0, "triton"),
        (224, 0.01, "triton"),
        (224, 1.0, "fourier"),
    ):
        expected = costs.estimate("cuda", (64, side, side), sample_shifts(side, side, portion))
        assert min(expected, key=expected.__getitem__) == engine, (side, portion, expected)
