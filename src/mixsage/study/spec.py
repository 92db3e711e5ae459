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

[fewshot]                                      # and few-shot tasks of classes that no run has seen
data = "mini-imagenet-test"
shots = [1, 5]
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from mixsage.errors import unknown_name
from mixsage.training.config import Config, read_recipe, settings_of, with_settings
from mixsage.training.smoke import smoke as shrunk
from mixsage.training.values import plain, typed

_KEYS = frozenset({"recipe", "seeds", "baseline", "cores", "gpus", "settings", "grid", "arms", "fewshot"})
_FORMS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "recipe": (str, "a path"),
    "baseline": (str, "the name of an arm"),
    "settings": (dict, "a table"),
    "grid": (dict, "a table"),
    "fewshot": (dict, "a table"),
    "arms": (list, "a list of tables, each under [[arms]]"),
    "cores": (int, "a whole number"),
    "gpus": ((int, float), "a number"),
}
_OWN = {"seed": "seeds, a list", "out": "--out, for all runs"}
"""Settings that a study gives its runs in another way."""
_INCIDENTAL = frozenset(
    {"out", "seed", "loggers", "data_dir", "workers", "resident", "device", "checkpoint_epochs", "checkpoint_steps"}
)
"""Settings that do not belong to what is compared."""


@dataclass(frozen=True, kw_only=True)
class FewShot:
    """Tasks of classes that a run has not seen, solved with its frozen features."""

    data: str
    """Images of the novel classes."""
    shots: tuple[int, ...] = (1, 5)
    """Labelled images of each class of a task."""
    ways: int = 5
    """Classes of a task."""
    tasks: int = 1000
    """How many tasks."""

    def plain(self) -> dict[str, Any]:
        """The settings as plain values."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> FewShot:
        """Settings from plain values, checked."""
        hints = get_type_hints(cls)
        foreign = sorted(table.keys() - hints.keys())
        if foreign:
            raise ValueError(unknown_name("setting of fewshot", foreign[0], hints))
        if "data" not in table:
            raise ValueError("fewshot needs data: images of novel classes, for example mini-imagenet-test")
        read = cls(**{name: typed(f"fewshot: {name}", hints[name], value) for name, value in table.items()})
        if not read.shots or min(read.shots) < 1 or read.ways < 2 or read.tasks < 2:
            raise ValueError(f"fewshot needs shots of at least 1, and at least 2 ways and tasks; got {read}")
        return read


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A run that a study asks for."""

    name: str
    """The same whenever the study is read: the arm, the seed, and a mark of the settings."""
    arm: str
    seed: int
    config: Config
    fewshot: FewShot | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """All runs of a study, in the order in which they are to be made: seed by seed, so that a study that is cut short compares all arms."""

    name: str
    runs: tuple[Planned, ...]
    baseline: str | None
    cores: int
    gpus: float


def read_study(path: Path, *, smoke: bool = False) -> Study:
    """The study that a TOML file describes; with ``smoke``, every arm of it as a trial of seconds, with its first seed."""
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"there is no study {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the study {path} is no valid TOML: {error}") from None
    foreign = sorted(table.keys() - _KEYS)
    if foreign:
        raise ValueError(f"the study {path}: {unknown_name('key', foreign[0], _KEYS)}")
    _check_forms(path, table)
    base = read_recipe(path.parent / table["recipe"]) if "recipe" in table else Config()
    base = with_settings(base, table.get("settings", {}))
    seeds = _seeds(table.get("seeds", [0]))
    arms = [*_grid(table.get("grid", {})), *table.get("arms", [])]
    if not arms:
        raise ValueError(f"the study {path} names no arms; give [grid] method = ['clean', 'sage'], or [[arms]]")
    try:
        fewshot = FewShot.read(table["fewshot"]) if "fewshot" in table else None
    except ValueError as error:
        raise ValueError(f"the study {path}: {error}") from None
    if smoke and fewshot is not None:
        fewshot = replace(fewshot, data="sample-tiny", tasks=20)
    runs = [replace(run, fewshot=fewshot) for arm in arms for run in _runs(base, arm, seeds, smoke)]
    names = [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the study {path} holds {twice[0]!r} twice; give arms different names or settings")
    baseline = table.get("baseline")
    if baseline is not None and baseline not in {run.arm for run in runs}:
        raise ValueError(f"the study {path}: {unknown_name('baseline', baseline, {run.arm for run in runs})}")
    order = {id(run): position for position, run in enumerate(runs)}
    runs.sort(key=lambda run: (run.seed, order[id(run)]))
    cores, gpus = (1, 0) if smoke else (table.get("cores", 1), table.get("gpus", 0))
    return Study(name=path.stem, runs=tuple(runs), baseline=baseline, cores=int(cores), gpus=float(gpus))


def _check_forms(path: Path, table: Mapping[str, Any]) -> None:
    for key, (kind, what) in _FORMS.items():
        if key in table and (not isinstance(table[key], kind) or isinstance(table[key], bool)):
            raise ValueError(f"the study {path}: {key} must be {what}, got {table[key]!r}")
    arms = table.get("arms", [])
    if not all(isinstance(arm, dict) for arm in arms):
        raise ValueError(f"the study {path}: arms must be {_FORMS['arms'][1]}, got {arms!r}")
    if table.get("cores", 1) < 1 or table.get("gpus", 0) < 0:
        raise ValueError(f"the study {path}: a run needs at least 1 core and no less than 0 gpus")
    for settings in (table.get("settings", {}), table.get("grid", {}), *arms):
        for name, instead in _OWN.items():
            if name in settings:
                raise ValueError(f"the study {path}: {name} is not a setting of a study; give {instead}")


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


def _runs(base: Config, arm: Mapping[str, Any], seeds: Sequence[int], smoke: bool) -> list[Planned]:
    settings = dict(arm)
    name = settings.pop("name", None) or settings.get("method")
    if not isinstance(name, str):
        raise ValueError(f"an arm needs a name or a method, got {dict(arm)!r}")
    seeds = _seeds(settings.pop("seeds", seeds))
    config = with_settings(base, settings)
    if smoke:
        config, seeds = shrunk(config), seeds[:1]
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
