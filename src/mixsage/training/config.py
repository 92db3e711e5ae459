"""All settings of a run, as typed dataclasses: the command line, recipes and the record of a run are generated from them.

The groups are sections of the help text; the names of the settings are unique over all groups, so that a recipe is a flat TOML table of them.
"""

from __future__ import annotations

import tomllib
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from mixsage.errors import unknown_name


@dataclass(frozen=True, kw_only=True)
class Data:
    """What to learn from."""

    data: str = "sample"
    """A name (sample, cifar10, cifar100, fashion-mnist, tiny-imagenet, mini-imagenet), a folder of class folders, or hf:owner/name."""
    data_dir: Path | None = None
    """Where named data lies or is put; the environment variable MIXSAGE_DATA if left out."""
    image_size: int | None = None
    """Side of the images; the data's own if left out."""
    per_class: int | None = None
    """Train on the first so many images of each class only."""
    val_share: float = 0.1
    """Share of the training images that is held out for validation; 0 holds out none. The test set never chooses anything."""
    augment: bool = True
    """Random crop and flip."""
    padding: int | None = None
    """Pixels around the image for the random crop; the data's own if left out."""
    workers: int = 2
    """Processes that read images, for data that does not fit on the device."""
    resident: Literal["auto", "yes", "no"] = "auto"
    """Whether the images live on the device."""
    skip_corrupt: bool = False
    """Count and skip images that cannot be read, instead of stopping."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What learns."""

    model: str = "preactresnet18"
    """One of ours, timm:NAME, or package.module:factory; with arguments if you like: 'preactresnet18(final_norm=True)'."""
    width: int | None = None
    """Channels at the start of our models, to which all others are proportional; the paper's if left out."""
    pretrained: bool = False
    """Start from timm's published weights."""
    weights: Path | None = None
    """Start from the weights in this file."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How images are mixed, and the loss."""

    method: str = "sage"
    """A method by name, or with settings: 'SAGE(truncation=0.5, search=Full())'; `mixsage methods` lists them."""
    mix_from: int = 0
    """First epoch that mixes."""
    mix_until: int | None = None
    """Epoch from which on nothing is mixed any more; the end if left out."""
    loss: Literal["ce", "bce"] = "ce"
    """Cross-entropy, or the authors' binary cross-entropy on the softmax."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes (cross-entropy)."""


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How the model learns."""

    epochs: int = 20
    """Passes over the training images."""
    batch_size: int = 100
    """Images a step, over all processes and microbatches."""
    microbatches: int = 1
    """Parts that a batch is computed in, to save memory; each is mixed within itself."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The optimiser."""
    lr: float = 0.1
    """Peak learning rate."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = True
    """Nesterov's form of momentum."""
    weight_decay: float = 5e-4
    """Decay of every parameter."""
    schedule: Literal["cosine", "step", "onecycle", "constant"] = "cosine"
    """Course of the learning rate: cosine after a warm-up, by steps, one cycle, or none."""
    warmup: float = 0.05
    """Share of the run over which the learning rate rises (cosine, onecycle)."""
    milestones: tuple[int, ...] = (100, 200)
    """Epochs at which the learning rate falls (step)."""
    lr_decay: float = 0.1
    """Factor of each fall (step)."""
    clip: float | None = None
    """Largest norm of the gradient."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights; it is then what is evaluated and kept as the final weights."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What it runs on."""

    device: str = "auto"
    """auto, cpu, cuda, mps."""
    devices: int = 1
    """Processes, one a device."""
    nodes: int = 1
    """Machines."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several processes share the work."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the passes; fp16 scales its losses."""
    channels_last: bool = True
    """Keep the colours of a pixel together in memory, which is faster with bf16 and fp16."""
    compile: bool = False
    """Compile the model."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Where it is kept."""

    out: Path | None = None
    """Folder of the run."""
    seed: int = 0
    """Seed of everything random."""
    eval_every: int = 1
    """Epochs between evaluations; the last ten epochs are always evaluated."""
    checkpoint_epochs: int = 1
    """Epochs between checkpoints."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints, inside epochs too."""
    loggers: tuple[str, ...] = ("tensorboard",)
    """Besides metrics.jsonl: tensorboard, csv, wandb."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that determines a run."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    method: Method = field(default_factory=Method)
    optimisation: Optimisation = field(default_factory=Optimisation)
    hardware: Hardware = field(default_factory=Hardware)
    run: Run = field(default_factory=Run)

    def __post_init__(self) -> None:
        _check(self)


def settings_of(config: Config) -> dict[str, Any]:
    """All settings as one flat table of plain values."""
    return {name: _plain(value) for group in asdict(config).values() for name, value in group.items()}


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration with some settings changed, by their names; an unknown name fails with the nearest valid one."""
    owner = {setting.name: group.name for group in fields(Config) for setting in fields(getattr(config, group.name))}
    changed: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        key = name.replace("-", "_")
        if key not in owner:
            raise ValueError(unknown_name("setting", name, owner))
        kind = get_type_hints(type(getattr(config, owner[key])))[key]
        changed.setdefault(owner[key], {})[key] = _typed(key, kind, value)
    return replace(config, **{group: replace(getattr(config, group), **values) for group, values in changed.items()})


def read_recipe(path: Path) -> Config:
    """The configuration that a TOML recipe describes; what it leaves out has its default."""
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"there is no recipe {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the recipe {path} is no valid TOML: {error}") from None
    try:
        return with_settings(Config(), table)
    except ValueError as error:
        raise ValueError(f"the recipe {path}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _typed(name: str, kind: Any, value: Any) -> Any:
    """A value of a recipe or a record in the type of its setting."""
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        (kind,) = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(unknown_name(f"value of {name}", str(value), map(str, get_args(kind))))
        return value
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        return tuple(_typed(name, get_args(kind)[0], part) for part in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if not isinstance(kind, type) or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} must be a {getattr(kind, '__name__', kind)}, got {value!r}")
    return value


def _check(config: Config) -> None:
    """Ranges of settings."""
    data, method, optimisation, hardware, run = config.data, config.method, config.optimisation, config.hardware, config.run
    at_least_one = {
        "epochs": optimisation.epochs,
        "batch_size": optimisation.batch_size,
        "microbatches": optimisation.microbatches,
        "devices": hardware.devices,
        "nodes": hardware.nodes,
        "eval_every": run.eval_every,
        "checkpoint_epochs": run.checkpoint_epochs,
    }
    for name, value in at_least_one.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    for name, share in {
        "val_share": data.val_share,
        "warmup": optimisation.warmup,
        "label_smoothing": method.label_smoothing,
    }.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {share}")
    if optimisation.lr <= 0:
        raise ValueError(f"lr must be positive, got {optimisation.lr}")
    if optimisation.ema is not None and not 0 < optimisation.ema < 1:
        raise ValueError(f"ema must lie in (0, 1), got {optimisation.ema}; for example 0.999")
    if optimisation.batch_size % (optimisation.microbatches * hardware.devices * hardware.nodes):
        raise ValueError(
            f"batch_size {optimisation.batch_size} does not divide into {optimisation.microbatches} microbatches on "
            f"{hardware.devices * hardware.nodes} processes; choose a multiple"
        )
    if method.loss == "bce" and method.label_smoothing:
        raise ValueError("label_smoothing goes with loss ce, not bce")
