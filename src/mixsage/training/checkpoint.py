"""Checkpoints that survive a kill at any moment: written to the side, synced, renamed; checked when read; never pickled code.

A file is one header line (format, version, SHA-256 of the rest) and a torch archive that is read with ``weights_only``.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_log = logging.getLogger("mixsage")
VERSION = 1
_MAGIC = b"mixsage-checkpoint"
KEEP = 2
"""Checkpoints that are kept: the newest, and the one before it in case the newest is damaged."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read or written."""


class NewerCheckpointError(CheckpointError):
    """A checkpoint of a later format: going back to an older one would lose work, so nothing is done."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is either there in full or not at all, whatever happens meanwhile."""
    _make_folder(path.parent)
    side = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with side.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        side.replace(path)
    except BaseException:
        side.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def clear_torn(folder: Path) -> None:
    """Remove what killed processes left half written."""
    for side in folder.glob(".*.part"):
        side.unlink(missing_ok=True)


def save(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Write the checkpoint of a step into the folder, and drop those that are older than the last two."""
    archive = io.BytesIO()
    torch.save(dict(state), archive)
    payload = archive.getbuffer()
    header = b" ".join([_MAGIC, str(VERSION).encode(), hashlib.sha256(payload).hexdigest().encode()]) + b"\n"
    path = path_of(folder, step)
    write_atomically(path, header + payload)
    for old in all_of(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint after so many steps lies."""
    return folder / f"step-{step:09d}.ckpt"


def all_of(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(folder.glob("step-*.ckpt"))


def load(path: Path) -> dict[str, Any]:
    """Read one checkpoint; a truncated or damaged one raises `CheckpointError`."""
    header, _, payload = path.read_bytes().partition(b"\n")
    parts = header.split(b" ")
    if len(parts) != 3 or parts[0] != _MAGIC or not parts[1].isdigit():
        raise CheckpointError(f"{path} is no checkpoint of mixsage, or its beginning is damaged")
    if int(parts[1]) > VERSION:
        raise NewerCheckpointError(
            f"{path} was written by a newer mixsage (format {int(parts[1])}, this one reads {VERSION}); update mixsage"
        )
    if hashlib.sha256(payload).hexdigest().encode() != parts[2]:
        raise CheckpointError(f"{path} is damaged or truncated: its contents do not match their checksum")
    state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return state


def load_newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that is whole; damaged ones are passed over and named. None where there is none yet."""
    found = all_of(folder)
    for path in reversed(found):
        try:
            return path, load(path)
        except NewerCheckpointError:
            raise
        except CheckpointError as error:
            _log.warning("%s; looking for the one before it", error)
    if found:
        raise CheckpointError(f"no checkpoint in {folder} is whole; remove them to begin the run again from its first step")
    return None


def _make_folder(folder: Path) -> None:
    """The folder and those above it, each entered in its own parent for good."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
