"""The training loop: batches through `accumulate`, evaluations, checkpoints, and a run that can be killed at any moment."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mixsage.data import Batch, Feed
from mixsage.saliency import evaluating
from mixsage.step import Step, accumulate
from mixsage.training import checkpoint, runs, state
from mixsage.training.config import Config, settings_of
from mixsage.training.loggers import open_loggers
from mixsage.training.meters import Meters
from mixsage.training.picture import save_batch
from mixsage.training.progress import Progress
from mixsage.training.runs import RunFolder
from mixsage.training.schedule import learning_rate
from mixsage.training.session import Session, open_fabric, open_session
from mixsage.training.signals import Interrupted, Wish, watch
from mixsage.training.state import Place

LAST_EPOCHS = 10
"""Epochs at the end that are always evaluated: the median of their accuracies is reported beside the last."""
_LOOK_EVERY = 50
"""Steps between looks at whether a loss on a device was finite: each look waits for the device."""


class NonFiniteLoss(RuntimeError):
    """The loss became NaN or infinite."""


class OutOfMemory(RuntimeError):
    """The batch does not fit."""


def train(config: Config, *, resume: bool = False, progress: Progress | None = None) -> RunFolder:
    """Train as configured, into ``config.run.out``; with ``resume``, continue the run that is there.

    Returns:
        The folder of the complete run.

    Raises:
        Interrupted: after SIGTERM or SIGINT, once a checkpoint is written.
        NonFiniteLoss: naming the step, and the checkpoint to go back to.
        OutOfMemory: naming the batch size that was tried.
    """
    if config.run.out is None:
        raise ValueError("out is missing: name the folder of the run, for example --out runs/first")
    folder, progress = RunFolder(config.run.out), progress or Progress()
    if resume and folder.complete:
        progress.say(f"the run in {folder.path} is complete already: {folder.weights}")
        return folder
    if not resume and folder.description.exists():
        folder.begin({})
    fabric = open_fabric(config, open_loggers(config, folder))
    if not fabric.is_global_zero:
        progress = Progress()
    with watch() as wish:
        try:
            session = open_session(config, fabric)
            place = _begin(session, folder, resume, progress)
            _run(session, folder, place, progress, wish)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            raise _named(error, config) from error
        finally:
            progress.end()
    return folder


def _begin(session: Session, folder: RunFolder, resume: bool, progress: Progress) -> Place:
    """Claim the folder, or take up the newest whole checkpoint in it."""
    config, dataset = session.config, session.dataset
    if not resume and session.fabric.is_global_zero:
        about = {
            "size": list(dataset.size),
            "channels": dataset.channels,
            "images": {name: feed.samples for name, feed in session.feeds.items()},
        }
        description = runs.describe(settings_of(config), classes=dataset.classes, mean=dataset.mean, std=dataset.std, **about)
        folder.begin(description)
    place, came_from = Place(), ""
    found = checkpoint.load_newest(folder.checkpoints) if resume else None
    if found:
        path, saved = found
        place = state.restore(session, saved)
        came_from = f", from {path.name}"
    if resume and session.fabric.is_global_zero:
        folder.rewind(place.epoch)
    steps = len(session.feeds["train"])
    progress.begin(
        epochs=config.optimisation.epochs,
        steps=steps,
        done=place.epoch * steps + place.step,
        title=_title(session, folder) + came_from,
    )
    return place


def _run(session: Session, folder: RunFolder, place: Place, progress: Progress, wish: Wish) -> None:
    epochs = session.config.optimisation.epochs
    while place.epoch < epochs:
        _epoch(session, folder, place, progress, wish)
        record = _record(session, place)
        place.epoch, place.step, place.epoch_seconds, place.meters = place.epoch + 1, 0, 0.0, Meters()
        if session.fabric.is_global_zero:
            folder.record(record)
            session.fabric.log_dict({name: value for name, value in record.items() if name != "epoch"}, step=place.epoch)
        progress.epoch(record)
        if place.epoch % session.config.run.checkpoint_epochs == 0 or place.epoch == epochs:
            _save(session, folder, place)
    weights = session.average.module.state_dict() if session.average is not None else state.model_state(session)
    if session.fabric.is_global_zero:
        folder.finish(weights)


def _epoch(session: Session, folder: RunFolder, place: Place, progress: Progress, wish: Wish) -> None:
    """The rest of the epoch that is under way."""
    feed, config = session.feeds["train"], session.config
    mixer = session.mixer_in(place.epoch)
    guard = _FiniteGuard(folder)
    began, before = time.perf_counter(), place.epoch_seconds
    session.model.train()
    for batch in feed.batches(place.epoch, start=place.step):
        at = place.epoch * len(feed) + place.step
        _set_rate(session, learning_rate(config.optimisation, at, len(feed)))
        generator = session.generator("mix", place.epoch, place.step, session.fabric.global_rank)
        records = _step(session, mixer, batch, generator)
        for part in records:
            _measure(place.meters, part, batch.labels)
        guard.watch(records[-1].loss, at)
        if at == 0 and session.fabric.is_global_zero:
            save_batch(folder.picture, batch.images, records[0].plan, session.dataset.mean, session.dataset.std)
        place.step += 1
        progress.step(place.epoch + 1, records[-1].loss, len(batch.images) * session.fabric.world_size)
        place.epoch_seconds = before + time.perf_counter() - began
        stop = _anyone_stops(session, wish, place.step)
        if stop or (config.run.checkpoint_steps and (at + 1) % config.run.checkpoint_steps == 0):
            guard.look()
            path = _save(session, folder, place)
            if stop:
                raise Interrupted(
                    f"stopped as asked after step {at + 1}; saved {path}; continue with: mixsage train --resume {folder.path}"
                )
    guard.look()
    if session.fabric.device.type == "cuda":
        torch.cuda.synchronize()
    place.epoch_seconds = before + time.perf_counter() - began
    place.seconds += place.epoch_seconds


def _step(session: Session, mixer: Any, batch: Batch, generator: torch.Generator) -> list[Step]:
    """Gradients of all microbatches, then one step of the optimiser."""
    settings = session.config.optimisation
    parts = settings.microbatches
    records = []
    for i, (images, labels) in enumerate(zip(batch.images.chunk(parts), batch.labels.chunk(parts), strict=True)):
        last = i == parts - 1
        with nullcontext() if last else session.fabric.no_backward_sync(session.model):
            record = accumulate(
                mixer,
                session.model,
                images,
                labels,
                criterion=session.criterion,
                weight=1 / parts,
                generator=generator,
                host=session.host,
            )
        records.append(record)
    if settings.clip is not None:
        session.fabric.clip_gradients(session.model, session.optimizer, max_norm=settings.clip, error_if_nonfinite=False)
    session.optimizer.step()
    session.optimizer.zero_grad(set_to_none=True)
    if session.average is not None:
        session.average.update_parameters(session.bare)
    return records


def _measure(meters: Meters, record: Step, labels: Tensor) -> None:
    count = len(record.logits)
    meters.add("train_loss", record.loss, count)
    meters.add("mixed_loss", record.mixed_loss, count)
    if record.clean_loss is not None:
        meters.add("clean_loss", record.clean_loss, count)
    clean = record.logits if record.plan.is_identity else record.clean_logits
    if clean is not None and len(clean) == len(labels):
        meters.add("train_top1", 100 * (clean.argmax(1) == labels).double().mean(), count)


def _record(session: Session, place: Place) -> dict[str, Any]:
    """The line of an epoch in metrics.jsonl."""
    feed, optimisation = session.feeds["train"], session.config.optimisation
    number = place.epoch + 1
    record: dict[str, Any] = {"epoch": number, **place.meters.means(session.sum)}
    record["lr"] = learning_rate(optimisation, place.epoch * len(feed) + len(feed) - 1, len(feed))
    if number % session.config.run.eval_every == 0 or number > optimisation.epochs - LAST_EPOCHS:
        for split in ("val", "test"):
            if split in session.feeds:
                record |= {f"{split}_{name}": value for name, value in evaluate(session, session.feeds[split]).items()}
    record["seconds"] = place.epoch_seconds
    record["total_seconds"] = place.seconds
    record["images_per_second"] = len(feed) * optimisation.batch_size / place.epoch_seconds
    return record


def evaluate(session: Session, feed: Feed) -> dict[str, float]:
    """Top-1 accuracy in per cent and mean cross-entropy of the current weights, or of their average where one is kept."""
    model = session.model if session.average is None else session.average
    device = session.fabric.device
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    with torch.no_grad(), evaluating(model), session.fabric.autocast() if session.average is not None else nullcontext():
        for batch in feed.batches(0):
            logits = model(batch.images).float()
            loss = functional.cross_entropy(logits, batch.labels, reduction="sum")
            correct = (logits.argmax(1) == batch.labels).sum()
            sums += torch.stack([correct.double(), loss.double(), torch.full((), len(logits), dtype=torch.float64, device=device)])
    correct, loss, count = session.sum(sums).tolist()
    return {"top1": 100 * correct / count, "loss": loss / count}


def _save(session: Session, folder: RunFolder, place: Place) -> Path:
    saved = state.capture(session, place)
    at = place.epoch * len(session.feeds["train"]) + place.step
    path = folder.checkpoints / f"step-{at:09d}.ckpt"
    if session.fabric.is_global_zero:
        try:
            path = checkpoint.save(folder.checkpoints, at, saved)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise checkpoint.CheckpointError(
                f"the disk is full: could not save step {at}; {_last_good(folder)}; free some space and resume"
            ) from error
    session.fabric.barrier()
    return path


def _set_rate(session: Session, rate: float) -> None:
    for group in session.optimizer.param_groups:
        group["lr"] = rate


def _anyone_stops(session: Session, wish: Wish, step: int) -> bool:
    """Whether any process was asked to stop; several processes ask one another now and then, so that they stop at the same step."""
    if session.fabric.world_size == 1:
        return wish.stop
    if step % 10:
        return False
    return bool(session.sum(torch.tensor(float(wish.stop), device=session.fabric.device)) > 0)


class _FiniteGuard:
    """Notices the first loss that is not finite: at once on the CPU, at the next look on a device."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.first: Tensor | None = None

    def watch(self, loss: Tensor, at: int) -> None:
        bad = torch.where(loss.isfinite(), -1, at)
        self.first = bad if self.first is None else torch.where(self.first >= 0, self.first, bad)
        if loss.device.type == "cpu" or (at + 1) % _LOOK_EVERY == 0:
            self.look()

    def look(self) -> None:
        if self.first is not None and int(self.first) >= 0:
            raise NonFiniteLoss(
                f"the loss of step {int(self.first) + 1} is not finite, so the run stops here; {_last_good(self.folder)}; "
                "a lower lr, clip, or precision bf16 instead of fp16 may help"
            )


