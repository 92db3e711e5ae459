"""What dataclasses of settings say of themselves: names, defaults, and the texts under their fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import pairwise
from typing import Any, NamedTuple


class Described(NamedTuple):
    """A setting."""

    name: str
    """What it is called."""
    default: Any
    """Its value if left out; None where it cannot be left out."""
    text: str
    """What it is."""


def settings(cls: type) -> list[Described]:
    """The settings of a dataclass, those that it inherits too.

    >>> from mixsage import Mixup
    >>> settings(Mixup)[0]
    Described(name='prob', default=1.0, text='Probability that a batch is mixed.')
    """
    texts: dict[str, str] = {}
    for kind in (kind for kind in reversed(cls.__mro__) if is_dataclass(kind)):
        texts |= _texts(kind)
    return [Described(field.name, _default(field), texts.get(field.name, "")) for field in fields(cls)]


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _texts(cls: type) -> dict[str, str]:
    """The string under each field, which Python itself does not keep: read from the source."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for before, after in pairwise(body.body):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr):
            texts[before.target.id] = inspect.cleandoc(str(ast.literal_eval(after.value)))
    return texts
