"""ResNet12: the usual backbone of few-shot classification on mini-ImageNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, max_pool2d, pad

from mixsage.models.classifier import ImageClassifier, check_sizes

SLOPE = 0.1
"""Slope of the leaky ReLU below zero."""


class DropBlock(nn.Module):
    """While training, sets squares of `size` by `size` pixels to zero, about a share `rate` of all (Ghiasi et al., 2018).

    What remains is scaled up to keep the mean. A square is never larger than the maps: on maps of one pixel whole channels drop.
    """

    def __init__(self, rate: float, size: int) -> None:
        super().__init__()
        self.rate = rate
        self.size = size

    def extra_repr(self) -> str:
        return f"rate={self.rate}, size={self.size}"

    def forward(self, maps: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return maps
        batch, channels, height, width = maps.shape
        block_height, block_width = min(self.size, height), min(self.size, width)
        rows, columns = height - block_height + 1, width - block_width + 1
        corner_rate = self.rate / (block_height * block_width) * (height * width) / (rows * columns)
        corners = (torch.rand(batch, channels, rows, columns, device=maps.device) < corner_rate).float()
        around = (block_width - 1, block_width - 1, block_height - 1, block_height - 1)
        kept = 1 - max_pool2d(pad(corners, around), (block_height, block_width), stride=1)
        scale = kept.numel() / kept.sum().clamp(min=1)
        return maps * (kept * scale).to(maps.dtype)


class ResNet12Block(nn.Module):
    """Three normalised 3x3 convolutions, around them a normalised 1x1 convolution; then leaky ReLU, 2x2 max-pool, DropBlock."""

    def __init__(self, in_channels: int, channels: int, drop: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential(nn.Conv2d(in_channels, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.drop = drop

    def forward(self, maps: Tensor) -> Tensor:
        residual = leaky_relu(self.norm1(self.conv1(maps)), SLOPE)
        residual = leaky_relu(self.norm2(self.conv2(residual)), SLOPE)
        out = leaky_relu(self.norm3(self.conv3(residual)) + self.shortcut(maps), SLOPE)
        # A side of one pixel stays, so that images below 16 pixels pass through all four blocks.
        pooled = max_pool2d(out, [min(2, side) for side in out.shape[2:]])
        dropped: Tensor = self.drop(pooled)
        return dropped


def resnet12(
    num_classes: int = 10, width: int = 64, in_channels: int = 3, dropblock: float = 0.0, dropblock_size: int = 5
) -> ImageClassifier:
    """ResNet12: four blocks of 1, 2.5, 5, 10 times `width` channels, each halving the image, and the average of what remains.

    `dropblock` is the share that DropBlock drops after each of the last two blocks while training (0.1 is usual in few-shot
    work), `dropblock_size` the side of its squares in pixels of the maps. For few-shot classification train it on the base
    classes and use `features`.

    >>> import torch
    >>> from mixsage.models import resnet12
    >>> model = resnet12(num_classes=64, width=16, dropblock=0.1).eval()
    >>> model.features(torch.rand(2, 3, 84, 84)).shape
    torch.Size([2, 160])
    """
    check_sizes(num_classes=num_classes, width=width, in_channels=in_channels, dropblock_size=dropblock_size)
    if not 0 <= dropblock < 1:
        raise ValueError(f"dropblock must be a share of at least 0 and below 1, got {dropblock!r}")
    stages = []
    before = in_channels
    for number, channels in enumerate((width, width * 5 // 2, width * 5, width * 10), start=1):
        drop = DropBlock(dropblock, dropblock_size) if number > 2 else nn.Identity()
        stages.append(ResNet12Block(before, channels, drop))
        before = channels
    model = ImageClassifier(
        stem=nn.Identity(),
        stages=stages,
        tail=nn.Identity(),
        head=nn.Linear(before, num_classes),
        in_channels=in_channels,
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, a=SLOPE, mode="fan_out", nonlinearity="leaky_relu")
    return model
