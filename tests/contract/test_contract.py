"""What holds of every method there is: a new one is covered by being there."""

import ast
import copy
import dataclasses
import inspect
import itertools
import random
import typing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import assert_same_plan, assert_valid_plan, seeded, small_model, tensors_of
from mixsage import Mixer, available, get

CLASSES = 5
METHODS = available()
SIZES = [(8, 8), (28, 28), (32, 48), (33, 17)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]),
]
BATCHES = list(itertools.product((2, 3, 8), (1, 3), ("index", "soft"), (torch.contiguous_format, torch.channels_last)))


def ready(name, **options):
    """A method that mixes every batch, whatever its default is."""
    return get(name)(**{"prob": 1.0, "num_classes": CLASSES, **options})


def batch_of(size, batch, channels, labels, layout, *, dtype=torch.float32, device="cpu", seed=0):
    """Images, labels and raw maps, drawn on the CPU so that they are the same everywhere."""
    generator = seeded(seed)
    images = torch.randn(batch, channels, *size, generator=generator).to(device, dtype).contiguous(memory_format=layout)
    classes = torch.randint(CLASSES, (batch,), generator=generator)
    shares = torch.rand(batch, CLASSES, generator=generator)
    maps = torch.rand(batch, *size, generator=generator) ** 3
    return images, (classes if labels == "index" else shares / shares.sum(dim=1, keepdim=True)).to(device), maps.to(device)


def maps_for(mixer, maps):
    """Maps are handed in where the method looks at the gradient of a model; sources of their own need none."""
    return maps if mixer.source is not None and mixer.source.needs_gradient else None


def assert_in_range(mixed, images):
    """Between the smallest and the largest value of the images and of the fill, but for the rounding of one sum."""
    low, high = min(0.0, float(images.min())), max(0.0, float(images.max()))
    slack = torch.finfo(images.dtype).eps * max(-low, high)
    assert mixed.isfinite().all()
    assert low - slack <= float(mixed.min())
    assert float(mixed.max()) <= high + slack


