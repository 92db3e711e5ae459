"""Hosts: the seam for loops that own the passes. Scaled losses, models that return more than logits, and how hosts compose."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

import mixsage
from helpers import assert_same_plan, seeded, small_model
from mixsage import SAGE, Host, ManifoldMixup, Mixup, ScalerHost, accumulate
from plain_passes import assert_gradients, gradients, plain_passes, precise

MIXERS = {name: mixsage.get(name)() for name in mixsage.available()} | {
    "sage, half": SAGE(mixed_share=0.5),
    "sage, no reuse": SAGE(mixed_share=1.0),
}


def batch(dtype=torch.float32, size=6):
    generator = seeded(100)
    images = torch.randn(size, 3, 16, 16, generator=generator, dtype=torch.float64).to(dtype)
    return images, torch.randint(5, (size,), generator=generator)


def scaler(scale=1024.0, **options):
    return GradScaler("cpu", init_scale=scale, **options)


# ------------------------------------------------------------------------------------------------------------------- scaled losses


@pytest.mark.parametrize("name", MIXERS)
def test_scaled_gradients_are_the_sum_times_the_scale(name):
    mixer, model, (images, labels) = MIXERS[name], small_model().double(), batch(torch.float64)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    step = accumulate(mixer, model, images, labels, criterion=precise, host=ScalerHost(scaler()), generator=seeded(3), weight=0.8)
    clean_weight = mixer.clean.weight if mixer.clean else 0.0
    passes = plain_passes(
        small_model().double(),
        images,
        labels,
        step.plan,
        precise,
        clean_mode=mixer.clean.mode if mixer.clean else "train",
        clean_criterion=mixer.clean.criterion if mixer.clean else None,
    )
    expected = {name: 1 + 1024 * 0.8 * tensor for name, tensor in passes.combined(clean_weight, mixer.mixed_weight).items()}
    assert_gradients(model, expected)
    torch.testing.assert_close(step.mixed_loss, passes.mixed_loss)  # what is recorded is not scaled


@pytest.mark.parametrize("name", MIXERS)
def test_scaling_changes_no_choice_and_no_update(name):
    """A power of two scales every float exactly, so that the parameters after the step are the same to the bit."""
    images, labels = batch()
    plain, scaled = small_model(), small_model()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, scaled)]
    host = ScalerHost(scaler())
    for step in range(3):
        one = accumulate(MIXERS[name], plain, images, labels, generator=seeded(step))
        other = accumulate(MIXERS[name], scaled, images, labels, generator=seeded(step), host=host)
        assert_same_plan(one.plan, other.plan)
        optimizers[0].step()
        host.scaler.step(optimizers[1])
        host.scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), scaled.parameters(), strict=True))


@pytest.mark.parametrize("name", MIXERS)
def test_an_infinite_gradient_reaches_the_scaler_which_skips_the_step(name):
    model, (images, labels) = small_model(), batch()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    host, optimizer = ScalerHost(scaler(2.0**127)), torch.optim.SGD(model.parameters(), lr=0.1)
    step = accumulate(
        MIXERS[name], model, images, labels, criterion=lambda *pair: 8 * precise(*pair), host=host, generator=seeded(3)
    )
    assert not all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert step.plan.dense_masks().isfinite().all()
    assert step.plan.weights.isfinite().all()
    host.scaler.step(optimizer)
    host.scaler.update()
    assert all(torch.equal(parameter, old) for parameter, old in zip(model.parameters(), before, strict=True))
    assert host.scaler.get_scale() == 2.0**126

    # A few halvings later the same loop trains.
    for _ in range(8):
        optimizer.zero_grad(set_to_none=True)
        accumulate(MIXERS[name], model, images, labels, criterion=lambda *pair: 8 * precise(*pair), host=host, generator=seeded(3))
        host.scaler.step(optimizer)
        host.scaler.update()
    assert not all(torch.equal(parameter, old) for parameter, old in zip(model.parameters(), before, strict=True))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def only(which, factor):
    """A criterion that is ``factor`` times larger in one pass of a step."""
    passes = iter(range(2))

    def criterion(logits, targets):
        return precise(logits, targets) * (factor if next(passes) == which else 1.0)

    return criterion


@pytest.mark.parametrize(("share", "skipped"), [(0.7, True), (1.0, False)])
def test_an_overflow_of_the_clean_pass_alone(share, skipped):
    """With reuse it spoils the gradient and must be seen; without, it spoils the maps alone, and uniform ones take their place."""
    model, (images, labels) = small_model(), batch()
    host, optimizer = ScalerHost(scaler()), torch.optim.SGD(model.parameters(), lr=0.1)
    step = accumulate(
        SAGE(mixed_share=share), model, images, labels, criterion=only(0, float("inf")), host=host, generator=seeded(3)
    )
    assert step.plan.dense_masks().isfinite().all()
    before = model.head.weight.detach().clone()
    host.scaler.step(optimizer)
    host.scaler.update()
    assert torch.equal(model.head.weight, before) == skipped
    assert (host.scaler.get_scale() == 512.0) == skipped
    assert model.head.weight.isfinite().all()


def test_an_overflow_of_the_mixed_pass_alone_is_seen():
    model, (images, labels) = small_model(), batch()
    host, optimizer = ScalerHost(scaler()), torch.optim.SGD(model.parameters(), lr=0.1)
    accumulate(SAGE(), model, images, labels, criterion=only(1, float("inf")), host=host)
    host.scaler.step(optimizer)
    host.scaler.update()
    assert host.scaler.get_scale() == 512.0


def test_the_input_gradient_is_scaled_too():
    """A gradient that float16 would lose: without the scale it rounds to zero on its way back."""
    model, (images, labels) = small_model(), batch()
    tiny = lambda logits, targets: precise(logits, targets) * 2.0**-22  # noqa: E731
    maps = []

    class Seen(SAGE):
        def draw(self, images, labels, saliency, generator):
            maps.append(saliency)
            return super().draw(images, labels, saliency, generator)

    for host in (None, ScalerHost(scaler(2.0**20))):
        with torch.autocast("cpu", torch.float16):
            accumulate(Seen(mixed_share=1.0), model, images, labels, criterion=tiny, host=host, generator=seeded(3))
    assert maps[0].count_nonzero() == 0
    assert maps[1].count_nonzero() > 0.9 * maps[1].numel()


def test_a_disabled_scaler_changes_nothing():
    images, labels = batch()
    one, other = small_model(), small_model()
    accumulate(SAGE(), one, images, labels, generator=seeded(3))
    accumulate(SAGE(), other, images, labels, generator=seeded(3), host=ScalerHost(scaler(enabled=False)))
    assert_gradients(other, gradients(one), rtol=0, atol=0)


def test_unscaled_gradients_can_be_clipped():
    model, (images, labels) = small_model(), batch()
    host, optimizer = ScalerHost(scaler()), torch.optim.SGD(model.parameters(), lr=0.1)
    reference = small_model()
    accumulate(SAGE(), model, images, labels, host=host, generator=seeded(3))
    accumulate(SAGE(), reference, images, labels, generator=seeded(3))
    host.scaler.unscale_(optimizer)
    assert_gradients(model, gradients(reference), rtol=0, atol=0)


# ---------------------------------------------------------------------------------------------------------------- hosts of one's own


class Answering(nn.Module):
    """A model that returns what Hugging Face's do: an object that has logits."""

    def __init__(self):
        super().__init__()
        self.inner = small_model()

    def forward(self, *, pixel_values):
        return type("Output", (), {"logits": self.inner(pixel_values)})()


