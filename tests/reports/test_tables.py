"""Tables: our numbers beside the paper's where the setting is the same, what is missing shown as missing, names escaped."""

import re
from dataclasses import replace

import pytest

from mixsage.reports import published
from mixsage.reports.arms import settings_of
from mixsage.reports.tables import MISSING, Cell, Table, tables
from mixsage.reports.text import to_latex, to_markdown
from mixsage.study.records import Record, RecordError
from mixsage.study.statistics import compare, estimate
from report_records import ARMS, study


def named(found, name):
    (table,) = [table for table in found if table.name == name]
    return table


def row(table, label):
    (cells,) = [cells for name, cells in table.rows if name == label]
    return cells


def test_the_papers_table_from_records():
    records = study()
    table = named(tables(records), "accuracy")
    assert [label for label, _ in table.rows][:8] == [
        "no mixing",
        "Mixup",
        "CutMix",
        "Manifold Mixup",
        "SaliencyMix",
        "Puzzle Mix",
        "Co-Mixup",
        "SAGE",
    ]
    assert table.columns == ("CIFAR-10, PreActResNet18",)
    (cell,) = row(table, "SAGE")
    values = [record.metrics["last"] for record in records if record.arm == "sage"]
    assert cell.text == str(estimate(values))
    assert cell.published == "96.95"
    assert cell.strong
    assert [label for label, (cell,) in table.rows if cell.strong] == ["SAGE"]
    assert any("300 epochs" in note for note in table.notes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 96.95),
        ({"settings": {"per_class": 500}}, None),
        ({"settings": {"width": 16}}, None),
        ({"model": "preactresnet18(width=16)"}, None),
        ({"data": "cifar100"}, 79.7),  # with the default truncation of 0.6
        ({"data": "cifar100", "method": "SAGE(truncation=0.5)"}, 79.91),
        ({"data": "cifar100", "model": "resnext29_4_24", "method": "SAGE(truncation=0.7, mixed_share=0.5)"}, 80.35),
        ({"method": "SAGE(search=NoShift())"}, 96.48),
        ({"method": "SAGE(blend=Paste())"}, 96.53),
        ({"method": "SAGE(search=Sampled(0.1))"}, 96.67),
        ({"method": "SAGE(search=Sampled(portion=0.01), truncation=0.60)"}, 96.95),
        ({"method": "SAGE(saliency=Uniform())"}, None),
        ({"method": "SAGE(mixed_share=0.65)"}, None),
        ({"method": "something else, in words"}, None),
    ],
)
def test_published_numbers_stand_beside_the_same_setting_only(changes, expected):
    changes = {"method": "sage", "data": "cifar10", "model": "preactresnet18", "settings": {}, **changes}
    record = Record(run="r", arm="SAGE", seed=0, epochs=300, **changes)
    assert published.published(record, "SAGE", "accuracy") == expected


def test_an_arm_that_is_more_than_the_papers_has_no_published_number():
    (cell,) = row(named(tables(study()), "accuracy"), "no mixing, twice the steps")
    assert cell.published is None


def test_published_numbers_are_the_papers():
    """Sums over the tables of the paper: a slip in any of them shows."""
    numbers = published._content()["numbers"]
    total = {}
    for entry in numbers:
        if "blend" in entry["method"] or "search" in entry["method"]:
            continue
        key = (entry["data"], entry["model"], entry["metric"])
        total.setdefault(key, []).append(entry["value"])
    assert sum(total["cifar10", "preactresnet18", "accuracy"][:8]) == pytest.approx(769.54)
    assert sum(total["cifar100", "preactresnet18", "accuracy"][:8]) == pytest.approx(629.76)
    assert sum(total["cifar100", "wrn16_8", "accuracy"]) == pytest.approx(639.94)
    assert sum(total["cifar100", "resnext29_4_24", "accuracy"]) == pytest.approx(631.11)
    assert sum(total["cifar10", "preactresnet18", "fgsm"]) == pytest.approx(651.36)
    assert sum(total["cifar100", "preactresnet18", "gaussian"]) == pytest.approx(361.28)
    assert len({(e["data"], e["model"], published.canonical(e["method"]), e["metric"]) for e in numbers}) == len(numbers)


def test_robustness_with_ranks():
    records = study()
    table = named(tables(records), "robustness")
    assert table.columns == ("FGSM", "FGM", "Gaussian noise", "OOD score", "rank")
    assert row(table, "Mixup")[4].text == "1"
    assert row(table, "CutMix")[4].text == "10"
    assert row(table, "no mixing")[2].published == "89.88"
    assert row(table, "no mixing")[3].published is None


