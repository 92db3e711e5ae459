"""The embedded sample: what it holds, and that damage to it is noticed."""

import gzip
import hashlib
import importlib.util
import lzma
from importlib import resources
from pathlib import Path

import pytest
import torch

from mixsage.data import CLASSES, MEAN, STD, load, load_sample, sample

ORIGINALS = Path("/usr/share/datasets/fashion-mnist")
SCRIPT = Path(__file__).resolve().parents[2] / "tools/make_sample.py"
needs_originals = pytest.mark.skipif(not ORIGINALS.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")


@pytest.mark.parametrize(("split", "per_class"), [("train", 500), ("test", 200)])
def test_shapes_types_and_balance(split, per_class):
    images, labels = load_sample(split)
    assert images.shape == (10 * per_class, 1, 28, 28)
    assert images.dtype == torch.uint8
    assert labels.shape == (10 * per_class,)
    assert labels.dtype == torch.int64
    assert labels.bincount().tolist() == [per_class] * 10
    assert len(images.flatten(1).unique(dim=0)) == 10 * per_class  # no image twice
    assert images.min() == 0
    assert images.max() == 255


def test_classes_come_interleaved():
    """A loader that forgets to shuffle must not meet one class only."""
    _, labels = load_sample("train")
    assert all(len(part.unique()) == 10 for part in labels[:4500].split(100))


def test_names_and_statistics():
    images = load_sample("train").images.double() / 255
    assert len(CLASSES) == len(set(CLASSES)) == 10
    (mean,), (std,) = MEAN, STD
    assert mean == pytest.approx(images.mean().item(), abs=5e-5)
    assert std == pytest.approx(images.std(correction=0).item(), abs=5e-5)


def test_every_call_gives_tensors_of_its_own():
    first = load_sample("test")
    first.images.zero_()
    first.labels.zero_()
    second = load_sample("test")
    assert second.images.any()
    assert second.labels.any()
    assert second.images.untyped_storage().nbytes() == second.images.numel()


def test_the_tiny_part_is_the_first_images_of_each_class():
    tiny, whole = load("sample-tiny"), load("sample")
    for split in ("train", "test"):
        part, images = getattr(tiny, split), getattr(whole, split)
        assert part.labels.bincount().tolist() == [20] * 10
        for label in range(10):
            assert torch.equal(part.pixels[part.labels == label], images.pixels[images.labels == label][:20])


def test_unknown_split():
    with pytest.raises(ValueError, match=r"'train' and 'test', got 'validation'"):
        load_sample("validation")


def test_small_and_licensed():
    folder = resources.files("mixsage.data")
    assert len((folder / sample.FILE).read_bytes()) < 3 * 2**20
    licence = (folder / "fashion_mnist_sample.LICENSE").read_text(encoding="utf-8")
    assert "Zalando SE" in licence
    assert "Permission is hereby granted, free of charge" in licence


def damage_nothing(content):
    return content


def damage_by_truncation(content):
    return content[: len(content) // 2]


def damage_one_bit(content):
    return content[:100_000] + bytes([content[100_000] ^ 1]) + content[100_001:]


def damage_one_pixel(content):
    payload = bytearray(lzma.decompress(content))
    payload[12345] ^= 1
    return lzma.compress(payload, preset=0)


def damage_by_emptying(content):
    return b""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_nothing, None),
        (damage_by_truncation, "does not unpack"),
        (damage_one_bit, "does not unpack"),
        (damage_one_pixel, "SHA-256 .* expected 3f2d3e03"),
        (damage_by_emptying, "does not unpack|SHA-256"),
        (None, "is missing"),
    ],
)
def test_damage_is_reported(tmp_path, monkeypatch, damage, message):
    if damage is not None:
        content = (resources.files("mixsage.data") / sample.FILE).read_bytes()
        (tmp_path / sample.FILE).write_bytes(damage(content))
    monkeypatch.setattr(sample.resources, "files", lambda package: tmp_path)
    if message is None:
        assert len(load_sample("test").labels) == 2000
        return
    with pytest.raises(RuntimeError, match=message) as caught:
        load_sample("train")
    assert sample.FILE in str(caught.value)
    assert "reinstall mixsage" in str(caught.value)


@needs_originals
@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("test", "t10k")])
def test_first_images_are_the_originals(split, prefix):
    with gzip.open(ORIGINALS / f"{prefix}-images-idx3-ubyte.gz") as file:
        pixels = file.read(16 + 50 * 784)[16:]
    with gzip.open(ORIGINALS / f"{prefix}-labels-idx1-ubyte.gz") as file:
        labels = file.read(8 + 50)[8:]
    ours = load_sample(split)
    assert bytes(ours.images[:50].flatten().tolist()) == pixels
    assert bytes(ours.labels[:50].tolist()) == labels


@needs_originals
@pytest.mark.skipif(not SCRIPT.is_file(), reason="the tests run without the repository's tools")
def test_the_script_makes_this_sample():
    spec = importlib.util.spec_from_file_location("make_sample", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert hashlib.sha256(script.make_payload(ORIGINALS)).hexdigest() == sample.PAYLOAD_SHA256
