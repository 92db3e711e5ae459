"""All runs of a study, in this process, in several, or on a Ray cluster; what is done is skipped, what fails is tried again and reported."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixsage.study import records
from mixsage.study.execute import execute, failure_of
from mixsage.study.records import Record
from mixsage.study.spec import Planned, Study, read_study
from mixsage.training import Interrupted
from mixsage.training.build import check_names
from mixsage.training.signals import watch

_log = logging.getLogger("mixsage")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a study."""

    done: int
    """Runs whose records are there."""
    failed: tuple[str, ...]
    """Names of runs that failed every time."""


def run_study(
    spec: Path, out: Path, *, jobs: int = 1, ray: str | None = None, retries: int = 1, smoke: bool = False, say: Say = print
) -> Outcome:
    """Make all runs of a study that have no record yet.

    Args:
        spec: the study's TOML file.
        out: a folder: the runs go into ``out/runs``, their records into ``out/records.jsonl``.
        jobs: processes on this machine; 1 runs them here, one after the other.
        ray: address of a Ray cluster ("auto", or "local" for one on this machine), instead of ``jobs``.
        retries: how often a run that fails is tried again.
        smoke: make a trial of seconds of every arm, on the embedded sample.
        say: where lines about the progress go.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    if retries < 0:
        raise ValueError(f"retries must not be negative, got {retries}")
    study = read_study(spec, smoke=smoke)
    for run in study.runs:
        # Before the first run, not in the night when its turn comes.
        check_names(run.config)
    file = out / "records.jsonl"
    done = {record.run for record in records.latest(records.read(file))} if file.exists() else set()
    finished = {record.run for record in records.latest(records.read(file)) if record.status == "ok"} if file.exists() else set()
    waiting = [run for run in study.runs if run.name not in finished]
    say(
        f"{study.name}: {len(study.runs)} runs, {len(study.runs) - len(waiting)} done, {len(waiting)} to go" + _again(waiting, done)
    )
    failed = []
    began = time.monotonic()
    for number, record in enumerate(_records(study, waiting, spec, out, jobs, ray, retries, smoke), start=1):
        records.append(file, record)
        if record.status == "failed":
            failed.append(record.run)
        say(f"[{number}/{len(waiting)}, {time.monotonic() - began:.0f} s] {record.run}: {_result(record)}")
    if failed:
        say(f"{len(failed)} runs failed: {', '.join(failed)}; run the study again to try them again")
    elif waiting and study.baseline is not None:
        say(f"what the records support: mixsage study stats {shlex.quote(str(file))} --baseline {shlex.quote(study.baseline)}")
    return Outcome(done=len(study.runs) - len(failed), failed=tuple(failed))


def _records(
    study: Study, waiting: Sequence[Planned], spec: Path, out: Path, jobs: int, ray: str | None, retries: int, smoke: bool
) -> Iterable[Record]:
    if ray is not None:
        from mixsage.study.cluster import on_ray

        return on_ray(study, waiting, out / "runs", ray, retries)
    if jobs == 1:
        return (_attempt(run, out / "runs", retries) for run in waiting)
    return _in_processes(study, waiting, spec, out, jobs, retries, smoke)


def _attempt(run: Planned, folder: Path, retries: int) -> Record:
    """A run in this process, tried again when it fails: whatever a user's model or data may die of goes into the record, and the rest goes on."""
    for attempt in range(retries + 1):
        try:
            return execute(run, folder)
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001  # written into the record, with a traceback in the log
            _log.exception("%s failed, attempt %d of %d", run.name, attempt + 1, retries + 1)
            if attempt == retries:
                return failure_of(run, f"{type(error).__name__}: {error}")
    raise AssertionError("the loop returns")


def _in_processes(
    study: Study, waiting: Sequence[Planned], spec: Path, out: Path, jobs: int, retries: int, smoke: bool
) -> Iterator[Record]:
    """Each run in a process of its own, so that one that dies, whatever of, takes no other with it."""
    queue = [(run, 0) for run in waiting]
    active: dict[subprocess.Popen[str], tuple[Planned, int]] = {}
    # A signal to the study alone must not leave its workers behind.
    with watch() as wish:
        try:
            while queue or active:
                if wish.stop:
                    raise Interrupted("stopped as asked, the runs under way too")
                while queue and len(active) < jobs:
                    run, attempt = queue.pop(0)
                    active[_start(study, run, spec, out, smoke)] = (run, attempt)
                time.sleep(0.2)
                for process in [process for process in active if process.poll() is not None]:
                    run, attempt = active.pop(process)
                    answer = out / "runs" / run.name / "record.json"
                    if process.returncode == 0 and answer.exists():
                        yield Record.from_json(answer.read_text())
                    elif attempt < retries:
                        queue.insert(0, (run, attempt + 1))
                    else:
                        yield failure_of(run, _death(process.returncode, out / "runs" / f"{run.name}.log"))
        finally:
            for process in active:
                process.terminate()
            for process in active:
                process.wait()


def _start(study: Study, run: Planned, spec: Path, out: Path, smoke: bool) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(study.cores)}
    (out / "runs").mkdir(parents=True, exist_ok=True)
    with (out / "runs" / f"{run.name}.log").open("a") as log:
        command = [sys.executable, "-m", "mixsage.study.worker", str(spec), run.name, str(out / "runs")]
        command += ["--smoke"] if smoke else []
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, text=True)


def _death(code: int, log: Path) -> str:
    lines = [line for line in log.read_text().splitlines() if line.strip()] if log.exists() else []
    manner = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
    return f"the process ended with {manner}: {lines[-1] if lines else 'it said nothing'}"


def _again(waiting: Sequence[Planned], done: set[str]) -> str:
    again = sum(run.name in done for run in waiting)
    return f" ({again} of them failed before)" if again else ""


def _result(record: Record) -> str:
    if record.status == "failed":
        return f"failed: {record.error}"
    accuracy = record.metrics.get("last")
    return f"{accuracy:.2f} % in {record.metrics['seconds']:.0f} s" if accuracy is not None else "done, no test split"
