"""A run that was stopped and resumed has the same bits as one that was not."""

import pytest

pytest.importorskip("lightning")
pytest.importorskip("safetensors")

import torch

import mixsage
from mixsage.training import Interrupted, RunFolder, train
from mixsage.training.checkpoint import all_of
from runs import Stop, assert_same_run, configured, in_sittings, metrics, tiny

VARIANTS = {
    "plain": {},
    "random layers": {"model": "runs:dropping", "width": None},
    "moving average": {"ema": 0.9},
    "bf16": {"precision": "bf16"},
    "microbatches": {"microbatches": 2},
    "now and then": {"method": "SAGE(prob=0.5)"},
    "one pass": {"method": "SAGE(passes=1)"},
    "each image": {"method": "SAGE(per_sample=True)", "loss": "bce"},
    "adamw, clipped": {"optimizer": "adamw", "lr": 1e-3, "clip": 0.1},
    "one cycle": {"schedule": "onecycle", "label_smoothing": 0.1},
    "by steps": {"schedule": "step", "milestones": [1, 2]},
    "mixing in one epoch": {"mix_from": 2, "mix_until": 2},
    "contiguous": {"channels_last": False},
    "streamed": {"resident": "no"},
    "streamed by processes": {"resident": "no", "workers": 1},
    "nothing held out": {"val_share": 0.0},
    "everything": {
        "model": "runs:dropping",
        "width": None,
        "ema": 0.9,
        "precision": "bf16",
        "microbatches": 2,
        "method": "SAGE(prob=0.7)",
        "clip": 0.5,
        "optimizer": "adamw",
        "lr": 1e-3,
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_in_sittings_has_the_bits_of_one_in_a_piece(tmp_path, name):
    whole = tiny(tmp_path / "whole", **VARIANTS[name])
    # In the first epoch, then six steps on in the second.
    assert_same_run(whole, in_sittings(tmp_path / "sittings", 2, 6, **VARIANTS[name]))


@pytest.mark.parametrize("method", mixsage.available())
def test_every_method_resumes_to_the_bit(tmp_path, method):
    whole = tiny(tmp_path / "whole", method=method)
    assert_same_run(whole, in_sittings(tmp_path / "sittings", 3, 5, method=method))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("method", ["sage", "manifold"])
def test_a_run_on_cuda_resumes_to_the_bit(tmp_path, precision, method):
    settings = {"device": "cuda", "precision": precision, "method": method, "model": "preactresnet18", "width": 16}
    whole = tiny(tmp_path / "whole", **settings)
    assert_same_run(whole, in_sittings(tmp_path / "sittings", 2, 6, **settings))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")  # of torch's: a single process has nothing to share out
def test_a_sharded_run_resumes_to_the_bit(tmp_path):
    settings = {"device": "cuda", "strategy": "fsdp"}
    whole = tiny(tmp_path / "whole", **settings)
    assert_same_run(whole, in_sittings(tmp_path / "sittings", 2, 6, **settings))


def test_a_stop_while_an_epoch_is_evaluated_loses_nothing_of_it(tmp_path, monkeypatch):
    whole = tiny(tmp_path / "whole")
    stop = Stop(after=1)

    def asked_in_the_second_evaluation(session, feed, between_batches, *, plain=mixsage.training.trainer.evaluate, seen=[]):  # noqa: B006
        seen.append(feed)
        if len(seen) == 3:
            stop.step(0, None, 0)
        return plain(session, feed, between_batches)

    monkeypatch.setattr(mixsage.training.trainer, "evaluate", asked_in_the_second_evaluation)
    with pytest.raises(mixsage.training.Interrupted, match="after step 12"):
        train(configured(tmp_path / "sittings"))
    assert [line["epoch"] for line in RunFolder(tmp_path / "sittings").history()] == [1]
    monkeypatch.undo()
    assert_same_run(whole, train(configured(tmp_path / "sittings"), resume=True))


def test_a_run_without_a_checkpoint_begins_again(tmp_path):
    whole = tiny(tmp_path / "whole")
    again = in_sittings(tmp_path / "again", 4)
    for path in all_of(again.checkpoints):
        path.unlink()
    again.weights.unlink()
    assert_same_run(whole, train(configured(again.path), resume=True))


def test_a_run_with_a_checkpoint_needs_the_weights_no_more_that_it_started_from(tmp_path):
    start = tiny(tmp_path / "start", epochs=1, seed=1).weights
    whole = tiny(tmp_path / "whole", weights=str(start))
    with pytest.raises(Interrupted):
        train(configured(tmp_path / "again", weights=str(start)), progress=Stop(4))
    start.unlink()
    assert_same_run(whole, train(RunFolder(tmp_path / "again").config(), resume=True))


def test_a_complete_run_is_left_alone(tmp_path):
    run = tiny(tmp_path)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert train(configured(tmp_path), resume=True) == run
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_a_run_killed_between_its_last_checkpoint_and_its_weights_completes(tmp_path):
    run = tiny(tmp_path / "run")
    before = run.weights.read_bytes(), metrics(run)
    run.weights.unlink()
    train(configured(run.path), resume=True)
    assert (run.weights.read_bytes(), metrics(run)) == before


def test_records_of_epochs_that_are_run_again_are_dropped(tmp_path):
    whole = tiny(tmp_path / "whole")
    run = tiny(tmp_path / "run")
    # As if killed in the last epoch's last moments: its line is there, torn, and the checkpoint of the one before it is the newest.
    all_of(run.checkpoints)[-1].unlink()
    run.weights.unlink()
    text = run.metrics.read_text()
    run.metrics.write_text(text[:-20])
    (run.path / ".best.safetensors.17.part").write_bytes(b"half")
    (run.checkpoints / ".step-000000012.ckpt.17.part").write_bytes(b"half")
    resumed = train(configured(run.path), resume=True)
    assert_same_run(whole, resumed)
    assert not list(run.path.rglob("*.part"))


def test_the_global_random_states_of_a_resumed_run_are_those_of_the_whole_one(tmp_path):
    tiny(tmp_path / "whole", model="runs:dropping", width=None)
    expected = torch.rand(3)
    in_sittings(tmp_path / "sittings", 5, model="runs:dropping", width=None)
    assert torch.equal(torch.rand(3), expected)


def test_a_resumed_run_says_where_it_continues_and_what_has_changed(tmp_path, capsys, monkeypatch):
    from mixsage.training.progress import Lines

    with pytest.raises(
        mixsage.training.Interrupted, match=r"after step 8, saved as .*step-000000008.ckpt\ncontinue with: mixsage train --resume"
    ):
        train(configured(tmp_path), progress=Stop(8))
    plain = mixsage.training.runs.provenance()
    monkeypatch.setattr(mixsage.training.runs, "provenance", lambda: plain | {"versions": plain["versions"] | {"torch": "9.9"}})
    train(configured(tmp_path), resume=True, progress=Lines())
    said = capsys.readouterr().out
    assert "continues from step-000000008.ckpt" in said
    assert "may not have the same bits as without the break: torch" in said
    assert "9.9 now" in said
