"""The folder of a run: what it was, how it went, and what came out of it.

RUN/run.json            the resolved settings, versions, commit, machine, seed; the classes and the normalisation
RUN/metrics.jsonl       one line an epoch
RUN/checkpoints/        the last two checkpoints
RUN/final.safetensors   the weights; there once the run is complete
RUN/batch.png           a mixed batch as it was at the start
RUN/tensorboard/        events, if asked for
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mixsage.training import checkpoint
from mixsage.training.config import Config, with_settings

FORMAT = 1


class RunError(RuntimeError):
    """A run folder that cannot be used as asked."""


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a run lie."""

    path: Path

    @property
    def description(self) -> Path:
        """run.json."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """metrics.jsonl."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """final.safetensors."""
        return self.path / "final.safetensors"

    @property
    def picture(self) -> Path:
        """batch.png."""
        return self.path / "batch.png"

    def begin(self, description: Mapping[str, Any]) -> None:
        """Claim a fresh folder for a run."""
        if self.description.exists():
            raise RunError(f"{self.path} already holds a run; continue it with --resume {self.path}, or choose another --out")
        checkpoint.write_atomically(self.description, (json.dumps(description, indent=2) + "\n").encode())

    def read(self) -> dict[str, Any]:
        """run.json, checked."""
        try:
            description: dict[str, Any] = json.loads(self.description.read_text())
        except FileNotFoundError:
            raise RunError(f"there is no run in {self.path}: {self.description.name} is missing") from None
        except json.JSONDecodeError as error:
            raise RunError(f"{self.description} is damaged: {error}") from None
        if description.get("format", 0) > FORMAT:
            raise RunError(
                f"{self.path} was written by a newer mixsage (format {description['format']}, this one reads {FORMAT}); update mixsage"
            )
        return description

    def config(self) -> Config:
        """The settings of the run, which lies where it lies now."""
        return with_settings(Config(), {**self.read()["settings"], "out": self.path})

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return self.weights.exists()

    def history(self) -> list[dict[str, Any]]:
        """The epochs so far; a line that was torn by a kill is left out."""
        if not self.metrics.exists():
            return []
        records = []
        for line in self.metrics.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    def rewind(self, epoch: int) -> None:
        """Drop the records of epochs that will be run again."""
        kept = [json.dumps(record) + "\n" for record in self.history() if record["epoch"] <= epoch]
        checkpoint.write_atomically(self.metrics, "".join(kept).encode())

    def record(self, epoch: Mapping[str, Any]) -> None:
        """Append an epoch, synced."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(epoch) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self, weights: Mapping[str, Tensor]) -> None:
        """Write the final weights, which makes the run complete."""
        from safetensors.torch import save

        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
        checkpoint.write_atomically(self.weights, save(tensors))

    def final_weights(self) -> dict[str, Tensor]:
        """The final weights; those of the newest checkpoint are not a stand-in."""
        from safetensors.torch import load_file

        if not self.complete:
            raise RunError(f"the run in {self.path} is not complete; continue it with: mixsage train --resume {self.path}")
        return load_file(self.weights)


def describe(
    config_settings: Mapping[str, Any], *, classes: Sequence[str], mean: Sequence[float], std: Sequence[float], **more: Any
) -> dict[str, Any]:
    """What run.json holds."""
    return {
        "format": FORMAT,
        "settings": dict(config_settings),
        "classes": list(classes),
        "mean": list(mean),
        "std": list(std),
        **more,
        **provenance(),
    }


def provenance() -> dict[str, Any]:
    """Versions, commit and machine."""
    versions = {}
    for package in ("mixsage", "torch", "torchvision", "timm", "pytorch-lightning", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "versions": {"python": platform.python_version(), **versions},
        "commit": _commit(),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), "gpu": device},
        "command": " ".join(sys.argv),
    }


def _commit() -> str | None:
    """The commit of the source tree that mixsage runs from, with a mark if it was changed; None for an installed package."""
    here = Path(__file__).resolve().parent
    if "site-packages" in here.parts:
        return None
    try:
        command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
