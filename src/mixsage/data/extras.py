"""Packages that only some data need, imported where they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def need(module: str) -> Any:
    """Import a module of an optional package; where the package is missing, the error has the line that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"these data need the package {package!r}: pip install 'mixsage[train]'", name=error.name
        ) from error