def assert_targets(targets, batch):
    assert targets.shape == (batch, CLASSES)
    assert targets.dtype == torch.float32
    assert targets.min() >= 0
    torch.testing.assert_close(targets.sum(dim=1), torch.ones_like(targets[:, 0]), rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------------------ plans and calls


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_every_batch(name, size, dtype, device):
    for number, (batch, channels, kind, layout) in enumerate(BATCHES):
        mixer = ready(name, per_sample=number % 3 == 2)
        images, labels, maps = batch_of(size, batch, channels, kind, layout, dtype=dtype, device=device)
        maps = maps_for(mixer, maps)
        kept = images.clone(), labels.clone(), None if maps is None else maps.clone()

        plan = mixer.plan(images, labels, saliency=maps, generator=seeded(7))
        assert_valid_plan(plan, batch)
        assert len(plan.sources) == batch
        assert plan.sources.device == plan.weights.device == images.device

        applied = plan.apply(images), plan.targets(labels, CLASSES)
        called = mixer(images, labels, saliency=maps, generator=seeded(7))
        for mixed, targets in (applied, called):
            assert mixed.shape == images.shape
            assert (mixed.dtype, mixed.device) == (images.dtype, images.device)
            assert mixed.is_contiguous(memory_format=layout)
            assert not mixed.requires_grad
            assert_in_range(mixed, images)
            assert targets.device == images.device
            assert_targets(targets, batch)
        assert torch.equal(applied[0], plan.apply(images)), "a plan can be replayed"
        if plan.layer is None:
            assert torch.equal(called[0], applied[0])

        assert torch.equal(images, kept[0])
        assert torch.equal(labels, kept[1])
        assert maps is None or torch.equal(maps, kept[2])


@pytest.mark.parametrize("kind", ["index", "soft"])
@pytest.mark.parametrize("per_sample", [False, True], ids=["per batch", "per sample"])
@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_plan(name, per_sample, kind):
    mixer = ready(name, per_sample=per_sample)
    for batch, size in itertools.product((2, 3, 8), [(8, 8), (33, 17)]):
        images, labels, maps = batch_of(size, batch, 3, kind, torch.contiguous_format)
        one, other = (mixer.plan(images, labels, saliency=maps_for(mixer, maps), generator=seeded(7)) for _ in range(2))
        assert_same_plan(one, other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "channels", "kind"), [((8, 8), 1, "index"), ((33, 17), 3, "soft")], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_a_plain_call_with_a_model(name, size, channels, kind, dtype, device):
    """The model is as it was, in train mode too: values, gradients, statistics, flags."""
    mixer = ready(name)
    model = small_model(channels, CLASSES).to(device, dtype)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    images, labels, _ = batch_of(size, 3, channels, kind, torch.contiguous_format, dtype=dtype, device=device)
    before, flags, kept = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()], images.clone()
    mixed, targets = mixer(images, labels, model=model, generator=seeded())
    assert (mixed.shape, mixed.dtype, mixed.device) == (images.shape, images.dtype, images.device)
    assert_in_range(mixed, images)
    assert_targets(targets, 3)
    assert torch.equal(images, kept)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert [module.training for module in model.modules()] == flags
    for key, parameter in model.named_parameters():
        assert (parameter.grad is None) == (key != "head.weight"), key
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", METHODS)
def test_a_gpu_makes_the_same_choices(name):
    mixer = ready(name)
    here = batch_of((28, 28), 8, 3, "index", torch.contiguous_format)
    there = [value.cuda() for value in here]
    one = mixer.plan(here[0], here[1], saliency=maps_for(mixer, here[2]), generator=seeded())
    other = mixer.plan(there[0], there[1], saliency=maps_for(mixer, there[2]), generator=seeded()).to("cpu")
    assert torch.equal(one.sources, other.sources)
    torch.testing.assert_close(one.apply(here[0]), other.apply(here[0]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("per_sample", [False, True], ids=["per batch", "per sample"])
@pytest.mark.parametrize("name", METHODS)
def test_labels_follow_the_images(name, per_sample):
    """Each image alone has a value in its own colour: an output shows no more of a colour than its target says, and the rest is fill."""
    mixer = ready(name, per_sample=per_sample)
    images = torch.zeros(3, 3, 32, 32)
    for b in range(3):
        images[b, b] = 1
    labels = torch.tensor([4, 0, 2])
    maps = torch.rand(3, 32, 32, generator=seeded()) ** 3
    for seed in range(10):
        mixed, targets = mixer(images, labels, saliency=maps_for(mixer, maps), generator=seeded(seed))
        shown = mixed.mean(dim=(2, 3))
        assert (shown <= targets[:, labels] + 1e-5).all()
        plan = mixer.plan(images, labels, saliency=maps_for(mixer, maps), generator=seeded(seed))
        if plan.layer is None and (plan.warp is None or not hasattr(plan.warp, "offsets")):
            torch.testing.assert_close(shown, targets[:, labels], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_different_seeds_mix_differently(name):
    mixer = ready(name)
    images, labels, maps = batch_of((32, 32), 8, 3, "index", torch.contiguous_format)
    plans = [mixer.plan(images, labels, saliency=maps_for(mixer, maps), generator=seeded(seed)) for seed in range(8)]
    if mixer.min_batch > 1:
        assert len({(str(plan.sources.tolist()), str(plan.weights.tolist())) for plan in plans}) > 1


# ------------------------------------------------------------------------------------------------------------------------- probability


@pytest.mark.parametrize("name", METHODS)
def test_probability_zero_is_the_identity(name):
    mixer = ready(name, prob=0.0)
    images, labels, maps = batch_of((28, 28), 3, 3, "index", torch.channels_last)
    assert mixer.plan(images, labels, saliency=maps_for(mixer, maps), generator=seeded()).is_identity
    mixed, targets = mixer(images, labels, saliency=maps_for(mixer, maps), generator=seeded())
    assert torch.equal(mixed, images)
    assert mixed.data_ptr() != images.data_ptr()
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, CLASSES).float())


@pytest.mark.parametrize("name", [name for name in METHODS if name != "clean"])
def test_probability_is_how_many_batches_are_mixed(name):
    mixer, generator = ready(name, prob=0.3), seeded()
    images, labels, maps = batch_of((8, 8), 2, 3, "index", torch.contiguous_format)
    maps = maps_for(mixer, maps)
    mixed = sum(not mixer.plan(images, labels, saliency=maps, generator=generator).is_identity for _ in range(200)) / 200
    assert mixed == pytest.approx(0.3, abs=0.12)


# ------------------------------------------------------------------------------------------------------------------------ random states


def global_states():
    states = {"torch": torch.get_rng_state().tolist(), "python": random.getstate()}
    try:
        import numpy as np
    except ImportError:
        return states
    name, keys, *rest = np.random.get_state()
    return states | {"numpy": (name, keys.tolist(), *rest)}


@pytest.mark.parametrize("way", ["plan", "maps", "model"])
@pytest.mark.parametrize("name", METHODS)
def test_with_a_generator_no_global_state_is_touched_or_read(name, way):
    mixer, model = ready(name, per_sample=True), small_model(3, CLASSES)
    images, labels, maps = batch_of((8, 8), 3, 3, "index", torch.contiguous_format)
    maps = maps_for(mixer, maps)

    def draw(generator):
        if way == "plan":
            return tensors_of(mixer.plan(images, labels, saliency=maps, generator=generator))
        options = {"saliency": maps} if way == "maps" else {"model": model}
        return dict(zip(("images", "targets"), mixer(images, labels, **options, generator=generator), strict=True))

    draw(seeded())  # whatever is set up at the first use
    with torch.random.fork_rng(devices=[]):
        drawn = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            random.seed(seed)
            before = global_states()
            drawn.append(draw(seeded(5)))
            assert global_states() == before
        for key, value in drawn[0].items():
            assert torch.equal(value, drawn[1][key]), key


@pytest.mark.parametrize("name", METHODS)
def test_two_mixers_with_two_generators_do_not_disturb_each_other(name):
    mixer = ready(name)
    images, labels, maps = batch_of((8, 8), 3, 3, "index", torch.contiguous_format)
    maps = maps_for(mixer, maps)

    def draw(generator):
        return mixer.plan(images, labels, saliency=maps, generator=generator)

    one, other = seeded(1), seeded(2)
    alone = [draw(one) for _ in range(3)], [draw(other) for _ in range(3)]
    one, other = seeded(1), seeded(2)
    for turn in range(3):
        assert_same_plan(draw(one), alone[0][turn])
        assert_same_plan(draw(other), alone[1][turn])


@pytest.mark.parametrize("name", METHODS)
def test_without_a_generator_the_seed_of_the_script_reproduces(name):
    mixer = ready(name)
    images, labels, maps = batch_of((8, 8), 8, 3, "index", torch.contiguous_format)
    maps = maps_for(mixer, maps)
    with torch.random.fork_rng(devices=[]):
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            runs.append([mixer.plan(images, labels, saliency=maps) for _ in range(3)])
        for one, other in zip(*runs, strict=True):
            assert_same_plan(one, other)
        torch.manual_seed(3)
        assert_same_plan(runs[0][0], mixer.plan(images, labels, saliency=maps))
        assert_same_plan(runs[0][0], mixer.plan(images, labels, saliency=maps, generator=seeded(3)))


# ----------------------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("name", METHODS)
def test_settings_are_a_frozen_value(name):
    method = get(name)
    mixer = method()
    assert mixer == method()
    assert hash(mixer) == hash(method())
    assert copy.deepcopy(mixer) == mixer
    assert dataclasses.replace(mixer, prob=0.25) != mixer
    assert len({mixer, method(), dataclasses.replace(mixer, per_sample=True)}) == 2
    for field in dataclasses.fields(mixer):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(mixer, field.name, None)
    with pytest.raises(TypeError, match="positional"):
        method(0.5)


@pytest.mark.parametrize("name", METHODS)
def test_a_mixer_keeps_nothing_of_a_batch(name):
    mixer = ready(name)
    before = copy.deepcopy(vars(mixer))
    images, labels, maps = batch_of((8, 8), 3, 3, "index", torch.contiguous_format)
    mixer(images, labels, saliency=maps_for(mixer, maps), generator=seeded())
    assert vars(mixer) == before


def described_fields(cls):
    """Names of the fields that a class defines, and whether a docstring follows each."""
    (definition,) = ast.parse(inspect.getsource(cls)).body
    for statement, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement.annotation):
            described = (
                isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            )
            yield statement.target.id, described


