"""The training loop: batches through `accumulate`, evaluations, checkpoints, and a run that can be killed at any moment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from mixsage.data import Batch
from mixsage.methods import Mixer
from mixsage.step import Step, accumulate
from mixsage.training import checkpoint, runs, state
from mixsage.training.build import check_names
from mixsage.training.config import Config, settings_of
from mixsage.training.exact import reproducible
from mixsage.training.faults import FiniteGuard, named
from mixsage.training.loggers import Loggers
from mixsage.training.meters import Meters
from mixsage.training.picture import save_batch
from mixsage.training.progress import Progress
from mixsage.training.runs import RunFolder
from mixsage.training.schedule import learning_rate
from mixsage.training.scores import LAST_EPOCHS, evaluate
from mixsage.training.session import Session, end_processes, open_fabric, open_session
from mixsage.training.signals import Interrupted, Wish, watch
from mixsage.training.state import Place

_ASK_EVERY = 20
"""Steps after which several processes ask one another whether to stop."""


def train(config: Config, *, resume: bool = False, progress: Progress | None = None) -> RunFolder:
    """Train as configured, into ``config.run.out``; with ``resume``, continue the run that is there.

    Returns:
        The folder of the complete run.

    Raises:
        Interrupted: after SIGTERM or SIGINT, once a checkpoint is written.
        NonFiniteLoss: naming the step, and the checkpoint to go back to.
        OutOfMemory: naming the batch size that was tried.
        DiskFull: naming the checkpoint to go back to.

    Example:
        >>> import tempfile
        >>> settings = {"model": "small_convnet", "width": 4, "per_class": 20, "epochs": 1, "out": tempfile.mkdtemp(), "device": "cpu"}
        >>> folder = train(with_settings(Config(), settings))
        >>> folder.history()[0]["epoch"]
        1
    """
    if config.run.out is None:
        raise ValueError("out is missing: name the folder of the run, for example --out runs/first")
    folder, progress = RunFolder(config.run.out), progress or Progress()
    if resume and folder.complete:
        progress.say(f"the run in {folder.path} is complete already")
        return folder
    if not resume:
        folder.check_free()
    check_names(config)
    with watch() as wish:
        fabric = open_fabric(config)
        progress = progress if fabric.is_global_zero else Progress()
        claimed_here = not (resume or folder.description.exists())
        starts = not (resume and checkpoint.all_of(folder.checkpoints))
        try:
            with reproducible(config.hardware.deterministic and fabric.device.type == "cuda"):
                _Training(open_session(config, fabric, starts=starts), folder, progress, wish).run(resume)
        except Exception as error:
            if not isinstance(error, Interrupted):
                end_processes(fabric)
                if claimed_here and fabric.is_global_zero:
                    folder.release()
            clear = named(error, config, folder)
            if clear is error:
                raise
            raise clear from error
        finally:
            progress.end()
    return folder


class _Training:
    """A sitting of a run: what all its parts need, and where it is."""

    def __init__(self, session: Session, folder: RunFolder, progress: Progress, wish: Wish) -> None:
        self.session = session
        self.config = session.config
        self.folder = folder
        self.progress = progress
        self.wish = wish
        self.guard = FiniteGuard(session, folder)
        self.place = Place()
        self.steps = len(session.feeds["train"])
        self.is_first = bool(session.fabric.is_global_zero)

    def run(self, resume: bool) -> None:
        """From wherever the run is to its end."""
        came_from = self._resume() if resume else self._begin()
        place, epochs = self.place, self.config.optimisation.epochs
        title = _title(self.session, self.folder) + came_from
        self.progress.begin(epochs=epochs, steps=self.steps, done=self._done, title=title)
        loggers = Loggers(self.config, self.folder, place.epoch) if self.is_first else None
        while place.epoch < epochs:
            self._train_epoch()
            record = self._record()
            self._keep_best(record)
            place.turn()
            if loggers is not None:
                self.folder.record(record)
                loggers.record(record)
            self.progress.epoch(record)
            if place.epoch % self.config.run.checkpoint_epochs == 0 or place.epoch == epochs:
                self._save()
        self._keep(self.folder.weights)
        if loggers is not None:
            loggers.end(complete=True)

    @property
    def _done(self) -> int:
        """Steps done in the whole run."""
        return self.place.epoch * self.steps + self.place.step

    # -------------------------------------------------------------------------------------------------------------- beginnings

    def _begin(self) -> str:
        """Claim the folder."""
        session, data = self.session, self.session.dataset
        if self.is_first:
            description = runs.describe(
                settings_of(runs.with_full_paths(self.config)),
                classes=data.classes,
                mean=data.mean,
                std=data.std,
                size=list(data.size),
                channels=data.channels,
                augmentation=data.augmentation,
                images=session.images,
            )
            self.folder.begin(description)
        session.fabric.barrier()
        return ""

    def _resume(self) -> str:
        """Take up the newest whole checkpoint."""
        session = self.session
        description = self.folder.read()
        images = session.images
        if description["images"] != images:
            raise ValueError(
                f"the run began with {_sizes(description['images'])} images, the data now have {_sizes(images)} images; "
                "bring back the data as they were, or begin a new run"
            )
        for change in runs.changes(description, runs.provenance()):
            self.progress.say(f"the run may not have the same bits as without the break: {change}")
        found = checkpoint.load_newest(self.folder.checkpoints)
        if found:
            self.place = state.restore(session, found[1])
        session.fabric.barrier()
        if self.is_first:
            self.folder.begin_again(self.place.epoch)
        return f"\ncontinues from {found[0].name}" if found else "\ncontinues from its first step, as there is no checkpoint yet"

    # ------------------------------------------------------------------------------------------------------------------- steps

    def _train_epoch(self) -> None:
        """The rest of the epoch that is under way."""
        session, config, place = self.session, self.config, self.place
        feed, mixer = session.feeds["train"], session.mixer_in(place.epoch)
        clock = _Clock(place)
        session.model.train()
        for batch in feed.batches(place.epoch, start=place.step):
            done = self._done
            _set_rate(session, learning_rate(config.optimisation, done, self.steps))
            # The same on all processes: the host lets each draw on its own from here.
            generator = session.generator("mix", place.epoch, place.step)
            loss, plan = _step(session, mixer, batch, generator, place.meters)
            self.guard.watch(loss, done)
            if done == 0 and self.is_first:
                save_batch(self.folder.picture, batch.images, plan, session.dataset.mean, session.dataset.std)
            place.step += 1
            self.progress.step(place.epoch + 1, loss, len(batch.images) * session.fabric.world_size)
            clock.read()
            self._stop_if_asked(every=_ASK_EVERY)
            if config.run.checkpoint_steps and (done + 1) % config.run.checkpoint_steps == 0:
                self._save()
        self.guard.look()
        clock.read(wait_for=session.fabric.device)
        self._stop_if_asked()

    def _stop_if_asked(self, every: int = 1) -> None:
        """Save and end the sitting, if anybody asked any process to stop; several processes ask one another, all at the same step."""
        if self.session.fabric.world_size > 1:
            asked = self._done % every == 0 and any(self.session.gather(self.wish.stop))
        else:
            asked = self.wish.stop
        if asked:
            path = self._save()
            raise Interrupted(
                f"stopped as asked after step {self._done}, saved as {path}\ncontinue with: mixsage train --resume {self.folder.path}"
            )

    # --------------------------------------------------------------------------------------------------------- ends of epochs

    def _record(self) -> dict[str, Any]:
        """The line of an epoch in metrics.jsonl."""
        session, place, optimisation = self.session, self.place, self.config.optimisation
        number = place.epoch + 1
        record: dict[str, Any] = {"epoch": number, **place.meters.means(session.sum)}
        record["lr"] = learning_rate(optimisation, self._done - 1, self.steps)
        if number % self.config.run.eval_every == 0 or number > optimisation.epochs - LAST_EPOCHS:
            for split in ("val", "test"):
                if split in session.feeds:
                    scores = evaluate(session, session.feeds[split], self._between_batches)
                    record |= {f"{split}_{name}": value for name, value in scores.items()}
        record["seconds"] = place.epoch_seconds
        record["total_seconds"] = place.seconds + place.epoch_seconds
        record["images_per_second"] = self.steps * optimisation.batch_size / place.epoch_seconds
        return record

    def _between_batches(self) -> None:
        """An evaluation may take long, so one process alone looks up from it; the epoch's end is then evaluated by the next sitting."""
        if self.session.fabric.world_size == 1:
            self._stop_if_asked()

    def _keep_best(self, record: Mapping[str, Any]) -> None:
        accuracy = record.get("val_top1")
        if accuracy is not None and (self.place.best is None or accuracy > self.place.best):
            self.place.best = accuracy
            self._keep(self.folder.best)

    def _keep(self, path: Path) -> None:
        weights = state.weights_of(self.session)
        if self.is_first:
            self.folder.keep(path, weights)

    def _save(self) -> Path:
        self.guard.check_weights(self._done)
        saved = state.capture(self.session, self.place)
        if self.is_first:
            checkpoint.save(self.folder.checkpoints, self._done, saved)
        self.session.fabric.barrier()
        return checkpoint.path_of(self.folder.checkpoints, self._done)


