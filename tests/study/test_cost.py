"""Seconds are compared within a machine and a precision only; step times may stand in; the table says what was not comparable."""

import json

import pytest

from mixsage.study.cost import by_steps, by_times, mixed_pairs, place_of, places
from mixsage.study.records import Record, RecordError
from mixsage.study.summary import summarise, table

GPU = {"system": "Linux-6", "cores": 16, "threads": 1, "gpu": "H200"}
CPU = {"system": "Linux-6", "cores": 2, "threads": 1, "gpu": None, "processor": "EPYC"}


def run(arm, seed, seconds, *, method="clean", machine=GPU, precision="fp32", epochs=60, last=80.0, **settings):
    return Record(
        run=f"{arm}-{seed}",
        arm=arm,
        data="d",
        model="m",
        seed=seed,
        epochs=epochs,
        method=method,
        machine=machine,
        settings={"precision": precision, "batch_size": 100, **settings},
        metrics={"last": last + 0.1 * seed, "seconds": seconds},
    )


def arms(*records):
    found = {}
    for record in records:
        found.setdefault(record.arm, []).append(record)
    return found


def test_places():
    assert place_of(run("a", 0, 1)) == "H200, fp32"
    assert place_of(run("a", 0, 1, device="cpu")) == "Linux-6, 16 cores, 1 thread, fp32"
    assert place_of(run("a", 0, 1, machine=CPU, precision="bf16")) == "EPYC, 2 cores, 1 thread, bf16"
    assert place_of(run("a", 0, 1, machine={})) is None
    assert places([run("a", 0, 1), run("a", 1, 1, machine={}), run("a", 2, 1)]) == {"H200, fp32": 2, "an unknown machine": 1}


def test_the_cost_is_the_mean_over_pairs_with_the_same_seed():
    sage = [run("sage", seed, seconds, method="sage") for seed, seconds in ((0, 20), (1, 120), (2, 999))]
    found = by_times(arms(run("plain", 0, 10), run("plain", 1, 40), *sage), "plain")
    assert list(found) == ["sage"]
    assert found["sage"].ratio.mean == pytest.approx((2 + 3) / 2)  # not 140 / 50, and not with the run that has no pair
    assert found["sage"].ratio.count == 2


@pytest.mark.parametrize("changes", [{"machine": CPU}, {"precision": "bf16"}, {"machine": {**GPU, "gpu": "T4"}}, {"machine": {}}])
def test_other_places_make_no_pair(changes):
    assert by_times(arms(run("plain", 0, 10), run("sage", 0, 20, method="sage", **changes)), "plain") == {}


def test_the_same_work_at_another_precision_is_a_bridge():
    records = [
        run("plain", 0, 10),
        run("plain, bf16", 0, 400, machine=CPU, precision="bf16"),
        run("long, bf16", 1, 800, machine=CPU, precision="bf16", epochs=120),
        run("puzzle", 0, 700, method="puzzlemix", machine=CPU, precision="bf16"),
        run("puzzle", 1, 700, method="puzzlemix", machine=CPU, precision="bf16"),
    ]
    found = by_times(arms(*records), "plain")
    assert found["puzzle"].ratio.mean == pytest.approx(700 / 400)
    assert found["puzzle"].ratio.count == 1
    assert list(found["puzzle"].by_place) == ["EPYC, 2 cores, 1 thread, bf16"]
    assert "long, bf16" not in found  # its seed has no plain run in that place


def test_steps_are_multiplied_by_their_number(tmp_path):
    own = arms(
        run("plain", 0, 1),
        run("long", 0, 1, epochs=120),
        run("sage", 0, 1, method="SAGE()"),
        run("x", 0, 1, method="SAGE(passes=1)"),
        run("control", 0, 1, method="SAGE(saliency=Uniform())"),
    )
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"ratios": {"sage": {"median": 2.0, "low": 1.9}, "sage(passes=1)": 1.1}}))
    assert {arm: cost.ratio.mean for arm, cost in by_steps(own, "plain", plain).items()} == {"long": 2.0, "sage": 2.0, "x": 1.1}
    assert by_steps(own, "sage", plain)["long"].ratio.mean == 1.0
    bench = tmp_path / "bench.json"
    spread = {"low": 1, "high": 2, "count": 3}
    rows = [
        {"name": "sage one pass", "spread": spread | {"median": 1.2}},
        {"name": "sage uniform maps", "spread": spread | {"median": 1.9}},
    ]
    bench.write_text(json.dumps({"comparisons": [{"name": "overhead", "rows": []}, {"name": "steps", "rows": rows}]}))
    assert {arm: cost.ratio.mean for arm, cost in by_steps(own, "plain", bench).items()} == {"long": 2.0, "x": 1.2, "control": 1.9}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no file of step times"),
        ("{", "is no JSON"),
        ("[]", "holds no step times"),
        ('{"ratios": {"sage": -1}}', "holds no step times"),
    ],
)
def test_files_without_step_times(tmp_path, content, message):
    if content is not None:
        (tmp_path / "steps.json").write_text(content)
    with pytest.raises(RecordError, match=message):
        by_steps(arms(run("plain", 0, 1)), "plain", tmp_path / "steps.json")


