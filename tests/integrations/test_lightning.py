"""The callback: any LightningModule takes the steps of the raw loop, gradient reuse and all, and nothing of it stays behind."""

from collections import namedtuple

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, StochasticWeightAveraging
from lightning.pytorch.plugins import MixedPrecision
from torch.nn import functional
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

from helpers import seeded
from lightning_module import QUIET, Classifier, fit
from mixsage import SAGE, CutMix, ManifoldMixup, Mixup, ScalerHost, accumulate
from mixsage.integrations.lightning import Mixing
from raw_loop import MIXERS, SEED, assert_same, batches, dataset, network, raw_loop, sgd

SAGE10 = SAGE(num_classes=10)


def mixing(mixer=SAGE10):
    return Mixing(mixer, generator=seeded(SEED))


@pytest.mark.parametrize("name", MIXERS)
def test_three_steps_are_those_of_the_raw_loop(name):
    module = Classifier()
    fit(module, mixing(MIXERS[name]))
    assert_same(module.model, raw_loop(MIXERS[name]))


@pytest.mark.parametrize("name", ["sage", "sage without reuse", "cutmix"])
def test_gradient_accumulation(name):
    module = Classifier()
    trainer = fit(module, mixing(MIXERS[name]), count=6, steps=3, accumulate_grad_batches=2)
    assert trainer.global_step == 3
    assert_same(module.model, raw_loop(MIXERS[name], data=batches(6), every=2))


def test_two_epochs_that_end_within_an_accumulation():
    """Of three batches the last steps alone; the next epoch starts with gradients of its own."""
    module = Classifier()
    fit(module, mixing(), steps=4, max_epochs=2, accumulate_grad_batches=2)
    model, generator = network(), seeded(SEED)
    optimizer = sgd(model)
    for number, (images, labels) in enumerate(batches() * 2):
        accumulate(SAGE10, model, images, labels, weight=0.5, generator=generator)
        if number % 3 > 0:
            optimizer.step()
            optimizer.zero_grad()
    assert_same(module.model, model)


def test_hidden_layers():
    module = Classifier()
    fit(module, mixing(ManifoldMixup(num_classes=10)))
    assert_same(module.model, raw_loop(ManifoldMixup()))


def test_gradient_clipping_sees_the_combined_gradient():
    module = Classifier()
    fit(module, mixing(), gradient_clip_val=0.1)
    model, generator = network(), seeded(SEED)
    optimizer = sgd(model)
    for images, labels in batches():
        accumulate(SAGE10, model, images, labels, generator=generator)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    assert_same(module.model, model)


@pytest.mark.parametrize("share", [0.7, 1.0])
def test_sixteen_bit_mixed_precision(share):
    mixer = SAGE(num_classes=10, mixed_share=share)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    module = Classifier()
    fit(module, mixing(mixer), plugins=[MixedPrecision("16-mixed", "cpu", scaler)])

    model, generator = network(), seeded(SEED)
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=256.0)
    for images, labels in batches():
        with torch.autocast("cpu", dtype=torch.float16):
            accumulate(mixer, model, images, labels, generator=generator, host=ScalerHost(scaler))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert_same(module.model, model)
    start = network()
    assert not torch.equal(start.head.weight, model.head.weight)


