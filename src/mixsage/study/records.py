"""The record of a run: one JSON line, in files that are only ever appended to. docs/records.md describes the fields.

Several processes may write to one file; a line that a kill has torn is noticed and put aside, and everything before it stays.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from mixsage.errors import unknown_name

_log = logging.getLogger("mixsage")

VERSION = 1
"""Of the schema: raised when a field changes its meaning."""
ACCURACIES = ("last", "best", "median_of_last_ten")
"""The three test accuracies of a run, in per cent; the last epoch's is the one that is reported first."""


class RecordError(ValueError):
    """Records that cannot be used as they are; the message says where and why."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a run was, and what came out of it."""

    run: str
    """Name of the run, the same whenever the study is run again."""
    arm: str
    """What is compared: the method, with whatever else sets it apart ("SAGE, uniform maps")."""
    data: str
    """The data, as the study names it ("cifar10, 500 a class")."""
    model: str
    """The model, in the notation of the command."""
    seed: int
    """Runs of several arms with the same seed saw the same data in the same order: they are pairs."""
    epochs: int
    """Length of the run."""
    status: Literal["ok", "failed"] = "ok"
    """Whether the run came to its end."""
    error: str | None = None
    """Why it did not."""
    method: str = ""
    """The method in the notation of the command, with its settings ("SAGE(truncation=0.5)")."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All settings of the run, resolved."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What came out, by name: `last`, `best`, `median_of_last_ten`, `top5`, `nll`, `ece`, `gaussian`, `fgsm`, `fgm`, `ood`, `seconds`, …"""
    history: Sequence[Mapping[str, float]] = ()
    """A table of numbers for each epoch."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of Python and of the packages."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What it ran on."""
    commit: str | None = None
    """The commit of the source."""
    finished: str | None = None
    """When, in ISO 8601."""

    def __post_init__(self) -> None:
        for name in ("run", "arm", "data", "model"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise RecordError(f"{name} must be a name, got {getattr(self, name)!r}")
        self._check_types()
        if self.status not in {"ok", "failed"}:
            raise RecordError(f"status must be 'ok' or 'failed', got {self.status!r}")
        if self.status == "failed" and not self.error:
            raise RecordError(f"the failed run {self.run!r} needs its error")
        metrics: Mapping[str, Any] = self.metrics
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise RecordError(
                    f"the metric {name!r} of the run {self.run!r} is {value!r}, expected a finite number; record the run as failed"
                )

    def _check_types(self) -> None:
        """What was read from a file is what the annotations say; other programs write such files too."""
        for name in ("seed", "epochs"):
            if type(getattr(self, name)) is not int:
                raise RecordError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        for name in ("settings", "metrics", "versions", "machine"):
            if not isinstance(getattr(self, name), Mapping):
                raise RecordError(f"{name} must be an object, got {getattr(self, name)!r}")
        for name in ("error", "method", "commit", "finished"):
            if not isinstance(getattr(self, name), str) and (name == "method" or getattr(self, name) is not None):
                raise RecordError(f"{name} must be text, got {getattr(self, name)!r}")
        if not isinstance(self.history, (list, tuple)) or not all(isinstance(epoch, Mapping) for epoch in self.history):
            raise RecordError(f"history must be an array of objects, one an epoch, got {self.history!r}")
        for epoch in self.history:
            for name, value in epoch.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise RecordError(
                        f"the history of the run {self.run!r} has the {name} {value}, which is not finite; record the run as failed"
                    )

    def to_json(self) -> str:
        """The line of the record, without its end."""
        try:
            return json.dumps({"version": VERSION, **asdict(self)}, ensure_ascii=False, allow_nan=False)
        except ValueError as error:
            raise RecordError(f"the run {self.run!r} holds numbers that are not finite: {error}") from None

    @classmethod
    def from_json(cls, line: str) -> Record:
        """The record of a line."""
        content = json.loads(line, parse_constant=_refuse)
        if not isinstance(content, dict):
            raise RecordError(f"expected an object, got {type(content).__name__}")
        version = content.pop("version", None)
        if version != VERSION:
            raise RecordError(f"its schema has version {version}, this mixsage reads version {VERSION}; {_remedy(version)}")
        known = {entry.name: entry for entry in fields(cls)}
        foreign = [name for name in content if name not in known]
        if foreign:
            raise RecordError(unknown_name("field", foreign[0], known))
        missing = [name for name, entry in known.items() if name not in content and _required(entry)]
        if missing:
            raise RecordError(f"the field {missing[0]!r} is missing")
        return cls(**content)


def append(path: str | Path, record: Record) -> None:
    """Add a record to a file, which is made if need be. Safe with several writers, and after a kill in the middle of a line."""
    path = Path(path)
    line = record.to_json() + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path) as handle:
        _mend(path, handle)
        # One write of a whole line: a reader that takes no lock sees all of it or none.
        view = memoryview(line.encode())
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)


