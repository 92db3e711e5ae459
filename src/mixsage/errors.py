"""What errors have in common: the nearest valid name, the line that installs what is missing, what is no number."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real


def unknown_name(kind: str, name: object, valid: Iterable[str]) -> str:
    """A message for a name that is not there: the nearest that is, and all of them."""
    names = sorted(valid)
    if not isinstance(name, str):
        return f"unknown {kind} {name!r}; valid: {', '.join(names)}"
    # What begins like it first: close matches go by length too, and would find "cifar100/wrn16_8" nearest to "cifar10".
    begun = [other for other in names if other.lower().startswith(name.lower())] if name else []
    near = begun[:1] or get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {kind} {name!r}; {hint}valid: {', '.join(names)}"


def not_installed(what: str, package: str, extra: str) -> str:
    """A message for an optional package that is not there: what needs it, and the line that installs it."""
    return f"{what} needs {package}, which is not installed: pip install 'mixsage[{extra}]'"


def check_number(field: str, value: object) -> None:
    """A setting must be a number, and not its text."""
    if not isinstance(value, Real):
        raise TypeError(f"{field} must be a number, got {value!r}")