@pytest.mark.parametrize("name", METHODS)
def test_every_field_is_described(name):
    method = get(name)
    described = {}
    for cls in reversed(method.__mro__):
        if issubclass(cls, Mixer):
            described |= dict(described_fields(cls))
    assert set(described) == {field.name for field in dataclasses.fields(method)}
    assert all(described.values()), [field for field, there in described.items() if not there]
    assert method.__doc__ and not method.__doc__.startswith(f"{method.__name__}("), "a docstring of its own"
    assert set(typing.get_type_hints(method)) >= set(described)


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_is_valid(name):
    method = get(name)
    for preset in method.presets:
        assert isinstance(method.preset(preset), method)
        assert method.preset(preset, prob=0.5).prob == 0.5


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prob": -0.1}, r"prob must lie in \[0, 1\], got -0.1"),
        ({"prob": 1.1}, r"prob must lie in \[0, 1\], got 1.1"),
        ({"prob": float("nan")}, r"prob must lie in \[0, 1\], got nan"),
        ({"num_classes": 1}, "num_classes must be at least 2, got 1"),
        ({"num_classes": 0}, "num_classes must be at least 2, got 0"),
    ],
)
def test_settings_out_of_range(name, options, message):
    with pytest.raises(ValueError, match=message):
        get(name)(**options)


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_setting(name):
    with pytest.raises(TypeError, match="lambbda"):
        get(name)(lambbda=0.5)


