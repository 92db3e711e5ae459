"""What each integration costs beside the raw loop: a step of SAGE under each, beside the same step by `accumulate` alone.

python benchmarks/integrations.py [--device cuda] [--only lightning …] [--json FILE]

Every integration and the raw loop run the same steps in turn, round after round, in two sizes:

- of a network so small that what a loop adds can be told from chance: the difference in milliseconds, and what it makes of a step of the large one;
- of PreActResNet18, directly: the ratio of the two loops.

Calls (torchvision, timm) cannot reuse gradients: the raw loop beside them runs with η = 1. The last column is the difference without mixing: what
the library's own loop adds, whether one mixes or not.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import torch
import transformers
from accelerate import Accelerator
from common import environment, median_and_spread
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import mixsage
from mixsage.integrations import accelerate, fabric, lightning, torchvision
from mixsage.integrations import timm as timm_
from mixsage.integrations import transformers as transformers_

SAGE, CALL = mixsage.SAGE(num_classes=10), mixsage.SAGE(num_classes=10, mixed_share=1.0)
WARM = 2


class Clock:
    """Milliseconds a step, from the end of the last warm step to the end of the last step."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self.steps, self.device, self.done, self.begin, self.ms = steps, device, 0, 0.0, 0.0

    def tick(self) -> None:
        self.done += 1
        if self.done not in (WARM, WARM + self.steps):
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self.done == WARM:
            self.begin = now
        else:
            self.ms = 1e3 * (now - self.begin) / self.steps


class Work:
    """A model, its data and its optimizer, fresh for each run."""

    def __init__(self, device: torch.device, size: str, steps: int) -> None:
        self.device = device
        self.clock = Clock(steps, device)
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        if size == "small":
            model, images = mixsage.models.small_convnet(num_classes=10, width=4), torch.randn(8, 1, 16, 16, generator=generator)
        else:
            model, images = mixsage.models.preactresnet18(num_classes=10, width=16), torch.randn(64, 3, 32, 32, generator=generator)
        labels = torch.randint(10, (len(images),), generator=generator).to(device)
        self.model: nn.Module = model.to(device)
        self.batches = [(images.to(device), labels)] * (WARM + steps)
        self.optimizer = sgd(self.model)

    def loop(self, step: Callable[[Tensor, Tensor], object], optimizer: torch.optim.Optimizer | None = None) -> None:
        optimizer = optimizer or self.optimizer
        for images, labels in self.batches:
            step(images, labels)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self.clock.tick()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def raw(work: Work, mixer: mixsage.Mixer | None) -> None:
    if mixer is None:
        work.loop(lambda images, labels: cross_entropy(work.model(images), labels).backward())
    else:
        work.loop(lambda images, labels: mixsage.accumulate(mixer, work.model, images, labels))


def by_torchvision(work: Work, mixer: mixsage.Mixer | None) -> None:
    by_call(work, torchvision.Mixing(mixer, model=work.model)) if mixer else raw(work, None)


def by_timm(work: Work, mixer: mixsage.Mixer | None) -> None:
    by_call(work, timm_.Mixing(mixer, model=work.model)) if mixer else raw(work, None)


