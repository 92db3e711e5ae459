"""What a run works with: data, model, optimiser, host, all set up by Fabric."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mixsage import data
from mixsage.data import DataSet, Feed, feed, generator, hold_out, per_class
from mixsage.errors import not_installed, unknown_name
from mixsage.host import FabricHost
from mixsage.methods import Mixer
from mixsage.methods.clean import Clean
from mixsage.models.weights import fit_weights, read_weights
from mixsage.saliency import Criterion
from mixsage.training import build
from mixsage.training.config import Config

_log = logging.getLogger("mixsage")

T = TypeVar("T")
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass
class Session:
    """The parts of a run; built once by `open_session`."""

    config: Config
    fabric: Any
    dataset: DataSet
    feeds: dict[str, Feed]
    """"train", and "val" and "test" where there are such images."""
    mixer: Mixer
    criterion: Criterion
    bare: nn.Module
    """The model itself, with no wrapper around it."""
    model: Any
    """The model as Fabric set it up."""
    optimizer: Any
    host: FabricHost
    average: AveragedModel | None

    @property
    def sharded(self) -> bool:
        """Whether the weights lie in pieces on several devices."""
        return self.config.hardware.strategy == "fsdp"

    @property
    def images(self) -> dict[str, int]:
        """Images of each split; an epoch leaves out those that fill no batch, other ones each time."""
        return {name: len(feed.rota.indices) for name, feed in self.feeds.items()}

    def mixer_in(self, epoch: int) -> Mixer:
        """The method of an epoch, counted from 0; outside of its epochs nothing is mixed."""
        settings, number = self.config.method, epoch + 1
        mixing = settings.mix_from <= number and (settings.mix_until is None or number <= settings.mix_until)
        return self.mixer if mixing else Clean()

    def generator(self, *place: int | str) -> torch.Generator:
        """The generator of a place in the run: choices are functions of where they are made, so there is no state to resume."""
        return generator(self.config.run.seed, *place)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        total: Tensor = self.fabric.all_reduce(value, reduce_op="sum") if self.fabric.world_size > 1 else value
        return total

    def gather(self, value: T) -> list[T]:
        """The values of all processes."""
        if self.fabric.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(values, value)
        return values


def open_session(config: Config, fabric: Any, *, starts: bool = True) -> Session:
    """Load the data, build the model, let Fabric set both up; the weights to start from are not needed where a checkpoint has others."""
    dataset = data.load(
        config.data.data, folder=config.data.data_dir, image_size=config.data.image_size, skip_corrupt=config.data.skip_corrupt
    )
    if config.hardware.channels_last and not channels_last(config) and fabric.is_global_zero:
        _log.info("strategy fsdp: without channels_last, as the gradients of shards are contiguous")
    feeds = _feeds(config, dataset, fabric)
    mixer = build.build_mixer(config.method.method, dataset.mean, dataset.std)
    bare = _model(config, dataset, starts)
    average = None if config.optimisation.ema is None else _average(bare, config.optimisation.ema).to(fabric.device)
    module = torch.compile(bare) if config.hardware.compile else bare
    optimizer = build.build_optimizer(config.optimisation, bare.parameters(), fabric.device)
    model, optimizer = fabric.setup(module, optimizer)
    _seed(config.run.seed * 1000 + fabric.global_rank)
    return Session(
        config=config,
        fabric=fabric,
        dataset=dataset,
        feeds=feeds,
        mixer=mixer,
        criterion=build.build_criterion(config.method),
        bare=bare,
        model=model,
        optimizer=optimizer,
        host=FabricHost(fabric, model),
        average=average,
    )


def open_fabric(config: Config) -> Any:
    """Fabric for the hardware settings, launched."""
    hardware = config.hardware
    device = usable_device(hardware.device)
    if hardware.precision == "fp16" and device == "cpu":
        raise ValueError("precision fp16 needs a GPU; on the CPU, choose bf16 or fp32")
    if device == "cuda" and hardware.devices > torch.cuda.device_count():
        raise ValueError(f"devices must be at most {torch.cuda.device_count()}, the GPUs of this machine; got {hardware.devices}")
    try:
        from lightning_fabric import Fabric
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(not_installed("training", "lightning", "train")) from error
    fabric = Fabric(
        accelerator=device,
        devices=hardware.devices,
        num_nodes=hardware.nodes,
        strategy=hardware.strategy,
        precision=PRECISIONS[hardware.precision],  # type: ignore[arg-type]  # Fabric's own literals
    )
    fabric.launch()
    return fabric


def end_processes(fabric: Any) -> None:
    """End the processes that Fabric started beside this one, which would wait for it for ever."""
    for process in getattr(fabric.strategy.launcher, "procs", None) or []:
        process.kill()


def usable_device(name: str) -> str:
    """The device of this name, if torch can use it; "auto" takes the fastest that is there."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(kind for kind, there in present.items() if there)
    if name not in present:
        raise ValueError(unknown_name("device", name, ["auto", *present]))
    if not present[name]:
        raise ValueError(f"there is no {name} device that torch {torch.__version__} can use; choose --device cpu, or auto")
    return name


