"""What every model promises: sizes, stages, features, gradients, and errors at the door."""

import copy
import inspect

import pytest
import torch
from torch import nn

from mixsage import models

NAMES = models.available()
STAGES = {"preactresnet18": 4, "wrn16_8": 3, "resnext29_4_24": 3, "resnet12": 4, "small_convnet": 3}
PARAMETERS = {
    "preactresnet18": (11_171_146, 11_217_316),
    "wrn16_8": (10_965_866, 11_012_036),
    "resnext29_4_24": (4_845_002, 4_937_252),
    "resnet12": (12_430_730, 12_488_420),
}


def small(name, **options):
    torch.manual_seed(0)
    return models.create(name, **{"num_classes": 5, "width": 8, **options})


def test_available():
    assert set(NAMES) == set(STAGES)


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("which", [0, 1])
def test_parameter_counts(name, which):
    with torch.device("meta"):
        model = models.create(name, (10, 100)[which])
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name][which]


@pytest.mark.parametrize("name", PARAMETERS)
def test_defaults_are_ten_classes_and_three_channels(name):
    with torch.device("meta"):
        model = getattr(models, name)()
        assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (33, 17), (17, 33), (8, 40), (28, 28)], ids=str)
@pytest.mark.parametrize("in_channels", [1, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_any_image_size_and_number_of_channels(name, in_channels, size):
    model = small(name, in_channels=in_channels)
    images = torch.randn(2, in_channels, *size)
    for training in (True, False):
        model.train(training)
        logits = model(images)
        assert logits.shape == (2, 5)
        assert logits.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_the_head_of_the_features(name):
    model = small(name).eval()
    images = torch.randn(3, 3, 20, 12)
    features = model.features(images)
    assert isinstance(model.head, nn.Linear)
    assert features.shape == (3, model.head.in_features)
    assert torch.equal(model(images), model.head(features))


@pytest.mark.parametrize("name", NAMES)
def test_stages_are_named_children_in_the_order_of_the_pass(name):
    model = small(name)
    expected = [f"stage{number}" for number in range(1, STAGES[name] + 1)]
    assert [child for child, _ in model.named_children() if child.startswith("stage")] == expected
    called = []
    for stage in expected:
        getattr(model, stage).register_forward_hook(lambda *_, stage=stage: called.append(stage))
    model(torch.randn(2, 3, 16, 16))
    assert called == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_hook_may_replace_what_the_first_stage_gives(name):
    model = small(name).eval()
    images = torch.randn(4, 3, 16, 16)
    with model.stage1.register_forward_hook(lambda module, inputs, output: output.flip(0)):
        swapped = model(images)
    torch.testing.assert_close(swapped, model(images.flip(0)))


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_deterministic_and_sees_each_image_alone(name):
    model = small(name).eval()
    images = torch.randn(3, 3, 16, 16)
    before = copy.deepcopy(model.state_dict())
    logits = model(images)
    assert torch.equal(logits, model(images))
    torch.testing.assert_close(logits, torch.cat([model(image[None]) for image in images]), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_gradient_reaches_every_parameter_and_the_images(name):
    model = small(name)
    images = torch.randn(4, 3, 32, 32, requires_grad=True)
    kept = images.detach().clone()
    nn.functional.cross_entropy(model(images), torch.arange(4)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        # The gradient of a bias before a BatchNorm is zero but for rounding.
        assert parameter.ndim == 1 or parameter.grad.ne(0).any(), key
    assert images.grad.flatten(1).ne(0).any(dim=1).all()
    assert torch.equal(images.detach(), kept)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_travels(name):
    model, other = small(name).eval(), models.create(name, 5, width=8).eval()
    other.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(model(images), other(images))


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_makes_the_same_model(name):
    first, second = small(name).state_dict(), small(name).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", NAMES)
def test_compiles_to_one_graph(name):
    model = small(name).eval()
    images = torch.randn(2, 3, 16, 16)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_and_channels_last(name):
    model = small(name).to(dtype=torch.bfloat16, memory_format=torch.channels_last)
    logits = model(torch.randn(4, 3, 16, 16).to(torch.bfloat16, memory_format=torch.channels_last))
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_models_know_nothing_of_mixing(name):
    assert list(inspect.signature(small(name).forward).parameters) == ["images"]


@pytest.mark.parametrize("name", NAMES)
def test_width_narrows(name):
    with torch.device("meta"):
        narrow, wide = (models.create(name, 10, width=width).head.in_features for width in (8, 16))
    assert wide == 2 * narrow


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("setting", ["num_classes", "width", "in_channels"])
@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_bad_settings(name, setting, value):
    with pytest.raises(ValueError, match=f"{setting} must be an integer of at least 1, got {value}"):
        small(name, **{setting: value})


@pytest.mark.parametrize("shape", [(2, 1, 16, 16), (3, 16, 16), (2, 16, 16, 3)], ids=str)
def test_images_of_another_shape(shape):
    model = small("preactresnet18")
    with pytest.raises(ValueError, match=r"takes images \[B, 3, H, W\], got \[.*in_channels=") as caught:
        model(torch.zeros(shape))
    assert str(list(shape)) in str(caught.value)


def test_integer_images():
    with pytest.raises(TypeError, match=r"floating-point images, got torch.uint8; scale bytes"):
        small("preactresnet18")(torch.zeros(2, 3, 16, 16, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("preactresnet", "preactresnet18"), ("wrn16-8", "wrn16_8"), ("ResNet12", "resnet12")]
)
def test_unknown_name(wrong, nearest):
    with pytest.raises(ValueError, match=f"{wrong}.*did you mean '{nearest}'"):
        models.create(wrong, 10)


def test_unknown_option():
    with pytest.raises(TypeError, match="final_nrom"):
        models.create("preactresnet18", 10, final_nrom=True)
