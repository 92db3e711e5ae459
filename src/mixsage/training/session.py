"""What a run works with: data, model, optimiser, host, all set up by Fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mixsage import data
from mixsage.data import DataSet, Feed, feed, generator, hold_out, per_class
from mixsage.host import FabricHost
from mixsage.methods import Mixer
from mixsage.methods.clean import Clean
from mixsage.saliency import Criterion
from mixsage.training import build
from mixsage.training.config import Config

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

    def mixer_in(self, epoch: int) -> Mixer:
        """The method of an epoch, counted from 0; outside of its epochs nothing is mixed."""
        settings = self.config.method
        mixing = settings.mix_from <= epoch and (settings.mix_until is None or epoch < settings.mix_until)
        return self.mixer if mixing else Clean()

    def generator(self, *place: int | str) -> torch.Generator:
        """The generator of a place in the run: choices are functions of where they are made, so there is no state to resume."""
        return generator(self.config.run.seed, *place)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        total: Tensor = self.fabric.all_reduce(value, reduce_op="sum") if self.fabric.world_size > 1 else value
        return total

    def gather(self, value: Tensor) -> Tensor:
        """The values of all processes [world, …]."""
        if self.fabric.world_size == 1:
            return value[None].cpu()
        gathered: Tensor = self.fabric.all_gather(value.to(self.fabric.device))
        return gathered.cpu()


def open_session(config: Config, fabric: Any) -> Session:
    """Load the data, build the model, let Fabric set both up."""
    dataset = data.load(
        config.data.data, folder=config.data.data_dir, image_size=config.data.image_size, skip_corrupt=config.data.skip_corrupt
    )
    feeds = _feeds(config, dataset, fabric)
    mixer = build.build_mixer(config.method.method, dataset.mean, dataset.std)
    bare = _model(config, dataset)
    average = (
        AveragedModel(bare, multi_avg_fn=get_ema_multi_avg_fn(config.optimisation.ema), use_buffers=True)
        if config.optimisation.ema
        else None
    )
    if average is not None:
        average.to(fabric.device)
    module = torch.compile(bare) if config.hardware.compile else bare
    optimizer = build.build_optimizer(config.optimisation, bare.parameters(), fabric.device)
    model, optimizer = fabric.setup(module, optimizer)
    # Dropout and whatever else draws inside the model draws from torch's own state: each process has its own.
    torch.manual_seed(config.run.seed * 1000 + fabric.global_rank)
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


def open_fabric(config: Config, loggers: list[Any] | None = None) -> Any:
    """Fabric for the hardware settings, launched."""
    try:
        from lightning_fabric import Fabric
    except ModuleNotFoundError:
        raise ModuleNotFoundError("training needs Lightning Fabric: pip install 'mixsage[train]'") from None
    hardware = config.hardware
    fabric = Fabric(
        accelerator=hardware.device,
        devices=hardware.devices,
        num_nodes=hardware.nodes,
        strategy=hardware.strategy,
        precision=PRECISIONS[hardware.precision],  # type: ignore[arg-type]  # Fabric's own literals
        loggers=loggers or [],
    )
    fabric.launch()
    return fabric


def _model(config: Config, dataset: DataSet) -> nn.Module:
    # The one place where the global state is seeded: a model draws its first weights from it.
    torch.manual_seed(config.run.seed)
    model = build.build_model(
        config.model.model,
        num_classes=len(dataset.classes),
        channels=dataset.channels,
        width=config.model.width,
        pretrained=config.model.pretrained,
    )
    if config.model.weights is not None:
        from safetensors.torch import load_file

        build.load_weights(model, load_file(config.model.weights), config.model.weights)
    return model.to(memory_format=torch.channels_last) if config.hardware.channels_last else model


def _feeds(config: Config, dataset: DataSet, fabric: Any) -> dict[str, Feed]:
    chosen = torch.arange(len(dataset.train))
    if config.data.per_class is not None:
        chosen = per_class(dataset.train.labels, config.data.per_class, None)
    # A split that the data brings for choices needs none to be taken from the training images.
    share = 0.0 if dataset.validation is not None else config.data.val_share
    kept, held = hold_out(dataset.train.labels[chosen], share, config.run.seed)
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
        "channels_last": config.hardware.channels_last,
        "resident": {"auto": "auto", "yes": True, "no": False}[config.data.resident],
    }
    feeds = {
        "train": feed(
            dataset.train, chosen[kept], dataset, batch_size=batch_size, train=True, augment=config.data.augment, **common
        )
    }
    common |= {"batch_size": 5 * batch_size, "train": False}
    if dataset.validation is not None:
        feeds["val"] = feed(dataset.validation, None, dataset, **common)
    elif len(held):
        feeds["val"] = feed(dataset.train, chosen[held], dataset, **common)
    if dataset.test is not None:
        feeds["test"] = feed(dataset.test, None, dataset, **common)
    return feeds
