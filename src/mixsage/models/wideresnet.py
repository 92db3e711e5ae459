"""WRN16-8: a shallow, wide residual network (Zagoruyko and Komodakis, 2016), as the methods' authors have it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from mixsage.models.classifier import ImageClassifier, check_sizes


class WideBlock(nn.Module):
    """Twice BatchNorm, ReLU, 3x3 convolution with bias, the stride in the second, and a shortcut around them.

    Where the shape changes the shortcut is a 1x1 convolution, with bias, of the *raw* input.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1)
        same = stride == 1 and in_channels == channels
        self.shortcut = None if same else nn.Conv2d(in_channels, channels, 1, stride=stride)

    def forward(self, maps: Tensor) -> Tensor:
        residual: Tensor = self.conv2(relu(self.norm2(self.conv1(relu(self.norm1(maps))))))
        return residual + (maps if self.shortcut is None else self.shortcut(maps))


def wrn16_8(num_classes: int = 10, width: int = 128, in_channels: int = 3) -> ImageClassifier:
    """WRN16-8 for small images: a stem of 16 channels, three stages of two blocks, `width` channels in the first, then doubled.

    `width` is 16 times the widening factor of the architecture's paper: 128 for 8. There is no dropout. As in the
    authors' code, the momentum of the last BatchNorm is 0.9 (the others': 0.1), so its running statistics follow the last pass.

    >>> from mixsage.models import wrn16_8
    >>> sum(p.numel() for p in wrn16_8(num_classes=100).parameters())
    11012036
    """
    check_sizes(num_classes=num_classes, width=width, in_channels=in_channels)
    stem_channels = min(16, width)
    stages = []
    before = stem_channels
    for channels, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
        stages.append(nn.Sequential(WideBlock(before, channels, stride), WideBlock(channels, channels, 1)))
        before = channels
    return ImageClassifier(
        stem=nn.Conv2d(in_channels, stem_channels, 3, padding=1),
        stages=stages,
        tail=nn.Sequential(nn.BatchNorm2d(before, momentum=0.9), nn.ReLU()),
        head=nn.Linear(before, num_classes),
        in_channels=in_channels,
    )
