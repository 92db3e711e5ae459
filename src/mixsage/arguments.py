"""The arguments of the commands: dataclasses, from which tyro makes the flags, and `help_text` a help of a line or two for each.

Loaded by the commands alone, as it needs tyro.
"""

from __future__ import annotations

import shutil
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import Positional

from mixsage.training.config import GROUPS, Config, Data, Hardware, Method, Model, Optimisation, Run
from mixsage.training.describe import Described, settings

Which = Literal["final", "best"]


@dataclass(frozen=True, kw_only=True)
class Train:
    """Arguments of train."""

    recipe: Path | None = None
    """A TOML file of settings, which the other flags override."""
    resume: Path | None = None
    """Continue the run in this folder, with the settings that it began with; goes alone."""
    smoke: bool = False
    """Try these settings in seconds: the same run on a few embedded images, narrow, evaluated and reported."""
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    method: Method = field(default_factory=Method)
    optimisation: Optimisation = field(default_factory=Optimisation)
    hardware: Hardware = field(default_factory=Hardware)
    run: Run = field(default_factory=Run)

    @classmethod
    def of(cls, recipe: Path | None, config: Config) -> Train:
        """These settings as the defaults of the flags."""
        return cls(recipe=recipe, **{group: getattr(config, group) for group in GROUPS})

    @property
    def config(self) -> Config:
        """The settings, checked."""
        return Config(**{group: getattr(self, group) for group in GROUPS})


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Arguments of predict."""

    run: Positional[Path]
    """Folder of a complete run."""
    images: Positional[tuple[Path, ...]]
    """Image files, or folders of them."""
    top_k: int = 1
    """How many classes to name for each image."""
    format: Literal["csv", "jsonl"] = "csv"
    """CSV with a header, or a JSON object a line."""
    weights: Which = "final"
    """The weights after the last epoch, or of the epoch that was best on the validation images."""
    skip_corrupt: bool = False
    """Name and skip images that cannot be read, instead of stopping."""
    device: str = "cpu"
    """auto, cpu, cuda or mps."""
    batch_size: int = 64
    """Images at a time."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """Arguments of export."""

    run: Positional[Path]
    """Folder of a complete run."""
    format: Literal["torch", "onnx"] = "torch"
    """torch.export's .pt2, or ONNX."""
    weights: Which = "final"
    """The weights after the last epoch, or of the epoch that was best on the validation images."""
    out: Path | None = None
    """The file; model.pt2 or model.onnx in the run if left out."""


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Arguments of evaluate."""

    target: Positional[str]
    """Folder of a run; or a model: one of ours, timm:NAME, package.module:factory."""
    data: str | None = None
    """What to judge it on, as for train; a run's own data if left out."""
    data_dir: Path | None = None
    """Where named data lies."""
    weights: Path | None = None
    """File of the weights of a model that is no run: safetensors, or what torch.save wrote."""
    pretrained: bool = False
    """Take timm's published weights."""
    width: int | None = None
    """Channels at the start of one of our models."""
    mean: tuple[float, ...] | None = None
    """Mean of each channel that the weights were trained with, of pixels in [0, 1]; that of timm's published weights, or the data's, if left out."""
    std: tuple[float, ...] | None = None
    """Standard deviation, likewise; goes with mean."""
    which: Which = "final"
    """The weights after the last epoch of a run, or of the epoch that was best on its validation images."""
    extras: tuple[Literal["pgd", "autoattack", "corruptions"], ...] = ()
    """Stronger tests, which take far longer."""
    shots: tuple[int, ...] = ()
    """Few-shot tasks instead, with so many labelled images a class: 1 5."""
    ways: int = 5
    """Classes of a few-shot task."""
    tasks: int = 1000
    """Few-shot tasks."""
    json: bool = False
    """Write only JSON to standard output."""
    device: str = "auto"
    """auto, cpu, cuda."""
    batch_size: int = 500
    """Images at a time."""
    seed: int = 0
    """Of the noise, and of few-shot tasks."""


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """Arguments of study run."""

    spec: Positional[Path]
    """The study: a TOML file."""
    out: Path | None = None
    """Folder of the runs and of records.jsonl; studies/NAME if left out."""
    jobs: int = 1
    """Processes on this machine; 1 makes the runs one after the other, in this one."""
    ray: str | None = None
    """Address of a Ray cluster, or local for one on this machine."""
    retries: int = 1
    """How often a run that fails is tried again."""
    smoke: bool = False
    """Try the study in seconds: every arm on a few embedded images, narrow, one seed, evaluated and reported."""