def test_missing_cells_are_shown_as_missing():
    other = study(3, data="cifar100", arms={"sage": ARMS["sage"]})
    table = named(tables(study() + other), "accuracy")
    assert table.columns == ("CIFAR-10, PreActResNet18", "CIFAR-100, PreActResNet18")
    assert row(table, "Mixup")[1] == Cell(text=MISSING)
    assert row(table, "SAGE")[1].text != MISSING
    assert any(note.startswith(MISSING) for note in table.notes)


def test_too_few_seeds_are_said_everywhere():
    found = tables(study(2))
    (cell,) = row(named(found, "accuracy"), "SAGE")
    assert "±" not in cell.text
    assert cell.note == "2 seeds"
    differences = named(found, "differences")
    assert "nothing can be claimed" in row(differences, "SAGE")[4].text
    assert row(differences, "SAGE")[2].text == MISSING


def test_differences_are_those_of_the_statistics():
    records = study(5)
    table = named(tables(records), "differences")
    values = {arm.label: arm.values("last") for arm in settings_of(records)[0].arms}
    expected = {entry.arm: entry for entry in compare(values, "no mixing")}
    cells = row(table, "SAGE")
    assert cells[0].text.startswith(f"{expected['SAGE'].difference.mean:+.2f} ± ")
    assert cells[1].text == "5"
    assert cells[4].text == "yes"


def test_another_baseline():
    found = tables(study(), baseline="Mixup")
    assert named(found, "differences").title == "Difference to Mixup (points)"
    with pytest.raises(RecordError, match=r"the baseline 'Mixap' is not among the arms: .*Mixup"):
        tables(study(), baseline="Mixap")


def test_cost():
    table = named(tables(study()), "cost")
    place, minutes, speed, ratio, gain, per_cost = row(table, "SAGE")
    assert place.text == "Linux, 2 cores, fp32"
    assert minutes.text == f"{410 * 1.01 / 60:.1f}"
    assert ratio.text == "2.05 ± 0.00"
    assert ratio.published == f"{6.83 / 3.35:.2f}"
    assert gain.text == row(named(tables(study()), "differences"), "SAGE")[0].text.partition(" ±")[0]
    assert float(per_cost.text) == pytest.approx(float(gain.text) / 2.05, abs=0.01)
    assert row(table, "no mixing")[3].text == "1"
    assert row(table, "no mixing")[4].text == MISSING
    assert speed.text == "732"


def on_another_machine(records, *arms):
    """The same records, some arms made on a slow machine at another precision."""
    slow = {"system": "Linux", "cores": 2, "processor": "Old <b>"}
    return [
        replace(one, machine=slow, settings={**one.settings, "precision": "bf16"}, metrics={**one.metrics, "seconds": 9999.0})
        if one.arm in arms
        else one
        for one in records
    ]


def test_seconds_of_different_machines_are_not_compared():
    found = tables(on_another_machine(study(), "puzzlemix"))
    table = named(found, "cost")
    place, minutes, _, ratio, gain, per_cost = row(table, "Puzzle Mix")
    assert place.text == "Old <b>, 2 cores, bf16"
    assert minutes.text == f"{9999 / 60:.1f}"
    assert ratio.text == per_cost.text == MISSING
    assert gain.text != MISSING  # accuracy is compared, and it is said across what
    assert "No pair to take a cost from: Puzzle Mix." in table.notes
    assert any("27 on Linux, 2 cores, fp32; 3 on Old <b>, 2 cores, bf16" in note for note in named(found, "accuracy").notes)
    mixed = "Puzzle Mix: 3 of 3 pairs compare runs of different machines or precisions."
    assert mixed in named(found, "differences").notes
    assert row(table, "SAGE")[3].text == "2.05 ± 0.00"


def test_an_arm_made_in_two_places_has_two_rows():
    records = study()
    moved = [on_another_machine([one], one.arm)[0] if one.seed == 2 and one.arm in {"clean", "sage"} else one for one in records]
    table = named(tables(moved), "cost")
    cells = [cells for label, cells in table.rows if label == "SAGE"]
    assert [own[0].text for own in cells] == ["Linux, 2 cores, fp32", "Old <b>, 2 cores, bf16"]
    assert [(own[3].text, own[3].note) for own in cells] == [("2.05", "2 pairs"), ("1.00", "1 pair")]