def test_an_overflow_skips_the_step():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    module = Classifier()
    fit(module, mixing(), steps=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    assert torch.equal(module.model.head.weight, network().head.weight)
    assert scaler.get_scale() == 2.0**125


# ----------------------------------------------------------------------------------------------------------------- what is recorded


class Outputs(Callback):
    def __init__(self):
        self.losses, self.logged = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        self.logged.append({name: value.item() for name, value in trainer.logged_metrics.items()})


def test_logged_values_are_those_of_the_passes():
    outputs = Outputs()
    trainer = fit(Classifier(), mixing(), outputs, log_every_n_steps=1)
    assert trainer.callback_metrics.keys() == {"train_loss", "clean/train_loss"}
    model, generator = network(), seeded(SEED)
    optimizer, steps = sgd(model), []
    for images, labels in batches():
        steps.append(accumulate(SAGE10, model, images, labels, generator=generator))
        optimizer.step()
        optimizer.zero_grad()
    assert outputs.losses == pytest.approx([step.loss.item() for step in steps])
    assert trainer.callback_metrics["train_loss"].item() == pytest.approx(steps[-1].mixed_loss.item())
    assert trainer.callback_metrics["clean/train_loss"].item() == pytest.approx(steps[-1].clean_loss.item())


def test_without_a_clean_pass_nothing_is_logged_for_it():
    trainer = fit(Classifier(), mixing(CutMix(num_classes=10)))
    assert trainer.callback_metrics.keys() == {"train_loss"}


class WithAccuracy(Classifier):
    """What the page recommends for metrics, which take class indices only."""

    def __init__(self):
        super().__init__()
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        if not labels.is_floating_point():
            self.accuracy(logits, labels)
            self.log("train_accuracy", self.accuracy, on_step=False, on_epoch=True)
        return functional.cross_entropy(logits, labels)


def test_a_metric_of_the_clean_pass():
    trainer = fit(WithAccuracy(), mixing(), max_epochs=1, steps=-1)
    model, generator, right = network(), seeded(SEED), 0
    optimizer = sgd(model)
    for images, labels in batches():
        step = accumulate(SAGE10, model, images, labels, generator=generator)
        right += (step.clean_logits.argmax(1) == labels).sum().item()
        optimizer.step()
        optimizer.zero_grad()
    assert trainer.callback_metrics["clean/train_accuracy"].item() == pytest.approx(right / 48)


class WithWrongMetric(Classifier):
    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.log("train_accuracy", (logits.argmax(1) == labels).float().mean())
        return functional.cross_entropy(logits, labels)


def test_an_error_on_soft_targets_says_where_they_come_from():
    module = WithWrongMetric()
    with pytest.raises(RuntimeError, match="must match the size") as failure:
        fit(module, mixing())
    assert any("mixsage: this training_step was given soft targets" in note for note in failure.value.__notes__)
    assert not {"training_step", "optimizer_zero_grad", "log"} & vars(module).keys()


def test_the_module_gets_its_methods_back():
    module = Classifier()
    fit(module, mixing())
    assert not {"training_step", "optimizer_zero_grad", "log"} & vars(module).keys()


def test_also_after_an_epoch_that_the_module_cuts_short():
    class Cuts(Classifier):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 else None

    module = Cuts()
    fit(module, mixing(), steps=-1, max_epochs=1)
    assert not {"training_step", "optimizer_zero_grad", "log"} & vars(module).keys()


# ------------------------------------------------------------------------------------------------------------ modules of other forms


class ReturnsDict(Classifier):
    def training_step(self, batch, batch_idx):
        return {"loss": super().training_step(batch, batch_idx), "extra": batch_idx}


class TakesBatchOnly(Classifier):
    def training_step(self, batch):
        return super().training_step(batch, 0)


class ZeroesInPlace(Classifier):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize("form", [ReturnsDict, TakesBatchOnly, ZeroesInPlace])
def test_other_forms_of_module(form):
    module = form()
    fit(module, mixing())
    assert_same(module.model, raw_loop(SAGE10))


def test_what_a_step_returns_besides_the_loss_stays():
    seen = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(outputs["extra"])

    fit(ReturnsDict(), mixing(), Watch())
    assert seen == [0, 1, 2]


Pair = namedtuple("Pair", ["image", "label"])


def test_named_batches():
    module = Classifier()
    data = DataLoader(dataset(), batch_size=16, collate_fn=lambda samples: Pair(*torch.utils.data.default_collate(samples)))
    fit(module, mixing(), data=data)
    assert_same(module.model, raw_loop(SAGE10))


def test_soft_labels_need_no_number_of_classes():
    module = Classifier()
    images, labels = dataset().tensors
    soft = torch.utils.data.TensorDataset(images, torch.eye(10)[labels])
    fit(module, mixing(SAGE()), data=DataLoader(soft, batch_size=16))
    assert_same(module.model, raw_loop(SAGE10))


def test_validation_sees_plain_batches():
    seen = []

    class Validated(Classifier):
        def validation_step(self, batch, batch_idx):
            seen.append(batch[1].dtype)

    trainer = pl.Trainer(callbacks=[mixing()], max_steps=3, val_check_interval=1, accelerator="cpu", devices=1, **QUIET)
    trainer.fit(Validated(), DataLoader(dataset(), batch_size=16), DataLoader(dataset(1), batch_size=16))
    assert seen
    assert set(seen) == {torch.int64}


# ------------------------------------------------------------------------------------------------------------------------- resuming


def test_a_checkpoint_keeps_the_state_of_the_choices(tmp_path):
    whole = Classifier()
    fit(whole, mixing(), steps=-1, max_epochs=2)

    first = fit(Classifier(), mixing(), steps=-1, max_epochs=1)
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Classifier()
    trainer = pl.Trainer(callbacks=[Mixing(SAGE10, generator=seeded(99))], max_epochs=2, accelerator="cpu", devices=1, **QUIET)
    trainer.fit(resumed, DataLoader(dataset(), batch_size=16), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert trainer.global_step == 6
    assert_same(resumed.model, whole.model)


def test_without_a_generator_there_is_no_state():
    callback = Mixing(SAGE10)
    assert callback.state_dict() == {}
    callback.load_state_dict({"generator": seeded(1).get_state()})


# ------------------------------------------------------------------------------------------------------------------------- refusals


def test_manual_optimisation_is_refused():
    module = Classifier()
    module.automatic_optimization = False
    with pytest.raises(ValueError, match=r"automatic optimisation.*mixsage\.accumulate"):
        fit(module, mixing())


def test_lbfgs_is_refused_where_gradients_are_reused():
    class Lbfgs(Classifier):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(ValueError, match="LBFGS"):
        fit(Lbfgs(), mixing())


def test_stochastic_weight_averaging_is_refused_where_gradients_are_reused():
    with pytest.raises(ValueError, match="use WeightAveraging"):
        fit(Classifier(), mixing(), StochasticWeightAveraging(0.1), steps=-1, max_epochs=2)


@pytest.mark.parametrize(
    ("sample", "got"), [({"image": torch.rand(1, 28, 28)}, "dict"), ((torch.rand(1, 28, 28), "a"), "list of Tensor, tuple")]
)
def test_other_batches_are_refused(sample, got):
    data = DataLoader([sample] * 4, batch_size=4)
    with pytest.raises(TypeError, match=rf"batches \(x, y\) of two tensors, got {got};"):
        fit(Classifier(), mixing(), data=data)


@pytest.mark.parametrize("mixer", ["sage", SAGE, None])
def test_a_method_is_a_value(mixer):
    with pytest.raises(TypeError, match=r"mixer must be a Mixer, such as SAGE\(num_classes=10\)"):
        Mixing(mixer)


def test_class_indices_need_the_number_of_classes():
    with pytest.raises(ValueError, match=r"SAGE\(num_classes=10\)"):
        fit(Classifier(), mixing(SAGE()))


def test_a_step_that_skips_its_batch_is_refused():
    class Skips(Classifier):
        def training_step(self, batch, batch_idx):
            return None

    with pytest.raises(TypeError, match="must return a loss"):
        fit(Skips(), mixing(Mixup(num_classes=10)))
