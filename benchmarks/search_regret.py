"""What a lesser search gives up, and how many shifts the fourier engine rescores, on saliency maps of real images.

python benchmarks/search_regret.py [--quick] [--json benchmarks/results/search_regret.json]

A small network learns each set for a few hundred steps; its input gradients are then the maps, as SAGE takes them: smoothed, normalised, rescaled
by λ ~ U(0, 0.6), each with a partner of its batch. Regret is the share of the best of all total saliencies that a search misses. The sets are
CIFAR-10 at 32×32, and photographs at 224×224 from a folder of class folders (--photographs, or `pets` where MIXSAGE_DATA says). Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, environment, median_and_spread
from torch import Tensor
from torch.nn.functional import cross_entropy

from mixsage import data, models, sampling
from mixsage.data.sources import home
from mixsage.rearrange import Full, Guided, NoShift, Sampled, Search, all_shifts, direct, fourier
from mixsage.rearrange.blend import pair_maps
from mixsage.rearrange.exponentials import COARSE
from mixsage.saliency import InputGradient, input_gradient, normalise, smooth

BEST = Full()
SEARCHES: dict[str, Search] = {
    "Full(reduce=2)": Full(reduce=2),
    "Full(reduce=4)": Full(reduce=4),
    "Full(stride=2)": Full(stride=2),
    "Full(stride=4)": Full(stride=4),
    "Full(max_shift=0.5)": Full(max_shift=0.5),
    "Full(max_shift=0.25)": Full(max_shift=0.25),
    "Sampled(0.1)": Sampled(0.1),
    "Sampled(0.01)": Sampled(0.01),
    "NoShift()": NoShift(),
}
FOUND = 1e-6
"""A regret below this is the rounding of float32: the search has found the best, or one that keeps as much."""
TRUNCATION = 0.6


@dataclass(frozen=True, kw_only=True)
class Set:
    """Where images come from, and the network that looks at them."""

    title: str
    data: str
    side: int
    learns_at: int
    """The side of the images that the network learns from: large ones would take a CPU an hour."""
    width: int
    batch: int
    steps: int
    pairs: int


def sets(photographs: Path, quick: bool) -> list[Set]:
    if quick:
        return [Set(title="sample, 28×28", data="sample-tiny", side=28, learns_at=28, width=4, batch=20, steps=2, pairs=20)]
    return [
        Set(title="CIFAR-10, 32×32", data="cifar10", side=32, learns_at=32, width=16, batch=100, steps=600, pairs=1000),
        Set(title="photographs, 224×224", data=str(photographs), side=224, learns_at=112, width=8, batch=32, steps=250, pairs=96),
    ]


def trained(chosen: Set) -> tuple[torch.nn.Module, float]:
    """A network after a few hundred plain steps, and its mean loss in the last tenth of them."""
    dataset = data.load(chosen.data, image_size=chosen.learns_at)
    torch.manual_seed(0)
    model = models.preactresnet18(
        num_classes=len(dataset.classes), in_channels=dataset.channels, width=chosen.width, final_norm=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    batches = data.feed(dataset.train, None, dataset, batch_size=chosen.batch, train=True, seed=0, device="cpu", workers=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=chosen.steps + 1)
    losses: list[float] = []
    epoch = 0
    while len(losses) < chosen.steps:
        for images, labels, _ in batches.batches(epoch):
            loss = cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            losses.append(loss.item())
            if len(losses) == chosen.steps:
                break
        epoch += 1
    last = losses[-max(1, chosen.steps // 10) :]
    return model, sum(last) / len(last)


def maps_of(model: torch.nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The pair of maps that SAGE searches, in its own order of draws, with a share for each pair."""
    gradient = input_gradient(model, images, lambda logits: labels, cross_entropy)
    maps = normalise(smooth(InputGradient()(images, gradient)))
    partners = sampling.partners(len(images), generator)
    return pair_maps(maps, partners, sampling.uniform(TRUNCATION, len(images), generator))


def kept(search: Search, first: Tensor, second: Tensor) -> Tensor:
    """v [B] in double precision, of the shifts that a search finds."""
    shifts = search(first, second, blend=Guided(), generator=torch.Generator().manual_seed(0))
    return direct.at(first.double(), second.double(), shifts)


