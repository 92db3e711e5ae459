"""Loggers beside metrics.jsonl: Fabric's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixsage.training.config import Config
from mixsage.training.runs import RunFolder


class Loggers:
    """Those that the settings name, from an epoch on; a missing library is answered with what to install."""

    def __init__(self, config: Config, folder: RunFolder, epoch: int = 0) -> None:
        self.loggers = [_open(name, folder, epoch) for name in config.run.loggers]

    def record(self, epoch: Mapping[str, Any]) -> None:
        """Pass an epoch on."""
        values = {name: value for name, value in epoch.items() if name != "epoch"}
        for logger in self.loggers:
            try:
                logger.log_metrics(values, step=epoch["epoch"])
                logger.save()
            except ValueError as error:
                # TensorBoard's logger says of every failure that such a value cannot be logged; a full disk is one too.
                if isinstance(error.__cause__, OSError):
                    raise error.__cause__ from error
                raise

    def end(self, *, complete: bool) -> None:
        """The sitting is over."""
        for logger in self.loggers:
            logger.finalize("success" if complete else "aborted")


def _open(name: str, folder: RunFolder, epoch: int) -> Any:
    if name == "tensorboard":
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        # Epochs that a killed sitting logged after its last checkpoint are run again: TensorBoard is told to forget them.
        return TensorBoardLogger(root_dir=folder.path, name="tensorboard", version="", purge_step=epoch + 1 if epoch else None)
    if name == "csv":
        from lightning_fabric.loggers.csv_logs import CSVLogger

        # It begins each of its files anew, so every sitting has one of its own.
        return CSVLogger(root_dir=folder.path, name="csv", version=f"from-epoch-{epoch + 1}")
    from pytorch_lightning.loggers import WandbLogger

    return WandbLogger(save_dir=folder.path, name=folder.path.name)