def read(path: str | Path) -> list[Record]:
    """All records of a file, in the order in which they were written. A torn last line is left out, and said."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RecordError(f"there are no records {path}") from None
    *lines, tail = content.split(b"\n")
    if tail and _is_whole(tail):
        lines.append(tail)
    elif tail:
        _log.warning("%s ends in a torn line of %d bytes, which is left out: %s…", path, len(tail), _start(tail))
    return [_parsed(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def read_all(paths: Sequence[str | Path]) -> list[Record]:
    """The records of several files."""
    return [record for path in paths for record in read(path)]


def latest(records: Sequence[Record]) -> list[Record]:
    """The last record of each run: a run that failed and was tried again counts as what it was in the end."""
    found: dict[str, Record] = {}
    for record in records:
        found.pop(record.run, None)
        found[record.run] = record
    return list(found.values())


def select(
    records: Sequence[Record],
    *,
    arms: Sequence[str] | None = None,
    data: str | None = None,
    model: str | None = None,
    status: Literal["ok", "failed"] | None = "ok",
) -> list[Record]:
    """The latest records of these arms, data and model; selecting nothing is an error that says what there is."""
    found = latest(records)
    for name, wanted in (("data", data), ("model", model)):
        there = {getattr(record, name) for record in found}
        if wanted is not None and wanted not in there:
            raise RecordError(unknown_name(f"{name} among the records:", wanted, there))
        found = [record for record in found if wanted is None or getattr(record, name) == wanted]
    for arm in arms or ():
        there = {record.arm for record in found}
        if arm not in there:
            raise RecordError(unknown_name("arm among the records:", arm, there))
    found = [record for record in found if (arms is None or record.arm in arms)]
    chosen = [record for record in found if status is None or record.status == status]
    if not chosen:
        failed = sum(record.status == "failed" for record in found)
        raise RecordError(
            f"no records are left to work with: {len(records)} in all, {len(found)} of what was asked for, {failed} of these failed"
        )
    return chosen


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The file, open for appending, and nobody else's until the end of the context."""
    try:
        import fcntl
    except ModuleNotFoundError:
        raise OSError(
            "records are written under a POSIX file lock, which this system does not have; use Linux, macOS or WSL"
        ) from None
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield handle
        finally:
            # By name, not by closing: a process forked in the meantime holds the same open file, and would keep the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _mend(path: Path, handle: int) -> None:
    """Put what a killed writer left of a line aside, so that the next line begins where a line should."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return
    content = os.pread(handle, size, 0)
    begin = content.rfind(b"\n") + 1
    tail = content[begin:]
    if _is_whole(tail):
        os.write(handle, b"\n")
        return
    aside = path.with_name(f"{path.name}.torn")
    with aside.open("ab") as file:
        file.write(tail + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.ftruncate(handle, begin)
    _log.warning("%s ended in a torn line of %d bytes, which was moved to %s", path, len(tail), aside)


def _is_whole(line: bytes) -> bool:
    """Whether a line without an end lacks nothing but that end."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _parsed(path: Path, number: int, line: bytes) -> Record:
    try:
        return Record.from_json(line.decode())
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path}, line {number}: {error}") from None


def _refuse(constant: str) -> float:
    raise RecordError(f"it holds {constant}, which is no number; a run whose accuracy is {constant} must be recorded as failed")


def _remedy(version: object) -> str:
    newer = isinstance(version, int) and version > VERSION
    return "update mixsage" if newer else "is this a file of records? Otherwise run the study again with this mixsage"


def _required(entry: Any) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def _start(line: bytes) -> str:
    return line[:60].decode(errors="replace")
