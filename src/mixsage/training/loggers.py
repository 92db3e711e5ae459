"""Loggers beside metrics.jsonl, through Fabric's."""

from __future__ import annotations

from typing import Any

from mixsage.errors import unknown_name
from mixsage.training.config import Config
from mixsage.training.runs import RunFolder


def open_loggers(config: Config, folder: RunFolder) -> list[Any]:
    """The loggers that the settings name; a missing library is answered with what to install."""
    return [_open(name, folder) for name in config.run.loggers]


def _open(name: str, folder: RunFolder) -> Any:
    if name == "tensorboard":
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        return TensorBoardLogger(root_dir=folder.path, name="tensorboard", version="")
    if name == "csv":
        from lightning_fabric.loggers.csv_logs import CSVLogger

        return CSVLogger(root_dir=folder.path, name="csv", version="")
    if name == "wandb":
        from pytorch_lightning.loggers import WandbLogger

        return WandbLogger(save_dir=folder.path, name=folder.path.name)
    raise ValueError(unknown_name("logger", name, ["tensorboard", "csv", "wandb"]))
