"""The folder of a run: what it was, how it went, and what came out of it.

RUN/run.json            the resolved settings, versions, commit, machine, seed; the classes and the normalisation
RUN/metrics.jsonl       one line an epoch
RUN/checkpoints/        the last two checkpoints
RUN/final.safetensors   the weights after the last epoch; there once the run is complete
RUN/best.safetensors    the weights of the epoch that was best on the validation split, if there is one
RUN/batch.png           a mixed batch as it was at the start
RUN/tensorboard/        events, if asked for
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mixsage.data import NAMES
from mixsage.models.weights import read_weights
from mixsage.training import checkpoint
from mixsage.training.config import Config, settings_of, with_settings

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
    def best(self) -> Path:
        """best.safetensors."""
        return self.path / "best.safetensors"

    @property
    def picture(self) -> Path:
        """batch.png."""
        return self.path / "batch.png"

    def check_free(self) -> None:
        """The folder must not hold a run yet."""
        if self.description.exists():
            raise RunError(f"{self.path} already holds a run; continue it with --resume {self.path}, or choose another --out")

    def begin(self, description: Mapping[str, Any]) -> None:
        """Claim a fresh folder for a run."""
        self.check_free()
        checkpoint.write_atomically(self.description, (json.dumps(description, indent=2) + "\n").encode())

    def release(self) -> None:
        """Give the folder up again, if nothing was kept in it that could be lost: the same command, mended, may then use it."""
        if not (checkpoint.all_of(self.checkpoints) or self.history() or self.complete):
            self.description.unlink(missing_ok=True)

    def begin_again(self, epoch: int) -> None:
        """Clear what the end of an earlier sitting left: torn files, and the records of epochs that will be run again."""
        for folder in (self.path, self.checkpoints):
            checkpoint.clear_torn(folder)
        kept = [json.dumps(record) + "\n" for record in self.history() if record["epoch"] <= epoch]
        checkpoint.write_atomically(self.metrics, "".join(kept).encode())

    def read(self) -> dict[str, Any]:
        """run.json, checked."""
        try:
            found: object = json.loads(self.description.read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"there is no run in {self.path}: {self.description.name} is missing") from None
        except json.JSONDecodeError as error:
            raise RunError(f"{self.description} is damaged: {error}") from None
        if not isinstance(found, dict) or "settings" not in found:
            raise RunError(f"{self.description} is no record of a run of mixsage: it has no settings")
        description: dict[str, Any] = found
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

    def record(self, epoch: Mapping[str, Any]) -> None:
        """Append an epoch, synced."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(epoch) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keep(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        """Write weights. Those of `weights` make the run complete."""
        from safetensors.torch import save

        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
        checkpoint.write_atomically(path, save(tensors))

    def kept(self, which: Literal["final", "best"] = "final") -> tuple[Path, dict[str, Tensor]]:
        """The weights of a complete run, and where they lie."""
        if not self.complete:
            self.read()
            raise RunError(f"the run in {self.path} is not complete; continue it with: mixsage train --resume {self.path}")
        path = self.weights if which == "final" else self.best
        if not path.exists():
            raise RunError(f"there is no {path}: the run held out no images to choose an epoch by; take the final weights")
        return path, read_weights(path)


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
        "command": shlex.join(sys.argv),
    }


def with_full_paths(config: Config) -> Config:
    """The same settings, whatever folder the run is resumed in."""
    paths: dict[str, Any] = {name: Path(path).resolve() for name, path in settings_of(config).items() if name in _PATHS and path}
    data = config.data.data
    scheme = "hf:" if data.startswith("hf:") else ""
    place, mark, columns = data.removeprefix(scheme).partition("?") if scheme else (data, "", "")
    if place and data not in NAMES and Path(place).expanduser().exists():
        paths["data"] = f"{scheme}{Path(place).expanduser().resolve()}{mark}{columns}"
    return with_settings(config, paths)


_PATHS = ("data_dir", "weights", "out")


def changes(since: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two records of `provenance` that may keep a resumed run from having the same bits."""
    before = {
        **since["versions"],
        "threads": since["machine"]["threads"],
        "gpu": since["machine"]["gpu"],
        "commit": since["commit"],
    }
    after = {**now["versions"], "threads": now["machine"]["threads"], "gpu": now["machine"]["gpu"], "commit": now["commit"]}
    return [f"{name}: {value} then, {after.get(name)} now" for name, value in before.items() if after.get(name) != value]


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
