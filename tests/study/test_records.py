"""Records survive several writers, kills in the middle of a line, and other schemas are refused."""

import json
import logging
import math
import multiprocessing
import os
import signal
import time

import pytest

from mixsage.study import records as module
from mixsage.study.records import Record, RecordError, append, latest, read, read_all, select


def record(run="cifar10/sage/0", **changes):
    settings = {
        "arm": "SAGE",
        "data": "cifar10",
        "model": "preactresnet18",
        "seed": 0,
        "epochs": 3,
        "method": "SAGE(truncation=0.5)",
        "settings": {"lr": 0.2, "milestones": [100, 200]},
        "metrics": {"last": 95.5, "seconds": 12.25},
        "history": [{"epoch": 1, "test_top1": 40.0}, {"epoch": 2, "test_top1": 50.5}],
        "versions": {"torch": "2.15.0"},
        "commit": "abc",
    }
    return Record(run=run, **{**settings, **changes})


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "deep" / "records.jsonl"
    written = [record("a"), record("b", arm="Köln <b>\n", status="failed", error='said "no"\nand died', metrics={})]
    for one in written:
        append(path, one)
    assert read(path) == written
    assert len(path.read_bytes().split(b"\n")) == 3  # one line a record
    assert json.loads(path.read_text().splitlines()[0])["version"] == 1


def test_several_files(tmp_path):
    append(tmp_path / "a", record("a"))
    append(tmp_path / "b", record("b"))
    assert [one.run for one in read_all([tmp_path / "a", tmp_path / "b"])] == ["a", "b"]


def write_many(path, name, count):
    for number in range(count):
        append(path, record(f"{name}/{number}", history=[{"epoch": i, "x": 0.1 * i} for i in range(200)]))


def test_two_writers_do_not_tear_each_others_lines(tmp_path):
    path = tmp_path / "records.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(path, name, 40)) for name in ("one", "two", "three")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = read(path)
    assert sorted(one.run for one in found) == sorted(
        f"{name}/{number}" for name in ("one", "two", "three") for number in range(40)
    )
    assert all(len(one.history) == 200 for one in found)
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_waits_for_the_lock(tmp_path):
    path = tmp_path / "records.jsonl"
    context = multiprocessing.get_context("fork")
    with module._locked(path):
        writer = context.Process(target=append, args=(path, record()))
        writer.start()
        time.sleep(0.3)
        assert path.read_bytes() == b""
    writer.join()
    assert len(read(path)) == 1


def test_killed_writers_lose_nothing_that_was_written(tmp_path):
    path = tmp_path / "records.jsonl"
    context = multiprocessing.get_context("fork")
    for round_ in range(5):
        writer = context.Process(target=write_many, args=(path, f"round{round_}", 10_000))
        writer.start()
        time.sleep(0.05 + 0.03 * round_)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    append(path, record("end"))
    found = read(path)
    assert found[-1].run == "end"
    for round_ in range(5):
        numbers = [int(one.run.split("/")[1]) for one in found if one.run.startswith(f"round{round_}/")]
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("left", [1, 30, -3])
def test_a_torn_last_line(tmp_path, caplog, left):
    path = tmp_path / "records.jsonl"
    append(path, record("whole"))
    whole = path.read_bytes()
    torn = record("torn").to_json().encode()[:left]
    path.write_bytes(whole + torn)
    with caplog.at_level(logging.WARNING, logger="mixsage"):
        assert [one.run for one in read(path)] == ["whole"]
        assert path.read_bytes() == whole + torn  # reading changes nothing
        append(path, record("next"))
    assert [one.run for one in read(path)] == ["whole", "next"]
    assert (tmp_path / "records.jsonl.torn").read_bytes() == torn + b"\n"
    assert "torn line" in caplog.text


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / "records.jsonl"
    append(path, record("first"))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert [one.run for one in read(path)] == ["first"]
    append(path, record("second"))
    assert [one.run for one in read(path)] == ["first", "second"]
    assert list(tmp_path.iterdir()) == [path]


def altered(**changes):
    return json.dumps({**json.loads(record().to_json()), **changes})


