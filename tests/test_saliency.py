"""Saliency maps against loops in float64, hostile numbers, and what a model is like after its input gradient was taken."""

import copy
import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mixsage
from helpers import seeded, small_model
from mixsage import InputGradient, Uniform
from mixsage.methods.base import soft_targets
from mixsage.saliency import check_maps, evaluating, input_gradient, normalise, smooth

# -------------------------------------------------------------------------------------------------------------------- size of a gradient


def norm_over_colours(gradient, norm):
    """By Python's own numbers, in double precision."""
    batch, channels, height, width = gradient.shape
    out = torch.zeros(batch, height, width, dtype=torch.float64)
    for b, i, j in itertools.product(range(batch), range(height), range(width)):
        colours = gradient[b, :, i, j].double().tolist()
        out[b, i, j] = math.hypot(*colours) if norm == "l2" else sum(map(abs, colours)) / channels
    return out


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("scale", [1e-30, 1e-25, 1e-10, 1.0, 1e10, 1e30])
def test_norm_over_colours(norm, channels, scale):
    """Of gradients of any size: squares in float32 would vanish below 1e-19 and overflow above 1e19."""
    gradient = torch.randn(2, channels, 5, 7, generator=seeded()) * scale
    before = gradient.clone()
    maps = InputGradient(norm=norm)(torch.zeros_like(gradient), gradient)
    assert maps.dtype == torch.float32
    torch.testing.assert_close(maps.double() / scale, norm_over_colours(gradient, norm) / scale, rtol=1e-5, atol=1e-6)
    assert torch.equal(gradient, before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_norm_is_taken_in_float32(norm, dtype):
    gradient = (torch.randn(2, 3, 5, 7, generator=seeded()) * 6e-7).to(dtype)  # float16 keeps a few bits of such numbers
    maps = InputGradient(norm=norm)(torch.zeros_like(gradient), gradient)
    assert maps.dtype == torch.float32
    torch.testing.assert_close(maps.double(), norm_over_colours(gradient, norm), rtol=1e-5, atol=1e-12)


def test_each_image_has_a_scale_of_its_own():
    """An image of huge gradients must not wipe out those of its neighbour."""
    gradient = torch.randn(2, 3, 4, 4, generator=seeded())
    gradient[0] *= 1e-25
    gradient[1] *= 1e30
    maps = InputGradient()(gradient, gradient)
    for b, scale in enumerate((1e-25, 1e30)):
        torch.testing.assert_close(maps[b].double() / scale, norm_over_colours(gradient, "l2")[b] / scale, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_layout_of_the_gradient_does_not_matter(layout):
    gradient = torch.randn(2, 3, 5, 7, generator=seeded())
    torch.testing.assert_close(InputGradient()(gradient, gradient.to(memory_format=layout)), InputGradient()(gradient, gradient))


def test_uniform_maps():
    images = torch.rand(3, 1, 4, 6)
    maps = Uniform()(images, None)
    assert torch.equal(normalise(smooth(maps)), torch.full((3, 4, 6), 1 / 24))


def test_no_gradient_no_maps():
    with pytest.raises(ValueError, match="InputGradient needs the gradient of the loss with respect to the images, got None"):
        InputGradient()(torch.zeros(1, 3, 2, 2), None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "l3"}, "norm must be one of 'l2', 'l1'; got 'l3'"),
        ({"mode": "test"}, "mode must be one of 'train', 'eval'; got 'test'"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        InputGradient(**settings)


# ------------------------------------------------------------------------------------------------------------------------------- smooth


def reflected(place, size):
    """Walk from one border to the other and back: the border pixel itself is not repeated."""
    if size == 1:
        return 0
    while not 0 <= place < size:
        place = -place if place < 0 else 2 * (size - 1) - place
    return place


def blurred(picture, variance=1.0, size=5):
    """A convolution in two dimensions with a normalised Gaussian kernel."""
    height, width = picture.shape
    half = range(-(size // 2), size // 2 + 1)
    kernel = {(k, l): math.exp(-(k * k + l * l) / (2 * variance)) for k in half for l in half}
    total = sum(kernel.values())
    out = torch.zeros(height, width, dtype=torch.float64)
    for i, j in itertools.product(range(height), range(width)):
        out[i, j] = (
            sum(w * float(picture[reflected(i + k, height), reflected(j + l, width)]) for (k, l), w in kernel.items()) / total
        )
    return out


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 6), (2, 2), (2, 5), (3, 3), (4, 9), (8, 6)])
def test_blur(height, width):
    """Also of maps smaller than the kernel."""
    maps = torch.rand(2, height, width, generator=seeded())
    before = maps.clone()
    expected = torch.stack([blurred(picture) for picture in maps])
    torch.testing.assert_close(smooth(maps).double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(maps, before)


@pytest.mark.parametrize(("variance", "size"), [(0.25, 3), (4.0, 7), (1.0, 1)])
def test_blur_of_other_widths(variance, size):
    maps = torch.rand(1, 6, 5, generator=seeded())
    torch.testing.assert_close(smooth(maps, variance, size)[0].double(), blurred(maps[0], variance, size), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"variance": 0.0}, "variance must be positive and finite, got 0"), ({"size": 4}, "size must be odd and positive, got 4")],
)
def test_blurs_that_are_none(settings, message):
    with pytest.raises(ValueError, match=message):
        smooth(torch.rand(1, 6, 5), **settings)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_blur_is_taken_in_float32(dtype):
    maps = torch.rand(2, 6, 5, generator=seeded()).to(dtype)
    assert smooth(maps).dtype == torch.float32
    torch.testing.assert_close(smooth(maps), smooth(maps.float()))


