"""What methods would do to images of yours, drawn before any long training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from mixsage import data
from mixsage.data import DataSet, generator
from mixsage.evaluation.explain import Subject, pairs
from mixsage.evaluation.story import story, sweep
from mixsage.methods import Mixer, available
from mixsage.methods.manifold import ManifoldMixup
from mixsage.methods.mixup import Mixup
from mixsage.methods.sage import SAGE
from mixsage.rearrange import NoShift, Paste
from mixsage.reports import figures, published
from mixsage.reports.shown import Shown
from mixsage.step import accumulate
from mixsage.training import predict
from mixsage.training.build import build_mixer, build_model

COUNT = 4
"""Pairs in the gallery."""
COMPANY = 20
"""Images in all: the pairs', and others for methods that mix more than two."""


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
    """Write the `drawings` into a folder, each as PNG and as SVG; returns the files."""
    drawn = drawings(source=source, folder=folder, run=run, methods=methods, steps=steps, seed=seed)
    return [figures.save(one.figure, out / f"{one.name}.{kind}") for kind in ("png", "svg") for one in drawn]


def drawings(
    *,
    source: str | None = None,
    folder: Path | None = None,
    run: Path | None = None,
    methods: Sequence[str] = ("mixup", "cutmix", "sage"),
    steps: int = 100,
    seed: int = 0,
) -> list[Shown]:
    """The methods' mixes; SAGE's pipeline, its mask against Mixup's, its rearrangements, its shares and its ablations.

    Args:
        source: the data, by name, folder or hub id; a run's own if left out.
        folder: where named data lies.
        run: a run whose model looks at the images. Without one, a small network is trained for a few seconds.
        methods: what to show, by name or with settings; SAGE is explained beside its mixes.
        steps: steps of the small network's training.
        seed: of the choice of images, and of the methods' own choices.
    """
    subject, title = _subject(source, folder, run, steps, seed)
    mixers = {_heading(name, mixer): mixer for name in methods for mixer in [_mixer(name, subject)]}
    explained = next((name for name, mixer in mixers.items() if isinstance(mixer, SAGE)), None)
    sage = next((mixer for mixer in mixers.values() if isinstance(mixer, SAGE)), SAGE())
    choices, grey = generator(seed, "preview"), subject.images.shape[1] == 1
    shown = range(0, min(2 * COUNT, len(subject.images)), 2)
    found = pairs(subject, mixers, shown=shown, generator=choices, least_share=0.2, tint=grey)
    told = story(subject, mixer=sage, generator=choices, tint=grey)
    beside = {"Mixup": Mixup(), "SAGE": sage}
    (against,) = pairs(subject, beside, shown=[0], generator=generator(seed, "against"), least_share=0.2, tint=grey)
    ablated = pairs(subject, _ablations(sage), shown=shown, generator=generator(seed, "ablations"), least_share=0.2, tint=grey)
    return [
        Shown(
            name="gallery",
            caption=f"The same pairs of images under each method ({title}). Blue is the image's share of the label, orange its partner's.",
            figure=figures.gallery(found, explained=explained, title=f"The same pairs under each method ({title})"),
            wide=True,
        ),
        Shown(name="pipeline", caption="How SAGE mixes one pair, step by step.", figure=figures.pipeline(told), wide=True),
        Shown(name="against-mixup", caption="Mask and mix of SAGE beside those of Mixup.", figure=figures.against_mixup(against)),
        Shown(
            name="ablations",
            caption="SAGE whole, without saliency-guided mixing (the shifted partner covers the image), and without rearrangement.",
            figure=figures.gallery(ablated, explained=None, title="SAGE and what it is without each of its parts"),
        ),
        Shown(
            name="rearrangements",
            caption="Rearrangements τ of one pair with the saliency v(τ) that each keeps, and the surface of all.",
            figure=figures.rearrangements(told),
            wide=True,
        ),
        Shown(
            name="shares",
            caption="The share λ of the image's own saliency rises; each time the best of all shifts.",
            figure=figures.shares(sweep(subject, mixer=sage, tint=grey)),
            wide=True,
        ),
    ]


def _subject(source: str | None, folder: Path | None, run: Path | None, steps: int, seed: int) -> tuple[Subject, str]:
    """Images and the model that looks at them, and the name of the data."""
    network, description = (None, None) if run is None else predict.load_model(run)
    size = None
    if description is not None:
        settings = description["settings"]
        source, size = source or str(settings["data"]), settings["image_size"]
        folder = folder or (settings["data_dir"] and Path(settings["data_dir"]))
    if source is None:
        raise ValueError("data is missing: name the images to look at with --data, or a run with --run")
    dataset = data.load(source, folder=folder, image_size=size)
    mean, std = (dataset.mean, dataset.std) if description is None else (description["mean"], description["std"])
    if len(mean) != dataset.channels:
        raise ValueError(f"the run looks at images of {len(mean)} channels, those of {dataset.name} have {dataset.channels}")
    images, labels = _choose(dataset, seed)
    model = network or _small_network(dataset, steps, seed)
    return Subject(images=images, labels=labels, names=dataset.classes, mean=mean, std=std, model=model), published.title(
        "data", dataset.name
    )


def _mixer(notation: str, subject: Subject) -> Mixer:
    mixer = build_mixer(notation, tuple(subject.mean), tuple(subject.std))
    # What is mixed in a hidden layer cannot be seen.
    return replace(mixer, layers=("input",)) if isinstance(mixer, ManifoldMixup) and mixer.layers is None else mixer


def _ablations(sage: SAGE) -> dict[str, Mixer]:
    return {
        "SAGE": sage,
        "without saliency-\nguided mixing": replace(sage, blend=Paste()),
        "without\nrearrangement": replace(sage, search=NoShift()),
    }


def _heading(name: str, mixer: Mixer) -> str:
    """What stands above a method's column, as the paper writes it; settings have a line of their own."""
    _, bracket, settings = name.strip().partition("(")
    known = type(mixer).__module__.rpartition(".")[2]
    title = published.title("methods", known) if known in available() else type(mixer).__name__
    return f"{title}\n({settings}" if bracket else title


def _choose(dataset: DataSet, seed: int) -> tuple[Tensor, Tensor]:
    """Images of classes that differ from one to the next, in the size of the batches, as bytes."""
    from mixsage.evaluation.splits import Pixels

    split = dataset.test or dataset.train
    order = torch.randperm(len(split), generator=generator(seed, "choice")).tolist()
    chosen: list[int] = []
    for row in order:
        if len(chosen) < COMPANY and (not chosen or split.labels[row] != split.labels[chosen[-1]]):
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
