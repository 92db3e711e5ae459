"""A run, and a stranger's checkpoint, judged through the command: exact to the image, JSON alone on standard output."""

from __future__ import annotations

import json
import sys

import pytest
import torch

pytest.importorskip("lightning_fabric")
pytest.importorskip("torchmetrics")
pytest.importorskip("safetensors")
pytest.importorskip("tyro")

import mixsage
from image_files import class_folders
from mixsage import cli
from mixsage.data import load_sample
from mixsage.evaluation.features import features
from mixsage.evaluation.judge import Subject, judge
from mixsage.study.records import Record, append
from mixsage.training import Config, train, with_settings

KEYS = {"top1", "top5", "nll", "ece", "gaussian", "fgsm", "fgm", "ood"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("judge") / "run"
    settings = {"model": "small_convnet", "width": 4, "per_class": 30, "epochs": 2, "loggers": [], "device": "cpu", "out": out}
    train(with_settings(Config(), settings))
    return out


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A checkpoint as a training script would leave it, and its accuracy counted by hand."""
    torch.manual_seed(0)
    model = mixsage.models.small_convnet(num_classes=10, width=4).eval()
    images, labels = load_sample("test")
    with torch.no_grad():
        right = sum(
            int((model((image[None] / 255 - 0.3) / 0.2).argmax(1) == label).sum())
            for image, label in zip(images, labels, strict=True)
        )
    path = tmp_path_factory.mktemp("stranger") / "checkpoint.pt"
    torch.save({"epoch": 3, "state_dict": {f"module.{name}": value for name, value in model.state_dict().items()}}, path)
    return path, 100 * right / len(labels)


def test_a_strangers_checkpoint_has_its_accuracy_to_the_image(stranger):
    path, expected = stranger
    subject = Subject(target="small_convnet", data="sample", weights=path, width=4, mean=(0.3,), std=(0.2,), batch_size=333)
    found = judge(subject)
    assert set(found) == KEYS
    assert found["top1"] == expected
    assert found["ood"] == pytest.approx((found["gaussian"] + found["fgsm"] + found["fgm"]) / 3)


def test_the_command_writes_json_alone(run, capsys):
    assert cli.main(["evaluate", str(run), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert set(found) == KEYS
    assert all(0 <= found[name] <= 100 for name in KEYS - {"nll"})
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    assert found["top1"] == pytest.approx(last["test_top1"], abs=1e-9)


def test_what_a_users_module_prints_is_not_among_the_json(tmp_path, monkeypatch, capsys):
    (tmp_path / "talkative.py").write_text(
        f"{STRANGER}    \ndef talking(num_classes):\n    print('loading')\n    return network(num_classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    few_images(tmp_path / "few", lambda images: torch.zeros(len(images), 10))
    assert cli.main(["evaluate", "talkative:talking", "--data", str(tmp_path / "few"), "--json", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)) == KEYS
    assert "loading" in captured.err


def test_weights_that_nobody_named_are_said(caplog):
    judge(Subject(target="small_convnet", data="sample", width=4))
    assert "its numbers are those of chance" in caplog.text


def test_no_cuda_is_one_line(run, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["evaluate", str(run), "--device", "cuda"]) == 2
    assert "there is no cuda device" in capsys.readouterr().err


def test_published_weights_of_timm(tmp_path, monkeypatch):
    """With their own normalisation; and on other classes than their own, whose last layer would be random, only their features."""
    timm = pytest.importorskip("timm")
    create = timm.create_model

    def offline(name, *, pretrained, **settings):
        assert pretrained
        model = create(name, **settings)
        model.pretrained_cfg |= {"mean": (0.3, 0.3, 0.3), "std": (0.2, 0.2, 0.2)}
        return model

    monkeypatch.setattr(timm, "create_model", offline)
    few_images(tmp_path, lambda images: torch.zeros(len(images), 10))
    subject = Subject(target="timm:resnet10t", pretrained=True, data=str(tmp_path))
    with pytest.raises(ValueError, match=r"are for 1000 classes, .* has 10; train it on these first"):
        judge(subject)
    seen = []
    monkeypatch.setattr("mixsage.evaluation.judge.features", lambda model, loader: seen.append(model) or features(model, loader))
    with pytest.raises(ValueError, match="a task needs 16 images"):  # so it came as far as the tasks
        judge(subject, shots=[1])
    assert seen[0].mean.flatten().tolist() == pytest.approx([0.3] * 3)
    assert seen[0].std.flatten().tolist() == pytest.approx([0.2] * 3)


def test_the_table_is_for_people(run, capsys):
    assert cli.main(["evaluate", str(run)]) == 0
    assert "top1" in capsys.readouterr().out


def test_few_shot_tasks(run):
    found = judge(Subject(target=str(run)), shots=(1, 5), tasks=50)
    assert set(found) == {"5way_1shot", "5way_1shot_interval", "5way_5shot", "5way_5shot_interval"}
    assert found["5way_5shot"] > found["5way_1shot"] > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/run", "--data", "sample"], "unknown model"),
        (["small_convnet"], "data is missing"),
        (["small_convnett", "--data", "sample"], "did you mean 'small_convnet'"),
        (["small_convnet", "--data", "sample", "--weights", "nowhere.pt"], "there is no file of weights"),
        (["small_convnet", "--data", "sample", "--which", "best"], "which chooses between the weights of a run"),
        (["small_convnet", "--data", "sample", "--mean", "0.5"], "mean and std belong together"),
        (["small_convnet", "--data", "sample", "--mean", "nan", "--std", "1"], "those of pixels in [0, 1]"),
        (["small_convnet", "--data", "sample", "--shots", "1", "--extras", "pgd"], "ask for one at a time"),
        (["small_convnet", "--data", "sample", "--shots", "0"], "shots must be at least 1"),
        (["small_convnet", "--data", "sample", "--device", "gqu"], "unknown device 'gqu'"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_status(arguments, message, capsys):
    assert cli.main(["evaluate", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_run_is_judged_on_its_own_number_of_classes(run, tmp_path, capsys):
    pytest.importorskip("PIL")
    pytest.importorskip("torchvision")
    from torchvision.utils import save_image

    for split in ("train", "test"):
        for name in ("a", "b", "c"):
            for i in range(2):
                path = tmp_path / split / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                save_image(torch.rand(3, 32, 32), path)
    assert cli.main(["evaluate", str(run), "--data", str(tmp_path)]) == 2
    assert "10 classes" in capsys.readouterr().err


def test_preview_and_report_leave_their_files(run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(["preview", "--run", str(run), "--method", "mixup", "sage", "--out", str(tmp_path / "pictures")]) == 0
    made = {path.name for path in (tmp_path / "pictures").iterdir()}
    names = ("gallery", "pipeline", "against-mixup", "rearrangements", "shares", "ablations")
    assert made == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert all((tmp_path / "pictures" / name).stat().st_size > 5000 for name in made)
    record = {"run": "r", "arm": "SAGE", "data": "sample", "model": "m", "seed": 0, "epochs": 1, "metrics": {"last": 50.0}}
    append(tmp_path / "records.jsonl", Record(**record))
    page = tmp_path / "page.html"
    pictured = ["report", str(tmp_path / "records.jsonl"), "--out", str(page), "--run", str(run), "--method", "mixup", "sage"]
    assert cli.main(pictured) == 0
    assert page.read_text().count("data:image/svg") == len(names)
    assert {f"{name}.{kind}" for name in names for kind in ("png", "svg")} <= {path.name for path in (tmp_path / "page").iterdir()}


WRAPPINGS = {
    "bare": lambda weights: weights,
    "state_dict": lambda weights: {"epoch": 3, "state_dict": weights},
    "of a DataParallel": lambda weights: {"model": {f"module.{name}": value for name, value in weights.items()}},
    "of a compiled model": lambda weights: {f"_orig_mod.{name}": value for name, value in weights.items()},
    "of Lightning": lambda weights: {"state_dict": {f"model.{name}": value for name, value in weights.items()}, "epoch": 1},
    "averaged, compiled, parallel": lambda weights: {
        "model_ema": {f"module._orig_mod.{name}": value for name, value in weights.items()}
    },
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("kind", ["factory", "timm"])
def test_a_strangers_module_in_every_wrapping(wrapping, kind, tmp_path, monkeypatch, capsys):
    """The numbers of the module itself, whatever its weights were wrapped in; and other ones without its normalisation."""
    if kind == "timm":
        timm = pytest.importorskip("timm")
        target = "timm:resnet10t"
        torch.manual_seed(0)
        theirs = timm.create_model("resnet10t", num_classes=10).eval()
    else:
        (tmp_path / "strangers.py").write_text(STRANGER)
        monkeypatch.syspath_prepend(tmp_path)
        from importlib import import_module

        target = "strangers:network"
        torch.manual_seed(0)
        theirs = import_module("strangers").network(num_classes=10).eval()
    few = tmp_path / "few"
    expected = few_images(few, theirs)
    file = tmp_path / "weights.pt"
    torch.save(WRAPPINGS[wrapping](theirs.state_dict()), file)
    command = ["evaluate", target, "--weights", str(file), "--data", str(few), "--json", "--device", "cpu"]
    assert cli.main([*command, "--mean", *["0.3"] * 3, "--std", *["0.2"] * 3]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["top1"] == expected


STRANGER = """
from torch import nn

def network(num_classes):
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(54, num_classes))
"""


def few_images(folder, network):
    """A folder of 70 images of ten classes, and the share that the network gets right, counted one by one."""
    pytest.importorskip("PIL")
    from PIL import Image

    images, labels = load_sample("test")
    right = 0
    for split, rows in (("train", range(10, 40)), ("test", range(70))):
        for row in rows:
            path = folder / split / f"class{int(labels[row])}" / f"{row:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[row, 0].numpy()).convert("RGB").save(path)
            if split == "test":
                with torch.no_grad():
                    pixels = images[row].expand(3, -1, -1)[None] / 255
                    right += int(network((pixels - 0.3) / 0.2).argmax()) == int(labels[row])
    return 100 * right / 70


@pytest.mark.parametrize(
    ("extra", "line"), [("pgd", "mixsage[attacks]"), ("autoattack", "mixsage[attacks]"), ("corruptions", "mixsage[corruptions]")]
)
def test_extras_whose_library_is_missing_name_the_line_that_installs_it(run, extra, line, capsys, monkeypatch):
    import tomllib
    from pathlib import Path

    for name in ("art", "art.attacks", "art.attacks.evasion", "pyautoattack", "imagecorruptions"):
        monkeypatch.setitem(sys.modules, name, None)
    assert cli.main(["evaluate", str(run), "--extras", extra]) == 2
    captured = capsys.readouterr()
    assert f"pip install '{line}'" in captured.err
    assert captured.out == ""
    project = Path(__file__).parents[2] / "pyproject.toml"
    if project.exists():
        known = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
        assert line.removeprefix("mixsage[").removesuffix("]") in known


def test_a_run_that_skipped_damaged_images_is_judged_without_them(tmp_path, capsys):
    for part, count in (("train", 12), ("test", 4)):
        class_folders(tmp_path / "photos" / part, {"cats": count, "dogs": count})
        (tmp_path / "photos" / part / "dogs" / "torn.png").write_bytes(b"no image")
    settings = {"data": str(tmp_path / "photos"), "skip_corrupt": True, "val_share": 0.0, "batch_size": 8, "model": "small_convnet"}
    settings |= {"width": 4, "epochs": 1, "loggers": [], "device": "cpu", "out": tmp_path / "run"}
    train(with_settings(Config(), settings))
    assert cli.main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] in {12.5 * right for right in range(9)}
