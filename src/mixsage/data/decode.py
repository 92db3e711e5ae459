"""One image file to pixels: always three colours, eight bits, the right way up."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mixsage.data.dataset import DataError
from mixsage.data.extras import need

if TYPE_CHECKING:
    from PIL.Image import Image

# What Pillow's decoders raise for damaged files, beside its own errors, which are OSErrors.
DAMAGE = (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, struct.error, zlib.error)


class CorruptImage(DataError):
    """A file that ought to be an image, and cannot be read as one."""

    def with_way_out(self) -> CorruptImage:
        """The same, and what can be done about it."""
        return CorruptImage(f"{self}; repair or remove it, or leave out such images with skip_corrupt (--skip-corrupt)")


def decode(file: Path | bytes, name: str, *, channels: int = 3) -> Tensor:
    """The pixels of a file, or of a file's contents, as uint8 [channels, H, W]: 3 for colour, 1 for grey.

    Grey and palette images become colour, or colour becomes grey; 16 bits are scaled to 8, what is transparent shows white behind it, and a photograph
    that says how the camera was held is turned upright.
    """
    pillow = need("PIL.Image")
    try:
        with pillow.open(_open(file)) as image:
            return pixels_of(image, channels)
    except pillow.DecompressionBombError as error:
        raise CorruptImage(f"{name} is not read: {error}") from error
    except DAMAGE as error:
        raise CorruptImage(f"{name} cannot be read as an image: {error}") from error


def size_of(file: Path | bytes, name: str) -> tuple[int, int]:
    """Height and width of a file's image, from its header alone."""
    pillow = need("PIL.Image")
    try:
        with pillow.open(_open(file)) as image:
            width, height = image.size
            # Pillow turns the size of a TIFF itself, and reads the whole of a PNG to find out that it says nothing of the camera.
            asked = image.format != "TIFF" and (image.format != "PNG" or "exif" in image.info)
            sideways = asked and image.getexif().get(ORIENTATION, 1) >= FIRST_SIDEWAYS
            return (width, height) if sideways else (height, width)
    except (pillow.DecompressionBombError, *DAMAGE) as error:
        raise CorruptImage(f"{name} cannot be read as an image: {error}") from error


ORIENTATION = 0x0112
"""The tag of photographs that says how the camera was held."""
FIRST_SIDEWAYS = 5
"""Its values from here on exchange height and width."""


def pixels_of(image: Image, channels: int = 3) -> Tensor:
    """An opened image as uint8 [channels, H, W]."""
    functional, turn = need("torchvision.transforms.v2.functional"), need("PIL.ImageOps").exif_transpose
    image = turn(image)
    if image.mode.startswith("I"):
        return scale_16_bits(image).expand(channels, -1, -1)
    if image.mode == "F":
        raise ValueError("it holds floating-point values, whose black and white nobody can know; save it with 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = need("PIL.Image").new("RGBA", image.size, "white")
        image = need("PIL.Image").alpha_composite(white, image)
    pixels: Tensor = functional.pil_to_tensor(image.convert({1: "L", 3: "RGB"}[channels]))
    return pixels


def scale_16_bits(image: Image) -> Tensor:
    """Grey values from 0 to 65535 as uint8 [1, H, W], rounded: Pillow's own conversion would clip them at 255."""
    values = torch.from_numpy(need("numpy").array(image).astype("int64"))
    if values.numel() and (values.min() < 0 or values.max() > 65535):
        raise ValueError(
            f"its values range from {int(values.min())} to {int(values.max())}, expected 0 to 65535; save it with 8 or 16 bits"
        )
    return values.mul_(255).add_(32767).floor_divide_(65535).to(torch.uint8)[None]


def _open(file: Path | bytes) -> Path | BytesIO:
    return BytesIO(file) if isinstance(file, bytes) else file
