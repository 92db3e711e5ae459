"""`kill -9` at any moment, and signals: nothing is lost, and what is resumed has the bits of a run that was left alone."""

import os
import random
import re
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

from forge import forge
from image_files import save
from mixsage.training import RunFolder
from mixsage.training.checkpoint import all_of, load
from mixsage.training.signals import EXIT_CODE, ONE_WISH, Wish
from runs import assert_same_run

SETTINGS = "--data sample --per-class 25 --model small_convnet --width 4 --batch-size 10 --epochs 3 --method SAGE(prob=0.7) --ema 0.9 --device cpu"
INTERVAL = 5
"""Steps between checkpoints; an epoch has 22 steps."""


def command(out, *more):
    return ["train", *SETTINGS.split(), "--checkpoint-steps", INTERVAL, *more, "--out", out]


@pytest.fixture(scope="module")
def smithy():
    with forge() as started:
        yield started


@pytest.fixture(scope="module")
def whole(smithy, tmp_path_factory):
    """An uninterrupted run, and the seconds that it needs a processor."""
    folder = tmp_path_factory.mktemp("whole")
    status, seconds = smithy.run(command(folder / "run"), folder / "said")
    assert status == 0, (folder / "said").read_text()
    return RunFolder(folder / "run"), seconds


def begin_or_resume(smithy, run, output):
    """As a script would that does not know whether the run had begun."""
    begun = (run / "run.json").exists()
    return smithy.start(["train", "--resume", run] if begun else command(run), output)


def killed(smithy, run, output, seconds):
    pid = begin_or_resume(smithy, run, output)
    wait_for(lambda: smithy.seconds(pid) >= seconds or RunFolder(run).complete)
    time.sleep(seconds % 0.01)
    os.kill(pid, signal.SIGKILL)
    return smithy.wait(pid)[0]


def complete(smithy, run, output):
    status, _ = smithy.wait(begin_or_resume(smithy, run, output))
    assert status == 0, output.read_text()
    return RunFolder(run)


def check_kill_at_a_random_moment(smithy, whole, tmp_path, seed):
    expected, duration = whole
    moment = random.Random(seed).uniform(0, 1.1 * duration)
    status = killed(smithy, tmp_path / "run", tmp_path / "said", moment)
    assert status == -signal.SIGKILL or (status == 0 and RunFolder(tmp_path / "run").complete)
    assert_same_run(complete(smithy, tmp_path / "run", tmp_path / "said"), expected)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_at_a_random_moment_resumes_to_the_bit(smithy, whole, tmp_path, seed):
    check_kill_at_a_random_moment(smithy, whole, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 20))
def test_a_run_killed_at_any_of_many_moments_resumes_to_the_bit(smithy, whole, tmp_path, seed):
    check_kill_at_a_random_moment(smithy, whole, tmp_path, seed)


@pytest.mark.slow
def test_a_run_killed_again_and_again_comes_to_the_same_end(smithy, whole, tmp_path):
    expected, duration = whole
    draw = random.Random(20)
    sittings = 0
    while not RunFolder(tmp_path / "run").complete:
        killed(smithy, tmp_path / "run", tmp_path / "said", draw.uniform(0.2, 0.7) * duration)
        sittings += 1
        assert sittings < 40
    assert sittings > 2
    assert_same_run(complete(smithy, tmp_path / "run", tmp_path / "said"), expected)


def test_a_run_killed_before_its_first_checkpoint_begins_again(smithy, whole, tmp_path):
    run, said = RunFolder(tmp_path / "run"), tmp_path / "said"
    pid = smithy.start(command(run.path), said)
    wait_for(run.description.exists)
    os.kill(pid, signal.SIGKILL)
    assert smithy.wait(pid)[0] == -signal.SIGKILL
    assert not all_of(run.checkpoints)
    assert_same_run(complete(smithy, run.path, said), whole[0])
    assert "from its first step, as there is no checkpoint yet" in said.read_text()


