"""What the benchmarks share: medians with their spread, and where they were measured."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
"""Where records of measurements are kept."""


def median_and_spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 5 % and 95 % quantiles, and how many values there were."""
    low, median, high = torch.tensor(list(values), dtype=torch.float64).quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    return {"median": median, "low": low, "high": high, "count": len(values)}


def environment() -> dict[str, Any]:
    """Versions and machine."""
    processor = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        processor = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")), processor)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": gpu or processor,
        "cores": torch.get_num_threads(),
        "threads": torch.get_num_threads(),
    }