# ---------------------------------------------------------------------------------------------------------------------------- normalise


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_each_map_is_divided_by_its_sum(scale):
    maps = torch.rand(3, 4, 6, generator=seeded()) * scale
    before = maps.clone()
    expected = maps.double() / maps.double().sum(dim=(1, 2), keepdim=True)
    shares = normalise(maps)
    assert shares.dtype == torch.float32
    torch.testing.assert_close(shares.double(), expected, rtol=0, atol=1e-7)
    assert torch.equal(maps, before)


INF, NAN, DENORMAL = float("inf"), float("nan"), 1e-42
UNUSABLE = {
    "zeros": torch.zeros(3, 4),
    "inf": torch.ones(3, 4).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(INF)),
    "-inf": torch.ones(3, 4).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(-INF)),
    "NaN": torch.ones(3, 4).index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(NAN)),
    "all inf": torch.full((3, 4), INF),
    "all NaN": torch.full((3, 4), NAN),
    "inf and -inf": torch.tensor([[INF, -INF, 0.0, 1.0]] * 3),
}


@pytest.mark.parametrize("name", UNUSABLE)
@pytest.mark.parametrize("smoothed", [False, True])
def test_a_map_that_says_nothing_becomes_uniform(name, smoothed):
    """And leaves its neighbours in the batch alone."""
    good = torch.rand(3, 4, generator=seeded())
    maps = torch.stack([good, UNUSABLE[name], good])
    if smoothed:
        maps, good = smooth(maps), smooth(good[None])[0]
    shares = normalise(maps)
    torch.testing.assert_close(shares[1], torch.full((3, 4), 1 / 12))
    for b in (0, 2):
        torch.testing.assert_close(shares[b], good / good.sum())


def test_one_pixel_keeps_it_all():
    maps = torch.zeros(1, 3, 4)
    maps[0, 1, 2] = 1e-20
    assert torch.equal(normalise(maps), (maps > 0).float())


def test_denormal_maps_keep_their_shape():
    maps = torch.tensor([[[DENORMAL, 0.0], [3 * DENORMAL, 4 * DENORMAL]]])
    torch.testing.assert_close(normalise(maps), torch.tensor([[[0.125, 0.0], [0.375, 0.5]]]), rtol=0, atol=1e-3)


def test_huge_maps_do_not_overflow():
    maps = torch.full((1, 100, 100), 3e38)
    torch.testing.assert_close(normalise(maps), torch.full((1, 100, 100), 1e-4))