def test_costs_by_step_times_are_called_that(tmp_path):
    file = tmp_path / "steps.json"
    file.write_text('{"ratios": {"sage": {"median": 1.97}, "cutmix": 1.0}}')
    table = named(tables(study(), costs=file), "cost")
    assert table.columns[-1] == "cost / no mixing, by step times"
    assert [row(table, name)[-1].text for name in ("no mixing", "SAGE", "CutMix", "Mixup")] == ["1", "1.97", "1.00", MISSING]
    assert any("steps.json, measured apart from these runs" in note for note in table.notes)


def test_no_mixing_is_the_papers_vanilla():
    records = [replace(one, arm="no mixing") if one.arm == "clean" else one for one in study()]
    table = named(tables(records), "accuracy")
    assert table.rows[0][0] == "no mixing"
    assert row(table, "no mixing")[0].published == "95.07"
    assert row(table, "no mixing, twice the steps")[0].published is None


def test_metrics_that_nobody_measured_make_no_table():
    bare = [replace(record, metrics={"last": record.metrics["last"]}) for record in study()]
    assert [table.name for table in tables(bare)] == ["accuracy", "accuracies", "differences"]


def test_failed_runs_are_left_out():
    records = study()
    failed = replace(records[0], run="x", seed=9, status="failed", error="died", metrics={"last": 1.0})
    assert tables([*records, failed])[0] == tables(records)[0]
    with pytest.raises(
        RecordError, match=r"no records are left to work with: 1 in all, 1 of what was asked for, 1 of these failed"
    ):
        tables([failed])


def test_runs_that_would_be_thrown_together():
    records = study()
    with pytest.raises(RecordError, match=r"two runs of 'clean' on cifar10 with preactresnet18 have the seed 0"):
        tables([*records, replace(records[0], run="another")])


def test_the_setting_is_not_repeated_in_the_name_of_an_arm():
    arms = {"sage, preactresnet18": ARMS["sage"], "clean, preactresnet18": ARMS["clean"]}
    assert [arm.label for arm in settings_of(study(arms=arms))[0].arms] == ["no mixing", "SAGE"]


@pytest.mark.parametrize("name", ["clean", "Clean", "Vanilla", "no mixing"])
def test_the_arm_without_mixing_stands_first_under_one_name_however_it_is_called(name):
    settings = settings_of(study(arms={"sage": ARMS["sage"], name: ARMS["clean"]}))
    assert [arm.label for arm in settings[0].arms] == ["no mixing", "SAGE"]
    assert settings[0].baseline().label == settings[0].baseline(name).label == "no mixing"
    assert settings[0].arms[0].published("accuracy") == 95.07


HOSTILE = Table(
    name="x",
    title="50 % | <b>_1_",
    columns=("a & b", "c|d"),
    rows=(
        ("evil </td> # $x$ \\input{x}\nline", (Cell(text="1.0 ± 0.1", published="2"), Cell(text="–", note="2 seeds", strong=True))),
    ),
    notes=("first\nsecond",),
)


def test_markdown_keeps_its_form_whatever_names_say():
    text = to_markdown(HOSTILE)
    lines = text.splitlines()
    assert lines[0] == r"### 50 % \| &lt;b&gt;\_1\_"
    body = [line for line in lines if line.startswith("|")]
    assert len(body) == 3
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in body)
    assert "1.0 ± 0.1 [2]" in body[2]
    assert "**–** (2 seeds)" in body[2]


def test_latex_keeps_its_form_whatever_names_say():
    text = to_latex(HOSTILE)
    assert r"evil \textless{}/td\textgreater{} \# \$x\$ \textbackslash{}input\{x\} line" in text
    assert r"a \& b & c\textbar{}d \\" in text
    assert r"1.0 $\pm$ 0.1 {\footnotesize [2]} & \textbf{--} (2 seeds) \\" in text
    assert text.splitlines()[0] == "% first second"
    assert text.count(r"\begin{tabular}{lrr}") == text.count(r"\end{tabular}") == 1


def test_signs_that_begin_something_in_latex_or_markdown():
    rows = (("[1] a", (Cell(text="< 0.001"),)), (r"*C:\|x", (Cell(text="2"),)))
    table = Table(name="t", title="t", columns=("p",), rows=rows)
    body = to_latex(table).splitlines()
    # OT1 prints an inverted exclamation mark for "<"; after the end of a row, "[" and "*" would be that end's arguments.
    assert r"{[}1{]} a & \textless{} 0.001 \\" in body
    assert r"{*}C:\textbackslash{}\textbar{}x & 2 \\" in body
    assert r"| \*C:\\\|x | 2 |" in to_markdown(table).splitlines()
