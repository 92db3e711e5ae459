"""ResNeXt29-4-24: bottleneck blocks with grouped convolutions (Xie et al., 2017), in the form for CIFAR."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from mixsage.models.classifier import ImageClassifier, check_sizes

CARDINALITY = 4
BASE_WIDTH = 24
"""Channels of each group in the first stage, where that has 64 channels before its expansion."""
EXPANSION = 4


class ResNeXtBlock(nn.Module):
    """1x1, grouped 3x3 (with the stride), 1x1 convolution, each normalised, and a shortcut around them; ReLU after the sum.

    `planes` is the stage's number of channels before the expansion by 4. Where the shape changes the shortcut is a 1x1
    convolution and a BatchNorm.
    """

    def __init__(self, in_channels: int, planes: int, stride: int) -> None:
        super().__init__()
        inner = CARDINALITY * max(1, planes * BASE_WIDTH // 64)
        channels = EXPANSION * planes
        self.reduce = nn.Conv2d(in_channels, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=CARDINALITY, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.expand = nn.Conv2d(inner, channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, maps: Tensor) -> Tensor:
        residual = relu(self.norm1(self.reduce(maps)))
        residual = relu(self.norm2(self.conv(residual)))
        return relu(self.shortcut(maps) + self.norm3(self.expand(residual)))


def resnext29_4_24(num_classes: int = 10, width: int = 64, in_channels: int = 3) -> ImageClassifier:
    """ResNeXt29, 4x24d, for small images: a stem of `width` channels, three stages of three blocks with 4, 8, 16 times as many.

    All layers start from He's normal initialisation, biases at zero.

    >>> from mixsage.models import resnext29_4_24
    >>> sum(p.numel() for p in resnext29_4_24(num_classes=100).parameters())
    4937252
    """
    check_sizes(num_classes=num_classes, width=width, in_channels=in_channels)
    stages = []
    before = width
    for planes, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
        channels = EXPANSION * planes
        first = ResNeXtBlock(before, planes, stride)
        stages.append(nn.Sequential(first, ResNeXtBlock(channels, planes, 1), ResNeXtBlock(channels, planes, 1)))
        before = channels
    model = ImageClassifier(
        stem=nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        stages=stages,
        tail=nn.Identity(),
        head=nn.Linear(before, num_classes),
        in_channels=in_channels,
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    nn.init.kaiming_normal_(model.head.weight, nonlinearity="relu")
    nn.init.zeros_(model.head.bias)
    return model
