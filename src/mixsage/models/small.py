"""A model that a CPU trains in seconds: for examples, tests and the embedded sample."""

from __future__ import annotations

from torch import nn

from mixsage.models.classifier import ImageClassifier, check_sizes


def small_convnet(num_classes: int = 10, in_channels: int = 1, width: int = 16, norm: bool = True) -> ImageClassifier:
    """Three stages of 3x3 convolution, BatchNorm, ReLU, 2x2 max-pool, with `width`, twice and four times as many channels.

    With `norm=False` there is no BatchNorm: an image's logits do not depend on the rest of its batch.

    >>> import torch
    >>> from mixsage.models import small_convnet
    >>> small_convnet(num_classes=10, width=8)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    check_sizes(num_classes=num_classes, width=width, in_channels=in_channels)
    stages = []
    before = in_channels
    for channels in (width, 2 * width, 4 * width):
        convolution = nn.Conv2d(before, channels, 3, padding=1, bias=not norm)
        middle = [nn.BatchNorm2d(channels)] if norm else []
        stages.append(nn.Sequential(convolution, *middle, nn.ReLU(), nn.MaxPool2d(2)))
        before = channels
    return ImageClassifier(
        stem=nn.Identity(),
        stages=stages,
        tail=nn.Identity(),
        head=nn.Linear(before, num_classes),
        in_channels=in_channels,
    )
