"""Any settings, shrunk to a trial of a second or two: does a recipe run from end to end?"""

from __future__ import annotations

from typing import Any

from mixsage import models
from mixsage.training.config import Config, with_settings
from mixsage.training.notation import read_call

_SMALL: dict[str, Any] = {
    "data": "sample-tiny",
    "data_dir": None,
    "per_class": 4,
    "workers": 0,
    "weights": None,
    "pretrained": False,
    "mix_from": 1,
    "mix_until": None,
    "epochs": 2,
    "batch_size": 20,
    "microbatches": 1,
    "milestones": [1],
    "device": "cpu",
    "devices": 1,
    "nodes": 1,
    "strategy": "auto",
    "precision": "fp32",
    "compile": False,
    "eval_every": 1,
    "checkpoint_epochs": 2,
    "checkpoint_steps": None,
    "loggers": [],
}
"""Few images of the embedded sample, few steps, one processor."""
_WIDTH = 4
"""Channels at the start of one of our models."""


def smoke(config: Config) -> Config:
    """The same method, loss, optimiser, schedule and architecture on 40 tiny images for two epochs, on the CPU.

    What such a run shows is that everything works; its accuracy means nothing.

    >>> from mixsage.training import Config
    >>> smoke(Config()).optimisation.epochs
    2
    """
    ours = read_call(config.model.model).name in models.available()
    return with_settings(config, {**_SMALL, "width": _WIDTH if ours else None})
