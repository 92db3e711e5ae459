"""What methods would do to images of yours, drawn before any long training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mixsage import data
from mixsage.data import DataSet, generator
from mixsage.evaluation.explain import Subject, pairs
from mixsage.evaluation.story import story, sweep
from mixsage.methods.sage import SAGE
from mixsage.reports import figures
from mixsage.step import accumulate
from mixsage.training import predict
from mixsage.training.build import build_mixer, build_model

COUNT = 4
"""Pairs in the gallery."""


def preview(
    out: Path,
    *,
    source: str | None = None,
    folder: Path | None = None,
    run: Path | None = None,
    methods: Sequence[str] = ("mixup", "cutmix", "sage"),
    steps: int = 100,
    seed: int = 0,
) -> list[Path]:
    """Draw the methods' mixes, SAGE's pipeline, its rearrangements and its shares; returns the files.

    Args:
        out: folder of the pictures.
        source: the data, by name, folder or hub id; a run's own if left out.
        folder: where named data lies.
        run: a run whose model looks at the images. Without one, a small network is trained for a few seconds.
        methods: what to show, by name or with settings; the last one is explained beside its mixes.
        steps: steps of the small network's training.
        seed: of the choice of images, and of the methods' own choices.
    """
    network, description = (None, None) if run is None else predict.load_model(run)
    if source is None and description is not None:
        source = str(description["settings"]["data"])
    if source is None:
        raise ValueError("data is missing: name the images to look at with --data, or a run with --run")
    dataset = data.load(source, folder=folder)
    mean, std = (dataset.mean, dataset.std) if description is None else (description["mean"], description["std"])
    images, labels = _choose(dataset, seed)
    subject = Subject(
        images=images,
        labels=labels,
        names=dataset.classes,
        mean=mean,
        std=std,
        model=network or _small_network(dataset, steps, seed),
    )
    source_of_choices = generator(seed, "preview")
    mixers = {name: build_mixer(name, tuple(mean), tuple(std)) for name in methods}
    grey = dataset.channels == 1
    found = pairs(subject, mixers, generator=source_of_choices, least_share=0.2, tint=grey)[::2]
    explained = next((name for name, mixer in mixers.items() if isinstance(mixer, SAGE)), None)
    made = [
        figures.save(
            figures.gallery(found, explained=explained, title=f"{dataset.name}: the same pairs under each method"),
            out / "gallery.png",
        )
    ]
    sage = next((mixer for mixer in mixers.values() if isinstance(mixer, SAGE)), SAGE())
    told = story(subject, mixer=sage, generator=source_of_choices, tint=grey)
    made.append(figures.save(figures.pipeline(told), out / "pipeline.png"))
    made.append(figures.save(figures.rearrangements(told), out / "rearrangements.png"))
    made.append(figures.save(figures.shares(sweep(subject, mixer=sage, tint=grey)), out / "shares.png"))
    return made


def _choose(dataset: DataSet, seed: int) -> tuple[Tensor, Tensor]:
    """Images of classes that differ from one to the next, in the size of the batches, as bytes."""
    from mixsage.evaluation.splits import Pixels

    split = dataset.test or dataset.train
    order = torch.randperm(len(split), generator=generator(seed, "choice")).tolist()
    chosen: list[int] = []
    for row in order:
        if len(chosen) < 2 * COUNT and (not chosen or split.labels[row] != split.labels[chosen[-1]]):
            chosen.append(row)
    if len(chosen) < 2:
        raise ValueError(f"a preview pairs images of different classes; {dataset.name} has too few")
    part = data.Images(
        labels=split.labels[chosen], reader=lambda i: split.read(chosen[i]), names=[split.name(row) for row in chosen]
    )
    pixels, labels = next(iter(Pixels(part, dataset, batch_size=len(chosen))))
    return pixels, labels


def _small_network(dataset: DataSet, steps: int, seed: int) -> nn.Module:
    """A network that knows the classes roughly: enough for saliency that means something."""
    with torch.random.fork_rng(devices=[]):  # the first weights are drawn from torch's own state, which is the caller's
        torch.default_generator.manual_seed(seed)
        model = build_model("small_convnet", num_classes=len(dataset.classes), channels=dataset.channels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = data.feed(dataset.train, None, dataset, batch_size=min(64, len(dataset.train)), train=True, seed=seed, device="cpu")
    done = epoch = 0
    while done < steps:
        for batch in batches.batches(epoch):
            accumulate(build_mixer("clean", dataset.mean, dataset.std), model, batch.images, batch.labels)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            if done == steps:
                break
        epoch += 1
    return model.eval()
