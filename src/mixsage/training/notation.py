"""The one-line notation of methods and models, as it stands in commands, recipes and records: ``SAGE(search=Full())``, ``preactresnet18(width=16)``.

It is Python's own notation for a call with literal arguments, read by its parser and never evaluated.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import mixsage
from mixsage.errors import unknown_name
from mixsage.methods import Mixer
from mixsage.training.values import typed


@dataclass(frozen=True)
class Call:
    """A name with arguments."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        return f"{self.name}({arguments})" if arguments else self.name


def read_call(text: str) -> Call:
    """A name, or a name with literal keyword arguments.

    >>> read_call("timm:resnet50(drop_path_rate=0.1)")
    Call(name='timm:resnet50', arguments={'drop_path_rate': 0.1})
    """
    name, bracket, rest = text.strip().partition("(")
    call = _parse(f"call({rest}" if bracket else "call()", text)
    if call.args:
        raise ValueError(f"{text!r}: name the arguments, as in {name}(width=16)")
    return Call(name.strip(), {key: _literal(value, text) for key, value in _keywords(call, text).items()})


def read_mixer(text: str) -> Mixer:
    """A method by its registry name, or by its class with settings.

    >>> read_mixer("sage") == mixsage.SAGE()
    True
    >>> read_mixer("SAGE(truncation=0.5, search=Sampled(0.1))").search
    Sampled(portion=0.1, engine='auto')
    """
    text = text.strip()
    if text in mixsage.available():
        return mixsage.get(text)()
    call = _parse(text if text.endswith(")") else f"{text}()", text)
    classes: dict[str, type[Mixer]] = {}
    for registered in mixsage.available():
        method = mixsage.get(registered)
        classes |= {registered: method, method.__name__: method}
    if not isinstance(call.func, ast.Name):
        raise _unreadable(text)
    name = call.func.id
    if name not in classes:
        raise ValueError(unknown_name("method", name, mixsage.available()))
    mixer = _build(classes[name], call, text)
    assert isinstance(mixer, Mixer)
    return mixer


def write_mixer(mixer: Mixer) -> str:
    """The shortest notation of a method: its class, and the settings that are not the defaults.

    >>> write_mixer(mixsage.SAGE(truncation=0.5, search=mixsage.Full()))
    'SAGE(truncation=0.5, search=Full())'
    """
    return _write(mixer)


def _write(value: object) -> str:
    assert is_dataclass(value)
    default = type(value)()  # type: ignore[misc]  # of settings with defaults, as all are
    given = {field.name: getattr(value, field.name) for field in fields(value)}
    changed = {name: setting for name, setting in given.items() if setting != getattr(default, name)}
    settings = (f"{name}={_write(part) if is_dataclass(part) else repr(part)}" for name, part in changed.items())
    return f"{type(value).__name__}({', '.join(settings)})"


def _build(cls: type, call: ast.Call, text: str) -> object:
    """An instance of a dataclass of settings; composite settings are calls in their turn."""
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]
    if len(call.args) > len(names):
        raise ValueError(f"{text!r}: {cls.__name__} has {len(names)} settings, got {len(call.args)}")
    given = {**dict(zip(names, call.args, strict=False)), **_keywords(call, text)}
    values = {}
    for name, node in given.items():
        if name not in names:
            raise ValueError(unknown_name(f"setting of {cls.__name__}", name, names))
        kind = _part_kind(hints[name])
        is_part = kind is not None and not (isinstance(node, ast.Constant) and node.value is None)
        values[name] = (
            _part(kind, node, text) if kind and is_part else typed(f"{cls.__name__}: {name}", hints[name], _literal(node, text))
        )
    return cls(**values)


def _part_kind(hint: Any) -> type | None:
    """The class of a setting that is itself composed of settings, also where it may be left out."""
    kinds = [kind for kind in (get_args(hint) or (hint,)) if inspect.isclass(kind)]
    return next((kind for kind in kinds if inspect.isabstract(kind) or is_dataclass(kind)), None)


def _part(kind: type, node: ast.expr, text: str) -> object:
    parts = {cls.__name__: cls for cls in _concrete(kind)}
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise ValueError(f"{text!r}: {ast.unparse(node)} is none of {', '.join(f'{part}()' for part in sorted(parts))}")
    name = call.func.id
    if name not in parts:
        raise ValueError(unknown_name(kind.__name__.lower(), name, parts))
    return _build(parts[name], call, text)


def _concrete(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    below = [cls for child in children for cls in _concrete(child)]
    return below if inspect.isabstract(kind) else [kind, *below]


def _parse(source: str, text: str) -> ast.Call:
    try:
        node = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise _unreadable(text, f" ({error.msg})") from None
    if not isinstance(node, ast.Call):
        raise _unreadable(text)
    return node


def _unreadable(text: str, why: str = "") -> ValueError:
    return ValueError(f"cannot read {text!r}{why}; write a name, or a name with settings: SAGE(truncation=0.5)")


def _keywords(call: ast.Call, text: str) -> dict[str, ast.expr]:
    keywords: dict[str, ast.expr] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(f"{text!r}: ** has no meaning here")
        if keyword.arg in keywords:
            raise ValueError(f"{text!r}: {keyword.arg} is given twice")
        keywords[keyword.arg] = keyword.value
    return keywords


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{text!r}: {ast.unparse(node)} is no literal value; a text stands in quotes, as in resnet18(norm='batch')"
        ) from None
