"""The arguments of the commands, from which their flags and help are made. Loaded by the commands alone, as it needs tyro."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from mixsage.training.config import Config


@dataclass(frozen=True)
class Train:
    recipe: Path | None = None
    """A TOML file of settings; what else is given on the command line overrides it."""
    resume: Path | None = None
    """Continue the run in this folder, with the settings it was begun with."""
    config: Config = field(default_factory=Config)


@dataclass(frozen=True)
class Predict:
    run: Positional[Path]
    """Folder of a complete run."""
    images: Positional[tuple[Path, ...]]
    """Image files, or folders of them."""
    top_k: int = 1
    """How many classes to name for each image."""
    format: Literal["csv", "jsonl"] = "csv"
    """CSV with a header, or a JSON object a line."""
    device: str = "cpu"
    """Where to run the model."""
    batch_size: int = 64
    """Images at a time."""


@dataclass(frozen=True)
class Export:
    run: Positional[Path]
    """Folder of a complete run."""
    format: Literal["torch", "onnx"] = "torch"
    """torch.export's .pt2, or ONNX."""
    out: Path | None = None
    """The file; model.pt2 or model.onnx in the run if left out."""
