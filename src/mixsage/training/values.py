"""Plain values, as they stand in files and records, in the types of the settings that they are for."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from mixsage.errors import unknown_name


def typed(name: str, kind: Any, value: Any) -> Any:
    """The value in the type of its setting; what does not fit is an error that names the setting.

    >>> typed("lr", float, 1)
    1.0
    >>> typed("milestones", tuple[int, ...], [100, 200])
    (100, 200)
    """
    if get_origin(kind) in (Union, types.UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        (kind,) = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(unknown_name(f"value of {name}", str(value), map(str, get_args(kind))))
        return value
    if get_origin(kind) is tuple:
        return _items(name, get_args(kind), value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} must be {_NAMES.get(kind, kind.__name__)}, got {value!r}")
    return value


def plain(value: Any) -> Any:
    """A setting's value as files and records keep it."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


def _items(name: str, kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} must be a list, got {value!r}")
    if kinds[-1:] == (Ellipsis,):
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise ValueError(f"{name} must have {len(kinds)} items, got {value!r}")
    return tuple(typed(name, kind, part) for kind, part in zip(kinds, value, strict=True))
