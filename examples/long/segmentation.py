"""Segmentation with and without mixing: pets, with what is around them, from a few hundred pictures.

MIXSAGE_DATA=FOLDER python examples/long/segmentation.py [--epochs 12] [--out segmentation.png]

FOLDER/pets holds Oxford-IIIT Pet as {train,test}/BREED/*.jpg and masks/{train,test}/BREED/*.png, whose values are 1 for the pet, 2 for what is around
it, and 3 for the border between them, which is left out of training and of the score. `--smoke` takes a few made pictures instead.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import mixsage
from mixsage.loss import pixel_cross_entropy

CLASSES = ("pet", "around it")
IGNORE = 255
MEAN, STD = (0.48, 0.45, 0.40), (0.27, 0.26, 0.27)
METHODS = {"no mixing": mixsage.Clean(), "CutMix": mixsage.CutMix(), "SAGE": mixsage.SAGE()}


class Pictures(NamedTuple):
    """Images [N, 3, H, W] normalised, and their class maps [N, H, W]."""

    images: Tensor
    class_maps: Tensor


# ------------------------------------------------------------------------------------------------------------------------- mixing


def accumulate(mixer: mixsage.Mixer, model: nn.Module, images: Tensor, class_maps: Tensor, generator: torch.Generator) -> Tensor:
    """What `mixsage.accumulate` does, for a loss at every pixel: gradients in .grad, and the loss of the mixed pass."""
    maps = None
    if mixer.clean:
        leaf = images.clone().requires_grad_()
        truth = mixsage.MixPlan.identity(len(images)).apply_masks(class_maps, len(CLASSES), ignore=IGNORE)
        (pixel_cross_entropy(model(leaf), truth) * mixer.clean.weight).backward()
        maps = mixer.source(images, leaf.grad)
    plan = mixer.plan(images, saliency=maps, generator=generator)
    targets = plan.apply_masks(class_maps, len(CLASSES), ignore=IGNORE)
    loss = pixel_cross_entropy(model(plan.apply(images)), targets)
    (loss * mixer.mixed_weight).backward()
    return loss.detach()


def train(mixer: mixsage.Mixer, data: Pictures, *, epochs: int, width: int, seed: int) -> nn.Module:
    """A network of its own for each method; all start from the same weights and see the same batches."""
    torch.manual_seed(seed)
    order, choices = (torch.Generator().manual_seed(seed) for _ in range(2))
    model = UNet(width)
    batches = len(data.images) // 20
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * batches)
    for _ in range(epochs):
        for rows in torch.randperm(len(data.images), generator=order)[: batches * 20].split(20):
            images, class_maps = data.images[rows], data.class_maps[rows]
            if torch.rand((), generator=order) < 0.5:
                images, class_maps = images.flip(3), class_maps.flip(2)
            accumulate(mixer, model, images, class_maps, choices)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
    return model.eval()


@torch.no_grad()
def mean_iou(model: nn.Module, data: Pictures) -> float:
    """Intersection over union of each class over all test pixels that have one, and the mean of the classes."""
    together = torch.zeros(len(CLASSES), len(CLASSES), dtype=torch.int64)
    for images, class_maps in zip(data.images.split(50), data.class_maps.split(50), strict=True):
        known = class_maps != IGNORE
        found, true = model(images).argmax(1)[known], class_maps[known]
        together += torch.bincount(true * len(CLASSES) + found, minlength=len(CLASSES) ** 2).view_as(together)
    both = together.diag()
    return float((both / (together.sum(0) + together.sum(1) - both)).mean())


class UNet(nn.Module):
    """Three scales down and up again, for a CPU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([_stage(3, width), _stage(width, 2 * width), _stage(2 * width, 4 * width)])
        self.bottom = _stage(4 * width, 4 * width)
        self.up = nn.ModuleList([_stage(8 * width, 2 * width), _stage(4 * width, width), _stage(2 * width, width)])
        self.head = nn.Conv2d(width, len(CLASSES), 1)

    def forward(self, images: Tensor) -> Tensor:
        features, kept = images, []
        for stage in self.down:
            kept.append(stage(features))
            features = nn.functional.max_pool2d(kept[-1], 2)
        features = self.bottom(features)
        for stage, skipped in zip(self.up, reversed(kept), strict=True):
            features = stage(torch.cat([nn.functional.interpolate(features, scale_factor=2), skipped], dim=1))
        return self.head(features)


def _stage(before: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())


# --------------------------------------------------------------------------------------------------------------------------- data


def pets(split: str, each: int, side: int) -> Pictures:
    """The first pictures of every breed, and their masks, at side×side pixels."""
    import numpy as np
    from PIL import Image

    folder = Path(os.environ.get("MIXSAGE_DATA") or ".") / "pets"
    breeds = sorted(path for path in (folder / split).glob("*") if path.is_dir())
    files = [file for breed in breeds for file in sorted(breed.glob("*.jpg"))[:each]]
    if not files:
        raise SystemExit(f"no pictures in {folder / split}/BREED/*.jpg; say where pets lies with MIXSAGE_DATA, or try --smoke")
    images, trimaps = [], []
    for file in files:
        mask = (folder / "masks" / file.relative_to(folder)).with_suffix(".png")
        images.append(np.asarray(Image.open(file).convert("RGB").resize((side, side), Image.Resampling.BILINEAR)))
        trimaps.append(np.asarray(Image.open(mask).resize((side, side), Image.Resampling.NEAREST)))
    return _pictures(torch.from_numpy(np.stack(images)).movedim(3, 1) / 255, torch.from_numpy(np.stack(trimaps)).long())


