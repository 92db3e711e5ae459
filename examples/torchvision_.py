"""Methods where torchvision's own MixUp and CutMix stand: as transforms of batches, in the loader and behind it.

python examples/torchvision_.py [--epochs 2]
"""

from __future__ import annotations

import argparse

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import v2

import mixsage
from mixsage.data import MEAN, STD, load_sample
from mixsage.integrations.torchvision import Collate, Mixing


def pictures(split: str) -> TensorDataset:
    images, labels = load_sample(split)
    return TensorDataset((images / 255 - MEAN[0]) / STD[0], labels)


@torch.no_grad()
def accuracy(model: torch.nn.Module) -> float:
    model.eval()
    images, labels = pictures("test").tensors
    return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(0)
    # Methods that need no model mix in the workers of the loader: one of two, drawn for each batch.
    either = v2.RandomChoice([Mixing(mixsage.CutMix(num_classes=10)), Mixing(mixsage.Mixup(num_classes=10))])
    in_loader = DataLoader(
        pictures("train"), batch_size=100, shuffle=True, drop_last=True, collate_fn=Collate(either), num_workers=2
    )
    train("CutMix or Mixup, in the loader", in_loader, lambda model: lambda images, targets: (images, targets), options.epochs)

    # SAGE looks at the model, so it mixes after the loader. (A call takes the gradient of the images alone; `accumulate` takes all.)
    plain = DataLoader(pictures("train"), batch_size=100, shuffle=True, drop_last=True)
    train("SAGE, after the loader", plain, lambda model: Mixing(mixsage.SAGE(num_classes=10), model=model), options.epochs)


def train(name: str, loader: DataLoader, make_transform, epochs: int) -> None:
    model = mixsage.models.small_convnet(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    transform = make_transform(model)
    for epoch in range(epochs):
        model.train()
        for batch in loader:
            images, targets = transform(*batch)
            loss = cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        print(f"{name}, epoch {epoch + 1}: loss {loss:.3f}, test accuracy {accuracy(model):.1%}")


if __name__ == "__main__":
    main()
