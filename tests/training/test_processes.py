"""Several processes train one model: the same losses as one, one checkpoint, one voice; and sharded weights, as far as a CPU goes."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("tyro")
pytest.importorskip("tensorboard")
pytest.importorskip("torchvision")
pytest.importorskip("safetensors")

from safetensors.torch import load_file

import processes
import shards
from forge import forge
from mixsage.training import Config, RunFolder, with_settings
from mixsage.training.checkpoint import all_of, load
from mixsage.training.session import channels_last
from runs import assert_same, assert_same_run, metrics

SETTINGS = (
    "--data sample --per-class 13 --model small_convnet(norm=False) --width 4 --batch-size 20 --epochs 2 --device cpu --loggers"
)
TWO = ["--devices", "2", "--strategy", "ddp"]
OF_THE_CLEAN_PASS = {"clean_loss", "mixed_loss", "train_top1"}
"""Where its gradient has no weight, a clean pass serves to draw the plan alone: a step that replays one has none, and measures none."""


def command(out, *more):
    return ["train", *SETTINGS.split(), *more, "--out", str(out)]


@pytest.fixture(scope="module")
def smithy():
    with forge() as started:
        yield started


def end(smithy, pids, said, status=0):
    ended = [smithy.wait(pid)[0] for pid in pids]
    assert ended == [status, 0], said.read_text()
    return said.read_text()


@pytest.mark.parametrize("method", ["SAGE", "SAGE(prob=0.5, mixed_share=1)", "manifold", "cutmix"])
def test_two_processes_have_the_losses_of_one(smithy, tmp_path, method):
    said, plans = tmp_path / "said", tmp_path / "plans"
    plans.mkdir()
    end(smithy, smithy.start_two(command(tmp_path / "two", *TWO, "--method", method), said, ("replays:record", str(plans))), said)
    one = command(tmp_path / "one", "--microbatches", "2", "--method", method)
    assert smithy.run(one, said, first=("replays:replay", str(plans)))[0] == 0, said.read_text()
    pairs = list(zip(metrics(RunFolder(tmp_path / "two")), metrics(RunFolder(tmp_path / "one")), strict=True))
    assert len(pairs) == 2
    for of_two, of_one in pairs:
        assert of_two.keys() - of_one.keys() <= OF_THE_CLEAN_PASS
        for name in of_one.keys() - (OF_THE_CLEAN_PASS if of_two.keys() != of_one.keys() else set()):
            assert of_two[name] == pytest.approx(of_one[name], rel=2e-5), name
    first, second = (load_file(RunFolder(tmp_path / name).weights) for name in ("two", "one"))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)


def test_processes_mix_the_same_steps_and_choose_for_themselves(smithy, tmp_path):
    said, plans = tmp_path / "said", tmp_path / "plans"
    plans.mkdir()
    end(
        smithy,
        smithy.start_two(command(tmp_path / "two", *TWO, "--method", "SAGE(prob=0.5)"), said, ("replays:record", str(plans))),
        said,
    )
    drawn = [[torch.load(plans / f"{step}-{rank}.pt", weights_only=False) for rank in range(2)] for step in range(12)]
    assert {tuple(plan.is_identity for plan in pair) for pair in drawn} == {(True, True), (False, False)}
    assert not any(torch.equal(a.weights, b.weights) for a, b in drawn if not a.is_identity)


def test_one_process_speaks_and_both_resume_to_the_bit(smithy, tmp_path):
    model = ["--model", "runs:dropping", "--width", "None", "--method", "sage", "--ema", "0.9"]
    text = end(smithy, smithy.start_two(command(tmp_path / "whole", *TWO, *model), tmp_path / "said"), tmp_path / "said")
    assert text.count("epoch 1/2") == text.count("done: ") == 1
    run, said = RunFolder(tmp_path / "run"), tmp_path / "said-2"
    pids = smithy.start_two(command(run.path, *TWO, *model, "--checkpoint-steps", "5", "--epochs", "40"), said)
    wait_for(lambda: all_of(run.checkpoints))
    os.kill(pids[1], signal.SIGTERM)  # whichever of them is asked
    text = end(smithy, pids, said, status=75)
    assert text.count("stopped as asked after step") == 1
    assert "Traceback" not in text


def test_two_processes_resume_to_the_bit(smithy, tmp_path):
    settings = [*TWO, "--model", "runs:dropping", "--width", "None", "--ema", "0.9", "--checkpoint-steps", "4"]
    end(smithy, smithy.start_two(command(tmp_path / "whole", *settings), tmp_path / "said"), tmp_path / "said")
    run, said = RunFolder(tmp_path / "run"), tmp_path / "said-2"
    pids = smithy.start_two(command(run.path, *settings), said)
    wait_for(lambda: all_of(run.checkpoints))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        smithy.wait(pid)
    end(smithy, smithy.start_two(["train", "--resume", str(run.path)], said), said)
    assert_same_run(run, RunFolder(tmp_path / "whole"))


@pytest.mark.slow
def test_the_command_starts_its_processes_itself(tmp_path):
    """As a user starts it: the first process begins the second; a signal to the first ends both, and both are there again to resume."""
    run = RunFolder(tmp_path / "run")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    entry = [sys.executable, "-m", "mixsage.cli"]
    more = ["--epochs", "300", "--checkpoint-steps", "5"]
    with subprocess.Popen([*entry, *command(run.path, *TWO, *more)], env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: all_of(run.checkpoints))
        process.send_signal(signal.SIGTERM)
        errors = process.stderr.read()
    assert process.returncode == 75, errors
    assert "Traceback" not in errors
    stopped = load(all_of(run.checkpoints)[-1])
    assert stopped["place"]["epoch"] < 299
    assert len(stopped["random"]) == 2


def wait_for(condition, seconds=120):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_sharded_state_is_gathered_and_handed_out_again(tmp_path):
    """Fabric's FSDP needs CUDA devices; what it leaves to this library is tried with torch's own on two CPU processes."""
    processes.together(shards.half_way, str(tmp_path))
    whole, resumed = (torch.load(tmp_path / name, weights_only=True) for name in ("whole", "resumed"))
    assert_same(whole, resumed)


def test_shards_are_not_in_channels_last():
    """FSDP's gradients are contiguous, and a fused optimiser refuses weights that are laid out in another way."""
    assert channels_last(with_settings(Config(), {}))
    assert not channels_last(with_settings(Config(), {"channels_last": False}))
    assert not channels_last(with_settings(Config(), {"strategy": "fsdp"}))
