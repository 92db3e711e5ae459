"""Perturbations by hand and against an independent library; one sweep, few passes."""

import sys
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from evaluation_models import Linear, Table, loader, numbered
from mixsage.evaluation import attacks
from mixsage.evaluation.accuracy import accuracy
from mixsage.evaluation.pixels import Normalised
from mixsage.evaluation.robustness import evaluate, robustness
from mixsage.evaluation.strong import autoattack, pgd
from mixsage.models import small_convnet


def trained(epochs=3):
    """A small network that tells bright left halves from bright right ones, and images for it."""
    generator = torch.Generator().manual_seed(1)
    images = 0.45 * torch.rand(120, 3, 8, 8, generator=generator)
    labels = torch.arange(120) % 2
    images[labels == 0, :, :, :4] += 0.15
    images[labels == 1, :, :, 4:] += 0.15
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = small_convnet(num_classes=2, in_channels=3, width=4)
    model = Normalised(network, mean=(0.3, 0.4, 0.5), std=(0.2, 0.3, 0.4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(120, generator=generator).split(20):
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.eval(), images, labels


@pytest.fixture(scope="module")
def case():
    return trained()


def art_classifier(model):
    from art.estimators.classification import PyTorchClassifier

    return PyTorchClassifier(deepcopy(model), nn.CrossEntropyLoss(), (3, 8, 8), 2, clip_values=(0.0, 1.0), device_type="cpu")


@pytest.mark.parametrize(("name", "norm", "epsilon"), [("fgsm", "inf", 8 / 255), ("fgm", 2, 0.5)])
def test_attacks_agree_with_an_independent_library(case, name, norm, epsilon):
    from art.attacks.evasion import FastGradientMethod

    model, images, labels = case
    _, gradient = attacks.gradient_of(model, images, labels)
    ours = getattr(attacks, name)(images, gradient, epsilon)
    theirs = FastGradientMethod(art_classifier(model), norm=norm, eps=epsilon, batch_size=30).generate(
        images.numpy(), labels.numpy()
    )
    torch.testing.assert_close(ours, torch.from_numpy(theirs), atol=2e-6, rtol=0)

    keys = {"fgsm": "linf", "fgm": "l2"}
    found = robustness(model, loader(images, labels, 50), **{keys[name]: epsilon})
    expected = accuracy(model, loader(torch.from_numpy(theirs), labels))["top1"]
    assert found[name] == expected
    assert 0 < expected < accuracy(model, loader(images, labels))["top1"]  # the attack did something, and not everything


def test_steps_by_hand():
    weight = torch.tensor([[[3.0, -4.0], [0.0, 0.0]]])
    pixels = torch.full((2, 1, 2, 2), 0.5)
    labels = torch.tensor([0, 1])  # the score must rise for the first, fall for the second
    _, gradient = attacks.gradient_of(Linear(weight), pixels, labels)
    direction = torch.tensor([[[1.0, -1.0], [0.0, 0.0]]])
    signs = torch.stack([direction, -direction])
    torch.testing.assert_close(attacks.fgsm(pixels, gradient, 0.1), 0.5 + 0.1 * signs)
    along = torch.stack([weight / 5, -weight / 5])
    torch.testing.assert_close(attacks.fgm(pixels, gradient, 0.25), 0.5 + 0.25 * along)


def test_pixels_stay_pixels():
    weight = torch.ones(1, 2, 2)
    bright = torch.full((1, 1, 2, 2), 0.99)
    _, gradient = attacks.gradient_of(Linear(weight, bias=-4), bright, torch.tensor([0]))
    assert attacks.fgsm(bright, gradient, 0.1).max() == 1
    assert attacks.fgm(bright, gradient, 0.5).max() == 1
    noisy = attacks.gaussian_noise(bright.expand(100, -1, -1, -1), 0.01, generator=torch.Generator().manual_seed(0))
    assert noisy.max() == 1
    assert noisy.min() < 0.99


def test_no_gradient_no_step():
    pixels = torch.rand(3, 1, 2, 2)
    gradient = torch.zeros_like(pixels)
    gradient[1, 0, 0, 0] = 1e-30  # so small that its square vanishes; the step must have its full length all the same
    moved = attacks.fgm(0.5 * pixels, gradient, 0.25) - 0.5 * pixels
    torch.testing.assert_close(moved.flatten(1).norm(dim=1), torch.tensor([0.0, 0.25, 0.0]))


def test_noise_has_the_variance_and_does_not_depend_on_batches():
    pixels = torch.full((400, 1, 16, 16), 0.5)
    whole = attacks.gaussian_noise(pixels, 0.01, generator=torch.Generator().manual_seed(3))
    assert float(whole.var()) == pytest.approx(0.01, rel=0.02)
    assert float(whole.mean()) == pytest.approx(0.5, abs=0.001)
    generator = torch.Generator().manual_seed(3)
    parts = [attacks.gaussian_noise(part, 0.01, generator=generator) for part in pixels.split(37)]
    assert torch.equal(whole, torch.cat(parts))


def test_known_accuracies():
    """Pixels at known distances from the border of a linear model: each perturbation turns those that it reaches."""
    # score = Σ pixels - 2: a step of e in each of 4 pixels moves it by 4e, one of length l by 2l.
    model = Linear(torch.ones(1, 2, 2), bias=-2)
    margins = torch.tensor([0.02, 0.1, 0.3, 0.9, 1.1, 1.5])
    images = (0.5 + margins / 4)[:, None, None, None].expand(-1, 1, 2, 2)
    labels = torch.ones(6).long()
    found = evaluate(model, loader(images, labels, 4), variance=0.0, linf=8 / 255, l2=0.5)
    assert found["top1"] == 100
    assert found["gaussian"] == 100
    assert found["fgsm"] == pytest.approx(100 * 4 / 6)  # 4 · 8/255 = 0.125 turns the first two
    assert found["fgm"] == pytest.approx(100 * 2 / 6)  # 2 · 0.5 = 1 turns the first four
    assert found["ood"] == pytest.approx((100 + 400 / 6 + 200 / 6) / 3)


def test_one_sweep_is_the_same_as_many(case):
    model, images, labels = case
    data = loader(images, labels, 50)
    together = evaluate(model, data, generator=torch.Generator().manual_seed(5))
    apart = {**accuracy(model, data), **robustness(model, data, generator=torch.Generator().manual_seed(5))}
    assert together == pytest.approx(apart, rel=1e-6)
    assert list(together) == ["top1", "top5", "nll", "ece", "gaussian", "fgsm", "fgm", "ood"]


def test_four_forward_passes_and_no_gradient_of_a_parameter(case):
    model, images, labels = case
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    evaluate(model, loader(images, labels, 60))
    handle.remove()
    assert calls == [True, False, False, False] * 2
    assert all(parameter.grad is None for parameter in model.parameters())


def test_global_randomness_is_left_alone(case):
    model, images, labels = case
    before = torch.get_rng_state()
    robustness(model, [(images, labels)], generator=torch.Generator().manual_seed(0))
    assert torch.equal(before, torch.get_rng_state())


def test_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        robustness(Table(torch.eye(2)), loader(numbered(2), torch.tensor([0, 1])))


def test_no_grad_around_it_changes_nothing(case):
    model, images, labels = case
    data = loader(images, labels)
    with torch.no_grad():
        inside = robustness(model, data, generator=torch.Generator().manual_seed(0))
    assert inside == robustness(model, data, generator=torch.Generator().manual_seed(0))


def test_pgd_is_stronger_than_one_step_and_stays_within_its_bound(case):
    model, images, labels = case
    data = loader(images, labels, 50)
    one_step = robustness(model, data)["fgsm"]
    assert pgd(model, data)["pgd"] <= one_step
    assert pgd(model, data, epsilon=1e-6, step=1e-6)["pgd"] == accuracy(model, data)["top1"]


def test_strong_attacks_leave_the_model_and_the_generators_alone(case):
    pytest.importorskip("pyautoattack")
    _, images, _ = case
    model = Normalised(small_convnet(num_classes=4, in_channels=3, width=4), mean=(0.3, 0.4, 0.5), std=(0.2, 0.3, 0.4)).train()
    model(images[:8]).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    data = [(images[:4], model.eval()(images[:4]).argmax(dim=1))]
    model.train()
    assert pgd(model, data, steps=3)["pgd"] <= 100
    assert autoattack(model, data)["autoattack"] <= pgd(model, data)["pgd"]
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    assert model.training
    assert all(torch.equal(old, parameter.grad) for old, parameter in zip(gradients, model.parameters(), strict=True))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_autoattack_says_what_it_cannot_do(case):
    pytest.importorskip("pyautoattack")
    model, images, labels = case
    with pytest.raises(ValueError, match="at least 4 classes, the model has 2"):
        autoattack(model, [(images[:4], labels[:4])])


def test_a_missing_library_is_named(case, monkeypatch):
    model, images, labels = case
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(ModuleNotFoundError, match=r"AutoAttack needs pyautoattack.*pip install 'mixsage\[attacks\]'"):
        autoattack(model, [(images, labels)])
