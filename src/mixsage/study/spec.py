"""A study as a TOML file, and the runs that it stands for.

recipe = "../recipes/small/cifar10-5k.toml"   # what all runs share; a path beside the study's own
seeds = [0, 1, 2]
baseline = "no mixing"                         # what the statistics compare with
cores = 1                                      # that a run asks for, and gpus = 1

[settings]                                     # of all runs, over the recipe
eval_every = 60

[grid]                                         # every combination
method = ["clean", "mixup", "sage"]

[[arms]]                                       # and single ones, with names, settings and seeds of their own
name = "no mixing, twice the steps"
epochs = 120
method = "clean"
seeds = [0, 1, 2, 3, 4]
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixsage.errors import unknown_name
from mixsage.training.config import Config, read_recipe, settings_of, with_settings

_KEYS = frozenset({"recipe", "seeds", "baseline", "cores", "gpus", "settings", "grid", "arms"})
_INCIDENTAL = frozenset(
    {"out", "seed", "loggers", "data_dir", "workers", "resident", "device", "checkpoint_epochs", "checkpoint_steps"}
)
"""Settings that do not belong to what is compared."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run that a study asks for."""

    name: str
    """The same whenever the study is read: the arm, the seed, and a mark of the settings."""
    arm: str
    seed: int
    config: Config


@dataclass(frozen=True, kw_only=True)
class Study:
    """All runs of a study, in the order in which they are to be made: seed by seed, so that a study that is cut short compares all arms."""

    name: str
    runs: tuple[Planned, ...]
    baseline: str | None
    cores: int
    gpus: float


def read_study(path: Path) -> Study:
    """The study that a TOML file describes."""
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"there is no study {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the study {path} is no valid TOML: {error}") from None
    foreign = sorted(table.keys() - _KEYS)
    if foreign:
        raise ValueError(f"the study {path}: {unknown_name('key', foreign[0], _KEYS)}")
    base = read_recipe(path.parent / table["recipe"]) if "recipe" in table else Config()
    base = with_settings(base, table.get("settings", {}))
    seeds = _seeds(table.get("seeds", [0]))
    arms = [*_grid(table.get("grid", {})), *table.get("arms", [])]
    if not arms:
        raise ValueError(f"the study {path} names no arms; give [grid] method = ['clean', 'sage'], or [[arms]]")
    runs = [run for arm in arms for run in _runs(base, arm, seeds)]
    names = [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the study {path} holds {twice[0]!r} twice; give arms different names or settings")
    baseline = table.get("baseline")
    if baseline is not None and baseline not in {run.arm for run in runs}:
        raise ValueError(f"the study {path}: {unknown_name('baseline', baseline, {run.arm for run in runs})}")
    order = {id(run): position for position, run in enumerate(runs)}
    runs.sort(key=lambda run: (run.seed, order[id(run)]))
    return Study(
        name=path.stem, runs=tuple(runs), baseline=baseline, cores=int(table.get("cores", 1)), gpus=float(table.get("gpus", 0))
    )


def _grid(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, named by the values that vary."""
    if not grid:
        return []
    lists = {key: value if isinstance(value, list) else [value] for key, value in grid.items()}
    varying = [key for key, values in lists.items() if len(values) > 1] or list(lists)
    arms = []
    for combination in itertools.product(*lists.values()):
        settings = dict(zip(lists, combination, strict=True))
        arms.append({"name": ", ".join(str(settings[key]) for key in varying), **settings})
    return arms


def _runs(base: Config, arm: Mapping[str, Any], seeds: Sequence[int]) -> list[Planned]:
    settings = dict(arm)
    name = settings.pop("name", None) or settings.get("method")
    if not isinstance(name, str):
        raise ValueError(f"an arm needs a name or a method, got {dict(arm)!r}")
    seeds = _seeds(settings.pop("seeds", seeds))
    config = with_settings(base, settings)
    # The mark is of the settings alone: an arm that is renamed is another arm, one whose settings change is another run.
    mark = hashlib.blake2b(json.dumps(comparable(settings_of(config)), sort_keys=True).encode(), digest_size=4).hexdigest()
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return [
        Planned(name=f"{slug}-{mark}-s{seed}", arm=name, seed=seed, config=with_settings(config, {"seed": seed})) for seed in seeds
    ]


def comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that determine what a run is, without where and with what comfort it is made.

    Defaults are left out, so that a setting that is added later does not turn every run into another one.
    """
    defaults = settings_of(Config())
    return {key: value for key, value in settings.items() if key not in _INCIDENTAL and value != defaults[key]}


def _seeds(value: object) -> list[int]:
    if not isinstance(value, list) or not value or not all(type(seed) is int for seed in value):
        raise ValueError(f"seeds must be a list of whole numbers, got {value!r}")
    return value
