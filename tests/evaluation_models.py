"""Hand-made networks whose answers are known without running them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MEAN, STD = (0.4914, 0.31, 0.77), (0.247, 0.1, 0.333)


class ByteReader(nn.Module):
    """256 classes: the class of a normalised image is the byte that its first red pixel was before. Any slip in scaling changes it."""

    def forward(self, images):
        byte = (images[:, 0, 0, 0].double() * STD[0] + MEAN[0]) * 255
        return -(byte[:, None] - torch.arange(256)).abs().float()


class Linear(nn.Module):
    """Logits that are linear in the pixels, so that gradients are known by hand: class 1 minus class 0 is ``weight · pixels + bias``."""

    def __init__(self, weight, bias=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.as_tensor(weight, dtype=torch.float32))
        self.bias = bias

    def forward(self, images):
        score = (images * self.weight).sum(dim=(1, 2, 3)) + self.bias
        return torch.stack([torch.zeros_like(score), score], dim=1)


class Table(nn.Module):
    """Logits from a table, by the byte in the first pixel."""

    def __init__(self, logits):
        super().__init__()
        self.register_buffer("logits", torch.as_tensor(logits, dtype=torch.float32))

    def forward(self, images):
        return self.logits[(images[:, 0, 0, 0] * 255).round().long()]


def loader(images, labels, batch_size=100, **options):
    return DataLoader(TensorDataset(images, labels), batch_size=batch_size, **options)


def numbered(count):
    """Byte images [count, 1, 2, 2] whose first pixel is their number, for `Table`."""
    images = torch.zeros(count, 1, 2, 2, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(count)
    return images
