"""Engines by name, the choice among them, and work in parts that fit in memory."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mixsage.errors import unknown_name
from mixsage.rearrange import costs, direct, fourier
from mixsage.rearrange.blend import Engine

ENGINES = ("direct", "fourier", "triton")
"""Engines by name; "auto" chooses among those that work on the maps' device."""

_LOG = logging.getLogger("mixsage")
_DEFAULT_MEMORY = {"cpu": 64.0}
_DEFAULT_MEMORY_ELSEWHERE = 1024.0


def check_engine(name: str) -> None:
    """The name must be one of `ENGINES`, or "auto"."""
    if name != "auto" and name not in ENGINES:
        raise ValueError(unknown_name("engine", name, ["auto", *ENGINES]))


def check_memory(memory: float | None) -> None:
    """The budget must be some memory."""
    if memory is not None and not 0 < memory < float("inf"):
        raise ValueError(f"memory must be a positive number of MiB, got {memory}; leave it out for a default")


def load(name: str, first: Tensor, shifts: Tensor) -> Engine:
    """The engine of this name; for "auto" the one that should be done first."""
    check_engine(name)
    if name == "auto":
        name = _choose(first.device, (len(first), first.shape[1], first.shape[2]), shifts)
    if name == "direct":
        return direct
    if name == "fourier":
        return fourier
    return _triton()


def parts(engine: Engine, first: Tensor, second: Tensor, count: int, memory: float | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs, so many at a time that the engine stays within ``memory`` MiB while it tries ``count`` shifts."""
    height, width = first.shape[-2:]
    return within(memory, engine.bytes_per_pair(height, width, count, first.element_size()), count, first, second)


def within(memory: float | None, each: int, count: int, first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs, so many at a time that they stay within ``memory`` MiB, when ``count`` shifts of one take ``each`` bytes."""
    check_memory(memory)
    if memory is None:
        memory = _DEFAULT_MEMORY.get(first.device.type, _DEFAULT_MEMORY_ELSEWHERE)
        least = 1
    else:
        least = 0
    pairs = max(least, int(memory * 2**20 // each))
    if not pairs:
        height, width = first.shape[-2:]
        raise ValueError(
            f"memory={memory:g} MiB is too little for one pair of {height}×{width} under {count} shifts, which takes "
            f"{each / 2**20:.1f} MiB; allow that much, or try fewer shifts (portion, max_shift, stride, reduce)"
        )
    yield from zip(torch.split(first, pairs), torch.split(second, pairs), strict=True)


def _choose(device: torch.device, shape: tuple[int, int, int], shifts: Tensor) -> str:
    names = ENGINES if device.type == "cuda" and _triton_works(device) else ("direct", "fourier")
    expected = costs.estimate(device.type, shape, shifts)
    estimates = {name: expected[name] for name in names}
    name = min(estimates, key=lambda name: estimates[name])
    _tell(
        name, device.type, shape, len(shifts), " and ".join(f"{1e3 * cost:.3g} ms for {each}" for each, cost in estimates.items())
    )
    return name


@cache
def _triton_works(device: torch.device) -> bool:
    """Whether triton is there, and can build and run kernels: it needs a C compiler too, which machines that only train may lack."""
    if importlib.util.find_spec("triton") is None:
        _LOG.info('triton is not installed: on %s, engine="auto" does without it', device)
        return False
    try:
        maps = torch.ones(1, 1, 1, device=device)
        _triton().total_saliency(maps, maps, torch.zeros(1, 2, dtype=torch.int64, device="cpu"))
    except Exception as error:  # noqa: BLE001  # of a compiler, a driver, a linker; said below, and others do the work
        _LOG.warning(
            'triton does not work on %s (%s: %s): engine="auto" does without it, which is slower',
            device,
            type(error).__name__,
            " ".join(str(error).split())[:200],
        )
        return False
    return True


@cache
def _tell(name: str, device: str, shape: tuple[int, int, int], count: int, why: str) -> None:
    _LOG.info(
        "search of %d shifts for %d pairs of %d×%d on %s: engine %r, as the cost model expects %s", count, *shape, device, name, why
    )


def _triton() -> Engine:
    try:
        module: Any = importlib.import_module("mixsage.rearrange.triton")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise ImportError(
            'engine="triton" needs triton, which is not installed: it comes with torch for CUDA, or by pip install triton; '
            'engine="auto" does without'
        ) from error
    engine: Engine = module
    return engine
