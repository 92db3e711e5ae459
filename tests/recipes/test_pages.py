"""The page of the paper's numbers says what the recipes, the published numbers and the records say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from mixsage.study.records import Record, append
from mixsage.study.spec import read_study

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("paper_tables", ROOT / "tools/paper_tables.py")
assert SPEC is not None and SPEC.loader is not None
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)


def test_the_page_is_up_to_date():
    text = tables.PAGE.read_text(encoding="utf-8")
    assert text == tables.fill(text), "write it anew: python tools/paper_tables.py"


def test_every_study_of_the_paper_is_on_the_page():
    assert set(tables.HEADINGS) == {path.stem for path in (ROOT / "recipes/studies").glob("*.toml")} - {"cifar10-5k"}


def test_records_take_the_place_of_what_was_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    runs = read_study(ROOT / "recipes/studies/main-cifar10-preactresnet18.toml").runs
    for run, accuracy in zip(runs[::8], (95.0, 95.2, 95.4), strict=True):
        metrics = {"last": accuracy, "seconds": 7200.0}
        record = Record(
            run=run.name, arm=run.arm, data="cifar10", model="preactresnet18", seed=run.seed, epochs=300, metrics=metrics
        )
        append(tmp_path / "studies/cifar10-preactresnet18/records.jsonl", record)
    page = tables.page()
    assert "| ours | 95.20 | –" in page
    assert "| ours | 2.00 | –" in page, "hours"
    assert re.search(r"–: not run here: 21 runs, about 1\d\d GPU-hours", page)


def test_hours_are_those_of_the_paper():
    main = read_study(ROOT / "recipes/studies/main-cifar10-preactresnet18.toml").runs
    assert tables.gpu_hours(main[:8]) == pytest.approx(3.35 + 3.29 + 3.38 + 3.44 + 3.45 + 8.9 + 25.29 + 6.83)
    short = read_study(ROOT / "recipes/studies/runtime-cifar100-resnext29_4_24.toml").runs
    assert tables.gpu_hours(short[:1]) == pytest.approx(9.76 / 100)


def test_a_page_without_marks_is_an_error():
    with pytest.raises(ValueError, match="needs the marks"):
        tables.fill("no marks")
