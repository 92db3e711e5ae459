"""The same bits in every run: what CUDA has to be told for that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def reproducible(wanted: bool) -> Iterator[None]:
    """Kernels that give the same bits every time while a run trains; the caller's choice afterwards."""
    if not wanted:
        yield
        return
    # Read by cuBLAS when it is first used; without it, its results may differ from call to call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    settings: Any = torch.utils.deterministic  # a module with properties, which type checkers do not see
    mode, filling = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    benchmark = torch.backends.cudnn.benchmark
    # A model may use an operation that has no such kernel: that is a warning, which names it.
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        settings.fill_uninitialized_memory = filling
        torch.backends.cudnn.benchmark = benchmark