def made(count: int, side: int, seed: int) -> Pictures:
    """Bright discs on dark noise, with a border of one pixel."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.arange(side)
    centre = side * (0.3 + 0.4 * torch.rand(count, 2, generator=generator))
    distance = (places[None, :, None] - centre[:, :1, None]) ** 2 + (places[None, None, :] - centre[:, 1:, None]) ** 2
    radius = distance.sqrt() - side / 5
    trimaps = 1 + (radius > 0).long() + (radius.abs() < 0.5).long() * (2 - (radius > 0).long())
    noise = torch.rand(count, 3, side, side, generator=generator)
    return _pictures(0.6 * noise + 0.4 * (trimaps == 1)[:, None], trimaps)


def _pictures(colours: Tensor, trimaps: Tensor) -> Pictures:
    images = (colours - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return Pictures(images, torch.where(trimaps == 3, IGNORE, trimaps - 1))


# ------------------------------------------------------------------------------------------------------------------------ picture


@torch.no_grad()
def draw(model: nn.Module, data: Pictures, out: Path, *, seed: int, rows: int = 4) -> Path:
    """For some test pictures: the image, its mask, its mix with another, the mixed mask, and what the network makes of the image."""
    from mixsage.reports.figures import style

    place = torch.linspace(0, len(data.images) - 1, 5 * rows).long()
    images, class_maps = data.images[place], data.class_maps[place]
    with torch.enable_grad():
        leaf = images.clone().requires_grad_()
        truth = mixsage.MixPlan.identity(len(images)).apply_masks(class_maps, len(CLASSES), ignore=IGNORE)
        pixel_cross_entropy(model(leaf), truth).backward()
    mixer = mixsage.SAGE(search=mixsage.Full(), per_sample=True)
    plan = mixer.plan(images, saliency=mixer.source(images, leaf.grad), generator=torch.Generator().manual_seed(seed))
    mixed, targets = plan.apply(images), plan.apply_masks(class_maps, len(CLASSES), ignore=IGNORE)
    found = nn.functional.one_hot(model(images).argmax(1), len(CLASSES)).movedim(3, 1).float()

    figure = style.new_figure(8.4, 1.75 * rows + 0.5)
    grid = figure.subplots(rows, 5, squeeze=False)
    figure.subplots_adjust(left=0.01, right=0.99, top=1 - 0.32 / (1.75 * rows + 0.5), bottom=0.01, wspace=0.05, hspace=0.05)
    titles = ("image", "its own mask", "mixed by SAGE", "mixed mask", "prediction (image)")
    # Shown are the pairs that share most evenly, as there is most to see.
    even = (plan.weights[:, 0] - 0.5).abs().argsort()[:rows].tolist()
    for b, axes in zip(even, grid, strict=True):
        shown = (_colours(images[b]), _classes(truth[b]), _colours(mixed[b]), _classes(targets[b]), _classes(found[b]))
        for axis, picture, title in zip(axes, shown, titles, strict=True):
            style.show_picture(axis, picture)
            if b == even[0]:
                style.heading(axis, title)
    return style.save(figure, out, dpi=110)


def _colours(image: Tensor) -> object:
    return (image * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)).clamp(0, 1).movedim(0, 2).numpy()


def _classes(shares: Tensor) -> object:
    """Blue for the pet, orange for what is around it, in proportion; white where nothing is known."""
    colours = torch.tensor([[0.0, 0.447, 0.698], [0.902, 0.624, 0.0]])
    known = shares.sum(dim=0)
    return (torch.einsum("chw,cx->hwx", shares, colours) + (1 - known)[..., None]).clamp(0, 1).numpy()


# --------------------------------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--each", type=int, default=20, help="training pictures of each of the 37 breeds")
    parser.add_argument("--side", type=int, default=64, help="pixels along a side")
    parser.add_argument("--width", type=int, default=12, help="channels of the first scale")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("segmentation.png"))
    parser.add_argument("--smoke", action="store_true", help="a few made pictures, one epoch: does it run?")
    options = parser.parse_args()

    if options.smoke:
        options.epochs, options.side, options.width = 1, 16, 4
        training, testing = made(40, options.side, options.seed), made(20, options.side, options.seed + 1)
    else:
        training, testing = (pets(split, options.each, options.side) for split in ("train", "test"))
    print(
        f"{len(training.images)} pictures to train on, {len(testing.images)} to test on, {options.epochs} epochs, seed {options.seed}"
    )

    for name, mixer in METHODS.items():
        start = time.perf_counter()
        model = train(mixer, training, epochs=options.epochs, width=options.width, seed=options.seed)
        seconds = time.perf_counter() - start
        print(f"{name:10}  mean IoU {mean_iou(model, testing):.1%}  ({seconds:.0f} s)", flush=True)
    print(draw(model, testing, options.out, seed=options.seed))


if __name__ == "__main__":
    main()
