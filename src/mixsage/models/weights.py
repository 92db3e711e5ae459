"""Weights from files, as people keep them: safetensors, or what `torch.save` wrote, wrapped in the usual ways."""

from __future__ import annotations

import argparse
import logging
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixsage.errors import not_installed

_log = logging.getLogger("mixsage")

WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "net",
    "network",
    "weights",
    "ema",
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
)
"""Names under which training scripts keep the weights, in the order in which they are looked for."""
PREFIXES = ("module.", "_orig_mod.", "model.", "network.", "net.", "backbone.")
"""What DataParallel, torch.compile and training scripts put before every name."""
_COUNTERS = ("n_averaged", "num_updates", "decay")
"""Kept beside averaged weights, and none themselves."""


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name, out of whatever they are wrapped in. Nothing in the file is executed.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
        >>> torch.save({"epoch": 3, "state_dict": {"module.weight": torch.ones(2)}}, path)
        >>> read_weights(path)
        {'module.weight': tensor([1., 1.])}
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file of weights {path}")
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    return _unwrap(content, path)


def fit_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str | Path) -> None:
    """Load weights into a model, with or without the prefixes that wrappers add; what does not fit is an error that says what."""
    own = model.state_dict()
    fitting = _without_prefixes(weights, own)
    # Files from before BatchNorm counted its batches lack a number that changes nothing.
    missing = sorted(name for name in own.keys() - fitting.keys() if not name.endswith("num_batches_tracked"))
    foreign = sorted(fitting.keys() - own.keys())
    reshaped = [name for name in own if name in fitting and own[name].shape != fitting[name].shape]
    if missing or foreign or reshaped:
        raise ValueError(_misfit(source, own, fitting, missing, foreign, reshaped))
    model.load_state_dict(fitting, strict=False)


def _read_safetensors(path: Path) -> Any:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(not_installed(f"reading {path.name}", "safetensors", "train")) from error
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file, or damaged: {error}") from error


def _read_torch(path: Path) -> Any:
    try:
        # A namespace of settings lies in many checkpoints; it is a plain container that runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it names {named[1]}" if named else str(error).splitlines()[0]
        raise ValueError(
            f"{path} holds Python objects beside tensors, which are not loaded because they could run code ({reason}); "
            "save model.state_dict() instead, best with safetensors.torch.save_file"
        ) from error
    except (
        RuntimeError,
        EOFError,
        OSError,
        LookupError,
        ValueError,
        TypeError,
    ) as error:  # whatever a damaged file leads the reader into
        raise ValueError(
            f"{path} is no file of torch.save, or damaged: {type(error).__name__} {str(error).split(chr(10))[0]}".rstrip()
        ) from error


def _unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    """Down to the mapping from names to tensors."""
    if isinstance(content, Mapping):
        found = [name for name in WRAPPERS if isinstance(content.get(name), Mapping)]
        if found:
            if len(found) > 1:
                _log.warning("%s holds several sets of weights: %s; taking %r", path, ", ".join(found), found[0])
            return _unwrap(content[found[0]], path)
        tensors = {name: value for name, value in content.items() if isinstance(value, Tensor) and name not in _COUNTERS}
        if tensors and len(tensors) == sum(name not in _COUNTERS for name in content):
            return tensors
        keys = ", ".join(map(str, list(content)[:8])) or "nothing"
        raise ValueError(
            f"{path} holds no weights that can be recognised; it has {keys}. Expected names with tensors, or those under one of {', '.join(WRAPPERS)}"
        )
    raise ValueError(f"{path} holds a {type(content).__name__}, expected names with tensors")


def _without_prefixes(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as the model has them: prefixes that all share are taken off as long as the model has none of these names."""
    names = {name: name for name in weights}
    while names and not any(short in own for short in names.values()):
        prefix = next((prefix for prefix in PREFIXES if all(short.startswith(prefix) for short in names.values())), None)
        if prefix is None:
            break
        names = {name: short.removeprefix(prefix) for name, short in names.items()}
    return {short: weights[name] for name, short in names.items()}


def _misfit(
    source: str | Path,
    own: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    missing: list[str],
    foreign: list[str],
    reshaped: list[str],
) -> str:
    parts = [f"{name} is {list(given[name].shape)}, the model has {list(own[name].shape)}" for name in reshaped[:3]]
    parts += [f"missing: {_some(missing)}"] if missing else []
    parts += [f"not in the model: {_some(foreign)}"] if foreign else []
    hint = ""
    if reshaped and not missing and not foreign:
        rows = {(given[name].shape[0], own[name].shape[0]) for name in reshaped if given[name].ndim in {1, 2}}
        if len(rows) == 1 and len(reshaped) <= 2:
            theirs, ours = rows.pop()
            hint = f"; the weights are for {theirs} classes, the model was made for {ours}: is this the data that they were trained for?"
    return f"the weights in {source} do not fit the model: {'; '.join(parts)}{hint}"


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + rest
