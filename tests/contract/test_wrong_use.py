"""Wrong use gets an error that says what came, what was expected and the way out, in a plain call, in a plan and in a step alike."""

import re

import pytest
import torch
from torch import nn

import mixsage
from helpers import seeded, small_model
from mixsage import SAGE, Clean, ManifoldMixup, Mixup, accumulate, available, get

CLASSES = 5
METHODS = available()
IMAGES, LABELS, MAPS = (
    torch.rand(4, 3, 16, 12, generator=seeded()),
    torch.tensor([0, 1, 2, 4]),
    torch.rand(4, 16, 12, generator=seeded()),
)


def named(name, **options):
    return get(name)(**{"num_classes": CLASSES, **options})


def maps_for(mixer):
    return {"saliency": MAPS} if mixer.source is not None and mixer.source.needs_gradient else {}


def in_every_way(name, images, labels, **options):
    """The plain call with maps, the plain call with a model, and the step."""
    mixer = named(name, **options)
    yield lambda: mixer(images, labels, **maps_for(mixer))
    yield lambda: mixer(images, labels, model=small_model(3, CLASSES))
    yield lambda: accumulate(mixer, small_model(3, CLASSES), images, labels)


def assert_refused(calls, error, message):
    for call in calls:
        with pytest.raises(error, match=message):
            call()


# ------------------------------------------------------------------------------------------------------------------------------- images


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_integer_images(name, dtype):
    message = rf"{get(name).__name__} mixes floating-point images, got {dtype}; convert first, for example images.float\(\) / 255"
    assert_refused(in_every_way(name, IMAGES.to(dtype), LABELS), TypeError, message)


@pytest.mark.parametrize("name", [name for name in METHODS if get(name).spatial])
def test_images_without_a_batch_axis(name):
    message = (
        rf"{get(name).__name__} mixes images \[B, C, H, W\], got \[3, 16, 12\]; a single image needs a batch axis: images\[None\]"
    )
    assert_refused(in_every_way(name, IMAGES[0], LABELS[:3]), ValueError, message)


@pytest.mark.parametrize("name", METHODS)
def test_images_that_are_no_tensor(name):
    message = f"{get(name).__name__} mixes a batch of images in one tensor, got list; stack them, for example with torch.stack"
    assert_refused(in_every_way(name, list(IMAGES), LABELS), TypeError, message)


# ------------------------------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("label", [-1, 5, 100])
def test_labels_out_of_range(name, label):
    labels = torch.tensor([0, 1, 2, label])
    message = rf"labels range from {min(0, label)} to {max(2, label)}, but there are 5 classes \(0 to 4\); set num_classes to the number of classes"
    assert_refused(in_every_way(name, IMAGES, labels), ValueError, message)


@pytest.mark.parametrize("name", METHODS)
def test_num_classes_missing(name):
    mixer = get(name)()
    message = rf"num_classes is missing: .*say how many classes there are: {get(name).__name__}\(num_classes=10\)"
    assert_refused([lambda: mixer(IMAGES, LABELS, **maps_for(mixer))], ValueError, message)
    soft = torch.eye(CLASSES)[LABELS]
    assert mixer(IMAGES, soft, **maps_for(mixer))[1].shape == (4, CLASSES), "soft labels say it themselves"


@pytest.mark.parametrize("name", METHODS)
def test_soft_labels_of_other_classes(name):
    mixer = named(name)
    message = "num_classes is 5, but the soft labels have 7 classes; leave num_classes out"
    assert_refused([lambda: mixer(IMAGES, torch.rand(4, 7), **maps_for(mixer))], ValueError, message)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (LABELS.to("meta"), ValueError, r"labels lie on meta, the images on cpu; move them with labels.to\(images.device\)"),
        (LABELS[:3], ValueError, r"got 4 images and labels \[3\]; every image needs one label"),
        (torch.rand(5, CLASSES), ValueError, r"got 4 images and labels \[5, 5\]; every image needs one label"),
        (torch.tensor(1), ValueError, r"got 4 images and labels \[\]; every image needs one label"),
        ([0, 1, 2, 4], TypeError, r"labels must be a tensor, class indices \[B\] or soft labels \[B, C\]; got list"),
        (
            LABELS[:, None],
            ValueError,
            r"labels must be class indices \[B\] or soft labels \[B, C\] in floating point, got \[4, 1\] int64",
        ),
        (LABELS > 1, ValueError, r"labels must be class indices \[B\] or soft labels \[B, C\] in floating point, got \[4\] bool"),
        (
            LABELS.float(),
            ValueError,
            r"soft labels must be \[B, 5\], got \[4\]; pass class indices \[B\], or shares for every class",
        ),
    ],
)
def test_labels_of_another_shape(name, labels, error, message):
    assert_refused(in_every_way(name, IMAGES, labels), error, message)