def candidates(first: Tensor, second: Tensor) -> Tensor:
    """How many shifts [B] the first look leaves to be rescored."""
    found = fourier.surface(first, second, all_shifts(first.shape[1], first.shape[2]), COARSE)
    return (found.upper >= found.lower.amax(dim=1, keepdim=True)).sum(dim=1)


def without_a_look(first: Tensor, second: Tensor) -> Tensor:
    """v [B] of what the fourier engine finds on devices, where a fixed number of shifts is rescored."""
    shifts = all_shifts(first.shape[1], first.shape[2])
    places, _ = fourier.best_of_top(first, second, shifts)
    return direct.at(first.double(), second.double(), shifts[places])


def distribution(regret: Tensor) -> dict[str, Any]:
    """Mean, quantiles, largest, and the share of pairs without any."""
    return {
        "mean": float(regret.mean()),
        **median_and_spread(regret.tolist()),
        "max": float(regret.max()),
        "found": float((regret < FOUND).double().mean()),
    }


def measure(chosen: Set) -> dict[str, Any]:
    """Regrets of every search, and candidates, over the pairs of a set."""
    model, loss = trained(chosen)
    dataset = data.load(chosen.data, image_size=chosen.side)
    assert dataset.test is not None
    rows = torch.randperm(len(dataset.test), generator=data.generator(0, "pairs"))[: chosen.pairs]
    batches = data.feed(dataset.test, rows, dataset, batch_size=chosen.batch, train=False, seed=0, device="cpu", workers=0)
    missed: dict[str, list[Tensor]] = {name: [] for name in SEARCHES}
    blind: list[Tensor] = []
    counts: list[Tensor] = []
    for number, (images, labels, _) in enumerate(batches.batches(0)):
        first, second = maps_of(model, images, labels, data.generator(0, "shares", number))
        best = kept(BEST, first, second)
        counts.append(candidates(first, second))
        blind.append((best - without_a_look(first, second)) / best)
        for name, search in SEARCHES.items():
            missed[name].append((best - kept(search, first, second)) / best)
    rescored = torch.cat(counts)
    return {
        "regret": {name: distribution(torch.cat(parts)) for name, parts in missed.items()},
        "without_a_look": distribution(torch.cat(blind)),
        "candidates": {
            "median": int(rescored.median()),
            "max": int(rescored.max()),
            "crowded": int((rescored > fourier.PLATEAU).sum()),
            "of": len(all_shifts(chosen.side, chosen.side)),
        },
        "pairs": chosen.pairs,
        "model": f"PreActResNet18 of {chosen.width} channels after {chosen.steps} steps of {chosen.batch} images of {chosen.learns_at}×{chosen.learns_at}",
        "loss": loss,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few embedded images and an untrained network: to see that it runs")
    parser.add_argument("--photographs", type=Path, default=home(None) / "pets", help="a folder of class folders")
    parser.add_argument("--json", type=Path, help=f"where the record goes, for example {RESULTS.name}/search_regret.json")
    options = parser.parse_args()
    record: dict[str, Any] = {"quick": options.quick, "sets": {}}
    for chosen in sets(options.photographs, options.quick):
        found = record["sets"][chosen.title] = measure(chosen)
        print(f"{chosen.title}, {chosen.pairs} pairs; {found['model']}, loss {found['loss']:.2f}")
        print(f"{'  regret':<26}{'mean':>10}{'median':>10}{'95 %':>10}{'largest':>10}{'none':>8}")
        for name, row in found["regret"].items():
            numbers = "".join(f"{100 * row[key]:>8.3f} %" for key in ("mean", "median", "high", "max"))
            print(f"  {name:<24}{numbers}{100 * row['found']:>6.0f} %")
        looked = found["candidates"]
        print(f"  without a look: largest regret {found['without_a_look']['max']:.1e}")
        print(f"  rescored of {looked['of']:,}: {looked['median']} on the median, {looked['max']} at most\n", flush=True)
    record |= {"torch": environment()["torch"]}
    if options.json:
        options.json.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
