"""Train a small network on the embedded sample for a few seconds, then draw what each method makes of the same pairs.

python examples/draw_gallery.py --out gallery.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import mixsage
from mixsage.data import CLASSES, MEAN, STD, load_sample
from mixsage.evaluation.explain import Subject, pairs
from mixsage.reports import figures

NAMES = {
    "mixup": "Mixup",
    "cutmix": "CutMix",
    "manifold": "Manifold Mixup",
    "saliencymix": "SaliencyMix",
    "puzzlemix": "Puzzle Mix",
    "comixup": "Co-Mixup",
    "sage": "SAGE",
}
"""The methods in the paper's order, as it writes them."""
SHOWN = (("T-shirt/top", 0), ("Sandal", 3), ("Bag", 2), ("Ankle boot", 2), ("Trouser", 5), ("Bag", 7), ("Sneaker", 4), ("Dress", 3))
"""Test images by class and number in it: an image, its partner, the next image, …"""


def train(epochs: int, generator: torch.Generator) -> torch.nn.Module:
    """A small network that knows the sample's classes, roughly."""
    images, labels = load_sample("train")
    inputs = (images / 255 - MEAN[0]) / STD[0]
    torch.manual_seed(0)
    model = mixsage.models.small_convnet(num_classes=len(CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs), generator=generator).split(100):
            mixsage.accumulate(mixsage.Clean(), model, inputs[batch], labels[batch])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return model.eval()


def draw(methods: list[str], out: Path, *, epochs: int = 6, seed: int = 0) -> Path:
    """The gallery of these methods, saved."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = load_sample("test")
    rows = [int((labels == CLASSES.index(name)).nonzero()[number]) for name, number in SHOWN]
    subject = Subject(images=images[rows], labels=labels[rows], names=CLASSES, mean=MEAN, std=STD, model=train(epochs, generator))
    mixers = {NAMES.get(name, name): _mixer(name) for name in methods}
    # Every shift is tried, as there is time for it here; the images are grey, so blue and orange tell them apart in their mix.
    found = pairs(subject, mixers, generator=generator, least_share=0.25, tint=True)[::2]
    return figures.save(figures.gallery(found, title="What each method makes of the same pairs"), out)


def _mixer(name: str) -> mixsage.Mixer:
    return mixsage.SAGE(search=mixsage.Full()) if name == "sage" else mixsage.get(name)()


if __name__ == "__main__":
    known = [name for name in NAMES if name in mixsage.available()]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=known, choices=mixsage.available())
    parser.add_argument("--out", type=Path, default=Path("gallery.png"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(draw(options.methods, options.out, epochs=options.epochs, seed=options.seed))