@dataclass(frozen=True, kw_only=True)
class StudyStats:
    """Arguments of study stats."""

    records: Positional[tuple[Path, ...]]
    """Files of records."""
    metric: str = "last"
    """What to compare: last, best, median_of_last_ten, ood, nll, …"""
    baseline: str | None = None
    """The arm that the others are compared with; no mixing if left out, or the first where there is none."""
    arms: tuple[str, ...] = ()
    """Only these arms, and the baseline; all if left out."""
    data: str | None = None
    """Only runs on this data, as the records name it."""
    model: str | None = None
    """Only runs of this model, as the records name it."""
    costs: Path | None = None
    """Take the cost from step times instead of the runs' seconds: what bench steps --json wrote."""
    json: bool = False
    """Write only JSON to standard output."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Arguments of report."""

    records: Positional[tuple[Path, ...]]
    """Files of records."""
    out: Path = Path("report.html")
    """The page: .html, or .md for Markdown; figures, and tables of the HTML page, go into a folder of its name beside it."""
    title: str = "Comparison of mixing methods"
    """Heading of the page."""
    baseline: str | None = None
    """The arm that the others are compared with; no mixing if left out."""
    costs: Path | None = None
    """Step times, to show cost by these too: what bench steps --json wrote."""
    run: Path | None = None
    """A run whose model and images illustrate the page: the pictures of preview."""
    data: str | None = None
    """Other images for these pictures, as for train."""
    data_dir: Path | None = None
    """Where named data lies."""
    method: tuple[str, ...] = ("mixup", "cutmix", "manifold", "saliencymix", "puzzlemix", "comixup", "sage")
    """Methods to show in the pictures."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Arguments of preview."""

    data: str | None = None
    """Images to look at, as for train; a run's own data if left out."""
    data_dir: Path | None = None
    """Where named data lies."""
    run: Path | None = None
    """A run whose model looks at the images; a small network is trained for a few seconds if left out."""
    method: tuple[str, ...] = ("mixup", "cutmix", "sage")
    """Methods to show, by name or with settings."""
    out: Path = Path("preview")
    """Folder of the pictures."""
    seed: int = 0
    """Of the choice of images, and of the methods' choices."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Arguments of bench."""

    names: Positional[tuple[str, ...]] = ()
    """Comparisons: overhead, steps, search, growth, transforms, feeds, trainer, recipe; all if left out."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to measure."""
    rounds: int | None = None
    """Rounds in which the arms take turns; each comparison's own number if left out."""
    json: Path | None = None
    """Write the results to this file."""
    picture: Path | None = None
    """Draw the results beside their goals: .svg or .png."""
    quick: bool = False
    """Make everything tiny: to see that it runs, not what it costs."""


_Arguments = TypeVar("_Arguments")


def read(kind: type[_Arguments], command: str, arguments: Sequence[str], default: _Arguments | None = None) -> _Arguments:
    """The arguments in their types; what is wrong with them ends the program with status 2, and says the nearest flag."""
    options: dict[str, Any] = {} if default is None else {"default": default}
    parsed: _Arguments = tyro.cli(tyro.conf.OmitArgPrefixes[kind], prog=f"mixsage {command}", args=list(arguments), **options)  # type: ignore[misc,valid-type]
    return parsed


def help_text(kind: type) -> str:
    """The flags of a command by groups, each with its values, what it is for, and its default."""
    width = min(shutil.get_terminal_size().columns, 120)
    return "\n".join(line for title, flags in _groups(kind) for line in ["", title, *_rows(flags, width)])


def _groups(kind: type) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    hints = get_type_hints(kind, include_extras=True)
    described = settings(kind)
    own = [_flag(one, hints[one.name]) for one in described if not is_dataclass(one.default)]
    if own:
        yield "Arguments", own
    for group in (one.default for one in described if is_dataclass(one.default)):
        inner = get_type_hints(type(group))
        yield (
            (type(group).__doc__ or "").splitlines()[0].rstrip("."),
            [_flag(one, inner[one.name]) for one in settings(type(group))],
        )


def _rows(flags: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    column = 30
    for flag, text in flags:
        lines = textwrap.wrap(text, width - column - 1, break_on_hyphens=False)
        if len(flag) > column - 3:
            yield f"  {flag}"
        else:
            yield f"  {flag:<{column - 2}}{lines.pop(0)}"
        yield from (" " * column + line for line in lines)


def _flag(setting: Described, hint: Any) -> tuple[str, str]:
    if get_origin(hint) is Annotated:
        return setting.name.upper(), setting.text
    name = setting.name.replace("_", "-")
    if hint is bool:
        return f"--[no-]{name}" if setting.default else f"--{name}", setting.text + (" [on]" if setting.default else "")
    default = setting.default
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f"--{name} {_values(hint)}", setting.text + (f" [{shown}]" if default is not None else "")


def _values(hint: Any) -> str:
    """What a flag takes, in a word."""
    if get_origin(hint) in (Union, types.UnionType):
        return _values(next(part for part in get_args(hint) if part is not type(None)))
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return ("NAME" if get_origin(inner) is Literal else _values(inner)) + " …"
    return {int: "N", float: "X", Path: "PATH"}.get(hint, "NAME")
