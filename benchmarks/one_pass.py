"""Trials: where can the saliency maps of SAGE in one pass come from?

python benchmarks/one_pass.py --arms uniform half --seeds 0 1 --records trials.jsonl [--device cuda] [--epochs 60]

Each arm trains a PreActResNet18 of 16 base channels on 5,000 images of CIFAR-10 (500 a class) as in recipes/small/cifar10-5k.toml and is
tested once, after the last epoch, on all 10,000 test images. A batch of 100 holds 30 clean images and 70 mixes, in one forward and one
backward pass; the arms differ in where the maps of the images to be mixed come from:

    uniform   nowhere: the same saliency everywhere
    half      a pass of the same model, in evaluation mode, over the images at half their side
    quarter   the same at a quarter
    bank      the input gradients of the clean rows of earlier epochs, averaged over time for each image, moved along with crop and flip
    bankall   the same, and of the mixed rows too, as far as the image shows in them
    tiny      a model of 4 base channels that is trained beside the large one on the clean rows
    fullsize  the same at full size: what fresh maps would give if they cost nothing (this arm costs about 1.5 plain steps)
    picture   the images alone: fine-grained static saliency
    cam       what a forward pass of the same model in evaluation mode says of the label, a third of a plain step: class activation maps
    refresh   nowhere, but every fourth step is SAGE's in two passes (this arm costs about 1.25 plain steps)
    …soft     any of them, averaged half and half with the uniform map
    even      as uniform, with 50 clean images and 50 mixes
    still     as uniform, without rearrangement
    clean, mixup, cutmix, sage, sageuniform   for comparison: methods of the library, the latter two in two passes
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import mixsage
from mixsage import data
from mixsage.plan import MixPlan, Shift
from mixsage.saliency import normalise as normalise_maps
from mixsage.saliency import smooth
from mixsage.training.config import Optimisation
from mixsage.training.schedule import learning_rate

CLEAN = {"even": 50}
"""Clean rows of a batch of 100, where it is not 30."""
SAGE = mixsage.SAGE()
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
"""Of CIFAR-10's colours, nearly: what fine-grained saliency takes off again."""
METHODS = {
    "clean": mixsage.Clean(),
    "mixup": mixsage.Mixup(),
    "cutmix": mixsage.CutMix(),
    "sage": SAGE,
    "sageuniform": mixsage.SAGE(saliency=mixsage.Uniform()),
}


def one_pass_plan(arm: str, images: Tensor, maps: Tensor, generator: torch.Generator) -> MixPlan:
    """The first rows clean, the others mixed with any row of the batch."""
    clean = CLEAN.get(arm, 30)
    mixer = replace(SAGE, search=mixsage.NoShift()) if arm == "still" else SAGE
    plan = mixer.plan(images, saliency=maps, generator=generator)
    assert isinstance(plan.masks, Tensor) and isinstance(plan.warp, Shift)
    masks, offsets, weights = plan.masks.clone(), plan.warp.offsets.clone(), plan.weights.clone()
    masks[:clean, 0], masks[:clean, 1], offsets[:clean] = 1, 0, 0
    weights[:clean, 0], weights[:clean, 1] = 1, 0
    return replace(plan, masks=masks, warp=Shift(offsets), weights=weights)


