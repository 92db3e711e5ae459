"""Checkpoints: whole or not there, checked when read, and never a loss when the disk is full."""

import errno
import os

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("safetensors")

from mixsage.training import DiskFull, RunFolder, train
from mixsage.training.checkpoint import (
    CheckpointError,
    NewerCheckpointError,
    all_of,
    load,
    load_newest,
    save,
    write_atomically,
)
from runs import Stop, assert_same, assert_same_run, configured, in_sittings, rewrite, tiny

STATE = {"step": 3, "weights": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}, "words": ["x", None, 1.5]}


def test_what_is_saved_is_loaded(tmp_path):
    assert_same(load(save(tmp_path / "new" / "folder", 3, STATE)), STATE)


def test_the_two_newest_are_kept(tmp_path):
    for step in (1, 2, 3, 10):
        save(tmp_path, step, STATE)
    assert [path.name for path in all_of(tmp_path)] == ["step-000000003.ckpt", "step-000000010.ckpt"]


@pytest.mark.parametrize(
    ("damage", "message"),
    {
        "truncated": (lambda content: content[: len(content) // 2], "damaged or truncated"),
        "a byte less": (lambda content: content[:-1], "damaged or truncated"),
        "a bit flipped": (lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:], "damaged or truncated"),
        "empty": (lambda content: b"", "its beginning is damaged"),
        "the header alone": (lambda content: content[: content.index(b"\n") + 1], "damaged or truncated"),
        "half a header": (lambda content: content[:20], "its beginning is damaged"),
        "another file": (lambda content: b"PK\x03\x04 something else", "no checkpoint of mixsage"),
    }.values(),
)
def test_damage_is_noticed_and_the_one_before_is_taken(tmp_path, caplog, damage, message):
    save(tmp_path, 1, STATE)
    newest = save(tmp_path, 2, {"step": 4})
    rewrite(newest, damage)
    with pytest.raises(CheckpointError, match=message):
        load(newest)
    path, state = load_newest(tmp_path)
    assert path.name == "step-000000001.ckpt"
    assert_same(state, STATE)
    assert str(newest) in caplog.text


def test_no_whole_checkpoint_is_an_error_and_no_checkpoint_is_none(tmp_path):
    assert load_newest(tmp_path) is None
    rewrite(save(tmp_path, 1, STATE), lambda content: content[:-1])
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is whole; remove them to begin the run again"):
        load_newest(tmp_path)


def test_a_newer_format_is_not_passed_over(tmp_path):
    save(tmp_path, 1, STATE)
    rewrite(save(tmp_path, 2, STATE), lambda content: content.replace(b"mixsage-checkpoint 1 ", b"mixsage-checkpoint 2 ", 1))
    with pytest.raises(NewerCheckpointError, match=r"written by a newer mixsage \(format 2, this one reads 1\); update mixsage"):
        load_newest(tmp_path)


def test_loading_runs_no_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.system, ("touch trapped",)

    path = save(tmp_path, 1, {"trap": Trap()})
    with pytest.raises(Exception, match=r"(?i)weights.only|unsupported"):
        load(path)
    assert not (tmp_path / "trapped").exists()


def test_a_file_is_there_in_full_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"before")

    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"after, and longer")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path, caplog):
    whole = tiny(tmp_path / "whole")
    run = RunFolder(tmp_path / "run")
    in_sittings(run.path, 9, checkpoint_steps=2)
    run.weights.unlink()
    rewrite(all_of(run.checkpoints)[-1], lambda content: content[:1000])
    assert_same_run(train(configured(run.path, checkpoint_steps=2), resume=True), whole)
    assert "step-000000012.ckpt is damaged or truncated" in caplog.text


def full_after(count, monkeypatch):
    """A disk with room for so many more files; the next is cut short."""
    left = [count]
    plain = os.fsync

    def fsync(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("count", [1, 4, 6, 8, 10, 13, 16, 19, 22])
def test_a_full_disk_loses_nothing_that_was_kept(tmp_path, monkeypatch, count):
    """Wherever it is full first: the record, a checkpoint, the best weights, the metrics, the final weights."""
    whole = tiny(tmp_path / "whole")
    config = configured(tmp_path / "run", checkpoint_steps=2)
    full_after(count, monkeypatch)
    with pytest.raises(
        DiskFull, match=r"the disk is full .*No space left on device.*(there is no checkpoint yet|the last good checkpoint is)"
    ):
        train(config)
    monkeypatch.undo()
    run = RunFolder(tmp_path / "run")
    assert not list(run.path.rglob("*.part"))
    begun = run.description.exists()
    assert_same_run(train(config, resume=begun), whole)


def test_a_full_disk_in_earnest(tmp_path):
    """Files that cannot grow, in another process: the system itself refuses to write."""
    for package in ("tyro", "tensorboard", "torchvision"):
        pytest.importorskip(package)
    from forge import forge

    given = ["--data", "sample", "--per-class", 13, "--model", "small_convnet", "--width", 4, "--batch-size", 20, "--epochs", 2]
    said = tmp_path / "said"
    with forge() as smithy:
        command = ["train", *given, "--device", "cpu", "--loggers", "--out", tmp_path / "run"]
        assert smithy.run(command, said, largest=20_000)[0] == 2
        assert "mixsage: the disk is full ([Errno 27] File too large" in said.read_text()
        assert "Traceback" not in said.read_text()
        # Full before the first epoch was recorded, the folder is given up again; full later, the run goes on.
        begun = RunFolder(tmp_path / "run").description.exists()
        assert ("then: mixsage train --resume" if begun else "then: the same command") in said.read_text()
        again = ["train", "--resume", tmp_path / "run"] if begun else command
        assert smithy.run(again, said)[0] == 0, said.read_text()
    # Lists of the command's and of the configuration's differ in nothing else.
    assert_same_run(RunFolder(tmp_path / "run"), tiny(tmp_path / "whole"))


def test_a_sitting_that_is_stopped_at_once_keeps_its_step(tmp_path):
    from mixsage.training import Interrupted

    with pytest.raises(Interrupted):
        train(configured(tmp_path), progress=Stop(1))
    assert [path.name for path in all_of(tmp_path / "checkpoints")] == ["step-000000001.ckpt"]