def by_call(work: Work, mix: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    def step(images: Tensor, labels: Tensor) -> None:
        images, targets = mix(images, labels)
        cross_entropy(work.model(images), targets).backward()

    work.loop(step)


class Module(pl.LightningModule):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.model = work.model

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return sgd(self.model)


class Ticks(pl.Callback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_batch_end(self, *_: object) -> None:
        self.clock.tick()


def by_lightning(work: Work, mixer: mixsage.Mixer | None) -> None:
    callbacks = [Ticks(work.clock), *([lightning.Mixing(mixer)] if mixer else [])]
    trainer = pl.Trainer(
        callbacks=callbacks,
        max_epochs=1,
        accelerator="gpu" if work.device.type == "cuda" else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(work), torch.utils.data.DataLoader(work.batches, batch_size=None))


def by_fabric(work: Work, mixer: mixsage.Mixer | None) -> None:
    owner = Fabric(accelerator="gpu" if work.device.type == "cuda" else "cpu", devices=1)
    model, optimizer = owner.setup(work.model, work.optimizer)
    if mixer is None:
        work.loop(lambda images, labels: owner.backward(cross_entropy(model(images), labels)), optimizer)
    else:
        host = fabric.FabricHost(owner, model)
        work.loop(lambda images, labels: mixsage.accumulate(mixer, model, images, labels, host=host), optimizer)


def by_accelerate(work: Work, mixer: mixsage.Mixer | None) -> None:
    owner = Accelerator(cpu=work.device.type == "cpu")
    model, optimizer = owner.prepare(work.model, work.optimizer)
    if mixer is None:
        work.loop(lambda images, labels: owner.backward(cross_entropy(model(images), labels)), optimizer)
    else:
        host = accelerate.AccelerateHost(owner)
        work.loop(lambda images, labels: mixsage.accumulate(mixer, model, images, labels, host=host), optimizer)


class Pixels(nn.Module):
    """The model as Transformers would have it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor] | SimpleNamespace:
        logits = self.model(pixel_values)
        return SimpleNamespace(logits=logits) if labels is None else {"loss": cross_entropy(logits, labels), "logits": logits}


class MixingTrainer(transformers_.Mixing, transformers.Trainer):
    """The Trainer, mixing."""


class Steps(transformers.TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, *_: object, **__: object) -> None:
        self.clock.tick()


def by_transformers(work: Work, mixer: mixsage.Mixer | None) -> None:
    size = len(work.batches[0][0])
    rows = [
        {"pixel_values": image, "labels": label} for image, label in zip(*(part.cpu() for part in work.batches[0]), strict=True)
    ]
    batch = {"pixel_values": work.batches[0][0], "labels": work.batches[0][1]}
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=len(work.batches),
            per_device_train_batch_size=size,
            use_cpu=work.device.type == "cpu",
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            max_grad_norm=0.0,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        # The batch is made once, as for the others: what is measured is the loop, not the loading.
        options = {"train_dataset": rows, "data_collator": lambda _: batch, "callbacks": [Steps(work.clock)]}
        schedule = torch.optim.lr_scheduler.LambdaLR(work.optimizer, lambda _: 1.0)
        options["optimizers"] = (work.optimizer, schedule)
        model = Pixels(work.model)
        trainer = (
            MixingTrainer(model, arguments, mixer=mixer, **options) if mixer else transformers.Trainer(model, arguments, **options)
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


Train = Callable[[Work, mixsage.Mixer | None], None]

INTEGRATIONS: dict[str, tuple[Train, mixsage.Mixer]] = {
    "torchvision": (by_torchvision, CALL),
    "timm": (by_timm, CALL),
    "lightning": (by_lightning, SAGE),
    "fabric": (by_fabric, SAGE),
    "accelerate": (by_accelerate, SAGE),
    "transformers": (by_transformers, SAGE),
}
"""How each trains, and by which method; the raw loop beside it runs the same one."""


def spent(train: Train, mixer: mixsage.Mixer | None, device: torch.device, size: str, steps: int) -> float:
    work = Work(device, size, steps)
    train(work, mixer)
    return work.clock.ms


def measure(name: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The raw loop's milliseconds, what this integration adds to them, and the ratio of the two, each as a median with its spread."""
    train, mixer = INTEGRATIONS[name]
    device = torch.device(options.device)
    found: dict[str, list[float]] = {"added_ms": [], "added_ms_unmixed": [], "raw_ms": [], "ratio": []}
    for number in range(options.rounds + 1):
        loops = (raw, train) if number % 2 else (train, raw)  # a machine that speeds up or slows down favours neither
        small = {loop: spent(loop, mixer, device, "small", 10 * options.steps) for loop in loops}
        unmixed = {loop: spent(loop, None, device, "small", 10 * options.steps) for loop in loops}
        large = {loop: spent(loop, mixer, device, "large", options.steps) for loop in loops}
        if number:  # the first round warms up
            found["added_ms"].append(small[train] - small[raw])
            found["added_ms_unmixed"].append(unmixed[train] - unmixed[raw])
            found["raw_ms"].append(large[raw])
            found["ratio"].append(large[train] / large[raw])
    numbers = {key: median_and_spread(values) for key, values in found.items()}
    step = numbers["raw_ms"]["median"]
    numbers["implied_ratio"] = {key: value if key == "count" else 1 + value / step for key, value in numbers["added_ms"].items()}
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each loop in a round; ten times as many small ones")
    parser.add_argument("--only", nargs="*", default=list(INTEGRATIONS), choices=list(INTEGRATIONS))
    parser.add_argument("--json", type=Path, help="where to add the record, a line")
    options = parser.parse_args()
    for name in ("lightning.pytorch", "lightning.fabric", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)

    print(
        f"{'':<14}{'raw ms':>8} |{'added ms':>9}{'5 %':>7}{'95 %':>7} |{'ratio':>7}{'5 %':>7}{'95 %':>7} |{'direct':>7}{'5 %':>7}{'95 %':>7} |{'unmixed':>8}"
    )
    for name in options.only:
        numbers = measure(name, options)
        print(f"{name:<14}{numbers['raw_ms']['median']:>8.1f} |", end="")
        print(
            f"{numbers['added_ms']['median']:>9.2f}" + "".join(f"{numbers['added_ms'][key]:>7.2f}" for key in ("low", "high")),
            end=" |",
        )
        for kind in ("implied_ratio", "ratio"):
            print("".join(f"{numbers[kind][key]:>7.3f}" for key in ("median", "low", "high")), end=" |")
        print(f"{numbers['added_ms_unmixed']['median']:>8.2f}", flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps({"integration": name, **numbers, "rounds": options.rounds, **environment()}) + "\n")
    machine = environment()
    print(f"\n{machine['machine']}, torch {machine['torch']}, {machine['threads']} threads, {options.rounds} rounds")


if __name__ == "__main__":
    main()