def _last_good(folder: RunFolder) -> str:
    found = checkpoint.all_of(folder.checkpoints)
    return f"the last good checkpoint is {found[-1]}" if found else "there is no checkpoint yet"


def _named(error: RuntimeError, config: Config) -> Exception:
    """The error itself, or a clear one where memory ran out."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text or "out of memory" in text.lower():
        size, parts = config.optimisation.batch_size, config.optimisation.microbatches
        each = size // parts
        return OutOfMemory(
            f"out of memory with {each} images at a time (batch_size {size}, microbatches {parts}); try --microbatches {parts * 2}"
        )
    return error


def _title(session: Session, folder: RunFolder) -> str:
    config = session.config
    sizes = ", ".join(f"{feed.samples:,} {name}" for name, feed in session.feeds.items())
    parameters = sum(p.numel() for p in session.bare.parameters())
    return (
        f"{config.model.model} ({parameters:,} parameters), {config.method.method}, {session.dataset.name} ({sizes}), "
        f"{session.fabric.device} {config.hardware.precision}, into {folder.path}"
    )


def result(history: list[Mapping[str, Any]], split: str = "test") -> dict[str, float]:
    """The three accuracies of a run: after the last epoch, the best of all, and the median of the last ten."""
    values = [record[f"{split}_top1"] for record in history if f"{split}_top1" in record]
    if not values:
        return {}
    tail = sorted(values[-LAST_EPOCHS:])
    middle = len(tail) // 2
    median = tail[middle] if len(tail) % 2 else (tail[middle - 1] + tail[middle]) / 2
    return {"last": values[-1], "best": max(values), "median_of_last_ten": median}
