"""The one-line notation of methods and models, as it stands in commands, recipes and records: ``SAGE(search=Full())``, ``preactresnet18(width=16)``.

It is Python's own notation for a call with literal arguments, read by its parser and never evaluated.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

import mixsage
from mixsage.errors import unknown_name
from mixsage.methods import Mixer


@dataclass(frozen=True)
class Call:
    """A name with arguments."""

    name: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return (
            f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"
            if self.arguments
            else self.name
        )


def read_call(text: str) -> Call:
    """A name, or a name with literal keyword arguments.

    >>> read_call("timm:resnet50(drop_path_rate=0.1)")
    Call(name='timm:resnet50', arguments={'drop_path_rate': 0.1})
    """
    name, bracket, rest = text.strip().partition("(")
    call = _parse(f"call({rest}" if bracket else "call()", text)
    if call.args:
        raise ValueError(f"{text!r}: name the arguments, as in {name}(width=16)")
    return Call(name.strip(), {_keyword(keyword, text): _literal(keyword.value, text) for keyword in call.keywords})


def read_mixer(text: str) -> Mixer:
    """A method by its registry name, or by its class with settings.

    >>> read_mixer("sage")
    SAGE(prob=1.0, per_sample=False, num_classes=None, truncation=0.6, ...)
    >>> read_mixer("SAGE(truncation=0.5, search=Sampled(0.1))").search
    Sampled(portion=0.1, engine='auto')
    """
    text = text.strip()
    if text in mixsage.available():
        return mixsage.get(text)()
    call = _parse(text if text.endswith(")") else f"{text}()", text)
    classes = {
        name: cls for cls in map(mixsage.get, mixsage.available()) for name in (cls.__name__, cls.__module__.rpartition(".")[2])
    }
    name = _name(call, text)
    if name not in classes:
        raise ValueError(unknown_name("method", name, mixsage.available()))
    mixer = _build(classes[name], call, text)
    assert isinstance(mixer, Mixer)
    return mixer


def write_mixer(mixer: Mixer) -> str:
    """The shortest notation of a method: its class, and the settings that are not the defaults.

    >>> write_mixer(mixsage.SAGE(truncation=0.5))
    'SAGE(truncation=0.5)'
    """
    return _write(mixer)


def settings_of_mixer(method: type[Mixer]) -> list[tuple[str, str, str]]:
    """Name, default and description of each setting of a method, read from its source."""
    default = method()
    texts: dict[str, str] = {}
    for cls in (cls for cls in reversed(method.__mro__) if is_dataclass(cls)):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for before, after in itertools.pairwise(body.body):
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr):
                texts[before.target.id] = str(ast.literal_eval(after.value))
    return [(item.name, repr(getattr(default, item.name)), texts.get(item.name, "")) for item in fields(method)]


def _write(value: Any) -> str:
    default = type(value)()
    changed = [
        (field.name, getattr(value, field.name))
        for field in fields(value)
        if getattr(value, field.name) != getattr(default, field.name)
    ]
    settings = (f"{name}={_write(part) if hasattr(part, '__dataclass_fields__') else repr(part)}" for name, part in changed)
    return f"{type(value).__name__}({', '.join(settings)})"


def _build(cls: type, call: ast.Call, text: str) -> object:
    """An instance of a dataclass of settings; composite settings are calls in their turn."""
    names = [field.name for field in fields(cls)]
    given = dict(zip(names, call.args, strict=False)) | {_keyword(keyword, text): keyword.value for keyword in call.keywords}
    hints = get_type_hints(cls)
    values = {}
    for name, node in given.items():
        if name not in names:
            raise ValueError(unknown_name(f"setting of {cls.__name__}", name, names))
        values[name] = (
            _part(hints[name], node, text)
            if inspect.isclass(hints[name]) and inspect.isabstract(hints[name])
            else _literal(node, text)
        )
        _check_type(cls, name, hints[name], values[name])
    return cls(**values)


def _part(kind: type, node: ast.expr, text: str) -> object:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    parts = {cls.__name__: cls for cls in _concrete(kind)}
    name = _name(call, text)
    if name not in parts:
        raise ValueError(unknown_name(kind.__name__.lower(), name, parts))
    return _build(parts[name], call, text)


def _concrete(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    below = [cls for child in children for cls in _concrete(child)]
    return below if inspect.isabstract(kind) else [kind, *below]


def _check_type(cls: type, name: str, hint: Any, value: object) -> None:
    """Numbers where numbers belong, before a comparison fails with a worse message."""
    wanted = {float: (float, int), int: (int,), bool: (bool,)}.get(hint)
    if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool)):
        raise ValueError(f"{cls.__name__}: {name} must be a {hint.__name__}, got {value!r}")


def _parse(source: str, text: str) -> ast.Call:
    try:
        node = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ValueError(
            f"cannot read {text!r} ({error.msg}); write a name, or a name with settings: SAGE(truncation=0.5)"
        ) from None
    if not isinstance(node, ast.Call):
        raise ValueError(f"cannot read {text!r}; write a name, or a name with settings: SAGE(truncation=0.5)")
    return node


def _name(call: ast.Call, text: str) -> str:
    if not isinstance(call.func, ast.Name):
        raise ValueError(f"cannot read {text!r}; write a name, or a name with settings: SAGE(truncation=0.5)")
    return call.func.id


def _keyword(keyword: ast.keyword, text: str) -> str:
    if keyword.arg is None:
        raise ValueError(f"{text!r}: ** has no meaning here")
    return keyword.arg


def _literal(node: ast.expr, text: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{text!r}: {ast.unparse(node)} is no literal value") from None
