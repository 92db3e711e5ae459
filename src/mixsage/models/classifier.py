"""What all models here have in common: stem, stages, tail, average pool, head; and the checks at their door."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn


class ImageClassifier(nn.Module):
    """Images to logits: `stem`, `stage1`, `stage2`, …, `tail`, the mean over the image, `head`.

    The stages are children of these names, so that a hook finds "after the first stage" as `stage1`. `features` gives
    what `head` sees. Images may have any height and width of at least 8 pixels.

    >>> import torch
    >>> from mixsage.models import small_convnet
    >>> model = small_convnet(num_classes=10)
    >>> images = torch.rand(4, 1, 28, 20)
    >>> model(images).shape, model.features(images).shape
    (torch.Size([4, 10]), torch.Size([4, 64]))
    """

    def __init__(self, stem: nn.Module, stages: Iterable[nn.Module], tail: nn.Module, head: nn.Linear, *, in_channels: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.stem = stem
        self.stage_names: list[str] = []
        for number, stage in enumerate(stages, start=1):
            self.add_module(f"stage{number}", stage)
            self.stage_names.append(f"stage{number}")
        self.tail = tail
        self.head = head

    def features(self, images: Tensor) -> Tensor:
        """The vector [B, D] of each image [B, C, H, W] that `head` classifies."""
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            raise ValueError(
                f"the model takes images [B, {self.in_channels}, H, W], got {list(images.shape)}; "
                "make it with in_channels=… for another number of channels"
            )
        if not images.is_floating_point():
            raise TypeError(f"the model takes floating-point images, got {images.dtype}; scale bytes: images / 255")
        maps = self.stem(images)
        for name in self.stage_names:
            maps = getattr(self, name)(maps)
        vectors: Tensor = self.tail(maps).mean(dim=(2, 3))
        return vectors

    def forward(self, images: Tensor) -> Tensor:
        """The logits [B, num_classes] of images [B, C, H, W]."""
        logits: Tensor = self.head(self.features(images))
        return logits


def check_sizes(**sizes: object) -> None:
    """Raise unless every one of a model's settings, given by name, is a positive integer."""
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {size!r}")
