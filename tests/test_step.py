"""`accumulate` against two plain passes: gradients, record, replay, unmixed batches, randomness."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import mixsage
from helpers import assert_same_plan, seeded
from mixsage import SAGE, InputGradient, MixPlan, accumulate
from plain_passes import assert_gradients, gradients, one_hot, precise
from steps import CLASSES, MIXERS, MODELS, by_hand, case, count_forwards, mixer_for, plus, weights_of


def test_weights_are_the_published_ones():
    known = {
        "clean": (0.0, 1.0),
        "mixup": (0.0, 1.0),
        "cutmix": (0.0, 1.0),
        "manifold": (0.0, 1.0),
        "saliencymix": (0.0, 1.0),
        "puzzlemix": (0.0, 1.0),
        "comixup": (1.0, 1.0),
        "sage": (0.3, 0.7),
    }
    for name in known.keys() & set(mixsage.available()):
        assert weights_of(mixsage.get(name)()) == pytest.approx(known[name]), name
    assert weights_of(SAGE(mixed_share=0.5)) == (0.5, 0.5)
    assert weights_of(SAGE(mixed_share=1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", MIXERS)
def test_gradient_is_the_weighted_sum_of_two_plain_passes(name, make):
    mixer, it = mixer_for(name, make), case(make)
    untouched = it.images.clone(), it.labels.clone()
    step = accumulate(mixer, it.model, it.images, it.labels, criterion=precise, generator=seeded(3), weight=0.8)

    alone = case(make)
    passes = by_hand(alone, mixer, step.plan)
    assert_gradients(it.model, plus(it.before, passes.combined(*weights_of(mixer)), 0.8))
    assert torch.equal(it.images, untouched[0])
    assert torch.equal(it.labels, untouched[1])


@pytest.mark.parametrize("name", MIXERS)
def test_record(name):
    mixer, it = MIXERS[name], case()
    step = accumulate(mixer, it.model, it.images, it.labels, criterion=precise, generator=seeded(3), weight=0.8)
    passes, (clean_weight, mixed_weight) = by_hand(case(), mixer, step.plan), weights_of(mixer)

    torch.testing.assert_close(step.mixed_loss, passes.mixed_loss)
    expected = mixed_weight * passes.mixed_loss
    if mixer.clean is None:
        assert step.clean_loss is None
        assert step.clean_logits is None
    else:
        torch.testing.assert_close(step.clean_loss, passes.clean_loss)
        expected = expected + clean_weight * passes.clean_loss
        assert step.clean_logits.shape == (6, CLASSES)
    torch.testing.assert_close(step.loss, expected)
    assert step.logits.shape == (6, CLASSES)
    for tensor in (step.loss, step.clean_loss, step.mixed_loss, step.logits, step.clean_logits):
        assert tensor is None or (tensor.grad_fn is None and not tensor.requires_grad)


@pytest.mark.parametrize("name", MIXERS)
def test_replay_reproduces_the_step(name):
    one, other = case(), case()
    step = accumulate(MIXERS[name], one.model, one.images, one.labels, criterion=precise, generator=seeded(3))
    state = torch.get_rng_state()
    again = accumulate(MIXERS[name], other.model, other.images, other.labels, criterion=precise, plan=step.plan)
    assert torch.equal(torch.get_rng_state(), state)
    assert_gradients(other.model, gradients(one.model))
    torch.testing.assert_close(again.mixed_loss, step.mixed_loss)
    assert again.plan is step.plan


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_plan_is_drawn_from_the_gradient_of_the_clean_loss(share, mode, norm):
    it = case(dtype=torch.float32)
    it.model.stage1[1].running_mean.fill_(0.5)  # so that evaluation and training look at other places
    mixer = SAGE(mixed_share=share, saliency=InputGradient(norm=norm, mode=mode))
    step = accumulate(mixer, it.model, it.images, it.labels, generator=seeded(3))

    alone = case(dtype=torch.float32)
    alone.model.stage1[1].running_mean.fill_(0.5)
    gradient = by_hand(alone, mixer, step.plan).image_gradient
    maps = gradient.square().sum(dim=1).sqrt() if norm == "l2" else gradient.abs().mean(dim=1)
    plan = mixer.plan(it.images, it.labels, saliency=maps, generator=seeded(3))
    torch.testing.assert_close(step.plan.masks, plan.masks, rtol=1e-3, atol=1e-4)
    assert torch.equal(step.plan.warp.offsets, plan.warp.offsets)


def test_default_loss_is_cross_entropy_in_float32():
    it, alone = case(dtype=torch.float32), case(dtype=torch.float32)
    step = accumulate(SAGE(), it.model, it.images, it.labels, generator=seeded(3))
    passes = by_hand(alone, SAGE(), step.plan, nn.CrossEntropyLoss())
    assert_gradients(it.model, plus(it.before, passes.combined(0.3, 0.7)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("labels", [torch.int32, torch.uint8, "soft", "soft half"])
def test_labels_of_every_kind(labels):
    it, alone = case(), case()
    if isinstance(labels, str):
        soft = torch.rand(6, CLASSES, generator=seeded(9)).softmax(dim=1)
        it.labels = alone.labels = soft.to(torch.float16 if "half" in labels else torch.float32)
    else:
        it.labels = it.labels.to(labels)
    step = accumulate(SAGE(), it.model, it.images, it.labels, criterion=precise, generator=seeded(3))
    assert_gradients(it.model, plus(it.before, by_hand(alone, SAGE(), step.plan).combined(0.3, 0.7)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mixup", "sage", "sage, no reuse", "clean"])
def test_images_that_require_a_gradient_get_none(name):
    it, alone = case(), case()
    it.images.requires_grad_()
    perturbed = it.images * 1  # as after an attack: part of a graph
    step = accumulate(MIXERS[name], it.model, perturbed, it.labels, criterion=precise, generator=seeded(3))
    assert it.images.grad is None
    passes = by_hand(alone, MIXERS[name], step.plan)
    assert_gradients(it.model, plus(it.before, passes.combined(*weights_of(MIXERS[name]))))


# ------------------------------------------------------------------------------------------------------------------ unmixed batches


@pytest.mark.parametrize("name", mixsage.available())
def test_an_unmixed_batch_is_one_plain_pass(name):
    it, alone = case(), case()
    forwards = count_forwards(it.model)
    step = accumulate(replace(MIXERS[name], prob=0.0), it.model, it.images, it.labels, criterion=precise, weight=0.8)
    assert forwards == [1]
    assert step.plan.is_identity
    assert step.clean_loss is None
    assert torch.equal(step.loss, step.mixed_loss)

    loss = precise(alone.model(alone.images), one_hot(alone.labels, CLASSES))
    (0.8 * loss).backward()
    assert_gradients(it.model, gradients(alone.model))
    torch.testing.assert_close(step.loss, loss.detach())


def test_an_unmixed_step_is_replayed_as_one_plain_pass():
    it = case()
    plan = accumulate(SAGE(prob=0.0), it.model, it.images, it.labels).plan
    forwards = count_forwards(it.model)
    accumulate(SAGE(), it.model, it.images, it.labels, plan=plan)
    assert forwards == [1]


def test_a_plan_of_one_source_need_not_show_the_image_itself():
    it, alone = case(), case()
    plan = MixPlan(sources=torch.tensor([[3], [1], [4], [1], [5], [2]]), masks=torch.ones(6, 1, 1, 1))
    accumulate(SAGE(), it.model, it.images, it.labels, criterion=precise, plan=plan)
    rows = plan.sources[:, 0]
    precise(alone.model(alone.images[rows]), one_hot(alone.labels[rows], CLASSES)).backward()
    assert_gradients(it.model, gradients(alone.model))


def test_prob_is_how_often_a_batch_is_mixed():
    it = case(dtype=torch.float32, batch=2)
    generator, forwards = seeded(0), count_forwards(it.model)
    mixed = sum(
        not accumulate(SAGE(prob=0.3), it.model, it.images, it.labels, generator=generator).plan.is_identity for _ in range(200)
    )
    assert forwards == [200 + mixed]
    assert 35 <= mixed <= 85  # 60 expected; four standard deviations


# ------------------------------------------------------------------------------------------------------------------------ generators


def test_with_a_generator_global_random_state_is_neither_read_nor_written():
    steps = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        it = case(dtype=torch.float32)
        steps.append(accumulate(SAGE(prob=0.9), it.model, it.images, it.labels, generator=seeded(3)))
        assert torch.equal(torch.get_rng_state(), state)
    assert_same_plan(steps[0].plan, steps[1].plan)


def test_without_a_generator_manual_seed_reproduces_the_step():
    steps = []
    for _ in range(2):
        it = case(dtype=torch.float32)
        torch.manual_seed(5)
        steps.append(accumulate(SAGE(), it.model, it.images, it.labels))
    assert_same_plan(steps[0].plan, steps[1].plan)
