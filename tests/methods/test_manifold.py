"""Manifold Mixup: Mixup at the input or at a stage of the model, drawn anew for each batch. What the hook does is tested with the step."""

import logging

import pytest
import torch

from helpers import assert_same_plan, seeded, small_model
from mixsage import ManifoldMixup, Mixup
from mixsage.methods import manifold

IMAGES, LABELS = torch.randn(6, 3, 8, 8, generator=seeded()), torch.arange(6)


def test_settings_as_published():
    mixer = ManifoldMixup()
    assert mixer.alpha == 2.0
    assert mixer.layers is None
    assert mixer.clean is None


def test_bound_to_a_model_it_mixes_the_input_and_two_stages():
    assert ManifoldMixup().bind(small_model()).layers == ("input", "stage1", "stage2")
    named = ManifoldMixup(layers=("head", "input"))
    assert named.bind(small_model()) is named


def test_layers_are_drawn_alike():
    mixer, generator = ManifoldMixup().bind(small_model()), seeded()
    layers = [mixer.plan(IMAGES, LABELS, generator=generator).layer for _ in range(900)]
    assert set(layers) == {None, "stage1", "stage2"}
    for layer in set(layers):
        assert layers.count(layer) == pytest.approx(300, abs=60)


def test_a_layer_of_ones_own():
    plan = ManifoldMixup(layers=("stage2",)).plan(IMAGES, LABELS, generator=seeded())
    assert plan.layer == "stage2"
    assert not plan.is_identity


@pytest.mark.parametrize("per_sample", [False, True])
def test_the_plan_is_a_blend(per_sample):
    """It fits whatever the layer returns: 1×1 masks, nothing moved."""
    plan = ManifoldMixup(layers=("stage1",), per_sample=per_sample).plan(IMAGES, LABELS, generator=seeded())
    assert plan.masks.shape == (6, 2, 1, 1)
    assert plan.warp is None
    assert torch.equal(plan.masks.flatten(1), plan.weights)
    assert len(plan.weights[:, 0].unique()) == (6 if per_sample else 1)
    for features in (torch.rand(6, 4), torch.rand(6, 5, 4), torch.rand(6, 4, 3, 3)):
        expected = torch.stack(
            [plan.weights[b, 0] * features[b] + plan.weights[b, 1] * features[plan.sources[b, 1]] for b in range(6)]
        )
        torch.testing.assert_close(plan.apply(features), expected)


def test_distribution_of_the_share():
    mixer, generator = ManifoldMixup(layers=("input",)), seeded()
    shares = torch.tensor([float(mixer.plan(IMAGES, generator=generator).weights[0, 0]) for _ in range(3000)])
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(shares.var()) == pytest.approx(1 / 20, rel=0.08)


def test_at_the_input_it_is_mixup():
    """Of the same λ: the layer is drawn before it."""
    generator = seeded()
    torch.randint(1, (), generator=generator)
    expected = Mixup(alpha=2.0).plan(IMAGES, LABELS, generator=generator)
    assert_same_plan(ManifoldMixup(layers=("input",)).plan(IMAGES, LABELS, generator=seeded()), expected)


def test_a_plain_call_mixes_the_input_and_says_so_once(caplog):
    manifold._say_input_only.cache_clear()
    mixer = ManifoldMixup(num_classes=6, layers=("stage1", "stage2"))
    with caplog.at_level(logging.WARNING, logger="mixsage"):
        for seed in range(5):
            images, targets = mixer(IMAGES, LABELS, generator=seeded(seed))
            expected = ManifoldMixup(num_classes=6, layers=("input",))(IMAGES, LABELS, generator=seeded(seed))
            assert torch.equal(images, expected[0])
            assert torch.equal(targets, expected[1])
            assert not torch.equal(images, IMAGES)
    assert [record.message for record in caplog.records] == [
        "ManifoldMixup without a model mixes the input only; hidden layers are mixed by mixsage.accumulate"
    ]


def test_at_the_input_by_choice_nothing_is_said(caplog):
    manifold._say_input_only.cache_clear()
    with caplog.at_level(logging.WARNING, logger="mixsage"):
        ManifoldMixup(num_classes=6, layers=("input",))(IMAGES, LABELS, generator=seeded())
    assert not caplog.records


@pytest.mark.parametrize("layers", [(), "stage1", ["stage1"], (1,)])
def test_layers_of_another_form(layers):
    with pytest.raises(
        ValueError, match=r"layers must name at least one layer in a tuple, got .*; for example \('input', 'layer1', 'layer2'\)"
    ):
        ManifoldMixup(layers=layers)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_alpha_out_of_range(alpha):
    with pytest.raises(ValueError, match="alpha must be positive and finite, got"):
        ManifoldMixup(alpha=alpha)


def test_a_layer_that_is_not_there():
    with pytest.raises(ValueError, match=r"unknown layer 'stage3'; did you mean 'stage[12]'\? valid: head, input, stage1"):
        ManifoldMixup(layers=("input", "stage3")).bind(small_model())


def test_a_model_without_stages():
    with pytest.raises(ValueError, match=r"no stages were found in the model; name the layers to mix: ManifoldMixup\(layers="):
        ManifoldMixup().bind(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)))