def _step(session: Session, mixer: Mixer, batch: Batch, generator: Generator, meters: Meters) -> tuple[Tensor, Any]:
    """Gradients of all microbatches, then one step of the optimiser; the mean loss, and the plan of the first microbatch."""
    settings = session.config.optimisation
    parts = list(zip(batch.images.chunk(settings.microbatches), batch.labels.chunk(settings.microbatches), strict=True))
    records: list[Step] = []
    for i, (images, labels) in enumerate(parts):
        with nullcontext() if i == len(parts) - 1 else session.host.no_sync():
            record = accumulate(
                mixer,
                session.model,
                images,
                labels,
                criterion=session.criterion,
                weight=1 / len(parts),
                generator=generator,
                host=session.host,
            )
        _measure(meters, record, labels)
        records.append(record)
    if settings.clip is not None:
        session.fabric.clip_gradients(session.model, session.optimizer, max_norm=settings.clip, error_if_nonfinite=False)
    session.optimizer.step()
    session.optimizer.zero_grad(set_to_none=True)
    if session.average is not None:
        session.average.update_parameters(session.bare)
    return torch.stack([record.loss for record in records]).mean(), records[0].plan


def _measure(meters: Meters, record: Step, labels: Tensor) -> None:
    count = len(record.logits)
    meters.add("train_loss", record.loss, count)
    if record.clean_loss is not None:
        meters.add("clean_loss", record.clean_loss, count)
        meters.add("mixed_loss", record.mixed_loss, count)
    clean = record.logits if record.plan.is_identity else record.clean_logits
    if clean is not None:
        meters.add("train_top1", 100 * (clean.argmax(1) == labels).double().mean(), count)


class _Clock:
    """Adds the time since it was made to the epoch that is under way."""

    def __init__(self, place: Place) -> None:
        self.place, self.before, self.began = place, place.epoch_seconds, time.perf_counter()

    def read(self, wait_for: torch.device | None = None) -> None:
        """Note the time, once the device is done if one is given."""
        if wait_for is not None and wait_for.type == "cuda":
            torch.cuda.synchronize(wait_for)
        self.place.epoch_seconds = self.before + time.perf_counter() - self.began


def _set_rate(session: Session, rate: float) -> None:
    for group in session.optimizer.param_groups:
        group["lr"] = rate


def _title(session: Session, folder: RunFolder) -> str:
    config, fabric = session.config, session.fabric
    parameters = sum(p.numel() for p in session.bare.parameters())
    processes = f" × {fabric.world_size}" if fabric.world_size > 1 else ""
    return (
        f"{config.model.model} ({parameters:,} parameters) with {config.method.method} on {session.dataset.name} "
        f"({_sizes(session.images)} images)\n{fabric.device}{processes}, {config.hardware.precision}, into {folder.path}"
    )


def _sizes(images: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in images.items())
