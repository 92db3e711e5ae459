"""The pages on the small study say what its records say; `make study-page` writes them anew."""

import importlib.util
import json
import re
from importlib import resources
from pathlib import Path

import pytest

from mixsage.reports.markdown import markdown, report
from mixsage.study.records import Record, append, read, read_all
from mixsage.study.statistics import by_arm, compare
from report_records import ARMS, study

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "studies" / "cifar10-5k" / "records.jsonl"
needs_study = pytest.mark.skipif(not RECORDS.exists(), reason="the study's records are not in this copy of the source")


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("study_page", ROOT / "tools" / "study_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def records():
    return read_all([RECORDS])


@needs_study
def test_the_page_is_what_the_records_make(tool, records):
    assert (ROOT / "docs" / "study.md").read_text() == markdown(records, "study", title=tool.TITLE, costs=tool.COSTS), (
        "run: make study-page"
    )


@needs_study
def test_the_table_of_choosing_is_what_the_records_make(tool, records):
    text = (ROOT / "docs" / "choosing.md").read_text()
    assert tool.filled(text, records) == text, "run: make study-page"
    assert text.count(tool.BEGIN) == text.count(tool.END) == 1


@needs_study
def test_what_choosing_claims(records):
    """Each line is a sentence under "What it says" or in the first table of docs/choosing.md: where one fails, rewrite the sentence."""
    accuracy, against = by_arm(records, "last"), {one.arm: one for one in compare(by_arm(records, "last"), "no mixing")}
    mean = {arm: sum(values.values()) / len(values) for arm, values in accuracy.items()}
    short = {record.arm for record in records if record.epochs == 60}
    assert max(short, key=mean.__getitem__) == "SAGE"
    assert against["SAGE"].significant()
    assert against["Co-Mixup"].significant()
    assert 1.5 < against["SAGE"].difference.mean < 2.5
    assert against["SAGE, uniform maps"].difference.mean > 0.75 * against["SAGE"].difference.mean
    assert abs(mean["SAGE"] - mean["no mixing, twice the steps"]) < 0.5
    assert max(mean, key=mean.__getitem__) == "SAGE, one pass, twice the steps"
    assert against["CutMix"].significant()
    assert against["CutMix"].difference.mean < 0
    for metric, better in {"ood": True, "fgsm": True, "fgm": True, "gaussian": False}.items():
        found = {arm: sum(values.values()) / len(values) for arm, values in by_arm(records, metric).items()}
        for arm in ("Mixup", "SaliencyMix", "Puzzle Mix", "CutMix", "SAGE", "SAGE, uniform maps"):
            assert (found[arm] > found["no mixing"]) is better, (metric, arm)
    error = {arm: sum(values.values()) / len(values) for arm, values in by_arm(records, "ece").items()}
    assert max(error["SAGE"], error["SaliencyMix"], error["Co-Mixup"]) < error["no mixing"] / 3
    assert min(error, key=error.__getitem__) in {"Co-Mixup", "SAGE, one pass, twice the steps"}
    mixed = [arm for arm in mean if "bf16" not in arm and "one pass" not in arm and "uniform" not in arm and "no mixing" not in arm]
    assert sorted(mixed, key=mean.__getitem__)[-2:] == ["Co-Mixup", "SAGE"]
    ood = {arm: sum(values.values()) / len(values) for arm, values in by_arm(records, "ood").items()}
    assert abs(ood["Co-Mixup"] - ood["no mixing"]) < 0.5
    robust = {one.arm: one for one in compare(by_arm(records, "ood"), "no mixing")}["Co-Mixup"]
    assert not robust.significant()
    for arm in ("Puzzle Mix", "SaliencyMix"):
        assert 0.75 < mean[arm] - mean["no mixing"] < 1
    assert 0.4 < mean["Mixup"] - mean["no mixing"] < 0.6
    for arm, (least, most) in {"SAGE": (0, 0.05), "no mixing": (0.55, 0.65)}.items():
        assert least <= abs(accuracy[f"{arm}, bf16"][0] - accuracy[arm][0]) < most
    assert 0.5 > max(accuracy["no mixing"].values()) - min(accuracy["no mixing"].values()) > 0.4


@needs_study
def test_what_choosing_and_one_pass_claim_of_one_pass(records):
    """Differences to SAGE and to no mixing, each with twice the steps or its two passes."""
    accuracy = by_arm(records, "last")
    twice, plain = "SAGE, one pass, twice the steps", "no mixing, twice the steps"
    against = {base: {one.arm: one for one in compare(accuracy, base)} for base in ("SAGE", plain, "no mixing")}
    text = " ".join((ROOT / "docs" / "one-pass.md").read_text().split())
    for base, told in {
        "SAGE": f"{against['SAGE'][twice].difference} points above SAGE in two passes",
        plain: f"{against[plain][twice].difference} above no mixing",
    }.items():
        assert told in text, (base, told)
        assert against[base][twice].significant()
    assert f"*p* is {against['SAGE'][twice].corrected:.3f}" in text
    assert 1 < against["SAGE"][twice].difference.mean < 2
    for arm, base in (("SAGE, one pass", "no mixing"), ("SAGE, uniform maps", "SAGE"), (plain, "SAGE")):
        assert not against[base][arm].significant(), (arm, base)
        assert abs(against[base][arm].difference.mean) < 0.5


@needs_study
def test_the_published_numbers_are_the_papers():
    known = json.loads((resources.files("mixsage.reports") / "published.json").read_text())["numbers"]
    models = {"PreActResNet18": "preactresnet18", "WRN16-8": "wrn16_8", "ResNeXt29-4-24": "resnext29_4_24"}
    methods = ("clean", "mixup", "cutmix", "manifold", "saliencymix", "puzzlemix", "comixup", "sage")
    text = (ROOT / "docs" / "choosing.md").read_text()
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in text.splitlines() if line.startswith("| CIFAR-")]
    assert len(rows) == 4
    for setting, *numbers in rows:
        data, model = setting.split(", ")
        for method, number in zip(methods, numbers, strict=True):
            theirs = [
                entry["value"]
                for entry in known
                if (entry["data"], entry["model"], entry["metric"]) == (data.lower().replace("-", ""), models[model], "accuracy")
                and entry["method"].lower().partition("(")[0] in {method, "manifoldmixup" if method == "manifold" else method}
            ]
            assert max(theirs) == float(number), (setting, method)


