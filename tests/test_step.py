"""`accumulate` against two plain passes; BatchNorm, unmixed batches, the record, and what each pass may touch."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import mixsage
from helpers import assert_same_plan, seeded, small_model
from mixsage import SAGE, CleanPass, CutMix, Host, InputGradient, ManifoldMixup, MixPlan, Mixup, ScalerHost, Uniform, accumulate
from plain_passes import Tokens, assert_gradients, gradients, joined, mixed_targets, one_hot, plain_passes, precise

CLASSES = 5
MIXERS = {name: mixsage.get(name)() for name in mixsage.available()} | {
    "sage, half": SAGE(mixed_share=0.5),
    "sage, no reuse": SAGE(mixed_share=1.0),
    "sage, eval": SAGE(saliency=InputGradient(mode="eval")),
    "sage, no reuse, eval": SAGE(mixed_share=1.0, saliency=InputGradient(mode="eval")),
    "sage, one pass": SAGE(passes=1),
    "sage, uniform maps": SAGE(saliency=Uniform()),
    "sage, uniform maps, no reuse": SAGE(mixed_share=1.0, saliency=Uniform()),
    "manifold, hidden only": ManifoldMixup(layers=("stage1",)),
}
WITHOUT_CLEAN_GRADIENT = [name for name, mixer in MIXERS.items() if mixer.clean is not None and mixer.clean.weight == 0]


def vit(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Tokens(classes=CLASSES)


MODELS = {"convnet": small_model, "vit": vit}


@dataclass
class Case:
    """A model, a batch, and what its parameters have accumulated before the step."""

    model: nn.Module
    images: torch.Tensor
    labels: torch.Tensor
    before: dict


def case(make=small_model, *, batch=6, dtype=torch.float64, accumulated=True, seed=0) -> Case:
    model = make().to(dtype)
    generator = seeded(seed + 100)
    images = torch.randn(batch, 3, 16, 16, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(CLASSES, (batch,), generator=generator)
    if accumulated:
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
    return Case(model, images, labels, gradients(model))


def mixer_for(name, make):
    mixer = MIXERS[name]
    return replace(mixer, layers=("blocks.0",)) if name == "manifold, hidden only" and make is vit else mixer


def weights_of(mixer):
    """The weights of the clean and the mixed gradient."""
    return (mixer.clean.weight if mixer.clean else 0.0), mixer.mixed_weight


def by_hand(case, mixer, plan, criterion=precise, **options):
    clean = mixer.clean or CleanPass()
    return plain_passes(
        case.model, case.images, case.labels, plan, criterion, clean_mode=clean.mode, clean_criterion=clean.criterion, **options
    )


def plus(before, step, weight=1.0):
    return {name: before[name] + weight * step[name] for name in before}


# ------------------------------------------------------------------------------------------------------------------------ gradients


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


# ------------------------------------------------------------------------------------- no parameter gradient where none is wanted


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


AUTOCAST = partial(torch.autocast, "cpu", torch.bfloat16)
SURROUNDINGS = ["plain", "scaler", "autocast"]


def run_in(surroundings, *arguments, **options):
    if surroundings == "autocast":
        with AUTOCAST():
            return accumulate(*arguments, **options)
    if surroundings == "scaler":
        options["host"] = ScalerHost(torch.amp.GradScaler("cpu", init_scale=1024.0))
    return accumulate(*arguments, **options)


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


def count_forwards(model):
    counted = [0]

    def count(*_):
        counted[0] += 1

    model.register_forward_pre_hook(count)
    return counted


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


@pytest.mark.parametrize("mixer", [SAGE(), SAGE(mixed_share=1.0), Mixup(), ManifoldMixup(layers=("stage1",))], ids=repr)
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


# ------------------------------------------------------------------------------------------------------------------------- wrong use


def test_under_no_grad_it_works_all_the_same():
    it, alone = case(), case()
    with torch.no_grad():
        step = accumulate(SAGE(), it.model, it.images, it.labels, criterion=precise, generator=seeded(3))
        assert not torch.is_grad_enabled()
    assert_gradients(it.model, plus(it.before, by_hand(alone, SAGE(), step.plan).combined(0.3, 0.7)))


def test_inference_mode_is_refused():
    it = case(dtype=torch.float32)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"inference_mode\(\) is on; call it outside"):
        accumulate(Mixup(), it.model, it.images, it.labels)


def test_a_model_built_in_inference_mode_is_refused():
    with torch.inference_mode():
        model = small_model()
    it = case(dtype=torch.float32)
    for mixer in (Mixup(), SAGE()):
        with pytest.raises(RuntimeError, match="inference"):
            accumulate(mixer, model, it.images, it.labels)


@pytest.mark.parametrize("name", ["sage", "sage, no reuse", "mixup"])
def test_images_made_in_inference_mode_are_as_good_as_others(name):
    it, alone = case(), case()
    with torch.inference_mode():
        images = it.images.clone()
    step = accumulate(MIXERS[name], it.model, images, it.labels, criterion=precise, generator=seeded(3))
    passes = by_hand(alone, MIXERS[name], step.plan)
    assert_gradients(it.model, plus(it.before, passes.combined(*weights_of(MIXERS[name]))))


@pytest.mark.parametrize("mixer", [SAGE(), Mixup()], ids=["sage", "mixup"])
@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        (nn.CrossEntropyLoss(reduction="none"), r"criterion returned \[6\], expected a scalar; average it"),
        (lambda logits, targets: 1.5, "criterion returned float, expected a scalar tensor"),
    ],
)
def test_a_criterion_must_return_a_scalar(mixer, criterion, message):
    it = case(dtype=torch.float32)
    with pytest.raises((ValueError, TypeError), match=message):
        accumulate(mixer, it.model, it.images, it.labels, criterion=criterion)


@pytest.mark.parametrize("mixer", [SAGE(), Mixup()], ids=["sage", "mixup"])
@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda logits: {"logits": logits}, r"returned dict, expected logits \[B, C\]; give a host whose forward"),
        (lambda logits: (logits, logits), r"returned tuple, expected logits \[B, C\]"),
        (lambda logits: logits[:, :, None], r"returned \[6, 5, 1\], expected logits \[B, C\]"),
        (lambda logits: logits[:4], r"both be \[B, C\], got \[4, 5\] and \[6, 5\]"),
    ],
)
def test_a_model_must_return_logits(mixer, output, message):
    it = case(dtype=torch.float32)
    it.model.register_forward_hook(lambda _module, _inputs, logits: output(logits))
    with pytest.raises((TypeError, ValueError), match=message):
        accumulate(mixer, it.model, it.images, it.labels)


@pytest.mark.parametrize(
    ("images", "labels", "error", "message"),
    [
        (torch.rand(6, 3, 16, 16), torch.zeros(5, dtype=torch.int64), ValueError, r"6 images and labels \[5\]"),
        (torch.rand(6, 3, 16, 16), torch.tensor(1), ValueError, r"6 images and labels \[\]"),
        (torch.rand(6, 3, 16, 16), [0, 1, 2, 3, 4, 0], TypeError, "labels .*tensor.*list"),
        (torch.rand(6, 3, 16, 16), torch.zeros(6, 4), ValueError, r"soft labels must be \[B, 5\], got \[6, 4\]"),
        (torch.rand(6, 3, 16, 16), torch.full((6,), 5), ValueError, "labels range from 5 to 5, but there are 5 classes"),
        (torch.rand(6, 3, 16, 16), torch.zeros(6, 1, dtype=torch.int64), ValueError, r"class indices \[B\].* got \[6, 1\]"),
        (torch.randint(255, (6, 3, 16, 16)), torch.zeros(6, dtype=torch.int64), TypeError, r"floating-point .*int64.*/ 255"),
        (torch.rand(1, 3, 16, 16), torch.zeros(1, dtype=torch.int64), ValueError, "at least 2 images, got 1; set drop_last=True"),
        (torch.rand(3, 16, 16), torch.zeros(3, dtype=torch.int64), ValueError, r"\[B, C, H, W\], got \[3, 16, 16\]"),
    ],
)
def test_a_batch_of_another_form_is_refused_before_any_gradient(images, labels, error, message):
    it = case(dtype=torch.float32)
    with pytest.raises(error, match=message):
        accumulate(SAGE(), it.model, images, labels)
    for name, tensor in gradients(it.model).items():
        assert torch.equal(tensor, it.before[name])


def test_a_generator_on_a_device_is_refused():
    it = case(dtype=torch.float32)

    class OnDevice(torch.Generator):
        device = torch.device("cuda")

    with pytest.raises(ValueError, match="generator must be on the CPU, got one on cuda"):
        accumulate(SAGE(), it.model, it.images, it.labels, generator=OnDevice())


def test_a_plan_of_another_batch_is_refused():
    it = case(dtype=torch.float32)
    plan = Mixup().plan(torch.rand(8, 3, 16, 16))
    with pytest.raises(ValueError, match="mixes 8 images"):
        accumulate(Mixup(), it.model, it.images, it.labels, plan=plan)
    with pytest.raises(ValueError, match="mixes 4 images"):
        accumulate(Mixup(), it.model, it.images, it.labels, plan=Mixup().plan(torch.rand(4, 3, 16, 16)))


def test_targets_of_the_criterion_are_shares():
    it, seen = case(dtype=torch.float32), []

    def criterion(logits, targets):
        seen.append(targets)
        return nn.functional.cross_entropy(logits, targets)

    step = accumulate(SAGE(), it.model, it.images, it.labels, criterion=criterion)
    torch.testing.assert_close(seen[0], one_hot(it.labels, CLASSES))
    torch.testing.assert_close(seen[1], mixed_targets(it.labels, step.plan, CLASSES))
    assert all(targets.dtype == torch.float32 for targets in seen)


class Recording(Host):
    """Writes down in what order it is asked."""

    def __init__(self):
        self.asked = []

    def forward(self, model, images):
        self.asked.append("forward")
        return super().forward(model, images)

    def backward(self, loss):
        self.asked.append("backward")
        super().backward(loss)

    def input_gradient(self, loss, images):
        self.asked.append("input_gradient")
        return super().input_gradient(loss, images)


@pytest.mark.parametrize(
    ("mixer", "asked"),
    [
        (SAGE(), ["forward", "backward", "forward", "backward"]),  # the clean graph is gone before the mixed pass begins
        (SAGE(mixed_share=1.0), ["forward", "input_gradient", "forward", "backward"]),
        (Mixup(), ["forward", "backward"]),
    ],
    ids=repr,
)
def test_order_of_the_passes(mixer, asked):
    it, host = case(dtype=torch.float32), Recording()
    accumulate(mixer, it.model, it.images, it.labels, host=host)
    assert host.asked == asked