class Bank:
    """A map for each training image in its own frame, averaged over time."""

    def __init__(self, count: int, side: int, padding: int, device: torch.device, keep: float = 0.7) -> None:
        # Kept with the padding around it, so that what a crop shows can be written back to where it lies.
        self.maps = torch.full((count, side + 2 * padding, side + 2 * padding), 1.0, device=device)
        self.keep, self.side = keep, side

    def index(self, rows: Tensor, crop: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        top, left, flip = crop
        line = torch.arange(self.side, device=rows.device)
        columns = torch.where(flip[:, None], self.side - 1 - line, line) + left[:, None]
        return rows[:, None, None], (line + top[:, None])[:, :, None], columns[:, None, :]

    def read(self, rows: Tensor, crop: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return self.maps[self.index(rows, crop)]

    def write(self, rows: Tensor, crop: tuple[Tensor, Tensor, Tensor], maps: Tensor) -> None:
        place = self.index(rows, crop)
        scaled = maps / maps.mean(dim=(1, 2), keepdim=True).clamp_min(1e-30)
        self.maps[place] = self.keep * self.maps[place] + (1 - self.keep) * scaled


def gradient_maps(model: nn.Module, images: Tensor, labels: Tensor, side: int) -> Tensor:
    """Input gradient of the images at another size, brought back to their own."""
    small = (
        functional.interpolate(images, size=side, mode="area").requires_grad_()
        if side != images.shape[-1]
        else images.clone().requires_grad_()
    )
    was = model.training
    model.eval()
    loss = functional.cross_entropy(model(small), labels)
    (gradient,) = torch.autograd.grad(loss, small)
    model.train(was)
    maps = SAGE.saliency(small, gradient)
    return functional.interpolate(maps[:, None], size=images.shape[-1], mode="bilinear", align_corners=False)[:, 0]


def activation_maps(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Class activation maps of the labels, made as large as the images."""
    kept: list[Tensor] = []
    handle = model.tail.register_forward_hook(lambda module, inputs, output: kept.append(output))  # type: ignore[union-attr]
    was = model.training
    model.eval()
    with torch.no_grad():
        model(images)
    model.train(was)
    handle.remove()
    weights = model.head.weight[labels]  # type: ignore[union-attr,index]
    maps = torch.einsum("bchw,bc->bhw", kept[0], weights).clamp_min(0)
    return functional.interpolate(maps[:, None], size=images.shape[-1], mode="bilinear", align_corners=False)[:, 0].detach()


def crops(count: int, padding: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    places = torch.randint(2 * padding + 1, (2, count), generator=generator).to(device)
    return places[0], places[1], (torch.rand(count, generator=generator) < 0.5).to(device)


def train(arm: str, seed: int, *, epochs: int, device: torch.device, width: int = 16, padding: int = 4) -> dict[str, object]:
    """One run."""
    dataset = data.load("cifar10")
    rows = data.per_class(dataset.train.labels, 500)
    assert dataset.train.pixels is not None and dataset.test is not None and dataset.test.pixels is not None
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (dataset.mean, dataset.std))

    def normalise(pixels: Tensor) -> Tensor:
        return (pixels.to(device).float() / 255 - mean) / std

    padded = normalise(functional.pad(dataset.train.pixels[rows], [padding] * 4))
    labels = dataset.train.labels[rows].to(device)
    torch.manual_seed(seed)
    model = mixsage.models.preactresnet18(num_classes=10, width=width, final_norm=True).to(device)
    tiny = mixsage.models.preactresnet18(num_classes=10, width=4, final_norm=True).to(device) if arm.startswith("tiny") else None
    learners = [model] if tiny is None else [model, tiny]
    settings = Optimisation(epochs=epochs, lr=0.2, schedule="onecycle", warmup=0.15)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-4, fused=True) for m in learners]
    bank = Bank(len(rows), 32, padding, device) if arm.startswith("bank") else None
    steps = len(rows) // 100
    began = time.perf_counter()
    for epoch in range(epochs):
        order = torch.randperm(len(rows), generator=data.generator(seed, "order", epoch)).to(device)
        for step in range(steps):
            generator = data.generator(seed, "step", epoch, step)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(settings, epoch * steps + step, steps)
            chosen = order[step * 100 : step * 100 + 100]
            crop = crops(100, padding, generator, device)
            line = torch.arange(32, device=device)
            columns = torch.where(crop[2][:, None], 31 - line, line) + crop[1][:, None]
            images = (
                padded[chosen[:, None, None], :, (line + crop[0][:, None])[:, :, None], columns[:, None, :]]
                .permute(0, 3, 1, 2)
                .contiguous()
            )
            _learn(arm, step, model, tiny, bank, images, labels[chosen], chosen, crop, generator)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    model.eval()
    with torch.no_grad():
        correct = sum(
            int((model(normalise(part)).argmax(1) == truth.to(device)).sum())
            for part, truth in zip(dataset.test.pixels.split(1000), dataset.test.labels.split(1000), strict=True)
        )
    return {
        "arm": arm,
        "seed": seed,
        "epochs": epochs,
        "test_top1": correct / 100,
        "seconds": round(seconds, 1),
        "torch": torch.__version__,
    }


def _learn(
    arm: str,
    turn: int,
    model: nn.Module,
    tiny: nn.Module | None,
    bank: Bank | None,
    images: Tensor,
    labels: Tensor,
    chosen: Tensor,
    crop: tuple[Tensor, Tensor, Tensor],
    generator: torch.Generator,
) -> None:
    """Gradients of one batch."""
    if arm in METHODS or (arm == "refresh" and turn % 4 == 3):
        mixsage.accumulate(METHODS.get(arm, SAGE), model, images, labels, generator=generator)
        return
    uniform = torch.ones(len(images), 32, 32, device=images.device)
    sources: dict[str, Callable[[], Tensor]] = {
        "uniform": lambda: uniform,
        "even": lambda: uniform,
        "still": lambda: uniform,
        "refresh": lambda: uniform,
        "picture": lambda: mixsage.FineGrained(mean=MEAN, std=STD)(images),
        "cam": lambda: activation_maps(model, images, labels),
        "fullsize": lambda: gradient_maps(model, images, labels, 32),
        "half": lambda: gradient_maps(model, images, labels, 16),
        "quarter": lambda: gradient_maps(model, images, labels, 8),
        "tiny": lambda: gradient_maps(tiny or model, images, labels, 32),
        "bank": lambda: (bank or _none()).read(chosen, crop),
        "bankall": lambda: (bank or _none()).read(chosen, crop),
    }
    maps = sources[arm.removesuffix("soft")]()
    if arm.endswith("soft"):
        maps = normalise_maps(smooth(maps)) + 1 / maps[0].numel()
    plan = one_pass_plan(arm, images, maps, generator)
    mixed = plan.apply(images).requires_grad_(bank is not None)
    functional.cross_entropy(model(mixed), plan.targets(labels, 10)).backward()
    if tiny is not None:
        functional.cross_entropy(tiny(images[:30]), labels[:30]).backward()
    if bank is not None and mixed.grad is not None:
        maps = SAGE.saliency(mixed, mixed.grad)
        count = len(images) if arm.startswith("bankall") else 30
        masks = plan.dense_masks()[:, 0]
        bank.write(chosen[:count], tuple(part[:count] for part in crop), (maps * masks)[:count])  # type: ignore[arg-type]


def _none() -> Bank:
    raise AssertionError("this arm keeps a bank")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args()
    for seed in options.seeds:
        for arm in options.arms:
            record = train(arm, seed, epochs=options.epochs, device=torch.device(options.device))
            with options.records.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(record, flush=True)


if __name__ == "__main__":
    main()
