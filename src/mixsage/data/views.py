"""One image as a model is to see it: a random part of it in training, its middle in evaluation. Bytes in, bytes out."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from mixsage.data.dataset import Augmentation
from mixsage.data.extras import need

AREA = (0.08, 1.0)
"""Share of the image that a random part covers."""
ASPECT = (3 / 4, 4 / 3)
"""Width of a random part, divided by its height."""
ATTEMPTS = 10
"""Random parts that are tried before the middle is taken."""
MARGIN = 0.875
"""Side of the middle that is shown in evaluation, as a share of the scaled image's: 224 of 256."""
LONGEST = 4
"""Sides of images are compared up to this ratio; what a longer image has beyond it is never shown."""


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Scale uint8 images [..., C, H, W] to a size, without aliasing."""
    if tuple(images.shape[-2:]) == size:
        return images
    resized: Tensor = need("torchvision.transforms.v2.functional").resize(images, list(size), antialias=True)
    return resized


def random_part(image: Tensor, size: tuple[int, int], flip: bool, source: Generator) -> Tensor:
    """A random part of [C, H, W], scaled to ``size``, and mirrored half of the time if ``flip``."""
    top, left, height, width = draw_part(image.shape[-2], image.shape[-1], source)
    return mirror(resize(image[:, top : top + height, left : left + width], size), flip, source)


def draw_part(height: int, width: int, source: Generator) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random part; the largest middle of a permitted aspect where ten draws gave none that fits."""
    share, aspect, *place = torch.rand(4, ATTEMPTS, generator=source, dtype=torch.float64)
    areas = height * width * (AREA[0] + (AREA[1] - AREA[0]) * share)
    aspects = torch.exp(math.log(ASPECT[0]) + (math.log(ASPECT[1]) - math.log(ASPECT[0])) * aspect)
    rows, columns = (areas / aspects).sqrt().round().long(), (areas * aspects).sqrt().round().long()
    fits = (rows >= 1) & (rows <= height) & (columns >= 1) & (columns <= width)
    if fits.any():
        first = int(fits.int().argmax())
        part = int(rows[first]), int(columns[first])
        free = height - part[0] + 1, width - part[1] + 1
        return int(place[0][first] * free[0]), int(place[1][first] * free[1]), *part
    part = min(height, max(1, round(width / ASPECT[0]))), min(width, max(1, round(height * ASPECT[1])))
    return (height - part[0]) // 2, (width - part[1]) // 2, *part


def shifted(image: Tensor, padding: int, flip: bool, source: Generator) -> Tensor:
    """[C, H, W] with black on all sides, cropped back to its size at random, and mirrored half of the time if ``flip``."""
    functional = need("torchvision.transforms.v2.functional")
    height, width = image.shape[-2:]
    top, left = torch.randint(2 * padding + 1, (2,), generator=source).tolist()
    return mirror(functional.pad(image, [padding])[:, top : top + height, left : left + width], flip, source)


def mirror(image: Tensor, flip: bool, source: Generator) -> Tensor:
    """The image, or half of the time its mirror image."""
    return image.flip(-1) if flip and int(torch.randint(2, (), generator=source)) else image


def middle(image: Tensor, size: tuple[int, int], margin: float = MARGIN) -> Tensor:
    """Scale [C, H, W] so that ``size`` is a share ``margin`` of it, or of its shorter side, and crop the middle."""
    functional = need("torchvision.transforms.v2.functional")
    height, width = image.shape[-2:]
    if max(height, width) > LONGEST * min(height, width):
        # What lies outside is cropped below in any case, and scaled up it could fill the memory.
        height, width = min(height, LONGEST * width), min(width, LONGEST * height)
        image = functional.center_crop(image, [height, width])
    wanted = [round(side / margin) for side in size]
    factor = max(wanted[0] / height, wanted[1] / width)
    scaled = max(wanted[0], int(height * factor)), max(wanted[1], int(width * factor))
    cropped: Tensor = functional.center_crop(resize(image, scaled), list(size))
    return cropped


def as_evaluated(image: Tensor, size: tuple[int, int], augmentation: Augmentation) -> Tensor:
    """[C, H, W] as a model sees it in evaluation, also where the image has another size than those of the data set."""
    if augmentation == "resize":
        return middle(image, size)
    return image if tuple(image.shape[-2:]) == size else middle(image, size, margin=1)
