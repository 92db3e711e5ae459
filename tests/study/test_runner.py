"""Studies that run for real, on few images: skipped when done, tried again when failed, the same after a kill."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning_fabric")
pytest.importorskip("torchmetrics")
pytest.importorskip("safetensors")

from mixsage.study import execute, records, runner
from mixsage.study.runner import run_study

SPEC = """
seeds = [0, 1]
baseline = "clean"
[settings]
data = "sample"
model = "small_convnet"
width = 4
per_class = 20
val_share = 0.0
epochs = 2
loggers = []
device = "cpu"
[grid]
method = ["clean", "SAGE(saliency=Uniform())"]
"""
TIMES = {"seconds", "total_seconds", "images_per_second"}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(SPEC)
    return file


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As many threads as a process of its own is given: sums of more come in another order, and differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def found(out: Path) -> dict[str, dict]:
    """What the records say, without times, dates and the machine."""
    told = {}
    for record in records.latest(records.read(out / "records.jsonl")):
        metrics = {name: value for name, value in record.metrics.items() if name not in TIMES}
        history = [{name: value for name, value in epoch.items() if name not in TIMES} for epoch in record.history]
        told[record.run] = {"status": record.status, "arm": record.arm, "seed": record.seed, "metrics": metrics, "history": history}
    return told


def test_a_study_leaves_a_record_a_run_and_skips_what_is_done(tmp_path, spec):
    said: list[str] = []
    outcome = run_study(spec, tmp_path / "out", say=said.append)
    assert outcome.done == 4 and not outcome.failed
    first = found(tmp_path / "out")
    assert {record["arm"] for record in first.values()} == {"clean", "SAGE(saliency=Uniform())"}
    assert all(
        {"last", "best", "median_of_last_ten", "nll", "ece", "gaussian", "fgsm", "fgm", "ood"} <= set(r["metrics"])
        for r in first.values()
    )
    said.clear()
    assert run_study(spec, tmp_path / "out", say=said.append).done == 4
    assert said == ["small: 4 runs, 4 done, 0 to go"]
    assert len(records.read(tmp_path / "out" / "records.jsonl")) == 4
    # Paired: with the same seed both arms begin with the same weights, and so did no better or worse for it.
    assert len({record["seed"] for record in first.values()}) == 2


def test_a_run_that_fails_is_tried_again_reported_and_does_not_stop_the_rest(tmp_path, spec, monkeypatch):
    calls: list[str] = []
    real = runner.execute

    def faulty(run, folder, **options):
        calls.append(run.name)
        if run.arm == "clean" and run.seed == 0:
            raise ZeroDivisionError("the roof is on fire")  # as a module of a user might
        return real(run, folder, **options)

    monkeypatch.setattr(runner, "execute", faulty)
    said: list[str] = []
    outcome = run_study(spec, tmp_path / "out", retries=2, say=said.append)
    assert len(outcome.failed) == 1 and outcome.done == 3
    assert calls.count(outcome.failed[0]) == 3
    assert any("the roof is on fire" in line for line in said)
    monkeypatch.setattr(runner, "execute", real)
    assert not run_study(spec, tmp_path / "out", say=said.append).failed
    assert {record["status"] for record in found(tmp_path / "out").values()} == {"ok"}


def test_what_no_run_could_do_is_said_before_the_first(tmp_path, spec):
    spec.write_text(SPEC.replace('"clean", "SAGE(saliency=Uniform())"', '"clean", "sagee"'))
    with pytest.raises(ValueError, match="did you mean 'sage'"):
        run_study(spec, tmp_path / "out", say=lambda _: None)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="retries must not be negative, got -1"):
        run_study(spec, tmp_path / "out", retries=-1)


def hold(folder: Path, held, done) -> None:
    with execute._alone(folder):
        held.set()
        done.wait(60)


def test_two_processes_are_never_in_one_runs_folder(tmp_path, caplog):
    """As after a study was killed whose worker lived on, or when two studies share a run."""
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    first = context.Process(target=hold, args=(tmp_path / "runs/one", held, done))
    first.start()
    assert held.wait(60)
    with execute._alone(tmp_path / "runs/other"):
        pass
    threading.Timer(0.5, done.set).start()
    began = time.monotonic()
    with execute._alone(tmp_path / "runs/one"):
        assert time.monotonic() - began > 0.4
    assert "another process is making the run in" in caplog.text
    first.join()
    assert first.exitcode == 0


@pytest.mark.slow
def test_a_study_that_is_asked_to_stop_stops_its_workers(tmp_path, spec):
    spec.write_text(SPEC.replace("epochs = 2", "epochs = 2000"))
    call = f"run_study(Path({str(spec)!r}), Path({str(tmp_path / 'out')!r}), jobs=2)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"from pathlib import Path; from mixsage.study.runner import run_study; {call}"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 180
        while len(list((tmp_path / "out").glob("runs/*/metrics.jsonl"))) < 2:
            assert time.monotonic() < end, "the workers did not begin"
            time.sleep(0.1)
        process.terminate()  # the study alone, as a scheduler would
        assert "Interrupted: stopped as asked" in process.communicate(timeout=60)[1]
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
        assert all("saved as" in log.read_text() for log in (tmp_path / "out/runs").glob("*.log"))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_processes_and_a_kill_give_the_same_records(tmp_path, spec):
    """Killed with its workers at some moments, and run again in two processes: the records of a study that was never disturbed."""
    run_study(spec, tmp_path / "calm", say=lambda _: None)
    command = [
        sys.executable,
        "-c",
        f"from pathlib import Path; from mixsage.study.runner import run_study; run_study(Path({str(spec)!r}), Path({str(tmp_path / 'torn')!r}), jobs=2)",
    ]
    for wait in (6, 9, 12):
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
        time.sleep(wait)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not run_study(spec, tmp_path / "torn", jobs=2, say=lambda _: None).failed
    assert found(tmp_path / "torn") == found(tmp_path / "calm")


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_reported(tmp_path, spec, monkeypatch):
    """A model that kills its own process: no traceback, no message, and the others go on."""
    (tmp_path / "deadly.py").write_text("import os, signal\n\ndef model(num_classes):\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    spec.write_text(SPEC + '\n[[arms]]\nname = "deadly"\nmodel = "deadly:model"\nmethod = "clean"\nseeds = [0]\n')
    spec.write_text(spec.read_text().replace("width = 4\n", ""))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    outcome = run_study(spec, tmp_path / "out", jobs=2, retries=1, say=lambda _: None)
    assert len(outcome.failed) == 1 and outcome.done == 4
    (failure,) = [record for record in records.read(tmp_path / "out" / "records.jsonl") if record.status == "failed"]
    assert "killed by signal 9" in (failure.error or "")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_ray_cluster_gives_the_same_records(tmp_path, spec):
    ray = pytest.importorskip("ray")
    run_study(spec, tmp_path / "here", say=lambda _: None)
    try:
        assert not run_study(spec, tmp_path / "there", ray="local", say=lambda _: None).failed
    finally:
        ray.shutdown()
    assert found(tmp_path / "there") == found(tmp_path / "here")


def test_a_summary_says_what_two_seeds_support(tmp_path, spec):
    from mixsage.study.summary import summarise, table

    pytest.importorskip("scipy")
    run_study(spec, tmp_path / "out", say=lambda _: None)
    summary = summarise(records.read(tmp_path / "out" / "records.jsonl"), baseline="clean")
    json.dumps(summary)
    text = table(summary)
    assert "clean: 2 seeds: no interval (needs 3)" in text
    assert not any("±" in line for line in text.splitlines() if line.startswith(("clean", "SAGE")))
    assert all(arm["half_width"] is None and arm["p_holm"] is None for arm in summary["arms"])
