"""Draw the picture of a method's card: pairs of the embedded sample, what the method looked at, and its mix.

python tools/draw_cards.py saliencymix            writes docs/images/saliencymix.png
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
    """The picture of a method that looks at the image alone."""
    mixer = build_mixer(method, MEAN, STD)
    if mixer.source is None or mixer.source.needs_gradient:
        raise ValueError(f"{method} does not look at the image alone; mixsage preview draws what a network's saliency leads to")
    images, labels = load_sample("test")
    rows = [int((labels == CLASSES.index(name)).nonzero()[number]) for name, number in SHOWN]
    subject = Subject(images=images[rows], labels=labels[rows], names=CLASSES, mean=MEAN, std=STD)
    maps = maps_of(subject, mixer)
    assert maps is not None
    looks = (maps / maps.amax(dim=(1, 2), keepdim=True)).double().numpy()
    generator = torch.Generator().manual_seed(seed)
    name = type(mixer).__name__
    found = pairs(subject, {name: mixer}, generator=generator, least_share=0.25, tint=True)[::2]
    found = [replace(pair, saliency=(looks[2 * i], looks[2 * i + 1])) for i, pair in enumerate(found)]
    return figures.save(figures.gallery(found, explained=name), IMAGES / f"{method}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="+", choices=mixsage.available())
    for method in parser.parse_args().methods:
        print(draw(method))