class Logits(Host):
    def forward(self, model, images):
        return model(pixel_values=images).logits


@pytest.mark.parametrize("mixer", [SAGE(), SAGE(mixed_share=1.0), Mixup(), ManifoldMixup(layers=("inner.stage1",))], ids=repr)
def test_a_model_that_returns_an_object_needs_a_forward(mixer):
    model, plain, (images, labels) = Answering(), small_model(), batch()
    accumulate(mixer, model, images, labels, host=Logits(), generator=seeded(3))
    if mixer == ManifoldMixup(layers=("inner.stage1",)):
        mixer = ManifoldMixup(layers=("stage1",))
    accumulate(mixer, plain, images, labels, generator=seeded(3))
    assert_gradients(model.inner, gradients(plain), rtol=0, atol=0)


def test_a_scaler_goes_around_a_host_of_ones_own():
    model, plain, (images, labels) = Answering(), small_model(), batch()
    accumulate(SAGE(), model, images, labels, host=ScalerHost(scaler(), Logits()), generator=seeded(3))
    accumulate(SAGE(), plain, images, labels, generator=seeded(3))
    assert_gradients(model.inner, {name: 1024 * tensor for name, tensor in gradients(plain).items()}, rtol=0, atol=0)


def test_a_subclass_of_a_composed_host_keeps_what_it_overrides():
    class Scaled(ScalerHost):
        def forward(self, model, images):
            return model(pixel_values=images).logits

    model, (images, labels) = Answering(), batch()
    host = Scaled(scaler())
    accumulate(SAGE(), model, images, labels, host=host)
    bound = host.bind(model)
    assert type(bound) is Scaled
    assert bound.scaler is host.scaler
    assert host.inner is not None  # and the host that was given stays as it was, for the next model


