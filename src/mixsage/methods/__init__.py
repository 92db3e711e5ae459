"""The methods, one file each; this folder is their registry.

A module of this package that defines one public `Mixer` is a method under the module's name: `available()` lists them, `get("sage")`
gives the class. Nothing else has to be edited to add one.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from mixsage.errors import unknown_name
from mixsage.methods.base import CleanPass, Mixer

__all__ = ["CleanPass", "Mixer", "available", "get"]


def available() -> list[str]:
    """Names of all methods.

    >>> "sage" in available()
    True
    """
    return sorted(
        module.name for module in pkgutil.iter_modules(__path__) if module.name != "base" and not module.name.startswith("_")
    )


def get(name: str) -> type[Mixer]:
    """The method of this name.

    >>> get("mixup")(alpha=0.4)
    Mixup(prob=1.0, per_sample=False, num_classes=None, alpha=0.4)
    """
    if name not in available():
        raise ValueError(unknown_name("method", name, available()))
    module = importlib.import_module(f"{__name__}.{name}")
    methods = [value for value in vars(module).values() if _is_method(value) and value.__module__ == module.__name__]
    if len(methods) != 1:
        raise ImportError(f"{module.__name__} must define exactly one public Mixer, found {len(methods)}")
    method: type[Mixer] = methods[0]
    return method


def _is_method(value: object) -> bool:
    return (
        inspect.isclass(value) and issubclass(value, Mixer) and not inspect.isabstract(value) and not value.__name__.startswith("_")
    )
