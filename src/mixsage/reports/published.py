"""The paper's numbers, to stand beside ours where the setting is the same. They lie in published.json."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Protocol

_DEFAULTS = {
    "sage": {"truncation": "0.6", "mixed_share": "0.7", "search": "Sampled()", "blend": "Guided()", "saliency": "InputGradient()"},
}
"""What a method's settings are where they are left out, for settings that the paper varies."""
_SPELLINGS = {"manifoldmixup": "manifold", "Sampled(0.01)": "Sampled()", "Sampled(portion=0.01)": "Sampled()"}


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((resources.files(__package__) / "published.json").read_text(encoding="utf-8"))
    return content


@cache
def _numbers() -> Mapping[tuple[str, str, str, str], float]:
    return {
        (entry["data"], entry["model"], canonical(entry["method"]), entry["metric"]): entry["value"]
        for entry in _content()["numbers"]
    }


def source() -> str:
    """Where the published numbers come from, and under what protocol they were made."""
    content = _content()
    return f"{content['source']}; mean of {content['runs']} runs of {content['epochs']} epochs"


class _Record(Protocol):
    """What is asked of a record. Not the class itself: the previews take their titles from here, and know nothing of records."""

    @property
    def data(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...


def published(record: _Record, label: str, metric: str) -> float | None:
    """The paper's number for this data, model, method and metric; None where it has none, or where the arm's name says that it is more."""
    settings = record.settings
    if settings.get("per_class") is not None or settings.get("width") is not None:
        return None
    data, model = str(settings.get("data", record.data)), str(settings.get("model", record.model))
    try:
        method = canonical(record.method)
    except SyntaxError:
        return None  # a record made by hand may name a method in words
    name = method.partition("(")[0]
    if "(" not in record.method and name_of(label) != title("methods", name):
        return None  # "no mixing, twice the steps" is not the paper's; an arm whose settings are written out says what it is
    return _numbers().get((data, model, method, metric))


def title(kind: str, name: str) -> str:
    """How people write the name of a method, a model or a data set, mostly as the paper does; the name itself where none is known."""
    return str(_content()[kind].get(name, name))


def name_of(arm: str) -> str:
    """The one name of a method that has several (the paper's Vanilla is "no mixing"); else the arm's own."""
    return str(_content()["also"].get(arm, arm))


def order(arm: str) -> int:
    """The place of a method in the paper's tables; others come after them."""
    names = list(_content()["methods"].values())
    return names.index(name_of(arm)) if name_of(arm) in names else len(names)


def canonical(method: str) -> str:
    """One spelling for a method in the notation of the command, whatever defaults are written out.

    >>> canonical("SAGE(search=Sampled(0.01), truncation=0.5)") == canonical("sage(truncation=0.50)")
    True
    """
    name, bracket, rest = method.strip().partition("(")
    name = name.strip().lower()
    name = _SPELLINGS.get(name, name)
    call = ast.parse(f"call({rest}" if bracket else "call()", mode="eval").body
    arguments = dict(_DEFAULTS.get(name, {}))
    if isinstance(call, ast.Call):
        arguments |= {keyword.arg: _plain(keyword.value) for keyword in call.keywords if keyword.arg}
    return f"{name}({', '.join(f'{key}={arguments[key]}' for key in sorted(arguments))})"


def _plain(value: ast.expr) -> str:
    text = ast.unparse(value)
    return _SPELLINGS.get(text, text)
