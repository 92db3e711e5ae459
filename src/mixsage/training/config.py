"""All settings of a run, as typed dataclasses: the command line, recipes and the record of a run are generated from them.

The groups are sections of the help text; the names of the settings are unique over all groups, so that a recipe is a flat TOML table of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from mixsage.errors import unknown_name
from mixsage.training.values import plain, typed


@dataclass(frozen=True, kw_only=True)
class Data:
    """What to learn from."""

    data: str = "sample"
    """A folder of class folders, hf:owner/name, or a name: sample, sample-tiny, cifar10, cifar100, fashion-mnist, tiny-imagenet, mini-imagenet."""
    data_dir: Path | None = None
    """Where named data lie or are downloaded to, if not in $MIXSAGE_DATA."""
    image_size: int | None = None
    """Side of the images; the data's own if left out."""
    per_class: int | None = None
    """Train on the first so many images of each class only."""
    val_share: float = 0.1
    """Share of the training images held out to choose the best epoch by; 0 for none."""
    augment: bool = True
    """Random crop and flip."""
    padding: int | None = None
    """Pixels around a small image before its random crop; the data's own if left out."""
    workers: int = 2
    """Processes that read images, where these are not held in memory."""
    resident: Literal["auto", "yes", "no"] = "auto"
    """Whether the images live on the device."""
    skip_corrupt: bool = False
    """Count and skip images that cannot be read, instead of stopping."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What learns."""

    model: str = "preactresnet18"
    """One of ours, timm:NAME, or package.module:factory; with arguments: 'preactresnet18(final_norm=True)'."""
    width: int | None = None
    """Channels at the start of one of our models; the paper's if left out."""
    pretrained: bool = False
    """Start from timm's published weights."""
    weights: Path | None = None
    """Start from the weights in this file."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How images are mixed, and the loss."""

    method: str = "sage"
    """See `mixsage methods`; with settings: 'SAGE(truncation=0.5, prob=0.8)'."""
    mix_from: int = 1
    """First epoch that mixes."""
    mix_until: int | None = None
    """Last epoch that mixes; the very last if left out."""
    loss: Literal["ce", "bce"] = "ce"
    """Cross-entropy, or the authors' binary cross-entropy on the softmax."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes (ce)."""


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How the model learns."""

    epochs: int = 20
    """Passes over the training images."""
    batch_size: int = 100
    """Images a step, over all processes and microbatches."""
    microbatches: int = 1
    """Parts in which a batch is computed, to save memory; each is mixed within itself."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The optimiser."""
    lr: float = 0.1
    """Peak learning rate."""
    momentum: float = 0.9
    """Momentum (sgd)."""
    nesterov: bool = True
    """Nesterov's form of momentum (sgd)."""
    weight_decay: float = 5e-4
    """Decay of every parameter."""
    schedule: Literal["cosine", "step", "onecycle", "constant"] = "cosine"
    """Course of the learning rate."""
    warmup: float = 0.05
    """Share of the run over which the learning rate rises (cosine, onecycle)."""
    milestones: tuple[int, ...] = (100, 200)
    """Epochs after which the learning rate falls (step)."""
    lr_decay: float = 0.1
    """Factor of each fall (step)."""
    clip: float | None = None
    """Largest norm of the gradient."""
    ema: float | None = None
    """Decay of a moving average of the weights, which is then evaluated and kept: 0.999."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What it runs on."""

    device: str = "auto"
    """auto, cpu, cuda or mps."""
    devices: int = 1
    """Processes on each machine, one a device."""
    nodes: int = 1
    """Machines."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How several processes share the work; fsdp also shares out the weights."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the passes; fp16 scales its losses."""
    channels_last: bool = True
    """Keep the colours of a pixel together in memory, as bf16 and fp16 like it; not with fsdp."""
    compile: bool = False
    """Compile the model: minutes at the start, faster steps."""
    deterministic: bool = True
    """The same bits in every run on the same machine; without, CUDA may be faster."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is kept, and where."""

    out: Path | None = None
    """Folder of the run."""
    seed: int = 0
    """Seed of everything random."""
    eval_every: int = 1
    """Epochs between evaluations; the last ten are always evaluated."""
    checkpoint_epochs: int = 1
    """Epochs between checkpoints."""
    checkpoint_steps: int | None = None
    """Steps between further checkpoints, inside epochs."""
    loggers: tuple[Literal["tensorboard", "csv", "wandb"], ...] = ("tensorboard",)
    """What else, beside metrics.jsonl: tensorboard, csv, wandb."""


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