def _seed(seed: int) -> None:
    """Dropout and whatever else draws inside a model draws from the global states: each process has its own."""
    import numpy as np

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _model(config: Config, dataset: DataSet, starts: bool) -> nn.Module:
    # A model draws its first weights from the global states: on all processes the same.
    _seed(config.run.seed)
    model = build.build_model(
        config.model.model,
        num_classes=len(dataset.classes),
        channels=dataset.channels,
        width=config.model.width,
        pretrained=config.model.pretrained and starts,
    )
    build.try_model(model, config.model.model, channels=dataset.channels, size=dataset.size, num_classes=len(dataset.classes))
    if config.model.weights is not None and starts:
        fit_weights(model, read_weights(config.model.weights), config.model.weights)
    return model.to(memory_format=torch.channels_last) if channels_last(config) else model


def channels_last(config: Config) -> bool:
    """Whether the colours of a pixel lie together. Not in shards: FSDP makes contiguous gradients, and fused optimisers want those of weights
    laid out as these are.
    """
    return config.hardware.channels_last and config.hardware.strategy != "fsdp"


def _average(model: nn.Module, decay: float) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)  # type: ignore[no-untyped-call]


def _feeds(config: Config, dataset: DataSet, fabric: Any) -> dict[str, Feed]:
    chosen = torch.arange(len(dataset.train))
    if config.data.per_class is not None:
        chosen = per_class(dataset.train.labels, config.data.per_class, classes=dataset.classes)
    # A split that the data brings for choices needs none to be taken from the training images.
    share = 0.0 if dataset.validation is not None else config.data.val_share
    kept, held = hold_out(dataset.train.labels[chosen], share, config.run.seed, dataset.classes)
    batch_size = config.optimisation.batch_size
    if len(kept) < batch_size:
        raise ValueError(
            f"a batch of {batch_size} is larger than the training set of {len(kept)} images; set batch_size to at most {len(kept)}"
        )
    common: dict[str, Any] = {
        "seed": config.run.seed,
        "device": fabric.device,
        "padding": config.data.padding,
        "workers": config.data.workers,
        "rank": fabric.global_rank,
        "world": fabric.world_size,
        "channels_last": channels_last(config),
        "resident": {"auto": "auto", "yes": True, "no": False}[config.data.resident],
    }
    feeds = {
        "train": feed(
            dataset.train, chosen[kept], dataset, batch_size=batch_size, train=True, augment=config.data.augment, **common
        )
    }
    # Without gradients more fits into memory; but not more than a few parts, where a whole batch does not.
    common |= {"batch_size": 5 * batch_size // config.optimisation.microbatches, "train": False}
    if dataset.validation is not None:
        feeds["val"] = feed(dataset.validation, None, dataset, **common)
    elif len(held):
        feeds["val"] = feed(dataset.train, chosen[held], dataset, **common)
    if dataset.test is not None:
        feeds["test"] = feed(dataset.test, None, dataset, **common)
    return feeds
