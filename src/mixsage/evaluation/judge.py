"""A run, or anybody's model, judged on a data set: the one place where names become a model, a loader and numbers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from mixsage import data
from mixsage.data import DataSet, Images, generator
from mixsage.evaluation.features import features
from mixsage.evaluation.fewshot import prototype_accuracy
from mixsage.evaluation.load import load_model
from mixsage.evaluation.pixels import Normalised
from mixsage.evaluation.robustness import evaluate
from mixsage.evaluation.splits import Pixels
from mixsage.training import RunFolder, predict

_log = logging.getLogger("mixsage")

Extra = Literal["pgd", "autoattack", "corruptions"]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is judged."""

    target: str
    """Folder of a complete run; or a model: one of ours, ``timm:NAME``, ``package.module:factory``."""
    data: str | None = None
    """The data; a run's own if left out."""
    data_dir: Path | None = None
    """Where named data lies."""
    weights: Path | None = None
    """File of weights, for a model that is no run."""
    pretrained: bool = False
    """Take timm's published weights."""
    width: int | None = None
    """Channels at the start of one of our models."""
    mean: Sequence[float] | None = None
    """Normalisation that the weights were trained with, of pixels in [0, 1]; a run's, that of timm's published weights, or the data's own if
    left out."""
    std: Sequence[float] | None = None
    """Likewise."""
    which: Literal["final", "best"] = "final"
    """Which weights of a run."""
    device: str = "cpu"
    """Where the model runs."""
    batch_size: int = 500
    """Images at a time."""
    seed: int = 0
    """Of the noise, and of few-shot tasks."""


def judge(
    subject: Subject, *, extras: Sequence[Extra] = (), shots: Sequence[int] = (), ways: int = 5, tasks: int = 1000
) -> dict[str, float]:
    """`top1`, `top5`, `nll`, `ece`, `gaussian`, `fgsm`, `fgm`, `ood`; and what else is asked for.

    With ``shots``, only few-shot tasks are made of the data, whose classes the model need not know.
    """
    _check(subject, extras, shots)
    dataset, images, model = _open(subject, novel=bool(shots))
    loader = Pixels(images, dataset, subject.device, subject.batch_size)
    if shots:
        vectors = features(model, loader)
        found: dict[str, float] = {}
        for count in shots:
            one = prototype_accuracy(
                vectors, ways=ways, shots=count, tasks=tasks, generator=generator(subject.seed, "tasks", count)
            )
            found |= {f"{ways}way_{count}shot": one["accuracy"], f"{ways}way_{count}shot_interval": one["interval"]}
        return found
    found = evaluate(model, loader, generator=generator(subject.seed, "noise"))
    for extra in extras:
        found |= _extra(extra, model, loader, subject.seed)
    return found


def _check(subject: Subject, extras: Sequence[Extra], shots: Sequence[int]) -> None:
    """Whether everything that was asked for can be done: nothing is left out unsaid."""
    if shots and extras:
        raise ValueError(
            f"few-shot tasks are made of classes that the model need not know, {', '.join(extras)} of those that it knows; ask for one at a time"
        )
    if any(count < 1 for count in shots):
        raise ValueError(f"shots must be at least 1, got {', '.join(map(str, shots))}")
    if (subject.mean is None) != (subject.std is None):
        raise ValueError("mean and std belong together: give both, as the weights were trained with, or neither")


def _open(subject: Subject, *, novel: bool) -> tuple[DataSet, Images, Normalised]:
    run = RunFolder(Path(subject.target))
    if run.description.exists():
        return _open_run(subject, run, novel)
    if Path(subject.target).is_dir():
        raise ValueError(f"there is no run in {subject.target}: {run.description.name} is missing")
    if subject.data is None:
        raise ValueError("data is missing: name what the model is to be judged on, for example --data cifar10")
    if subject.which != "final":
        raise ValueError(f"which chooses between the weights of a run, and {subject.target!r} is none; name a file with weights")
    dataset = data.load(subject.data, folder=subject.data_dir)
    model = load_model(
        subject.target,
        num_classes=len(dataset.classes),
        mean=subject.mean or dataset.mean,
        std=subject.std or dataset.std,
        weights=subject.weights,
        width=subject.width,
        pretrained=subject.pretrained,
    )
    if subject.pretrained:
        model = _as_published(subject, model, dataset, novel)
    elif subject.weights is None and (":" not in subject.target or subject.target.startswith("timm:")):
        _log.warning(
            "%s has the random weights that it begins with, as none were named: its numbers are those of chance", subject.target
        )
    return dataset, _judged(dataset, novel), model.to(subject.device)


def _as_published(subject: Subject, model: Normalised, dataset: DataSet, novel: bool) -> Normalised:
    """timm's weights with the normalisation that they were trained with. For another number of classes timm puts random weights in the last layer."""
    known: dict[str, Any] = getattr(model.network, "pretrained_cfg", None) or {}
    classes = known.get("num_classes")
    if not novel and classes and classes != len(dataset.classes):
        raise ValueError(
            f"the weights of {subject.target} are for {classes} classes, {dataset.name} has {len(dataset.classes)}; "
            "train it on these first, or judge its features with shots"
        )
    if subject.mean is None and len(known.get("mean") or ()) == dataset.channels:
        return Normalised(model.network, mean=known["mean"], std=known["std"])
    return model


def _open_run(subject: Subject, run: RunFolder, novel: bool) -> tuple[DataSet, Images, Normalised]:
    if subject.weights is not None or subject.pretrained or subject.width is not None:
        raise ValueError(
            f"{subject.target} is a run and has its own weights and width; leave these out, or choose between its weights with --which"
        )
    network, description = predict.load_model(run.path, subject.device, subject.which)
    settings: dict[str, Any] = description["settings"]
    name, folder = subject.data or settings["data"], subject.data_dir or (settings["data_dir"] and Path(settings["data_dir"]))
    dataset = data.load(name, folder=folder, image_size=settings["image_size"], skip_corrupt=settings["skip_corrupt"])
    if not novel and len(dataset.classes) != len(description["classes"]):
        raise ValueError(
            f"the run knows {len(description['classes'])} classes, {name} has {len(dataset.classes)}; judge it on the classes that it was trained for"
        )
    if not novel and list(dataset.classes) != description["classes"]:
        _log.warning("the classes of %s are called otherwise than those of the run; they are taken one for one, in order", name)
    model = Normalised(network, mean=subject.mean or description["mean"], std=subject.std or description["std"])
    return dataset, _judged(dataset, novel), model.to(subject.device)


def _judged(dataset: DataSet, novel: bool) -> Images:
    """The test split; of classes that the model has not seen, all images may be judged where there is none."""
    split = dataset.test or dataset.validation or (dataset.train if novel else None)
    if split is None:
        raise ValueError(f"{dataset.name} has no test split; give a folder with test/ (or val/) beside train/")
    return split


def _extra(name: Extra, model: Normalised, loader: Pixels, seed: int) -> dict[str, float]:
    if name == "corruptions":
        from mixsage.evaluation.corruptions import common_corruptions

        return {"corruptions": common_corruptions(model, loader, seed=seed)["corruptions"]}
    from mixsage.evaluation import strong

    return strong.pgd(model, loader) if name == "pgd" else strong.autoattack(model, loader, seed=seed)


def device_for(name: str) -> str:
    """The device of this name; "auto" is a GPU of CUDA where there is one, as others lack the double precision that scores are counted in."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return predict.place(name)
