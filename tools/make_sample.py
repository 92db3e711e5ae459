#!/usr/bin/env python3
"""Make src/mixsage/data/fashion_mnist_sample.xz from the original files of Fashion-MNIST.

The first 500 training and 200 test images of each class are kept, in the order of the originals. The payload is, split
after split (train, test), all images (28 by 28 bytes each, row by row), then all labels (a byte each); nothing else.
It needs only Python's standard library and always makes the same payload, whose SHA-256 `mixsage.data.sample` holds;
the compressed bytes may differ between versions of liblzma.

    python tools/make_sample.py [--source FOLDER] [--output FILE]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import lzma
import math
from collections import Counter
from pathlib import Path

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package `dataset-fashion-mnist` puts the originals."""
OUTPUT = Path(__file__).resolve().parent.parent / "src/mixsage/data/fashion_mnist_sample.xz"
SPLITS = (("train", 500), ("t10k", 200))
PIXELS = 28 * 28


def read_idx(path: Path, magic: int, shape: tuple[int, ...]) -> bytes:
    """The bytes of a gzipped IDX file, less its header, which must announce items of this `shape`."""
    content = gzip.decompress(path.read_bytes())
    header = [int.from_bytes(content[at : at + 4], "big") for at in range(0, 8 + 4 * len(shape), 4)]
    body = content[4 * len(header) :]
    if header[0] != magic or tuple(header[2:]) != shape or len(body) != header[1] * math.prod(shape):
        raise SystemExit(f"{path} is not the expected file of Fashion-MNIST: its header is {header}")
    return body


def select(source: Path, split: str, per_class: int) -> bytes:
    """Images, then labels, of the first `per_class` images of each class."""
    images = read_idx(source / f"{split}-images-idx3-ubyte.gz", 2051, (28, 28))
    labels = read_idx(source / f"{split}-labels-idx1-ubyte.gz", 2049, ())
    seen: Counter[int] = Counter()
    rows = []
    for row, label in enumerate(labels):
        if seen[label] < per_class:
            seen[label] += 1
            rows.append(row)
    if set(seen.values()) != {per_class} or len(seen) != 10:
        raise SystemExit(f"{source}: fewer than {per_class} images in some class of {split}: {dict(seen)}")
    return b"".join(images[row * PIXELS : (row + 1) * PIXELS] for row in rows) + bytes(labels[row] for row in rows)


def make_payload(source: Path) -> bytes:
    """The whole sample, not yet compressed."""
    return b"".join(select(source, split, per_class) for split, per_class in SPLITS)


def main() -> None:
    """Make the file, and print what `mixsage.data.sample` must say of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, default=DEBIAN, help="folder of the four .gz files (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file to write (default: %(default)s)")
    options = parser.parse_args()
    payload = make_payload(options.source)
    compressed = lzma.compress(payload, preset=9 | lzma.PRESET_EXTREME)
    options.output.write_bytes(compressed)
    train = payload[: 10 * SPLITS[0][1] * PIXELS]
    mean = sum(train) / len(train) / 255
    variance = sum(value * value * count for value, count in Counter(train).items()) / len(train) / 255**2 - mean**2
    print(f"{options.output}: {len(compressed):,} bytes, {len(payload):,} unpacked")
    print(f"PAYLOAD_SHA256 = {hashlib.sha256(payload).hexdigest()!r}")
    print(f"MEAN, STD = ({mean:.4f},), ({variance**0.5:.4f},)")


if __name__ == "__main__":
    main()