# --------------------------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("name", METHODS)
@settings(deadline=None, max_examples=12)
@given(
    batch=st.integers(2, 6),
    channels=st.sampled_from([1, 3]),
    height=st.integers(4, 24),
    width=st.integers(4, 24),
    per_sample=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_shape(name, batch, channels, height, width, per_sample, seed):
    mixer = ready(name, per_sample=per_sample)
    images, labels, maps = batch_of((height, width), batch, channels, "index", torch.contiguous_format, seed=seed)
    plan = mixer.plan(images, labels, saliency=maps_for(mixer, maps), generator=seeded(seed))
    assert_valid_plan(plan, batch)
    assert_in_range(plan.apply(images), images)
    assert_targets(plan.targets(labels, CLASSES), batch)


@pytest.fixture
def default_type():
    """Sets torch's default type, and puts back what it was."""
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


def planned_and_called(name):
    """Plans and mixed batches of one seed, with draws for the batch and for each image, and from torch's own generator."""
    for per_sample, generator in itertools.product((False, True), (seeded(7), None)):
        mixer = ready(name, per_sample=per_sample)
        images, labels, maps = BATCH_OF_DEFAULTS
        if generator is None:
            torch.manual_seed(7)
        plan = mixer.plan(images, labels, saliency=maps_for(mixer, maps), generator=generator)
        yield plan, plan.apply(images), plan.targets(labels, CLASSES)


BATCH_OF_DEFAULTS = batch_of((9, 7), 5, 3, "index", torch.contiguous_format)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_the_default_type_changes_nothing(name, dtype, default_type):
    expected = list(planned_and_called(name))
    default_type(dtype)
    assert_all_same(expected, list(planned_and_called(name)))


@pytest.mark.parametrize("name", METHODS)
def test_the_default_device_changes_nothing(name):
    """Choices are the host's, and the rest lies where the images do: "meta" has no values, so that whatever goes there is lost."""
    expected = list(planned_and_called(name))
    with torch.device("meta"):
        found = list(planned_and_called(name))
    assert_all_same(expected, found)


def assert_all_same(expected, found):
    for (plan, mixed, targets), (other_plan, other_mixed, other_targets) in zip(expected, found, strict=True):
        assert_same_plan(plan, other_plan)
        assert (other_mixed.dtype, other_targets.dtype) == (mixed.dtype, torch.float32)
        assert torch.equal(mixed, other_mixed)
        assert torch.equal(targets, other_targets)
