"""`accumulate` in the loops people have: which gradients exist at all, autocast, microbatches, memory formats, transformers, BatchNorm."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import seeded, small_model
from mixsage import SAGE, CutMix, InputGradient, ManifoldMixup, Mixup, Uniform, accumulate
from plain_passes import assert_gradients, gradients, joined, precise
from steps import (
    AUTOCAST,
    CLASSES,
    MIXERS,
    MODELS,
    SURROUNDINGS,
    WITHOUT_CLEAN_GRADIENT,
    Case,
    by_hand,
    case,
    count_forwards,
    mixer_for,
    plus,
    run_in,
    weights_of,
)


class Counts:
    """How often each parameter is handed a gradient, and how often one is added to its `.grad`."""

    def __init__(self, model):
        self.arrived = dict.fromkeys(dict(model.named_parameters()), 0)
        self.added = dict(self.arrived)
        for name, parameter in model.named_parameters():
            parameter.register_hook(partial(self._count, self.arrived, name))
            parameter.register_post_accumulate_grad_hook(partial(self._count, self.added, name))

    def _count(self, counts, name, _tensor):
        counts[name] += 1

    def all_are(self, count):
        assert set(self.arrived.values()) == {count}, self.arrived
        assert set(self.added.values()) == {count}, self.added


class WeightGradients(TorchDispatchMode):
    """For each backward of a convolution, whether the gradient of its weight was computed."""

    def __init__(self):
        super().__init__()
        self.computed = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution_backward.default:
            self.computed.append(args[-1][1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", WITHOUT_CLEAN_GRADIENT)
def test_without_reuse_every_parameter_sees_one_gradient(name, make, surroundings):
    it = case(make, dtype=torch.float32)
    counts = Counts(it.model)
    seen = []
    it.model.register_forward_pre_hook(lambda *_: seen.append(gradients(it.model)))
    step = run_in(surroundings, mixer_for(name, make), it.model, it.images, it.labels, generator=seeded(3))
    assert step.clean_loss is not None
    assert len(seen) == 2
    for name, tensor in seen[1].items():  # between the passes `.grad` is still what the caller had accumulated
        assert torch.equal(tensor, it.before[name])
    counts.all_are(1)


@pytest.mark.parametrize("name", WITHOUT_CLEAN_GRADIENT)
def test_without_reuse_no_gradient_of_a_weight_is_computed_in_the_clean_pass(name):
    it = case(dtype=torch.float32, accumulated=False)
    at_forward = []
    it.model.register_forward_pre_hook(lambda *_: at_forward.append([parameter.grad for parameter in it.model.parameters()]))
    with WeightGradients() as weights:
        accumulate(MIXERS[name], it.model, it.images, it.labels, generator=seeded(3))
    assert weights.computed == [False] * 3 + [True] * 3
    assert all(gradient is None for passed in at_forward for gradient in passed)


def test_with_reuse_every_parameter_sees_two_gradients():
    it = case(dtype=torch.float32)
    counts = Counts(it.model)
    with WeightGradients() as weights:
        accumulate(SAGE(), it.model, it.images, it.labels, generator=seeded(3))
    counts.all_are(2)
    assert weights.computed == [True] * 6


@pytest.mark.parametrize("mixer", [Mixup(), CutMix(), ManifoldMixup(), SAGE(mixed_share=1.0, saliency=Uniform())], ids=repr)
def test_methods_that_look_at_nothing_run_one_pass(mixer):
    it = case(dtype=torch.float32)
    counts, forwards = Counts(it.model), count_forwards(it.model)
    step = accumulate(mixer, it.model, it.images, it.labels, generator=seeded(3))
    counts.all_are(1)
    assert forwards == [1]
    assert step.clean_loss is None


def test_replay_without_reuse_runs_one_pass():
    it = case(dtype=torch.float32)
    plan = accumulate(SAGE(mixed_share=1.0), it.model, it.images, it.labels).plan
    forwards = count_forwards(it.model)
    step = accumulate(SAGE(mixed_share=1.0), it.model, it.images, it.labels, plan=plan)
    assert forwards == [1]
    assert step.clean_loss is None


# ------------------------------------------------------------------------------------------------ precision, microbatches, formats


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", MIXERS)
def test_under_bfloat16_autocast(name, make):
    mixer, it, alone = mixer_for(name, make), case(make, dtype=torch.float32), case(make, dtype=torch.float32)
    inside = []
    for parameter in it.model.parameters():
        parameter.register_hook(lambda _: inside.append(torch.is_autocast_enabled("cpu")))
    step = run_in("autocast", mixer, it.model, it.images, it.labels, generator=seeded(3))
    assert step.logits.dtype == torch.bfloat16
    assert inside
    assert not any(inside), "backward belongs outside autocast"

    passes = by_hand(alone, mixer, step.plan, nn.CrossEntropyLoss(), autocast=AUTOCAST)
    # Weights of a half and one leave every rounding as it is; others are rounded with each gradient that passes in bfloat16.
    exact = set(weights_of(mixer)) <= {0.0, 0.5, 1.0}
    expected = plus(it.before, passes.combined(*weights_of(mixer)))
    assert_gradients(it.model, expected, rtol=1e-5 if exact else 2e-2, atol=1e-5 if exact else 2e-2)
    assert all(parameter.grad.dtype == torch.float32 for parameter in it.model.parameters())


def test_the_plan_is_drawn_and_applied_outside_autocast():
    it = case(dtype=torch.float32)
    states = []

    @dataclass(frozen=True, kw_only=True)
    class Watching(SAGE):
        def draw(self, images, labels, saliency, generator):
            states.append((torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), saliency.dtype))
            return super().draw(images, labels, saliency, generator)

    run_in("autocast", Watching(), it.model, it.images, it.labels, generator=seeded(3))
    assert states == [(False, False, torch.float32)]


def test_halves_of_a_batch_add_up_to_the_sum_of_their_steps():
    it, alone = case(batch=8), case(batch=8)
    halves = [slice(0, 4), slice(4, 8)]
    steps = [
        accumulate(SAGE(), it.model, it.images[half], it.labels[half], criterion=precise, weight=0.5, generator=seeded(k))
        for k, half in enumerate(halves)
    ]
    expected = it.before
    for half, step in zip(halves, steps, strict=True):
        part = Case(alone.model, alone.images[half], alone.labels[half], {})
        expected = plus(expected, by_hand(part, SAGE(), step.plan).combined(0.3, 0.7), 0.5)
    assert_gradients(it.model, expected)


@pytest.mark.parametrize(
    "mixer", [SAGE(), SAGE(mixed_share=1.0), SAGE(passes=1), Mixup(), ManifoldMixup(layers=("stage1",))], ids=repr
)
def test_halves_of_a_batch_make_the_gradient_of_the_whole_where_no_statistics_are_shared(mixer):
    make = partial(small_model, norm=False)
    it, whole = case(make, batch=8), case(make, batch=8)
    halves = [slice(0, 4), slice(4, 8)]
    plans = [
        accumulate(mixer, it.model, it.images[half], it.labels[half], criterion=precise, weight=0.5, generator=seeded(k)).plan
        for k, half in enumerate(halves)
    ]
    accumulate(mixer, whole.model, whole.images, whole.labels, criterion=precise, plan=joined(*plans))
    assert_gradients(it.model, gradients(whole.model))


@pytest.mark.parametrize("name", MIXERS)
def test_channels_last(name):
    mixer, it, plain = MIXERS[name], case(), case()
    it.model, it.images = it.model.to(memory_format=torch.channels_last), it.images.to(memory_format=torch.channels_last)
    formats = []
    it.model.register_forward_pre_hook(lambda _, images: formats.append(images[0].is_contiguous(memory_format=torch.channels_last)))
    step = accumulate(mixer, it.model, it.images, it.labels, criterion=precise, generator=seeded(3))
    accumulate(mixer, plain.model, plain.images, plain.labels, criterion=precise, plan=step.plan)
    assert all(formats)
    assert_gradients(it.model, gradients(plain.model))
    reference = accumulate(mixer, case().model, plain.images, plain.labels, criterion=precise, generator=seeded(3))
    assert_same_plan_but_for_rounding(step.plan, reference.plan)


def assert_same_plan_but_for_rounding(one, other):
    assert torch.equal(one.sources, other.sources)
    torch.testing.assert_close(one.dense_masks(), other.dense_masks(), rtol=1e-4, atol=1e-5)


def test_timm_vision_transformer():
    timm = pytest.importorskip("timm")

    def make():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            sizes = {"img_size": 16, "patch_size": 4, "depth": 3, "embed_dim": 48, "num_heads": 3}
            return timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **sizes)

    for mixer in (SAGE(), SAGE(mixed_share=1.0), ManifoldMixup(layers=("blocks.1",))):
        it, alone = case(make), case(make)
        step = accumulate(mixer, it.model, it.images, it.labels, criterion=precise, generator=seeded(3))
        passes = by_hand(alone, mixer, step.plan)
        assert_gradients(it.model, plus(it.before, passes.combined(*weights_of(mixer))))


def test_with_activation_checkpointing():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small_model().double()

        def forward(self, images):
            inner = self.inner
            for part in (inner.stem, inner.stage1, inner.stage2):
                images = checkpoint(part, images, use_reentrant=False)
            return inner.head(images.mean(dim=(2, 3)))

    it, alone = case(Checkpointed), case()
    for mixer in (SAGE(), SAGE(mixed_share=1.0), Mixup()):
        it.model.zero_grad()
        step = accumulate(mixer, it.model, it.images, it.labels, criterion=precise, generator=seeded(3))
        expected = by_hand(alone, mixer, step.plan).combined(*weights_of(mixer))
        assert_gradients(it.model.inner, expected)


# ------------------------------------------------------------------------------------------- BatchNorm, training flags, exceptions


def norms(model):
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize(
    ("mixer", "moves"),
    [
        (SAGE(), 2),
        (SAGE(mixed_share=1.0), 2),
        (SAGE(saliency=InputGradient(mode="eval")), 1),
        (SAGE(mixed_share=1.0, saliency=InputGradient(mode="eval")), 1),
        (Mixup(), 1),
    ],
    ids=repr,
)
def test_statistics_of_batchnorm_move_with_each_pass_in_training_mode(mixer, moves):
    it = case(dtype=torch.float32)
    accumulate(mixer, it.model, it.images, it.labels, generator=seeded(3))
    assert [int(norm.num_batches_tracked) for norm in norms(it.model)] == [moves] * 2


def test_statistics_are_those_of_the_two_passes():
    it, alone = case(dtype=torch.float32), case(dtype=torch.float32)
    step = accumulate(SAGE(), it.model, it.images, it.labels, generator=seeded(3))
    alone.model(alone.images)
    alone.model(step.plan.apply(alone.images))
    for norm, expected in zip(norms(it.model), norms(alone.model), strict=True):
        torch.testing.assert_close(norm.running_mean, expected.running_mean)
        torch.testing.assert_close(norm.running_var, expected.running_var)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_frozen_batchnorm_stays_frozen(mode):
    it = case(dtype=torch.float32)
    frozen, free = norms(it.model)
    frozen.eval()
    mean = frozen.running_mean.clone()
    accumulate(SAGE(saliency=InputGradient(mode=mode)), it.model, it.images, it.labels, generator=seeded(3))
    assert torch.equal(frozen.running_mean, mean)
    assert not frozen.training
    assert free.training
    assert int(free.num_batches_tracked) == (2 if mode == "train" else 1)


@pytest.mark.parametrize("fails", ["forward", "criterion", "backward"])
def test_flags_are_restored_after_an_exception(fails):
    it = case(dtype=torch.float32)
    norms(it.model)[0].eval()
    flags = [module.training for module in it.model.modules()]
    seen = []

    def fail(*_):
        seen.append(it.model.training)
        raise ArithmeticError("on purpose")

    criterion = nn.CrossEntropyLoss()
    if fails == "forward":
        it.model.head.register_forward_hook(fail)
    elif fails == "backward":
        it.model.head.weight.register_hook(fail)
    else:
        criterion = fail
    with pytest.raises(ArithmeticError):
        accumulate(SAGE(saliency=InputGradient(mode="eval")), it.model, it.images, it.labels, criterion=criterion)
    assert seen == [False]
    assert [module.training for module in it.model.modules()] == flags


def test_a_model_in_evaluation_mode_stays_there():
    it = case(dtype=torch.float32)
    it.model.eval()
    accumulate(SAGE(), it.model, it.images, it.labels)
    assert not any(module.training for module in it.model.modules())
    assert [int(norm.num_batches_tracked) for norm in norms(it.model)] == [0, 0]


def test_frozen_parameters_get_no_gradient():
    it = case(accumulated=False)
    for parameter in it.model.stem.parameters():
        parameter.requires_grad_(False)
    step = accumulate(SAGE(), it.model, it.images, it.labels, criterion=precise, generator=seeded(3))
    assert it.model.stem.weight.grad is None
    assert_gradients(
        it.model, by_hand(it, SAGE(), step.plan).combined(0.3, 0.7) | {k: v for k, v in it.before.items() if "stem" in k}
    )
