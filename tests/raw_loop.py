"""What every integration is compared with: three steps of `accumulate` and an optimizer, on the embedded sample."""

from copy import deepcopy

import torch
from torch import Tensor, nn

import mixsage
from helpers import seeded
from mixsage import accumulate
from mixsage.data import MEAN, STD, load_sample
from mixsage.models import small_convnet

SEED = 5
SIZE = 16
LR = 0.1

Batches = list[tuple[Tensor, Tensor]]


def batches(count: int = 3, size: int = SIZE) -> Batches:
    """Normalised pictures of the sample, and their classes."""
    images, labels = load_sample("train")
    chosen = torch.randperm(len(images), generator=seeded(1))[: count * size]
    inputs = (images[chosen] / 255 - MEAN[0]) / STD[0]
    return list(zip(inputs.split(size), labels[chosen].split(size), strict=True))


def dataset(count: int = 3, size: int = SIZE) -> torch.utils.data.TensorDataset:
    """The same pictures one by one."""
    images, labels = zip(*batches(count, size), strict=True)
    return torch.utils.data.TensorDataset(torch.cat(images), torch.cat(labels))


def network() -> nn.Module:
    """A small network whose weights are the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return small_convnet(width=8)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)


def raw_loop(mixer, model=None, data=None, *, every=1, **options) -> nn.Module:
    """A copy of the model after the raw loop; it steps every so many batches."""
    model = network() if model is None else deepcopy(model)
    optimizer, generator = sgd(model), seeded(SEED)
    for number, (images, labels) in enumerate(data or batches(), start=1):
        accumulate(mixer, model, images, labels, generator=generator, weight=1 / every, **options)
        if number % every == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return model


def assert_same(model: nn.Module, expected: nn.Module, *, buffers: bool = True) -> None:
    """Parameters, and the statistics of BatchNorm, to float tolerance; and that there was something to learn."""
    start = network()
    state, wanted = model.state_dict(), expected.state_dict()
    names = [name for name in wanted if buffers or name in dict(expected.named_parameters())]
    for name in names:
        torch.testing.assert_close(state[name], wanted[name], rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    if wanted.keys() == start.state_dict().keys():
        moved = [not torch.equal(start.state_dict()[name], wanted[name]) for name, _ in start.named_parameters()]
        assert any(moved)


MIXERS = {
    "sage": mixsage.SAGE(num_classes=10),
    "sage without reuse": mixsage.SAGE(num_classes=10, mixed_share=1.0),
    "sage half the time": mixsage.SAGE(num_classes=10, prob=0.5),
    "cutmix": mixsage.CutMix(num_classes=10),
    "mixup per sample": mixsage.Mixup(num_classes=10, per_sample=True),
    "clean": mixsage.Clean(num_classes=10),
}
