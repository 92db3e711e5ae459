"""What ends a run before its time, each said so that the way out is clear."""

from __future__ import annotations

import errno

import torch
from torch import Tensor

from mixsage.training import checkpoint
from mixsage.training.config import Config
from mixsage.training.runs import RunFolder
from mixsage.training.session import Session
from mixsage.training.state import all_finite

_LOOK_EVERY = 50
"""Steps between looks at whether a loss on a device, or on several processes, was finite: each look waits for them."""
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class NonFiniteLoss(RuntimeError):
    """The loss became NaN or infinite."""


class OutOfMemory(RuntimeError):
    """The batch does not fit."""


class DiskFull(RuntimeError):
    """There is no space for what has to be kept."""


class FiniteGuard:
    """Notices the first loss that is not finite: at once on a CPU, at the next look elsewhere."""

    def __init__(self, session: Session, folder: RunFolder) -> None:
        self.session = session
        self.folder = folder
        self.first: Tensor | None = None

    def watch(self, loss: Tensor, at: int) -> None:
        """Remember whether the loss of step ``at`` is finite; look now and then."""
        bad = torch.where(loss.isfinite(), _NEVER, at)
        self.first = bad if self.first is None else torch.minimum(self.first, bad)
        fabric = self.session.fabric
        if (fabric.device.type == "cpu" and fabric.world_size == 1) or (at + 1) % _LOOK_EVERY == 0:
            self.look()

    def look(self) -> None:
        """Raise if a loss was not finite on any process."""
        first = min(self.session.gather(_NEVER if self.first is None else int(self.first)))
        if first < _NEVER:
            raise NonFiniteLoss(f"the loss of step {first + 1} is not finite, so the run stops here; {_way_out(self.folder)}")

    def check_weights(self, at: int) -> None:
        """Weights that are not finite must never replace a good checkpoint."""
        self.look()
        if not all(self.session.gather(bool(all_finite(self.session)))):
            raise NonFiniteLoss(f"the weights after step {at} are not finite, so the run stops here; {_way_out(self.folder)}")


_NEVER = 2**62


def named(error: Exception, config: Config, folder: RunFolder) -> Exception:
    """The error itself, or a clear one where memory or the disk ran out."""
    if isinstance(error, OSError) and error.errno in _FULL:
        again = f"mixsage train --resume {folder.path}" if folder.description.exists() else "the same command"
        return DiskFull(f"the disk is full ({error}); {last_good(folder)}; free some space, then: {again}")
    text = str(error).lower()
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(sign in text for sign in _OUT_OF_MEMORY):
        return OutOfMemory(_out_of_memory(config))
    return error


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed")


def last_good(folder: RunFolder) -> str:
    """Which checkpoint there is to go back to."""
    found = checkpoint.all_of(folder.checkpoints)
    return f"the last good checkpoint is {found[-1]}" if found else "there is no checkpoint yet"


def _way_out(folder: RunFolder) -> str:
    return f"{last_good(folder)}; a lower lr, clip, or precision bf16 instead of fp16 may help, in a new run"


def _out_of_memory(config: Config) -> str:
    size, parts = config.optimisation.batch_size, config.optimisation.microbatches
    processes = config.hardware.devices * config.hardware.nodes
    each = size // (parts * processes)
    more = next((count for count in range(parts + 1, size // processes + 1) if size % (count * processes) == 0), None)
    way_out = f"try --microbatches {more}" if more else "try smaller images or a smaller model"
    way_out += ", or --precision bf16" if config.hardware.precision == "fp32" else ""
    share = f", microbatches {parts}" * (parts > 1) + f", {processes} processes" * (processes > 1)
    return f"out of memory with {each} images at a time (batch_size {size}{share}); {way_out}"
