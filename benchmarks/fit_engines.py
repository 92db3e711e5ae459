"""The constants by which `engine="auto"` expects what each engine takes: fitted to measurements.

python benchmarks/fit_engines.py [--device cuda] [--rounds N] [--quick] [--json benchmarks/results/fit_engines_cpu.json]

Each engine searches squares of several sides, in batches of several sizes, among several portions of all shifts; all take turns, round after round.
The constants are the non-negative ones whose predictions have the least squares of relative errors; copy what is printed to mixsage.rearrange.costs.
Beside them: predicted over measured, and how often the engine that they choose is not the faster one, and what that costs. About two minutes on
two quiet cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import RESULTS, environment, median_and_spread
from scipy.optimize import nnls
from torch import Tensor

from mixsage.bench.search import maps
from mixsage.bench.timing import Work, take_turns
from mixsage.rearrange import best_of, costs, sample_shifts

MOST_PIXELS = {"cpu": {"direct": 1e9}, "cuda": {"direct": 1e11, "triton": 1e11}}
MOST_VISITS = {"cpu": 6e4, "cuda": 4e3}
"""Searches in which an engine would visit more pixels, or the direct one more shifts, are left to the others, as nobody would choose it there."""
SHORT = 2e7
"""A search of less work than this is timed several times a round."""
GRIDS = {
    "cpu": ((8, 16, 32, 64, 128, 224), (1, 8, 64), (0.01, 0.05, 0.25, 1.0)),
    "cuda": ((16, 32, 64, 128, 224), (8, 64, 256), (0.01, 0.1, 1.0)),
}
"""Sides, batches, portions."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A search that an engine was timed at, if it was."""

    side: int
    batch: int
    portion: float
    shifts: int
    work: dict[str, tuple[float, ...]]
    """What the constants of each engine are multiplied with."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Median over the rounds."""


def points(device: str, quick: bool) -> Iterator[Point]:
    """The grid."""
    sides, batches, portions = ((6, 12, 18), (1, 4), (0.05, 1.0)) if quick else GRIDS[device]
    for side in sides:
        for batch in batches:
            for portion in portions:
                shifts = tried(side, portion)
                work = costs.amounts_of_work(device, (batch, side, side), shifts)
                work = {engine: work[engine] for engine in costs.CONSTANTS[device]}
                yield Point(side=side, batch=batch, portion=portion, shifts=len(shifts), work=work)


@cache
def tried(side: int, portion: float) -> Tensor:
    return sample_shifts(side, side, portion, torch.Generator().manual_seed(0))


def engines_of(device: str, point: Point) -> list[str]:
    _, visits, pixels = point.work["direct"]
    most = MOST_PIXELS[device]
    return [
        engine
        for engine in point.work
        if pixels <= most.get(engine, float("inf")) and (engine != "direct" or visits <= MOST_VISITS[device])
    ]


def measure(grid: Sequence[Point], rounds: int, device: torch.device) -> None:
    """Fill in the seconds."""
    arms: dict[str, Work] = {}
    calls: dict[str, int] = {}
    for number, point in enumerate(grid):
        pair = maps(point.batch, point.side, device)
        for engine in engines_of(device.type, point):
            name = f"{number} {engine}"
            arms[name] = partial(best_of, *pair, tried(point.side, point.portion), engine=engine)
            calls[name] = 3 if max(point.work[engine]) < SHORT else 1
    for name, seconds in take_turns(arms, rounds, device, calls=calls).items():
        number, engine = name.split()
        grid[int(number)].seconds[engine] = median(seconds)


def fit(grid: Sequence[Point], engine: str) -> tuple[float, ...]:
    """The constants ≥ 0 with the least Σ (predicted/measured - 1)², to three digits."""
    measured = [point for point in grid if engine in point.seconds]
    shares = np.array([point.work[engine] for point in measured]) / np.array([[point.seconds[engine]] for point in measured])
    # Columns of like size: amounts of work differ by ten powers of ten.
    scale = np.linalg.norm(shares, axis=0)
    constants, _ = nnls(shares / scale, np.ones(len(measured)))
    return tuple(float(f"{value:.2e}") for value in constants / scale)


def predicted(point: Point, engine: str, constants: Sequence[float]) -> float:
    return sum(cost * work for cost, work in zip(constants, point.work[engine], strict=True))


def judge(grid: Sequence[Point], constants: dict[str, tuple[float, ...]]) -> dict[str, Any]:
    """How good the predictions are, and the choices that follow from them where several engines were timed."""
    losses = []
    both = [point for point in grid if len(point.seconds) > 1]
    for point in both:
        chosen = min(point.seconds, key=lambda engine: predicted(point, engine, constants[engine]))
        losses.append(point.seconds[chosen] / min(point.seconds.values()) - 1)
    slower = [loss for loss in losses if loss > 0]
    return {
        "predicted_over_measured": {
            engine: median_and_spread(
                [predicted(point, engine, constants[engine]) / point.seconds[engine] for point in grid if engine in point.seconds]
            )
            for engine in constants
        },
        "choices": {
            "points": len(both),
            "slower": len(slower),
            "median_loss": median(slower) if slower else 0.0,
            "largest_loss": max(slower, default=0.0),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="how many times each search is timed; 7 if left out")
    parser.add_argument("--quick", action="store_true", help="tiny: to see that it runs; its constants mean nothing")
    parser.add_argument("--json", type=Path, help=f"where the record goes, for example {RESULTS.name}/fit_engines_cpu.json")
    parser.add_argument("--device", choices=list(GRIDS), default="cpu", help="cpu if left out")
    options = parser.parse_args()
    device = torch.device(options.device)
    where = environment(device)  # before anything loads the machine
    grid = list(points(device.type, options.quick))
    measure(grid, options.rounds or (2 if options.quick else 7), device)
    constants = {engine: fit(grid, engine) for engine in costs.CONSTANTS[device.type]}
    verdict = judge(grid, constants)

    for engine, values in constants.items():
        print(f'"{engine}": ({", ".join(f"{value:.2e}" for value in values)}),')
    for engine, spread in verdict["predicted_over_measured"].items():
        print(
            f"{engine}: predicted / measured {spread['median']:.2f}, from {spread['low']:.2f} to {spread['high']:.2f} at {spread['count']} points"
        )
    choices = verdict["choices"]
    print(
        f"the slower engine is chosen at {choices['slower']} of {choices['points']} points, and takes {100 * choices['median_loss']:.0f} % longer "
        f"there on the median, {100 * choices['largest_loss']:.0f} % at most"
    )
    print(f"{where['machine']}, {where['threads']} threads, torch {where['torch']}, load before {where['load']}")
    if options.json:
        record = {"quick": options.quick, "constants": constants, **verdict, "points": [asdict(point) for point in grid], **where}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
