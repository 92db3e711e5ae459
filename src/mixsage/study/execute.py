"""One run of a study: train or continue, evaluate, and say what came out."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from mixsage.evaluation.judge import Subject, device_for, judge
from mixsage.study.records import Record
from mixsage.study.spec import Planned
from mixsage.training import RunFolder, result, train, with_settings
from mixsage.training.progress import Progress

_log = logging.getLogger("mixsage")


def execute(run: Planned, folder: Path, *, progress: Progress | None = None) -> Record:
    """The record of a run, which is made in ``folder``; a run that was cut short there is continued."""
    config = with_settings(run.config, {"out": folder / run.name})
    place = RunFolder(folder / run.name)
    with _alone(place.path):
        train(config, resume=place.description.exists(), progress=progress)
        return record_of(run, place)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process in this run's folder: two would undo one another's work. A worker may outlive a study that was killed, and studies
    that share runs may be made at the same time; whoever comes second waits, and finds the run done.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("another process is making the run in %s; waiting for it", folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            _log.warning(
                "no lock on the run in %s, as its file system has none (%s): let no other study make it now", folder, error
            )
        try:
            yield
        finally:
            # By name, not by closing: a process forked in the meantime holds the same open file, and would keep the lock.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)


def record_of(run: Planned, folder: RunFolder) -> Record:
    """What a complete run was, and what came out of it."""
    description, history = folder.read(), folder.history()
    settings = description["settings"]
    metrics = {**result(history), **_evaluation(run, folder.path, tested="test" in description["images"])}
    metrics["seconds"] = history[-1]["total_seconds"]
    metrics["images_per_second"] = sum(epoch["images_per_second"] for epoch in history) / len(history)
    per_class = settings["per_class"]
    return Record(
        run=run.name,
        arm=run.arm,
        data=settings["data"] if per_class is None else f"{settings['data']}, {per_class} a class",
        model=settings["model"] if settings["width"] is None else f"{settings['model']}, width {settings['width']}",
        seed=run.seed,
        epochs=settings["epochs"],
        method=settings["method"],
        settings=settings,
        metrics=metrics,
        history=history,
        versions=description["versions"],
        machine=description["machine"],
        commit=description["commit"],
        finished=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def failure_of(run: Planned, error: str) -> Record:
    """The record of a run that did not come to its end."""
    return Record(
        run=run.name,
        arm=run.arm,
        data=run.config.data.data,
        model=run.config.model.model,
        seed=run.seed,
        epochs=run.config.optimisation.epochs,
        status="failed",
        error=error,
        method=run.config.method.method,
    )


def _evaluation(run: Planned, path: Path, *, tested: bool) -> dict[str, float]:
    """Accuracy, calibration and robustness of the final weights on the test split, where there is one; and few-shot tasks, if asked for.

    The noise and the tasks are the same for all runs.
    """
    subject = Subject(target=str(path), data_dir=run.config.data.data_dir, device=device_for(run.config.hardware.device))
    found = judge(subject) if tested else {}
    few = run.fewshot
    if few is not None:
        scores = judge(replace(subject, data=few.data), shots=few.shots, ways=few.ways, tasks=few.tasks)
        for shots in few.shots:
            name = f"{few.ways}way_{shots}shot"
            found |= {f"fewshot_{shots}": scores[name], f"fewshot_{shots}_interval": scores[f"{name}_interval"]}
    return found