def test_a_kill_loses_at_most_one_interval(smithy, whole, tmp_path):
    run = RunFolder(tmp_path / "run")
    pid = smithy.start(command(run.path), tmp_path / "said")
    wait_for(lambda: len(all_of(run.checkpoints)) == 2)
    reached = [int(path.stem.removeprefix("step-")) for path in all_of(run.checkpoints)]
    os.kill(pid, signal.SIGKILL)
    smithy.wait(pid)
    assert reached[1] - reached[0] == INTERVAL
    newest = int(all_of(run.checkpoints)[-1].stem.removeprefix("step-"))
    assert newest >= reached[1]
    complete(smithy, run.path, tmp_path / "said")
    assert f"continues from step-{newest:09d}.ckpt" in (tmp_path / "said").read_text()


def test_a_kill_after_the_end_changes_nothing(smithy, tmp_path, whole):
    expected, _ = whole
    before = {path: path.read_bytes() for path in expected.path.rglob("*") if path.is_file()}
    killed(smithy, expected.path, tmp_path / "said", 0.05)
    assert smithy.run(["train", "--resume", expected.path], tmp_path / "said")[0] == 0
    assert "complete already" in (tmp_path / "said").read_text()
    assert {path: path.read_bytes() for path in expected.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_first_and_exits_with_a_code_of_its_own(smithy, whole, tmp_path, number):
    run = RunFolder(tmp_path / "run")
    pid = smithy.start(command(run.path), tmp_path / "said")
    wait_for(run.picture.exists)
    os.kill(pid, number)
    assert smithy.wait(pid)[0] == EXIT_CODE == 75
    said = (tmp_path / "said").read_text()
    assert "stopped as asked after step" in said
    assert f"mixsage train --resume {run.path}" in said
    assert "Traceback" not in said
    assert len(all_of(run.checkpoints)) >= 1
    assert_same_run(complete(smithy, run.path, tmp_path / "said"), whole[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_of_a_run_saves_first_too(smithy, tmp_path, number):
    """As from a terminal, `timeout` or a cluster: the workers that read images are told to end as well, and the run itself twice."""
    for kind in ("cats", "dogs"):
        for i in range(20):
            save(tmp_path / "photos" / kind / f"{i}.png", torch.full((3, 12, 10 + i), 10 * i, dtype=torch.uint8))
    run, said = RunFolder(tmp_path / "run"), tmp_path / "said"
    few = "--model small_convnet --width 4 --batch-size 4 --image-size 16 --epochs 4000 --workers 2 --device cpu --loggers"
    pid = smithy.start(
        ["train", "--data", tmp_path / "photos", *few.split(), "--out", run.path], said, first=("runs:lead_a_group", None)
    )
    wait_for(lambda: all_of(run.checkpoints))
    for _ in range(2):
        os.killpg(pid, number)
        time.sleep(0.02)
    assert smithy.wait(pid)[0] == EXIT_CODE, said.read_text()
    (step,) = re.findall(r"stopped as asked after step (\d+), saved as ", said.read_text())
    place = load(all_of(run.checkpoints)[-1])["place"]
    assert int(step) == place["epoch"] * 9 + place["step"]
    wait_for(lambda: not group_lives(pid))


def test_who_asks_again_later_is_obeyed_at_once():
    wish = Wish()
    wish(signal.SIGINT, None)
    wish(signal.SIGINT, None)
    assert wish.stop
    wish.since -= 2 * ONE_WISH
    with pytest.raises(KeyboardInterrupt):
        wish(signal.SIGINT, None)


def group_lives(pid):
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.002)


def test_the_installed_command_survives_a_kill(whole, tmp_path):
    """The same once through the real entry: a new interpreter, killed while it trains, and another that resumes."""
    run = RunFolder(tmp_path / "run")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    entry = [sys.executable, "-m", "mixsage.cli"]
    with subprocess.Popen([*entry, *map(str, command(run.path))], env=environment, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: all_of(run.checkpoints))
        process.kill()
    assert process.returncode == -signal.SIGKILL
    subprocess.run([*entry, "train", "--resume", run.path], env=environment, stdout=subprocess.DEVNULL, check=True, timeout=120)
    assert_same_run(run, whole[0])