# ----------------------------------------------------------------------------------------------------------------------------- saliency

LOOKING = [name for name in METHODS if get(name)().source is not None and get(name)().source.needs_gradient]


@pytest.mark.parametrize("name", LOOKING)
@pytest.mark.parametrize(
    ("maps", "error", "message"),
    [
        (
            MAPS[:, None],
            ValueError,
            r"saliency must be raw maps \[B, H, W\] = \[4, 16, 12\], got \[4, 1, 16, 12\]; .*pass maps.squeeze\(1\)",
        ),
        (MAPS.transpose(1, 2), ValueError, r"saliency must be raw maps \[B, H, W\] = \[4, 16, 12\], got \[4, 12, 16\]"),
        (MAPS[:3], ValueError, r"= \[4, 16, 12\], got \[3, 16, 12\]"),
        (
            MAPS.tolist(),
            TypeError,
            r"saliency must be a tensor of raw maps .* \[4, 16, 12\], got list; pass torch.as_tensor\(maps\)",
        ),
        ((MAPS * 255).byte(), TypeError, r"saliency must be floating point, got torch.uint8; pass maps.float\(\)"),
    ],
)
def test_saliency_of_another_shape(name, maps, error, message):
    mixer = named(name, prob=1.0)
    assert_refused(
        [lambda: mixer(IMAGES, LABELS, saliency=maps), lambda: mixer.plan(IMAGES, LABELS, saliency=maps)], error, message
    )


@pytest.mark.parametrize("name", LOOKING)
@pytest.mark.parametrize("prob", [0.0, 1.0])
def test_no_maps_and_no_model(name, prob):
    """Also where this batch happens not to be mixed: an error that comes and goes is worse than one that stays."""
    mixer = named(name, prob=prob)
    message = rf"{get(name).__name__} needs to know where to look: pass saliency=maps \[B, H, W\], or model=… in a plain call, or train with accumulate"
    assert_refused([lambda: mixer(IMAGES, LABELS), lambda: mixer.plan(IMAGES, LABELS)], ValueError, message)


# --------------------------------------------------------------------------------------------------------------------- models and losses


@pytest.mark.parametrize("name", LOOKING)
def test_a_model_in_inference_mode(name):
    with torch.inference_mode():
        call = lambda: named(name, prob=1.0)(IMAGES, LABELS, model=small_model(3, CLASSES))  # noqa: E731
        assert_refused([call], RuntimeError, r"torch.inference_mode\(\) is on; leave it")


@pytest.mark.parametrize("name", METHODS)
def test_a_step_in_inference_mode(name):
    with torch.inference_mode():
        call = lambda: accumulate(named(name), small_model(3, CLASSES), IMAGES, LABELS)  # noqa: E731
        assert_refused(
            [call],
            RuntimeError,
            r"accumulate computes gradients, but torch.inference_mode\(\) is on; call it outside of that context",
        )


class Inferring(nn.Module):
    """A model whose forward somebody has decorated."""

    def __init__(self):
        super().__init__()
        self.inner = small_model(3, CLASSES)

    @torch.inference_mode()
    def forward(self, images):
        return self.inner(images)


def test_a_model_that_infers_only():
    message = (
        r"the model's output is an inference tensor without gradients; build and run the model outside torch.inference_mode\(\)"
    )
    assert_refused(
        [
            lambda: SAGE(num_classes=CLASSES)(IMAGES, LABELS, model=Inferring()),
            lambda: accumulate(Mixup(), Inferring(), IMAGES, LABELS),
        ],
        RuntimeError,
        message,
    )


def test_a_model_that_is_a_function():
    model = small_model(3, CLASSES)
    calls = [
        lambda: SAGE(num_classes=CLASSES)(IMAGES, LABELS, model=model.forward),
        lambda: accumulate(ManifoldMixup(), model.forward, IMAGES, LABELS),
    ]
    assert_refused(calls, TypeError, "model must be a Module, such as the network that you train, got ")


def each(logits, targets):
    return nn.functional.cross_entropy(logits, targets, reduction="none")


@pytest.mark.parametrize("name", METHODS)
def test_a_criterion_that_returns_a_vector(name):
    message = r"the criterion returned \[4\], expected a scalar; average it, for example with reduction='mean'"
    assert_refused([lambda: accumulate(named(name), small_model(3, CLASSES), IMAGES, LABELS, criterion=each)], ValueError, message)
    mixer = named(name, prob=1.0)
    if name in LOOKING and (mixer.clean is None or mixer.clean.criterion is None):
        assert_refused([lambda: mixer(IMAGES, LABELS, model=small_model(3, CLASSES), criterion=each)], ValueError, message)