class Nested(Host):
    """Writes down what is asked of it, and which of it inside its own `no_sync`."""

    def __init__(self):
        self.asked = []
        self.inside = False

    @contextmanager
    def no_sync(self):
        self.inside = True
        yield
        self.inside = False

    def forward(self, model, images):
        self.asked.append(("forward", self.inside))
        return super().forward(model, images)

    def backward(self, loss):
        self.asked.append(("backward", self.inside))
        super().backward(loss)

    def input_gradient(self, loss, images):
        self.asked.append(("input_gradient", self.inside))
        return super().input_gradient(loss, images)


@pytest.mark.parametrize("around", [False, True], ids=["alone", "in a scaler's"])
@pytest.mark.parametrize(
    ("mixer", "asked"),
    [
        (SAGE(), [("forward", True), ("backward", True), ("forward", False), ("backward", False)]),
        (SAGE(mixed_share=1.0), [("forward", True), ("input_gradient", True), ("forward", False), ("backward", False)]),
        (Mixup(), [("forward", False), ("backward", False)]),
        (SAGE(prob=0.0), [("forward", False), ("backward", False)]),
    ],
    ids=repr,
)
def test_the_whole_clean_pass_lies_inside_no_sync(mixer, asked, around):
    host, (images, labels) = Nested(), batch()
    accumulate(mixer, small_model(), images, labels, host=ScalerHost(scaler(), host) if around else host)
    assert host.asked == asked


def test_no_sync_is_left_after_an_exception():
    class Careful(Nested):
        @contextmanager
        def no_sync(self):
            self.inside = True
            try:
                yield
            finally:
                self.inside = False

    host, (images, labels) = Careful(), batch()

    def fail(*_):
        assert host.inside
        raise ArithmeticError("on purpose")

    with pytest.raises(ArithmeticError):
        accumulate(SAGE(), small_model(), images, labels, host=host, criterion=fail)
    assert not host.inside


def test_choices_of_a_host_are_what_the_plan_is_drawn_from():
    class Other(Host):
        def choices(self, generator):
            assert generator.initial_seed() == 3
            return seeded(4)

    images, labels = batch()
    for host in (Other(), ScalerHost(scaler(), Other())):
        step = accumulate(SAGE(), small_model(), images, labels, host=host, generator=seeded(3))
        assert_same_plan(step.plan, accumulate(SAGE(), small_model(), images, labels, generator=seeded(4)).plan)


def test_whether_a_step_mixes_is_drawn_before_processes_part():
    """Ranks that were seeded alike agree on it, whatever they draw afterwards."""

    class Rank(Host):
        def __init__(self, rank):
            self.rank = rank

        def choices(self, generator):
            return mixsage.host.fork(generator, self.rank)

    images, labels = batch()
    steps = [
        [accumulate(Mixup(prob=0.5), small_model(), images, labels, host=Rank(rank), generator=generator) for _ in range(20)]
        for rank, generator in ((0, seeded(3)), (1, seeded(3)))
    ]
    mixed = [[not step.plan.is_identity for step in of_rank] for of_rank in steps]
    assert mixed[0] == mixed[1]
    assert 0 < sum(mixed[0]) < 20
    both = [(one.plan.weights, other.plan.weights) for one, other in zip(*steps, strict=True) if not one.plan.is_identity]
    assert not any(torch.equal(one, other) for one, other in both)


@pytest.mark.parametrize("rank", [0, 1, 7])
def test_fork_advances_the_given_generator_by_one_draw(rank):
    generator, same = seeded(3), seeded(3)
    forked = mixsage.host.fork(generator, rank)
    torch.randint(2**62, (), generator=same)
    assert torch.equal(generator.get_state(), same.get_state())
    assert forked is not generator


def test_forks_of_many_ranks_differ():
    draws = {int(torch.randint(2**62, (), generator=mixsage.host.fork(seeded(3), rank))) for rank in range(256)}
    assert len(draws) == 256
