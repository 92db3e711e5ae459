"""Common corruptions: the published files, and the library that makes them."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from evaluation_models import MEAN, STD, ByteReader, loader
from mixsage.evaluation.corruptions import common_corruptions, corrupted_files
from mixsage.evaluation.pixels import Normalised


@pytest.fixture
def model():
    return Normalised(ByteReader(), mean=MEAN, std=STD)


def files(folder, count=50):
    images = np.random.default_rng(0).integers(0, 200, (count, 4, 4, 3), dtype=np.uint8)
    labels = images[:, 0, 0, 0].astype(np.int64)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "fog.npy", images)
    moved = images.copy()
    moved[: count // 5, 0, 0, 0] += 7
    np.save(folder / "snow.npy", moved)
    return images, labels


def test_published_files(tmp_path, model):
    files(tmp_path)
    found = corrupted_files(model, tmp_path, batch_size=7)
    assert found == {"fog": 100, "snow": 80, "corruptions": 90}
    assert corrupted_files(model, tmp_path, names=["snow"]) == {"snow": 80, "corruptions": 80}


def test_bad_folders(tmp_path, model):
    with pytest.raises(FileNotFoundError, match=r"no labels\.npy"):
        corrupted_files(model, tmp_path)
    images, labels = files(tmp_path)
    with pytest.raises(ValueError, match="unknown corruption 'snw'; did you mean 'snow'"):
        corrupted_files(model, tmp_path, names=["snw"])
    np.save(tmp_path / "rain.npy", images[:10])
    with pytest.raises(ValueError, match=r"rain\.npy holds \[10, 4, 4, 3\], expected \[50, H, W, C\]"):
        corrupted_files(model, tmp_path)
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    np.save(lonely / "labels.npy", labels)
    with pytest.raises(ValueError, match="only labels"):
        corrupted_files(model, lonely)


def test_no_pickles(tmp_path, model):
    files(tmp_path)
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"pickle|Python objects"):
        corrupted_files(model, tmp_path)


def stand_in():
    """A library of the same interface: `shift` adds the severity to every byte, `noise` draws from NumPy's global generator."""

    def corrupt(image, corruption_name, severity):
        assert image.dtype == np.uint8
        assert image.flags.c_contiguous
        if corruption_name == "noise":
            return image + np.random.randint(0, 2, image.shape).astype(np.uint8)
        return image + np.uint8(severity if severity > 3 else 0)

    return SimpleNamespace(corrupt=corrupt, get_corruption_names=lambda subset="common": ["noise", "shift"])


def test_corruptions_of_ones_own_images(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecorruptions", stand_in())
    images = torch.randint(200, (60, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = loader(images, images[:, 0, 0, 0].long(), 25)
    before = np.random.get_state()[1].copy()
    found = common_corruptions(model, data, seed=3)
    assert found["shift"] == pytest.approx(60)  # severities 1, 2, 3 of five change nothing
    assert 30 < found["noise"] < 70
    assert found["corruptions"] == pytest.approx((found["shift"] + found["noise"]) / 2)
    assert found == common_corruptions(model, data, seed=3)
    assert np.array_equal(before, np.random.get_state()[1])
    with pytest.raises(ValueError, match="unknown corruption 'shft'; did you mean 'shift'"):
        common_corruptions(model, data, names=["shft"])


def test_the_real_library(model):
    pytest.importorskip("imagecorruptions")
    images = torch.randint(200, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = common_corruptions(model, loader(images, images[:, 0, 0, 0].long()), names=["brightness"], severities=[5])
    assert 0 <= found["brightness"] < 100


def test_the_library_is_named_where_it_is_missing(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(ModuleNotFoundError, match=r"mixsage\[corruptions\]"):
        common_corruptions(model, [])