def test_a_page_of_markdown(tmp_path):
    for one in study():
        append(tmp_path / "records.jsonl", one)
    append(
        tmp_path / "records.jsonl", Record(run="x", arm="y|z", data="d", model="m", seed=0, epochs=1, status="failed", error="no")
    )
    records = read(tmp_path / "records.jsonl")
    made = report(records, tmp_path / "deep" / "page.md", title="What came out")
    text = made[0].read_text()
    assert made[0] == tmp_path / "deep" / "page.md"
    assert text.startswith("# What came out\n")
    assert "| Mixup |" in text
    assert "| SAGE, uniform maps |" in text
    assert "30 runs on CIFAR-10, PreActResNet18" in text
    assert "`lr` 0.2" in text
    assert "- `x`: `no`" in text
    pictures = re.findall(r"!\[([^]]*)\]\(page/([\w-]+\.svg)\)", text)
    assert {name for _, name in pictures} == {path.name for path in made[1:]}
    assert pictures
    assert all(alt for alt, _ in pictures)
    assert all((tmp_path / "deep" / "page" / name).read_text().lstrip().startswith("<?xml") for _, name in pictures)
    assert len([line for line in text.splitlines() if line.startswith("## ")]) >= 5
    assert len(ARMS) * 3 == 30


def test_the_command_writes_markdown_where_the_name_ends_so(tmp_path, capsys):
    from mixsage.cli import main

    for one in study(arms={name: ARMS[name] for name in ("clean", "sage")}):
        append(tmp_path / "records.jsonl", one)
    assert main(["report", str(tmp_path / "records.jsonl"), "--out", str(tmp_path / "page.md"), "--title", "Two arms"]) == 0
    assert (tmp_path / "page.md").read_text().startswith("# Two arms\n")
    assert str(tmp_path / "page.md") in capsys.readouterr().out