@pytest.mark.parametrize("criterion", [lambda logits, targets: 1.0, lambda logits, targets: float(logits.detach().sum())])
def test_a_criterion_that_returns_a_number(criterion):
    message = "the criterion returned float, expected a scalar tensor, part of the graph of the logits"
    assert_refused(
        [lambda: SAGE(num_classes=CLASSES)(IMAGES, LABELS, model=small_model(3, CLASSES), criterion=criterion)], TypeError, message
    )


class Returning(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.inner = small_model(3, CLASSES)
        self.wrap = wrap

    def forward(self, images):
        return self.wrap(self.inner(images))


@pytest.mark.parametrize(
    ("wrap", "error", "what"),
    [
        (lambda logits: (logits, None), TypeError, "tuple"),
        (lambda logits: {"logits": logits}, TypeError, "dict"),
        (lambda logits: logits[:, :, None, None], ValueError, r"\[4, 5, 1, 1\]"),
        (lambda logits: logits.sum(dim=1), ValueError, r"\[4\]"),
    ],
)
def test_a_model_that_returns_no_logits(wrap, error, what):
    message = rf"the model returned {what}, expected logits \[B, C\]; "
    assert_refused(
        [lambda: SAGE(num_classes=CLASSES)(IMAGES, LABELS, model=Returning(wrap))], error, message + "wrap it in a module"
    )
    assert_refused([lambda: accumulate(SAGE(), Returning(wrap), IMAGES, LABELS)], error, message + "give a host whose forward")


def test_a_named_layer_that_is_not_there():
    call = lambda: accumulate(ManifoldMixup(layers=("input", "stage3")), small_model(), IMAGES, LABELS)  # noqa: E731
    assert_refused([call], ValueError, r"unknown layer 'stage3'; did you mean 'stage[12]'\? valid: .*stage1")


# ---------------------------------------------------------------------------------------------------------------- names and generators


@pytest.mark.parametrize(
    ("name", "nearest"), [("cutmx", "cutmix"), ("Sage", "sage"), ("manifoldmixup", "manifold"), ("mix_up", "mixup")]
)
def test_an_unknown_method(name, nearest):
    message = rf"unknown method '{name}'; did you mean '{nearest}'\? valid: {', '.join(available())}"
    assert_refused([lambda: mixsage.get(name)], ValueError, message)


@pytest.mark.parametrize("name", METHODS)
def test_a_seed_is_no_generator(name):
    mixer = named(name)
    message = r"generator must be a torch.Generator, got int; for example torch.Generator\(\).manual_seed\(0\)"
    calls = [
        lambda: mixer.plan(IMAGES, LABELS, **maps_for(mixer), generator=0),
        lambda: mixer(IMAGES, LABELS, **maps_for(mixer), generator=0),
        lambda: accumulate(mixer, small_model(3, CLASSES), IMAGES, LABELS, generator=0),
    ]
    assert_refused(calls, TypeError, message)


@pytest.mark.parametrize("name", METHODS)
def test_a_generator_on_a_device(name):
    class Elsewhere(torch.Generator):
        device = torch.device("cuda")

    mixer = named(name)
    message = r"the generator must be on the CPU, got one on cuda; choices are drawn on the host: torch.Generator\(\)"
    assert_refused([lambda: mixer.plan(IMAGES, LABELS, **maps_for(mixer), generator=Elsewhere())], ValueError, message)


def test_a_plan_of_another_batch():
    plan = Mixup().plan(IMAGES, LABELS)
    calls = [lambda: plan.apply(IMAGES[:3]), lambda: plan.targets(LABELS[:3], CLASSES)]
    assert_refused(
        calls, ValueError, "the plan mixes 4 images, got only 3 (rows|labels); apply it to the batch that it was drawn for"
    )


@pytest.mark.parametrize("num_classes", [2.5, "10"])
def test_num_classes_that_is_no_number_of_things(num_classes):
    with pytest.raises(TypeError, match=f"num_classes must be a whole number, got {num_classes!r}"):
        Clean(num_classes=num_classes)


def test_messages_name_the_method_that_was_asked():
    """A message that speaks of another method sends people to the wrong line."""
    for name in METHODS:
        with pytest.raises(TypeError, match=rf"^{get(name).__name__} mixes floating-point images"):
            named(name).plan(IMAGES.byte())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("value", ["0.5", None, [0.5]], ids=repr)
def test_settings_that_are_no_numbers(name, value):
    fields = [field for field in ("prob", "alpha", "truncation", "mixed_share") if hasattr(get(name), field)]
    for field in fields:
        with pytest.raises(TypeError, match=rf"{field} must be a number, got {re.escape(repr(value))}"):
            get(name)(**{field: value})
