"""Every recipe and every study from end to end, as a trial: trained, judged, recorded, reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("lightning_fabric")
pytest.importorskip("torchmetrics")
pytest.importorskip("safetensors")
pytest.importorskip("tyro")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytest.importorskip("scipy")

from mixsage import cli
from mixsage.study import records
from mixsage.study.spec import read_study
from mixsage.training import Config, settings_of, with_settings
from mixsage.training.smoke import smoke

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SINGLE = sorted([*(RECIPES / "paper").glob("*.toml"), *(RECIPES / "small").glob("*.toml")])
STUDIES = sorted((RECIPES / "studies").glob("*.toml"))
SHORT = {"ablation-components-cifar100", "ablation-mixed-share-cifar10"}
"""Studies of few arms, that are tried whenever tests run; the others' arms are of the same kinds, and take their time."""
JUDGED = {"last", "best", "median_of_last_ten", "top5", "nll", "ece", "gaussian", "fgsm", "fgm", "ood", "seconds"}


@pytest.mark.parametrize("path", SINGLE, ids=lambda path: path.stem)
def test_a_recipe_runs(path, tmp_path, capsys):
    assert cli.main(["train", "--recipe", str(path), "--smoke", "--out", str(tmp_path)]) == 0
    (record,) = records.read(tmp_path / "records.jsonl")
    assert record.data.startswith("sample-tiny") and record.epochs == 2
    assert set(record.metrics) >= JUDGED
    assert (tmp_path / "report.html").is_file()
    assert str(tmp_path / "report.html") in capsys.readouterr().out


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=() if path.stem in SHORT else pytest.mark.slow) for path in STUDIES]
)
def test_a_study_runs(path, tmp_path, capsys):
    assert cli.main(["study", "run", str(path), "--smoke", "--out", str(tmp_path)]) == 0
    arms = list(dict.fromkeys(run.arm for run in read_study(path).runs))
    found = records.read(tmp_path / "records.jsonl")
    assert [record.arm for record in found] == arms and {record.status for record in found} == {"ok"}
    expected = JUDGED | ({"fewshot_1", "fewshot_5", "fewshot_1_interval"} if path.stem.startswith("fewshot") else set())
    assert all(set(record.metrics) >= expected for record in found)
    # Tables shaped as the paper's: a row an arm, a number in each.
    table = (tmp_path / "report" / "accuracy.md").read_text()
    rows = [line for line in table.splitlines() if re.search(r"\|.*\d+\.\d\d", line)]
    assert len(rows) == len(arms)
    if path.stem.startswith("fewshot"):
        assert "5 shots" in (tmp_path / "report" / "few-shot.md").read_text()
    assert "rank" in (tmp_path / "report" / "robustness.md").read_text()


def test_a_trial_of_a_study_in_processes(tmp_path):
    """Workers read the same trial, not the study itself."""
    path = RECIPES / "studies/ablation-components-cifar10.toml"
    assert cli.main(["study", "run", str(path), "--smoke", "--jobs", "2", "--out", str(tmp_path)]) == 0
    found = records.read(tmp_path / "records.jsonl")
    assert len(found) == 3 and all(record.status == "ok" and record.data.startswith("sample-tiny") for record in found)


def test_a_trial_keeps_what_is_tried():
    config = with_settings(
        Config(),
        {"data": "cifar100", "method": "SAGE(truncation=0.5)", "model": "wrn16_8", "loss": "bce", "schedule": "step", "ema": 0.9, "clip": 1.0, "compile": True},
    )  # fmt: skip
    tried = settings_of(smoke(config))
    kept = {name: tried[name] for name in ("method", "model", "loss", "schedule", "ema", "clip")}
    assert kept == {
        "method": "SAGE(truncation=0.5)",
        "model": "wrn16_8",
        "loss": "bce",
        "schedule": "step",
        "ema": 0.9,
        "clip": 1.0,
    }
    assert (tried["data"], tried["width"], tried["device"], tried["compile"]) == ("sample-tiny", 4, "cpu", False)


def test_a_trial_does_not_narrow_models_of_others():
    config = with_settings(Config(), {"model": "timm:resnet18", "pretrained": True})
    assert settings_of(smoke(config))["width"] is None
    assert smoke(config).model.pretrained is False
