"""What the scripts here share with `mixsage bench`: medians with their spread, and where they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mixsage.bench.results import Spread
from mixsage.bench.timing import environment

__all__ = ["RESULTS", "environment", "median_and_spread"]

RESULTS = Path(__file__).parent / "results"
"""Where records of measurements are kept."""


def median_and_spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, 5 % and 95 % quantiles, and how many values there were."""
    return asdict(Spread.of(values))
