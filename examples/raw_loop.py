"""SAGE in a loop of your own: one call where forward and backward were.

python examples/raw_loop.py [--epochs 2]
"""

from __future__ import annotations

import argparse

import torch

import mixsage
from mixsage.data import MEAN, STD, load_sample


def batches(split: str, *, shuffle: bool = False) -> torch.utils.data.DataLoader:
    """The embedded sample of Fashion-MNIST, normalised."""
    images, labels = load_sample(split)
    data = torch.utils.data.TensorDataset((images / 255 - MEAN[0]) / STD[0], labels)
    return torch.utils.data.DataLoader(data, batch_size=100, shuffle=shuffle, drop_last=shuffle)


@torch.no_grad()
def accuracy(model: torch.nn.Module) -> float:
    model.eval()
    right = [(model(images).argmax(1) == labels).float() for images, labels in batches("test")]
    return float(torch.cat(right).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = mixsage.models.small_convnet(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(options.epochs):
        model.train()
        for images, labels in batches("train", shuffle=True):
            # In place of the model's forward, the loss and its backward; the optimizer's part stays.
            step = mixsage.accumulate(mixsage.SAGE(), model, images, labels)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        print(f"epoch {epoch + 1}: loss {step.loss:.3f}, test accuracy {accuracy(model):.1%}")


if __name__ == "__main__":
    main()
