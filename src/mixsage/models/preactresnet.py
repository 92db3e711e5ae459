"""PreActResNet18: the residual network whose blocks normalise before they convolve (He et al., 2016, "Identity mappings")."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from mixsage.models.classifier import ImageClassifier, check_sizes


class PreActBlock(nn.Module):
    """Twice BatchNorm, ReLU, 3x3 convolution, and a shortcut around them.

    Where the shape changes the shortcut is a 1x1 convolution of the *activated* input, with no norm; else it is the
    raw input.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        same = stride == 1 and in_channels == channels
        self.shortcut = None if same else nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        active = relu(self.norm1(maps))
        residual: Tensor = self.conv2(relu(self.norm2(self.conv1(active))))
        return residual + (maps if self.shortcut is None else self.shortcut(active))


def preactresnet18(num_classes: int = 10, width: int = 64, in_channels: int = 3, final_norm: bool = False) -> ImageClassifier:
    """PreActResNet18 for small images: a 3x3 stem, four stages of two blocks, `width` channels in the first, then doubled.

    As in the code of the methods' authors, nothing normalises the last stage's output before the average pool;
    `final_norm=True` puts the BatchNorm and ReLU there that the architecture's paper has.
    `width=16` is quick on a CPU.

    >>> from mixsage.models import preactresnet18
    >>> sum(p.numel() for p in preactresnet18(num_classes=100).parameters())
    11217316
    """
    check_sizes(num_classes=num_classes, width=width, in_channels=in_channels)
    stages = []
    before = width
    for channels, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        stages.append(nn.Sequential(PreActBlock(before, channels, stride), PreActBlock(channels, channels, 1)))
        before = channels
    return ImageClassifier(
        stem=nn.Conv2d(in_channels, width, 3, padding=1, bias=False),
        stages=stages,
        tail=nn.Sequential(nn.BatchNorm2d(before), nn.ReLU()) if final_norm else nn.Identity(),
        head=nn.Linear(before, num_classes),
        in_channels=in_channels,
    )
