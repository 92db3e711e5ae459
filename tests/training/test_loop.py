"""What the loop does with its settings: when it mixes, how it steps, what it averages, and what chooses."""

import pytest
import torch
from torch import nn

pytest.importorskip("lightning")
pytest.importorskip("safetensors")

from safetensors.torch import load_file

from mixsage.training import trainer
from mixsage.training.session import open_fabric, open_session
from runs import assert_same, configured, tiny

EXACT = {"model": "small_convnet(norm=False)", "method": "clean", "schedule": "constant", "lr": 0.05, "val_share": 0.0, "epochs": 1}
"""Six steps of the same size, in a model whose passes know nothing of one another."""


@pytest.fixture
def watched(monkeypatch):
    """The plan of every step."""
    plain, plans = trainer.accumulate, []

    def watching(*arguments, **options):
        step = plain(*arguments, **options)
        plans.append(step.plan)
        return step

    monkeypatch.setattr(trainer, "accumulate", watching)
    return plans


@pytest.mark.parametrize("method", ["mixup", "sage", "manifold"])
def test_mixing_from_an_epoch_until_another(tmp_path, watched, method):
    run = tiny(tmp_path, epochs=4, mix_from=2, mix_until=3, method=method, val_share=0.0)
    mixed = [[not plan.is_identity for plan in watched[6 * epoch : 6 * epoch + 6]] for epoch in range(4)]
    assert mixed == [[False] * 6, [True] * 6, [True] * 6, [False] * 6]
    assert [("clean_loss" in line) for line in run.history()] == [method == "sage" and 2 <= epoch <= 3 for epoch in (1, 2, 3, 4)]


def test_mixing_with_a_probability(tmp_path, watched):
    tiny(tmp_path, epochs=20, method="Mixup(prob=0.3)", val_share=0.0, eval_every=20)
    mixed = sum(not plan.is_identity for plan in watched)
    assert len(watched) == 120
    assert 18 <= mixed <= 56  # 36 expected, four standard deviations either way


def test_microbatches_have_the_gradient_of_their_batch(tmp_path):
    one, parts = (tiny(tmp_path / str(count), **EXACT, microbatches=count) for count in (1, 4))
    torch.testing.assert_close(load_file(one.weights), load_file(parts.weights), rtol=1e-4, atol=1e-6)
    assert one.history()[0]["train_loss"] == pytest.approx(parts.history()[0]["train_loss"], rel=1e-4)


def test_an_evaluation_takes_fewer_images_at_a_time_where_a_batch_does_not_fit(tmp_path):
    config = configured(tmp_path, microbatches=4)
    feeds = open_session(config, open_fabric(config)).feeds
    assert [feeds[split].rota.batch_size for split in ("train", "val", "test")] == [20, 25, 25]


def weights_by_step(monkeypatch, seen):
    """Collects the gradient of each step, as the optimiser has it, and the weights after it."""
    plain = trainer._step

    def watching(session, *arguments):
        kept, zero = {}, session.optimizer.zero_grad

        def keep(*args, **options):
            kept.update({name: value.grad.clone() for name, value in session.bare.named_parameters()})
            zero(*args, **options)

        monkeypatch.setattr(session.optimizer, "zero_grad", keep)
        done = plain(session, *arguments)
        monkeypatch.setattr(session.optimizer, "zero_grad", zero)
        seen.append((kept, {name: value.detach().clone() for name, value in session.bare.state_dict().items()}))
        return done

    monkeypatch.setattr(trainer, "_step", watching)


def test_no_gradient_is_longer_than_clip(tmp_path, monkeypatch):
    seen = []
    weights_by_step(monkeypatch, seen)
    tiny(tmp_path, **EXACT, clip=0.05)
    norms = [nn.utils.get_total_norm(gradients.values()).item() for gradients, _ in seen]
    assert len(norms) == 6
    assert max(norms) <= 0.05 * 1.0001
    assert max(norms) > 0.049


def test_the_average_is_the_exponential_one_and_is_what_is_kept(tmp_path, monkeypatch):
    seen = []
    weights_by_step(monkeypatch, seen)
    run = tiny(tmp_path, **EXACT, ema=0.8)
    average = seen[0][1]  # torch's begins with the weights after the first step
    for _, weights in seen[1:]:
        average = {name: 0.8 * value + 0.2 * weights[name] for name, value in average.items()}
    torch.testing.assert_close(load_file(run.weights), average, rtol=1e-4, atol=1e-6)


def test_label_smoothing_and_loss_reach_the_criterion(tmp_path):
    plain, smooth, bce = (
        tiny(tmp_path / name, **EXACT, **more).history()[0]["train_loss"]
        for name, more in {"plain": {}, "smooth": {"label_smoothing": 0.5}, "bce": {"loss": "bce"}}.items()
    )
    assert len({plain, smooth, bce}) == 3
    assert bce < 0.5 < plain  # a mean over ten classes


# ------------------------------------------------------------------------------------------------------- what chooses


def test_what_chooses_is_held_out_of_the_training_images(tmp_path):
    config = configured(tmp_path, val_share=0.3)
    session = open_session(config, open_fabric(config))
    rows = {
        name: {row for epoch in range(9) for batch in feed.batches(epoch) for row in batch.index.tolist()}
        for name, feed in session.feeds.items()
    }
    # Of 13 images of each class 4 are held out; an epoch of whole batches shows 80 of the others, but not always the same.
    assert session.images == {"train": 90, "val": 40, "test": 2000} == {name: len(found) for name, found in rows.items()}
    assert not rows["train"] & rows["val"]
    assert rows["test"] == set(range(2000))


def test_the_best_weights_are_those_of_the_best_epoch_on_the_held_out_images(tmp_path, monkeypatch):
    """Scores that are made up: the test images would choose the first epoch, the training loss the last."""
    made_up = {"val": iter([10.0, 30.0, 20.0]), "test": iter([90.0, 5.0, 50.0])}
    kept = []

    def evaluate(session, feed, between_batches):
        split = next(name for name, part in session.feeds.items() if part is feed)
        if split == "val":
            kept.append({name: value.clone() for name, value in session.bare.state_dict().items()})
        return {"top1": next(made_up[split]), "loss": 1.0}

    monkeypatch.setattr(trainer, "evaluate", evaluate)
    run = tiny(tmp_path, epochs=3)
    assert_same(dict(load_file(run.best)), kept[1])
    assert_same(dict(load_file(run.weights)), kept[2])


def test_nothing_is_chosen_where_nothing_is_held_out(tmp_path):
    run = tiny(tmp_path, epochs=1, val_share=0.0)
    assert not run.best.exists()
    assert "val_top1" not in run.history()[0]


def test_evaluations_now_and_then_and_at_the_end(tmp_path):
    run = tiny(tmp_path, epochs=13, eval_every=2, method="clean")
    assert [line["epoch"] for line in run.history() if "test_top1" in line] == [2, *range(4, 14)]
