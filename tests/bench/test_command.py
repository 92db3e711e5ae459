"""`mixsage bench`: its output, its files, its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixsage import bench
from mixsage.bench import Comparison, Results
from mixsage.cli import main

pytest.importorskip("tyro")


def test_it_prints_writes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out, svg = tmp_path / "bench.json", tmp_path / "bench.svg"
    assert main(["bench", "growth", "recipe", "--quick", "--rounds", "1", "--json", str(out), "--picture", str(svg)]) == 0
    printed = capsys.readouterr().out
    assert "growth: How the search grows" in printed and "≤ 2.3" in printed and "torch" in printed
    assert "pass" not in printed and "miss" not in printed, "a quick run judges nothing"
    results = Results.read(out)
    assert [found.name for found in results.comparisons] == ["growth", "recipe"]
    assert results.settings == {"device": "cpu", "rounds": 1, "quick": True}
    assert svg.read_text().startswith("<?xml")
    assert "(goal ≤ 2.3; 1 round)" in svg.read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["stepps"], "did you mean 'steps'"),
        (["recipe", "--rounds", "0"], "rounds must be at least 1, got 0"),
        (["recipe", "--picture", "bench.bmp"], "a figure is saved as .svg, .png, .pdf, got 'bench.bmp'"),
        (["recipe", "--picture", "bench.svg"], "there is nothing to draw"),
    ],
)
def test_errors_name_the_way_out(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "name"), [("--json", "kept"), ("--picture", "kept.svg")])
def test_a_folder_in_the_place_of_a_file_is_said_before_anything_is_measured(
    flag: str, name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / name).mkdir()
    assert main(["bench", "recipe", flag, str(tmp_path / name)]) == 2
    said = capsys.readouterr()
    assert f"{name} is a folder; name a file in it" in said.err
    assert "recipe:" not in said.out


def test_a_missing_device_is_said_at_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["bench", "recipe", "--device", "cuda"]) == 2
    assert "choose --device cpu" in capsys.readouterr().err


def test_the_help_lists_every_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Comparisons: {', '.join(bench.COMPARISONS)};" in shown


def test_all_run_if_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["steps", "feeds"]
    made = {name: (lambda _, name=name: Comparison(name=name, title="t", setting="s")) for name in names}
    monkeypatch.setattr(bench, "COMPARISONS", made)
    assert [found.name for found in bench.run([], bench.Settings())] == names
