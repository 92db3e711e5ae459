"""Image files for tests: noise to recognise, formats that Pillow cannot write, and damage."""

import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor


def noise(height: int = 12, width: int = 12, seed: int = 0, channels: int = 3) -> Tensor:
    """An image that no other seed gives."""
    source = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (channels, height, width), generator=source, dtype=torch.uint8)


def save(path: Path, image: Tensor) -> Path:
    """Write an image, making the folders that it lies in."""
    from torchvision.transforms.v2.functional import to_pil_image

    path.parent.mkdir(parents=True, exist_ok=True)
    to_pil_image(image).save(path)
    return path


def class_folders(root: Path, classes: dict[str, int], height: int = 12, width: int = 12, ending: str = ".png") -> Path:
    """A folder with so many images of each class; image k of all has the seed k."""
    seed = 0
    for name, count in sorted(classes.items()):
        for _ in range(count):
            save(root / name / f"{seed:03d}{ending}", noise(height, width, seed))
            seed += 1
    return root


def png_of_16_bits(values: Tensor) -> bytes:
    """A PNG file of 16-bit colour [3, H, W], which Pillow reads but does not write."""
    _, height, width = values.shape
    rows = b"".join(b"\0" + struct.pack(f">{3 * width}H", *values[:, i].T.flatten().tolist()) for i in range(height))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content)) for kind, content in parts
    )


def truncate(path: Path, share: float = 0.6) -> Path:
    """Cut off the end of a file: the header stays whole."""
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path