def study():
    return [
        record
        for seed in range(3)
        for record in (
            run("plain", seed, 10),
            run("sage", seed, 25 + seed, method="sage", last=82.0 + 0.05 * seed),
            run("worse", seed, 5, method="cutmix", last=79.0 + 0.07 * seed),
            run("puzzle", seed, 900, method="puzzlemix", machine=CPU, precision="bf16", last=81.0 + 0.03 * seed**2),
        )
    ]


def test_the_summary_tells_what_is_not_comparable():
    summary = summarise(study(), baseline="plain")
    rows = {row["arm"]: row for row in summary["arms"]}
    assert rows["plain"]["cost"] == 1.0
    assert rows["sage"]["cost"] == pytest.approx(2.6)
    assert rows["sage"]["gain_per_cost"] == pytest.approx(rows["sage"]["difference"] / 2.6)
    assert rows["worse"]["cost"] == 0.5
    assert rows["worse"]["gain_per_cost"] is None
    assert rows["puzzle"]["cost"] is None
    assert rows["puzzle"]["difference"] == pytest.approx(1.05)
    text = table(summary)
    assert "9 on H200, fp32; 3 on EPYC, 2 cores, 1 thread, bf16" in text
    assert "no cost for puzzle: no run with the same seed as one of plain" in text
    assert "puzzle: 3 of 3 pairs compare runs of different machines or precisions" in text
    json.dumps(summary)


def test_any_arm_may_be_the_baseline():
    rows = {row["arm"]: row for row in summarise(study(), baseline="sage")["arms"]}
    assert rows["sage"]["difference"] is None
    assert rows["plain"]["cost"] == pytest.approx((10 / 25 + 10 / 26 + 10 / 27) / 3)
    assert rows["plain"]["difference"] < 0
    with pytest.raises(RecordError, match="did you mean 'sage'"):
        summarise(study(), baseline="saga")


def test_the_baseline_is_no_mixing_whichever_run_was_done_first():
    records = [run("long", 0, 20, epochs=120), *reversed(study())]
    assert summarise(records)["baseline"] == "plain"
    assert summarise([one for one in study() if one.method != "clean"])["baseline"] == "sage"


def test_an_arm_without_a_common_seed_is_a_note_and_not_the_end():
    summary = summarise([*study(), run("alone", 9, 10)], baseline="plain")
    (row,) = [row for row in summary["arms"] if row["arm"] == "alone"]
    assert row["difference"] is None
    assert row["mean"] == pytest.approx(80.9)


def test_metrics_of_which_less_is_better_have_no_gain_for_cost():
    records = [Record(**{**record.__dict__, "metrics": {**record.metrics, "nll": 0.5}}) for record in study()]
    assert all(row["gain_per_cost"] is None for row in summarise(records, metric="nll", baseline="plain")["arms"])


def test_mixed_pairs():
    assert mixed_pairs(arms(*study()), "plain") == {"puzzle": (3, 3)}
    assert mixed_pairs(arms(*study()), "puzzle") == dict.fromkeys(("plain", "sage", "worse"), (3, 3))


def test_the_command_selects(tmp_path, capsys):
    pytest.importorskip("tyro")
    from mixsage import cli
    from mixsage.study.records import append

    for record in study():
        append(tmp_path / "r.jsonl", record)
    steps = tmp_path / "steps.json"
    steps.write_text('{"ratios": {"sage": 1.97, "puzzlemix": 1.7}}')
    command = [
        "study",
        "stats",
        str(tmp_path / "r.jsonl"),
        "--baseline",
        "plain",
        "--arms",
        "puzzle",
        "--costs",
        str(steps),
        "--json",
    ]
    assert cli.main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["arm"]: row["cost"] for row in told["arms"]} == {"plain": 1.0, "puzzle": pytest.approx(1.7)}
    assert told["cost_from"] == str(steps)
    assert cli.main([*command[:3], "--arms", "pizzle"]) == 2
    assert "did you mean 'puzzle'" in capsys.readouterr().err
    assert cli.main([*command[:3], "--data", "nothing"]) == 2
    assert "valid: d" in capsys.readouterr().err
