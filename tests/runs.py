"""What the trainer's tests share: settings of runs that take a moment, comparisons to the bit, and models of a user's own."""

import os
import random
import signal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from mixsage.training import Config, Interrupted, RunFolder, train, with_settings
from mixsage.training.checkpoint import all_of, load
from mixsage.training.progress import Progress

TINY = {
    "data": "sample",
    "per_class": 13,
    "model": "small_convnet",
    "width": 4,
    "batch_size": 20,
    "epochs": 2,
    "device": "cpu",
    "loggers": [],
    "workers": 0,
}
"""Six steps an epoch, on 120 images; the rest of 130 is held out."""
TIMES = {"seconds", "total_seconds", "images_per_second"}


def configured(out, **settings):
    """A tiny run's configuration."""
    return with_settings(Config(), {**TINY, **settings, "out": out})


def tiny(out, **settings):
    """A tiny run, from its beginning to its end."""
    return train(configured(out, **settings))


class Stop(Progress):
    """Asks for the end after so many steps of this sitting, as a scheduler would."""

    def __init__(self, after):
        self.left = after

    def step(self, epoch, loss, images):
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGTERM)


def in_sittings(out, *stops, **settings):
    """A tiny run that is stopped after so many steps in each sitting, and resumed."""
    config = configured(out, **settings)
    for number, after in enumerate(stops):
        try:
            train(config, resume=number > 0, progress=Stop(after))
        except Interrupted:
            continue
        raise AssertionError(f"the sitting ended before step {after}")
    return train(config, resume=True)


def lead_a_group(_):
    """This process and those that it starts are a group, as a shell has it."""
    os.setpgrp()


def metrics(folder):
    """The lines of a run without their times."""
    return [{name: value for name, value in line.items() if name not in TIMES} for line in RunFolder(folder.path).history()]


def assert_same_run(one, other):
    """Weights, the best epoch's weights, metrics and the whole state at the end, equal to the bit."""
    assert metrics(one) == metrics(other)
    assert_same(load_file(one.weights), load_file(other.weights))
    assert one.best.exists() == other.best.exists()
    if one.best.exists():
        assert_same(load_file(one.best), load_file(other.best))
    first, second = (load(all_of(folder.checkpoints)[-1]) for folder in (one, other))
    for state in (first, second):
        del state["place"]["seconds"], state["place"]["epoch_seconds"]
    assert_same(first, second)


def assert_same(one, other, where=""):
    """Equal in structure, dtype and every bit; a tuple may come back as a list, as torch.distributed hands them out."""
    assert type(one) is type(other) or {type(one), type(other)} == {list, tuple}, where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            assert_same(one[name], other[name], f"{where}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    else:
        assert one == other, where


def rewrite(path, change):
    """Change the bytes of a file."""
    path.write_bytes(change(path.read_bytes()))


# ----------------------------------------------------------------------------------------- models, as package.module:factory


class Dropping(nn.Module):
    """Draws from every global state that a user's model might draw from."""

    def __init__(self, classes):
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, stride=2)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4, classes)

    def forward(self, images):
        maps = self.drop(self.convolution(images).relu())
        if self.training:
            maps = maps * (1 + 0.1 * random.random() + 0.1 * float(np.random.rand()))
        return self.head(maps.mean(dim=(2, 3)))


def dropping(num_classes):
    """A model of a user's own, with randomness of every kind."""
    return Dropping(num_classes)


class Greedy(nn.Module):
    """Needs more memory than there is for more than so many images at a time."""

    def __init__(self, most):
        super().__init__()
        self.most = most
        self.head = nn.Linear(28 * 28, 10)

    def forward(self, images):
        if len(images) > self.most and self.training:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return self.head(images.flatten(1))


def greedy(most=5):
    """A model that fits with so many images at a time."""
    return Greedy(most)


def no_model():
    """A factory that is none."""
    return "a model"


def other_images(num_classes):
    """A model for images of another size."""
    return nn.Sequential(nn.Flatten(), nn.Linear(100, num_classes))


def other_classes():
    """A model for another number of classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 7))


def lazy(num_classes):
    """A model whose first layer waits for its first image."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


class Talkative(nn.Module):
    """Returns more than logits."""

    def forward(self, images):
        return {"logits": images.flatten(1)[:, :10]}


def no_logits():
    """A model that returns something else."""
    return Talkative()