def without(name):
    return json.dumps({key: value for key, value in json.loads(record().to_json()).items() if key != name})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (altered(version=2), r"line 2: its schema has version 2, this mixsage reads version 1; update mixsage"),
        (without("version"), r"line 2: its schema has version None.*is this a file of records"),
        (altered(metric={}), r"line 2: unknown field 'metric'; did you mean 'metrics'"),
        (without("seed"), r"line 2: the field 'seed' is missing"),
        (altered(status="fine"), r"line 2: status must be 'ok' or 'failed', got 'fine'"),
        (altered(metrics={"last": math.nan}), r"line 2: it holds NaN, which is no number"),
        (altered(metrics={"last": "95"}), r"line 2: the metric 'last' of the run .* is '95', expected a finite number"),
        (altered(metrics={"last": True}), r"line 2: the metric 'last'"),
        ("[1, 2]", r"line 2: expected an object, got list"),
        ("{broken", r"line 2: "),
    ],
)
def test_lines_that_cannot_be_used_are_named(tmp_path, line, message):
    path = tmp_path / "records.jsonl"
    append(path, record("first"))
    content = path.read_text() + line + "\n"
    path.write_text(content)
    append(path, record("last"))
    with pytest.raises(RecordError, match=message):
        read(path)
    assert path.read_text().startswith(content)  # nothing is lost over it


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_number_that_is_none_is_not_recorded(value):
    with pytest.raises(RecordError, match=r"'last' of the run .* expected a finite number; record the run as failed"):
        record(metrics={"last": value})


def test_a_history_that_is_not_finite_is_not_recorded(tmp_path):
    with pytest.raises(RecordError, match="not finite"):
        append(tmp_path / "records.jsonl", record(history=[{"loss": math.nan}]))
    assert not (tmp_path / "records.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": None}, "metrics must be an object, got None"),
        ({"metrics": [1]}, "metrics must be an object"),
        ({"settings": None}, "settings must be an object"),
        ({"seed": "0"}, "seed must be a whole number, got '0'"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"history": 5}, "history must be an array of objects"),
        ({"history": [1]}, "history must be an array of objects"),
        ({"method": None}, "method must be text"),
        ({"commit": 7}, "commit must be text"),
    ],
)
def test_fields_of_another_type_are_named_with_their_line(tmp_path, changes, message):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**json.loads(record().to_json()), **changes}) + "\n")
    with pytest.raises(RecordError, match=f"line 1: {message}"):
        read(path)


def test_a_failed_run_says_why():
    with pytest.raises(RecordError, match="needs its error"):
        record(status="failed")


def test_no_file(tmp_path):
    with pytest.raises(RecordError, match="there are no records"):
        read(tmp_path / "nowhere.jsonl")


def test_a_run_counts_as_what_it_was_in_the_end():
    tries = [record("a", status="failed", error="killed"), record("b"), record("a")]
    assert [(one.run, one.status) for one in latest(tries)] == [("b", "ok"), ("a", "ok")]
    assert latest([*tries, record("b", status="failed", error="again")])[-1].status == "failed"


def test_selections():
    found = [
        record("a", arm="SAGE"),
        record("b", arm="Mixup"),
        record("c", arm="Mixup", data="cifar100"),
        record("d", arm="CutMix", status="failed", error="died"),
    ]
    assert [one.run for one in select(found)] == ["a", "b", "c"]
    assert [one.run for one in select(found, data="cifar10", arms=["Mixup"])] == ["b"]
    assert [one.run for one in select(found, status="failed")] == ["d"]
    assert [one.run for one in select(found, status=None)] == ["a", "b", "c", "d"]
    with pytest.raises(RecordError, match="unknown data among the records: 'cifar1'; did you mean 'cifar10"):
        select(found, data="cifar1")
    with pytest.raises(RecordError, match=r"'Mixap'; .*valid: CutMix, Mixup, SAGE"):
        select(found, arms=["Mixap"])
    with pytest.raises(RecordError, match="no records are left to work with: 4 in all, 1 of what was asked for, 1 of these failed"):
        select(found, arms=["CutMix"])
    with pytest.raises(RecordError, match="no records are left"):
        select([])
