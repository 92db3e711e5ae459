"""What `accumulate` refuses, in which words, and in what order it asks."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from helpers import seeded, small_model
from mixsage import SAGE, CutMix, Host, ManifoldMixup, Mixup, Uniform, accumulate
from plain_passes import assert_gradients, gradients, mixed_targets, one_hot, precise
from steps import CLASSES, MIXERS, by_hand, case, plus, weights_of


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


def test_images_made_in_inference_mode_go_through_hidden_layers_and_calls():
    it = case(dtype=torch.float32)
    with torch.inference_mode():
        images = it.images.clone()
    hidden = ManifoldMixup(layers=(next(name for name, _ in it.model.named_children()),))
    assert accumulate(hidden, it.model, images, it.labels).plan.layer is not None
    call = SAGE(num_classes=CLASSES)
    mixed, _ = call(images, it.labels, model=it.model, generator=seeded(3))
    torch.testing.assert_close(mixed, call(it.images, it.labels, model=it.model, generator=seeded(3))[0])


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixer": SAGE}, r"mixer must be a Mixer, such as SAGE\(\) or .*, got <class .*SAGE'>"),
        ({"mixer": "sage"}, "mixer must be a Mixer, .*, got 'sage'"),
        ({"mixer": small_model()}, "mixer must be a Mixer, .*, got Small$"),
        ({"host": small_model()}, r"host must be a Host, such as ScalerHost\(scaler\), got Small$"),
        ({"plan": 5}, "plan must be a MixPlan, such as the plan of an earlier step, got 5"),
        ({"model": None}, "model must be a module from images to logits, got None"),
        ({"criterion": None}, r"criterion must be a loss of logits and soft targets, such as mixsage\.cross_entropy, got None"),
    ],
    ids=["the class of a method", "its name", "the model first", "a model as host", "a number as plan", "no model", "no loss"],
)
def test_parts_of_another_kind_are_refused(options, message):
    it = case(dtype=torch.float32)
    with pytest.raises(TypeError, match=message):
        accumulate(**{"mixer": SAGE(), "model": it.model, "images": it.images, "labels": it.labels, **options})


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (lambda images: replace(Mixup().plan(images), layer="stge1"), "unknown layer 'stge1'; did you mean"),
        (lambda images: CutMix().plan(images[..., 1:]), "the plan was drawn for a grid of"),
        (lambda images: Mixup().plan(images).to("meta"), "the plan lies on meta, the pool on cpu; move the plan"),
    ],
    ids=["of another model", "of another size", "on another device"],
)
def test_a_plan_that_does_not_fit_is_refused_before_any_gradient(plan, message):
    it = case(dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        accumulate(SAGE(), it.model, it.images, it.labels, plan=plan(it.images))
    for name, tensor in gradients(it.model).items():
        assert torch.equal(tensor, it.before[name])


class FrozenBackbone(nn.Module):
    """A head on features that are taken under no_grad, as linear probes are often written."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = small_model(classes=6), nn.Linear(6, CLASSES)

    def forward(self, images):
        with torch.no_grad():
            features = self.backbone(images)
        return self.head(features)


def test_a_model_that_lets_no_gradient_through_to_the_images():
    it, model = case(dtype=torch.float32), FrozenBackbone()
    message = r"no gradient of the loss arrived at the images.*requires_grad_\(False\) instead"
    for mixer in (SAGE(), SAGE(mixed_share=1.0)):
        with pytest.raises(RuntimeError, match=message):
            accumulate(mixer, model, it.images, it.labels)
    with pytest.raises(RuntimeError, match=message):
        SAGE(num_classes=CLASSES)(it.images, it.labels, model=model)
    accumulate(SAGE(saliency=Uniform()), model, it.images, it.labels)
    accumulate(Mixup(), model, it.images, it.labels)


@pytest.mark.parametrize("mixer", [SAGE(), Mixup()], ids=["sage", "mixup"])
def test_a_loss_without_a_graph(mixer):
    it = case(dtype=torch.float32)
    with pytest.raises(RuntimeError, match="no graph to go backward through; let the criterion compute it from the logits"):
        accumulate(mixer, it.model, it.images, it.labels, criterion=lambda logits, targets: precise(logits.detach(), targets))
