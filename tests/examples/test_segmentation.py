"""The longer examples, on made data: they run, learn something, and draw their picture."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from mixsage import SAGE, Clean

SCRIPT = Path(__file__).parents[2] / "examples" / "long" / "segmentation.py"


@pytest.fixture(scope="module")
def segmentation():
    spec = importlib.util.spec_from_file_location("segmentation", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_smoke_form(segmentation, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--smoke", "--out", str(picture)])
    segmentation.main()
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].strip() for line in lines[1:-1]] == list(segmentation.METHODS)
    assert all("mean IoU" in line for line in lines[1:-1])


def test_pets_are_read_with_their_masks(segmentation, tmp_path, monkeypatch):
    pillow, numpy = pytest.importorskip("PIL.Image"), pytest.importorskip("numpy")
    trimap = numpy.array([[1, 2], [3, 1]], dtype=numpy.uint8)
    for split in ("train", "test"):
        for breed in ("pug", "boxer"):
            for folder, kind in ((tmp_path / "pets", "jpg"), (tmp_path / "pets" / "masks", "png")):
                (folder / split / breed).mkdir(parents=True)
                content = numpy.full((8, 8, 3), 200, dtype=numpy.uint8) if kind == "jpg" else trimap.repeat(4, 0).repeat(4, 1)
                for number in range(3):
                    pillow.fromarray(content).save(folder / split / breed / f"{number}.{kind}")
    monkeypatch.setenv("MIXSAGE_DATA", str(tmp_path))
    found = segmentation.pets("train", 2, 8)
    assert found.images.shape == (4, 3, 8, 8)
    assert found.class_maps[:, ::4, ::4].tolist() == [[[0, 1], [255, 0]]] * 4


def test_pets_that_are_not_there(segmentation, tmp_path, monkeypatch):
    monkeypatch.setenv("MIXSAGE_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="say where pets lies with MIXSAGE_DATA, or try --smoke"):
        segmentation.pets("train", 2, 8)


def test_mean_iou_is_the_loop(segmentation):
    data = segmentation.made(3, 16, 0)
    model = torch.nn.Conv2d(3, 2, 1)
    found = model(data.images).argmax(1)
    scores = []
    for c in range(2):
        pairs = [
            (f == c, t == c) for f, t in zip(found.flatten().tolist(), data.class_maps.flatten().tolist(), strict=True) if t != 255
        ]
        scores.append(sum(f and t for f, t in pairs) / sum(f or t for f, t in pairs))
    assert segmentation.mean_iou(model, data) == pytest.approx(sum(scores) / 2, rel=1e-6)


@pytest.mark.parametrize("mixer", [Clean(), SAGE()])
def test_discs_are_found(segmentation, mixer):
    model = segmentation.train(mixer, segmentation.made(60, 16, 0), epochs=12, width=4, seed=0)
    assert segmentation.mean_iou(model, segmentation.made(20, 16, 1)) > 0.6
