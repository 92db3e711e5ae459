"""`accumulate` with compiled models: the same gradients, no compilation but the first ones, and a plain call that leaves buffers alone."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import mixsage
from helpers import seeded, small_model
from mixsage import SAGE, InputGradient, ManifoldMixup, Mixup, ScalerHost, accumulate
from plain_passes import Tokens, assert_gradients, gradients, plain_passes

# torch's compiler looks at `.grad` of hidden values and hides the warning only where it is printed.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
MIXERS = {name: mixsage.get(name)() for name in mixsage.available()} | {
    "sage, half": SAGE(mixed_share=0.5),
    "sage, no reuse": SAGE(mixed_share=1.0),
    "sage, eval": SAGE(saliency=InputGradient(mode="eval")),
}


def vit():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Tokens()


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def batch(size=4, seed=100):
    generator = seeded(seed)
    return torch.randn(size, 3, 16, 16, generator=generator), torch.randint(5, (size,), generator=generator)


def compiled(model, backend, in_place):
    if in_place:
        model.compile(backend=backend)
        return model
    return torch.compile(model, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [small_model, vit], ids=["convnet", "vit"])
@pytest.mark.parametrize("in_place", [False, True], ids=["wrapped", "in place"])
def test_gradients_are_those_of_the_plain_model(make, backend, in_place):
    """Every method in turn, on one compiled model, over gradients that were there before."""
    model, (images, labels) = make(), batch()
    run = compiled(model, backend, in_place)
    for name, mixer in MIXERS.items():
        before = {parameter: torch.randn(tensor.shape, generator=seeded(5)) for parameter, tensor in model.named_parameters()}
        for parameter, tensor in model.named_parameters():
            tensor.grad = before[parameter].clone()
        with torch.no_grad():  # statistics of the mode "eval" as they were before this step
            alone = make()
            alone.load_state_dict(model.state_dict())
        step = accumulate(mixer, run, images, labels, generator=seeded(3), weight=0.5)
        clean = mixer.clean
        passes = plain_passes(
            alone,
            images,
            labels,
            step.plan,
            nn.CrossEntropyLoss(),
            clean_mode=clean.mode if clean else "train",
            clean_criterion=clean.criterion if clean else None,
        )
        combined = passes.combined(clean.weight if clean else 0.0, mixer.mixed_weight)
        expected = {parameter: before[parameter] + 0.5 * tensor for parameter, tensor in combined.items()}
        try:
            assert_gradients(model, expected, rtol=1e-4, atol=1e-4)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@pytest.mark.parametrize("backend", BACKENDS)
def test_saliency_is_that_of_the_plain_model(backend):
    model, plain, (images, labels) = small_model(), small_model(), batch()
    run = torch.compile(model, backend=backend)
    for share in (0.7, 1.0):
        one = accumulate(SAGE(mixed_share=share), run, images, labels, generator=seeded(3))
        other = accumulate(SAGE(mixed_share=share), plain, images, labels, generator=seeded(3))
        torch.testing.assert_close(one.plan.masks, other.plan.masks, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(one.clean_loss, other.clean_loss)


def test_without_reuse_nothing_is_added_in_the_clean_pass():
    """A compiled backward computes all its gradients at once, but none of them may arrive at a parameter."""
    model, (images, labels) = small_model(), batch()
    run = torch.compile(model, backend="aot_eager")
    added = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: added.append(name))
    accumulate(SAGE(mixed_share=1.0), run, images, labels)
    assert sorted(added) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("mixer", "graphs"),
    [
        (Mixup(), 1),
        # The clean pass's images require a gradient, the mixed ones do not: a graph for each.
        (SAGE(), 2),
        (SAGE(mixed_share=1.0), 2),
        (SAGE(saliency=InputGradient(mode="eval")), 2),
        (SAGE(prob=0.5), 2),
    ],
    ids=repr,
)
def test_nothing_is_compiled_after_the_first_steps(mixer, graphs):
    counter = CompileCounterWithBackend("aot_eager")
    model, (images, labels) = small_model(), batch()
    run, generator = torch.compile(model, backend=counter), seeded(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        accumulate(mixer, run, images, labels, generator=generator)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert counter.frame_count == graphs


def test_under_autocast_with_a_scaler():
    model, (images, labels) = small_model(), batch()
    run, host = torch.compile(model, backend="aot_eager"), ScalerHost(torch.amp.GradScaler("cpu", init_scale=256.0))
    with torch.autocast("cpu", torch.bfloat16):
        step = accumulate(SAGE(mixed_share=0.5), run, images, labels, generator=seeded(3), host=host)
    assert step.logits.dtype == torch.bfloat16

    def autocast():
        return torch.autocast("cpu", torch.bfloat16)

    passes = plain_passes(small_model(), images, labels, step.plan, nn.CrossEntropyLoss(), autocast=autocast)
    expected = {name: 256 * tensor for name, tensor in passes.combined(0.5, 0.5).items()}
    assert_gradients(model, expected, rtol=3e-2, atol=3e-2)


def test_channels_last():
    images, labels = batch()
    model = small_model().to(memory_format=torch.channels_last)
    run, plain = torch.compile(model, backend="aot_eager"), small_model()
    step = accumulate(SAGE(), run, images.to(memory_format=torch.channels_last), labels, generator=seeded(3))
    accumulate(SAGE(), plain, images, labels, plan=step.plan)
    assert_gradients(model, gradients(plain), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("in_place", [False, True], ids=["wrapped", "in place"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_plain_call_leaves_a_compiled_model_as_it_was(mode, in_place):
    model, (images, labels) = small_model(), batch()
    run = compiled(model, "aot_eager", in_place)
    accumulate(SAGE(), run, images, labels)  # compiled, and its statistics moved
    model.zero_grad()
    kept = deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    mixer = SAGE(num_classes=5, saliency=InputGradient(mode=mode))
    mixed, _ = mixer(images, labels, model=run, generator=seeded(3))

    plain = small_model()
    plain.load_state_dict(kept)
    expected, _ = mixer(images, labels, model=plain, generator=seeded(3))
    torch.testing.assert_close(mixed, expected, rtol=1e-3, atol=1e-3)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [module.training for module in model.modules()] == flags


def test_a_model_compiled_after_hidden_steps_is_mixed_too():
    """The other order: a hook that was there when the model was compiled is no longer there afterwards."""
    model, plain, (images, labels) = small_model(), small_model(), batch()
    mixer = ManifoldMixup(layers=("stage1",))
    accumulate(mixer, model, images, labels)
    model.zero_grad()
    run = torch.compile(model, backend="aot_eager")
    for one, two in ((mixer, mixer), (Mixup(), Mixup()), (mixer, mixer)):
        plain.load_state_dict(model.state_dict())
        step = accumulate(one, run, images, labels, generator=seeded(3))
        accumulate(two, plain, images, labels, plan=step.plan)
        assert_gradients(model, gradients(plain), rtol=1e-4, atol=1e-4)
        model.zero_grad()
        plain.zero_grad()
