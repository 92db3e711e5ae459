"""A run, and a stranger's checkpoint, judged through the command: exact to the image, JSON alone on standard output."""

from __future__ import annotations

import json

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
from mixsage.evaluation.judge import Subject, judge
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
        (["nowhere/run"], "unknown model"),
        (["small_convnet"], "data is missing"),
        (["small_convnett", "--data", "sample"], "did you mean 'small_convnet'"),
        (["small_convnet", "--data", "sample", "--weights", "nowhere.pt"], "there is no file of weights"),
    ],
)
def test_what_is_wrong_is_one_line_and_a_status(arguments, message, capsys):
    assert cli.main(["evaluate", *arguments]) != 0
    captured = capsys.readouterr()
    assert message in captured.err or "data is missing" in captured.err
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
    assert made == {"gallery.png", "pipeline.png", "rearrangements.png", "shares.png"}
    assert all((tmp_path / "pictures" / name).stat().st_size > 5000 for name in made)


def test_a_run_that_skipped_damaged_images_is_judged_without_them(tmp_path, capsys):
    for part, count in (("train", 12), ("test", 4)):
        class_folders(tmp_path / "photos" / part, {"cats": count, "dogs": count})
        (tmp_path / "photos" / part / "dogs" / "torn.png").write_bytes(b"no image")
    settings = {"data": str(tmp_path / "photos"), "skip_corrupt": True, "val_share": 0.0, "batch_size": 8, "model": "small_convnet"}
    settings |= {"width": 4, "epochs": 1, "loggers": [], "device": "cpu", "out": tmp_path / "run"}
    train(with_settings(Config(), settings))
    assert cli.main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] in {12.5 * right for right in range(9)}
