"""The object where timm's loop expects its `Mixup`: its attributes, its losses, its scaler, its moving averages."""

from contextlib import nullcontext
from functools import partial

import pytest
import timm
import torch
from timm.data import Mixup as TimmMixup
from timm.loss import BinaryCrossEntropy, SoftTargetCrossEntropy
from timm.utils import ModelEmaV2, ModelEmaV3, NativeScaler

from helpers import seeded
from mixsage import SAGE, CutMix, Mixup, ScalerHost, accumulate
from mixsage.integrations.timm import Mixing
from raw_loop import LR, SEED, assert_same, batches, network, raw_loop, sgd

MIXERS = {
    "sage": SAGE(num_classes=10, mixed_share=1.0),
    "cutmix": CutMix(num_classes=10),
    "mixup per sample": Mixup(num_classes=10, per_sample=True),
}


def train(model, mixup_fn, data, *, loss_fn=None, scaler=None, ema=None, amp_autocast=nullcontext, channels_last=False):
    """The order of things in timm's `train_one_epoch`: mixing, forward, zero_grad, backward and step."""
    loss_fn, optimizer = loss_fn or SoftTargetCrossEntropy(), sgd(model)
    model.train()
    losses = []
    for x, target in data:
        x, target = mixup_fn(x, target)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with amp_autocast():
            loss = loss_fn(model(x), target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler(loss, optimizer, parameters=model.parameters())
        else:
            loss.backward()
            optimizer.step()
        if ema is not None:
            ema.update(model)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("scaled", [False, True])
def test_three_steps_are_those_of_the_raw_loop(name, scaled):
    model = network()
    train(
        model,
        Mixing(MIXERS[name], model=model, generator=seeded(SEED)),
        batches(),
        scaler=NativeScaler("cpu") if scaled else None,
    )
    assert_same(model, raw_loop(MIXERS[name]), buffers=name != "sage")


def test_label_smoothing_is_that_of_the_loss():
    model = network()
    train(model, Mixing(CutMix(num_classes=10), label_smoothing=0.2, generator=seeded(SEED)), batches())
    criterion = partial(torch.nn.functional.cross_entropy, label_smoothing=0.2)
    assert_same(model, raw_loop(CutMix(), criterion=criterion))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_targets_are_timms_while_mixing_is_off(smoothing):
    images, labels = batches(1)[0]
    own = Mixing(CutMix(num_classes=10), label_smoothing=smoothing)
    theirs = TimmMixup(label_smoothing=smoothing, num_classes=10)
    own.mixup_enabled = theirs.mixup_enabled = False
    x, target = own(images, labels)
    assert torch.equal(x, images)
    torch.testing.assert_close(target, theirs(images.clone(), labels)[1])
    own.mixup_enabled = True
    assert not torch.equal(own(images, labels)[0], images)


def test_it_has_every_attribute_of_timms():
    own, theirs = Mixing(CutMix(num_classes=10, prob=0.3)), TimmMixup()
    assert isinstance(own, TimmMixup)
    assert vars(theirs).keys() <= vars(own).keys()
    assert (own.mixup_enabled, own.mix_prob, own.num_classes, own.mode) == (True, 0.3, 10, "batch")


def test_the_probability_may_change_between_epochs():
    images, labels = batches(1)[0]
    own = Mixing(CutMix(num_classes=10, prob=0.0))
    assert torch.equal(own(images, labels)[0], images)
    own.mix_prob = 1.0
    assert not torch.equal(own(images, labels)[0], images)


@pytest.mark.parametrize("mode", ["batch", "elem"])
def test_modes_are_shares_of_the_batch_or_of_each_image(mode):
    images, labels = batches(1)[0]
    own = Mixing(Mixup(num_classes=10, per_sample=mode == "elem"))
    assert own.mode == mode
    _, target = own(images, labels)
    shares = {round(value, 5) for row in target.tolist() for value in row if value > 0 and value < 1}
    assert (len(shares) > 2) == (mode == "elem")


@pytest.mark.parametrize("mode", ["pair", "half"])
def test_modes_without_a_meaning_are_refused(mode):
    own = Mixing(CutMix(num_classes=10))
    own.mode = mode
    with pytest.raises(ValueError, match=f"mode must be 'batch' or 'elem', got '{mode}'"):
        own(*batches(1)[0])


def test_what_is_missing_is_said_at_once():
    with pytest.raises(ValueError, match=r"num_classes is missing.*CutMix\(num_classes=1000\)"):
        Mixing(CutMix())
    with pytest.raises(ValueError, match="SAGE needs to know where to look"):
        Mixing(SAGE(num_classes=10))


@pytest.mark.parametrize("share", [-0.1, 2.0, float("nan")])
def test_the_smoothing_is_a_share(share):
    with pytest.raises(ValueError, match=r"label_smoothing must lie in \[0, 1\]"):
        Mixing(CutMix(num_classes=10), label_smoothing=share)


@pytest.mark.parametrize("mixer", ["cutmix", CutMix, None])
def test_a_method_is_a_value(mixer):
    with pytest.raises(TypeError, match=r"mixer must be a Mixer, such as SAGE\(num_classes=1000\)"):
        Mixing(mixer)


def test_the_batch_of_the_loop_stays_as_it_was():
    """timm's own mixes in place."""
    images, labels = batches(1)[0]
    before = images.clone()
    Mixing(CutMix(num_classes=10))(images, labels)
    assert torch.equal(images, before)


@pytest.mark.parametrize("size", [3, 4])
def test_odd_batches_too(size):
    images, labels = batches(1)[0]
    assert Mixing(Mixup(num_classes=10))(images[:size], labels[:size])[1].shape == (size, 10)


# ------------------------------------------------------------------------------------------------- with the rest of timm's machinery


def timm_model(name="test_resnet"):
    torch.manual_seed(0)
    return timm.create_model(name, in_chans=1, num_classes=10)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
@pytest.mark.parametrize("ema", [ModelEmaV2, ModelEmaV3])
@pytest.mark.parametrize("loss_fn", [SoftTargetCrossEntropy, partial(BinaryCrossEntropy, target_threshold=0.2)])
def test_sage_in_a_loop_with_all_of_it(name, ema, loss_fn):
    options = {"img_size": 28, "patch_size": 7} if "vit" in name else {}
    torch.manual_seed(0)
    model = timm.create_model(name, in_chans=1, num_classes=10, **options).to(memory_format=torch.channels_last)
    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    average = ema(model, decay=0.9)
    mixup_fn = Mixing(SAGE(num_classes=10), label_smoothing=0.1, model=model, amp_autocast=autocast)
    start = average.module.get_classifier().weight.clone()
    losses = train(
        model,
        mixup_fn,
        batches(2),
        loss_fn=loss_fn(),
        scaler=NativeScaler("cpu"),
        ema=average,
        amp_autocast=autocast,
        channels_last=True,
    )
    assert all(torch.isfinite(torch.tensor(losses)))
    assert not torch.equal(average.module.get_classifier().weight, start)


def test_the_model_is_left_as_it_was():
    model = timm_model().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    images, labels = batches(1)[0]
    Mixing(SAGE(num_classes=10), model=model)(images, labels)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_pass_for_saliency_runs_in_the_loops_precision():
    seen = []

    class Spy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(784, 10)

        def forward(self, images):
            logits = self.head(images.flatten(1))
            seen.append(logits.dtype)
            return logits

    images, labels = batches(1)[0]
    for autocast in (nullcontext, partial(torch.autocast, "cpu", dtype=torch.bfloat16)):
        mixed, _ = Mixing(SAGE(num_classes=10), model=Spy(), amp_autocast=autocast)(images, labels)
        assert mixed.dtype == torch.float32
    assert seen == [torch.float32, torch.bfloat16]


def test_the_loop_can_take_accumulate_instead():
    """What the page shows: the whole of SAGE, with timm's loss and the scaler inside timm's."""
    model, scaler = network(), NativeScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    host, generator = ScalerHost(scaler._scaler), seeded(SEED)
    for images, labels in batches():
        accumulate(SAGE(), model, images, labels, criterion=SoftTargetCrossEntropy(), host=host, generator=generator)
        scaler._scaler.step(optimizer)
        scaler._scaler.update()
        optimizer.zero_grad()
    assert_same(model, raw_loop(SAGE()))
