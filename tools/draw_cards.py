"""Draw the picture of a method's card: pairs of the embedded sample, what the method looked at, and its mix.

python tools/draw_cards.py saliencymix puzzlemix comixup            writes docs/images/saliencymix.png, …

Methods that look at a network look at a small one that is trained here for a few seconds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import mixsage
from mixsage.data import CLASSES, MEAN, STD, load_sample
from mixsage.evaluation.explain import Subject, maps_of, pairs
from mixsage.reports import figures
from mixsage.training.build import build_mixer

SHOWN = (("T-shirt/top", 0), ("Sandal", 3), ("Bag", 2), ("Ankle boot", 2), ("Sneaker", 4), ("Dress", 3))
"""Test images by class and number in it: an image, its partner, the next image, …"""
IMAGES = Path(__file__).parents[1] / "docs" / "images"


def draw(method: str, *, seed: int = 0) -> Path:
    """The picture of a method that looks at something."""
    mixer = build_mixer(method, MEAN, STD)
    if mixer.source is None:
        raise ValueError(f"{method} looks at nothing; its mixes are in the gallery")
    images, labels = load_sample("test")
    rows = [int((labels == CLASSES.index(name)).nonzero()[number]) for name, number in SHOWN]
    model = trained() if mixer.source.needs_gradient else None
    subject = Subject(images=images[rows], labels=labels[rows], names=CLASSES, mean=MEAN, std=STD, model=model)
    maps = maps_of(subject, mixer)
    assert maps is not None
    looks = (maps / maps.amax(dim=(1, 2), keepdim=True)).double().numpy()
    generator = torch.Generator().manual_seed(seed)
    name = type(mixer).__name__
    found = pairs(subject, {name: mixer}, generator=generator, least_share=0.25, tint=True)[::2]
    found = [replace(pair, saliency=(looks[2 * i], looks[2 * i + 1])) for i, pair in enumerate(found)]
    return figures.save(figures.gallery(found, explained=name), IMAGES / f"{method}.png")


def trained() -> torch.nn.Module:
    """A small network after one pass over the embedded sample."""
    torch.manual_seed(0)
    images, labels = load_sample("train")
    model = mixsage.models.small_convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch in torch.randperm(len(images)).split(50):
        inputs = (images[batch] / 255 - MEAN[0]) / STD[0]
        mixsage.accumulate(mixsage.Clean(), model, inputs, labels[batch])
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="+", choices=mixsage.available())
    for method in parser.parse_args().methods:
        print(draw(method))