_SEEDS = 10**15
"""Seeds of the processes are a thousand times that of the run, which torch takes up to 2**63."""
GROUPS = tuple(group.name for group in fields(Config))
"""The names of the groups, in order."""


def settings_of(config: Config) -> dict[str, Any]:
    """All settings as one flat table of plain values.

    >>> settings_of(Config())["batch_size"]
    100
    """
    return {name: plain(value) for group in GROUPS for name, value in asdict(getattr(config, group)).items()}


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration with some settings changed, by their names; an unknown name fails with the nearest valid one.

    >>> with_settings(Config(), {"epochs": 3, "lr": 1}).optimisation.lr
    1.0
    """
    owner = {setting.name: group for group in GROUPS for setting in fields(getattr(config, group))}
    changed: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        key = name.replace("-", "_")
        if key not in owner:
            raise ValueError(unknown_name("setting", name, owner))
        kind = get_type_hints(type(getattr(config, owner[key])))[key]
        changed.setdefault(owner[key], {})[key] = typed(key, kind, value)
    return replace(config, **{group: replace(getattr(config, group), **values) for group, values in changed.items()})


def read_recipe(path: Path) -> Config:
    """The configuration that a TOML recipe describes; what it leaves out has its default."""
    try:
        table = tomllib.loads(path.read_text())
    except (FileNotFoundError, IsADirectoryError):
        raise ValueError(f"there is no recipe {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the recipe {path} is no valid TOML: {error}") from None
    try:
        return with_settings(Config(), table)
    except ValueError as error:
        raise ValueError(f"the recipe {path}: {error}") from None


def _check(config: Config) -> None:
    """Ranges of settings, and settings that exclude one another."""
    data, method, optimisation, hardware, run = config.data, config.method, config.optimisation, config.hardware, config.run
    for name, count in {
        "epochs": optimisation.epochs,
        "batch_size": optimisation.batch_size,
        "microbatches": optimisation.microbatches,
        "devices": hardware.devices,
        "nodes": hardware.nodes,
        "eval_every": run.eval_every,
        "checkpoint_epochs": run.checkpoint_epochs,
        "checkpoint_steps": run.checkpoint_steps,
        "per_class": data.per_class,
        "image_size": data.image_size,
        "mix_from": method.mix_from,
    }.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    for name, share in {
        "val_share": data.val_share,
        "warmup": optimisation.warmup,
        "label_smoothing": method.label_smoothing,
        "momentum": optimisation.momentum,
    }.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {share}")
    for name, size in {"lr": optimisation.lr, "lr_decay": optimisation.lr_decay, "clip": optimisation.clip}.items():
        if size is not None and not 0 < size < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {size}")
    for name, size in {"weight_decay": optimisation.weight_decay, "workers": data.workers, "padding": data.padding}.items():
        if size is not None and not 0 <= size < float("inf"):
            raise ValueError(f"{name} must be at least 0, got {size}")
    if optimisation.ema is not None and not 0 < optimisation.ema < 1:
        raise ValueError(f"ema must lie in (0, 1), got {optimisation.ema}; for example 0.999")
    if abs(run.seed) >= _SEEDS:
        raise ValueError(f"seed must lie between -{_SEEDS} and {_SEEDS}, got {run.seed}")
    processes = hardware.devices * hardware.nodes
    if optimisation.batch_size % (optimisation.microbatches * processes):
        raise ValueError(
            f"batch_size {optimisation.batch_size} does not divide into {optimisation.microbatches} microbatches on "
            f"{processes} processes; choose a multiple of {optimisation.microbatches * processes}"
        )
    if method.mix_until is not None and method.mix_until < method.mix_from:
        raise ValueError(f"mix_until {method.mix_until} lies before mix_from {method.mix_from}; for no mixing, choose method clean")
    if method.loss == "bce" and method.label_smoothing:
        raise ValueError("label_smoothing goes with loss ce, not bce")
    if hardware.strategy == "fsdp" and optimisation.ema is not None:
        raise ValueError("ema needs whole weights on every process, which fsdp shares out; choose strategy ddp, or leave ema out")
    if sorted(set(optimisation.milestones)) != list(optimisation.milestones):
        raise ValueError(f"milestones must rise, got {list(optimisation.milestones)}")