def test_negative_values_have_no_saliency():
    """Maps that somebody hands in may be signed; a share of the pixels cannot be."""
    for maps in (torch.tensor([[[1.0, -1.0], [3.0, 0.0]]]), torch.tensor([[[-1.0, -2.0], [-3.0, -1.0]]])):
        shares = normalise(maps)
        assert shares.min() >= 0
        torch.testing.assert_close(shares.sum(dim=(1, 2)), torch.ones(1))


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.lists(
                st.floats(0, 2.0**127, width=32) | st.sampled_from([0.0, INF, NAN, 1e-45, 3e38]), min_size=width, max_size=width
            ),
            min_size=1,
            max_size=4,
        )
    )
)
def test_any_map_becomes_a_distribution(rows):
    maps = torch.tensor([rows])
    for raw in (maps, smooth(maps)):
        shares = normalise(raw)
        assert shares.isfinite().all()
        assert shares.min() >= 0
        assert float(shares.double().sum()) == pytest.approx(1, abs=1e-5)


# ------------------------------------------------------------------------------------------------------------------------- maps handed in


@pytest.mark.parametrize(
    ("maps", "error", "message"),
    [
        (
            torch.zeros(2, 1, 4, 6),
            ValueError,
            r"saliency must be raw maps \[B, H, W\] = \[2, 4, 6\], got \[2, 1, 4, 6\].*maps.squeeze\(1\)",
        ),
        (torch.zeros(2, 6, 4), ValueError, r"= \[2, 4, 6\], got \[2, 6, 4\]"),
        (torch.zeros(1, 4, 6), ValueError, r"= \[2, 4, 6\], got \[1, 4, 6\]"),
        (
            torch.zeros(2, 4, 6, dtype=torch.uint8),
            TypeError,
            r"saliency must be floating point, got torch.uint8; pass maps.float\(\)",
        ),
        (
            torch.zeros(2, 4, 6, device="meta"),
            ValueError,
            r"saliency lies on meta, the images on cpu; move it with maps.to\(images.device\)",
        ),
    ],
)
def test_maps_that_do_not_fit(maps, error, message):
    with pytest.raises(error, match=message):
        check_maps(maps, torch.zeros(2, 3, 4, 6))


# ---------------------------------------------------------------------------------------------------------------------- input gradient

LABELS = torch.tensor([0, 3, 1, 4])


def batch(dtype=torch.float32):
    return torch.rand(4, 3, 6, 5, generator=seeded()).to(dtype)


