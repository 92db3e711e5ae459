"""Training: settings, the loop, and runs that can be killed and resumed bit for bit."""

from mixsage.training.config import Config, read_recipe, settings_of, with_settings
from mixsage.training.faults import DiskFull, NonFiniteLoss, OutOfMemory
from mixsage.training.runs import RunFolder
from mixsage.training.scores import result
from mixsage.training.signals import Interrupted
from mixsage.training.trainer import train

__all__ = [
    "Config",
    "DiskFull",
    "Interrupted",
    "NonFiniteLoss",
    "OutOfMemory",
    "RunFolder",
    "read_recipe",
    "result",
    "settings_of",
    "train",
    "with_settings",
]
