"""Packages that only some data need, imported where they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mixsage.errors import not_installed


def need(module: str) -> Any:
    """Import a module of an optional package; where the package is missing, the error has the line that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        known_as = {"PIL": "Pillow"}.get(package, package)
        raise ModuleNotFoundError(not_installed("reading images", known_as, "train"), name=error.name) from error