def state_of(model):
    """All that a caller could find changed: values, gradients, flags, and the very tensors."""
    return {
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "grads": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "flags": [module.training for module in model.modules()],
        "requires": [p.requires_grad for p in model.parameters()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "tensors": [id(t) for t in (*model.parameters(), *model.buffers())],
        "attributes": [sorted(vars(module)) for module in model.modules()],
    }


def assert_same_state(one, other):
    for key in ("flags", "requires", "hooks", "tensors", "attributes"):
        assert one[key] == other[key], key
    for key in ("state", "grads"):
        assert one[key].keys() == other[key].keys()
        for name, value in one[key].items():
            assert (value is None) == (other[key][name] is None), name
            assert value is None or torch.equal(value, other[key][name]), name


def mixed_flags(model):
    """Part of the model frozen, as in fine-tuning, and a gradient that the caller has accumulated."""
    model.stage1.eval()
    model.stem.weight.requires_grad_(False)
    model.head.weight.grad = torch.full_like(model.head.weight, 3.0)
    return model


def gradient_by_hand(model, images, criterion, mode):
    """On a copy of the model, in the plainest way."""
    twin = copy.deepcopy(model)
    if mode == "eval":
        twin.eval()
    leaf = images.clone().requires_grad_()
    logits = twin(leaf)
    criterion(logits, torch.nn.functional.one_hot(LABELS, 5).float()).backward()
    return leaf.grad


def soft(logits):
    return soft_targets(LABELS, logits.shape[1])


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("criterion", [mixsage.cross_entropy, mixsage.binary_cross_entropy])
@pytest.mark.parametrize(
    "prepare", [lambda model: model, mixed_flags, nn.Module.eval], ids=["fresh", "partly frozen", "in evaluation"]
)
@pytest.mark.parametrize("around", [nullcontext, torch.no_grad])
def test_input_gradient_leaves_the_model_as_it_was(mode, criterion, prepare, around):
    model, images = prepare(small_model()), batch()
    before, kept = state_of(model), images.clone()
    with around():
        gradient = input_gradient(model, images, soft, criterion, mode)
    assert_same_state(before, state_of(model))
    assert torch.equal(images, kept)
    assert images.grad is None
    assert not images.requires_grad
    torch.testing.assert_close(gradient, gradient_by_hand(model, images, criterion, mode))


def test_input_gradient_in_train_mode_sees_the_batch():
    """The BatchNorm of a train pass is the batch's own: the statistics that are kept aside must not replace it."""
    model, images = small_model(), batch()
    train = input_gradient(model, images, soft, mixsage.cross_entropy, "train")
    evaluation = input_gradient(model, images, soft, mixsage.cross_entropy, "eval")
    assert not torch.allclose(train, evaluation, rtol=0.01)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler, about torch
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_input_gradient_of_a_compiled_model(mode):
    """Before and after the first call, which compiles; the model trains on afterwards as one that was never asked."""
    model, images = small_model(), batch()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager")
    expected = gradient_by_hand(model, images, mixsage.cross_entropy, mode)
    for _ in range(2):
        before = state_of(compiled)
        torch.testing.assert_close(input_gradient(compiled, images, soft, mixsage.cross_entropy, mode), expected)
        assert_same_state(before, state_of(compiled))
        compiled(images)  # moves the statistics
        twin(images)
        expected = gradient_by_hand(twin, images, mixsage.cross_entropy, mode)
    torch.testing.assert_close(dict(compiled.named_buffers())["_orig_mod.stage1.1.running_mean"], twin.stage1[1].running_mean)


def test_input_gradient_of_a_model_that_shares_modules():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
            self.same = self.one
            self.head = nn.Linear(3, 5)

        def forward(self, images):
            return self.head(self.same(self.one(images)).mean(dim=(2, 3)))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Shared()
    images = batch()
    before = state_of(model)
    gradient = input_gradient(model, images, soft, mixsage.cross_entropy, "train")
    assert_same_state(before, state_of(model))
    torch.testing.assert_close(gradient, gradient_by_hand(model, images, mixsage.cross_entropy, "train"))


def test_input_gradient_where_the_model_fails():
    """An exception leaves nothing behind."""
    model = small_model()
    before = state_of(model)
    with pytest.raises(ValueError, match="too hard"):
        input_gradient(model, batch(), soft, _too_hard, "eval")
    assert_same_state(before, state_of(model))


def _too_hard(logits, targets):
    raise ValueError("too hard")


def test_input_gradient_of_half_precision():
    model, images = small_model().to(torch.bfloat16), batch(torch.bfloat16)
    gradient = input_gradient(model, images, soft, mixsage.cross_entropy, "eval")
    assert gradient.dtype == torch.bfloat16
    assert gradient.abs().sum() > 0


def test_input_gradient_of_images_that_are_part_of_a_graph():
    """The caller's graph is neither used nor kept."""
    images = batch().requires_grad_()
    gradient = input_gradient(small_model(), images * 2, soft, mixsage.cross_entropy)
    assert not gradient.requires_grad
    assert images.grad is None


def test_input_gradient_needs_gradients():
    with (
        torch.inference_mode(),
        pytest.raises(RuntimeError, match=r"saliency needs gradients, but torch.inference_mode\(\) is on; leave it"),
    ):
        input_gradient(small_model(), batch(), soft, mixsage.cross_entropy)


def test_input_gradient_of_a_criterion_without_reduction():
    def each(logits, targets):
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    with pytest.raises(ValueError, match=r"the criterion returned \[4\], expected a scalar; average it"):
        input_gradient(small_model(), batch(), soft, each)


def test_input_gradient_of_a_model_without_logits():
    class Tuple(nn.Module):
        def forward(self, images):
            return images.mean(dim=(2, 3)), images

    with pytest.raises(TypeError, match=r"the model returned tuple, expected logits \[B, C\]"):
        input_gradient(Tuple(), batch(), soft, mixsage.cross_entropy)


def test_evaluating_puts_every_flag_back():
    model = mixed_flags(small_model())
    flags = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == flags
