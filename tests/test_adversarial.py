"""Images that are disturbed against the model before they are mixed: the noise, the plan that carries it, and the step with it."""

import math

import pytest
import torch

import mixsage
from helpers import assert_same_plan, assert_valid_plan, seeded, small_model
from mixsage import InputGradient, PuzzleMix, Uniform
from mixsage.adversarial import DisturbedPlan, against, draw_disturbed

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def always(**settings):
    return PuzzleMix(**{"adversarial": 1.0, "grids": (2,), "num_classes": 5, **settings})


def batch(count=6):
    return torch.rand(count, 3, 16, 16, generator=seeded()), torch.arange(count) % 5


def test_noise_is_a_step_up_the_gradient_that_stays_within_colours():
    images, gradient = torch.rand(4, 3, 6, 5, generator=seeded()), torch.randn(4, 3, 6, 5, generator=seeded(1))
    strength = torch.tensor([0.0, 0.1, 0.5, 1.0])
    noise = against(images, gradient, strength)
    for b, c, i, j in ((0, 0, 0, 0), (1, 2, 3, 4), (2, 1, 5, 0), (3, 0, 2, 2), (3, 2, 1, 1)):
        here = float(images[b, c, i, j])
        wanted = min(1.0, max(0.0, here + float(strength[b]) * math.copysign(1, gradient[b, c, i, j]))) - here
        assert float(noise[b, c, i, j]) == pytest.approx(wanted, abs=1e-6)
    assert not noise[0].any()
    assert (images + noise).min() >= 0
    assert (images + noise).max() <= 1


def test_normalised_images_are_disturbed_as_their_pictures_are():
    images, gradient = torch.rand(4, 3, 6, 5, generator=seeded()), torch.randn(4, 3, 6, 5, generator=seeded(1))
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    noise = against((images - mean) / std, gradient, torch.tensor([0.1]), MEAN, STD)
    torch.testing.assert_close(noise * std, against(images, gradient, torch.tensor([0.1])), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("value", "wanted"), [(math.nan, 0.0), (math.inf, 0.1), (-math.inf, -0.1), (0.0, 0.0), (1e-45, 0.1)])
def test_hostile_gradients_give_finite_noise(value, wanted):
    noise = against(torch.full((2, 3, 4, 4), 0.5), torch.full((2, 3, 4, 4), value), torch.tensor([0.1]))
    torch.testing.assert_close(noise, torch.full((2, 3, 4, 4), wanted))


def test_the_images_of_a_batch_and_their_partners_are_disturbed_with_that_probability():
    disturbed, strength = draw_disturbed(0.1, 20000, seeded())
    assert disturbed.shape == (20000, 2)
    assert set(disturbed.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(disturbed.mean(dim=0), torch.full((2,), 0.1), rtol=0, atol=0.01)
    assert float(disturbed.prod(dim=1).mean()) == pytest.approx(0.01, abs=0.003)
    assert 0 <= strength.min() <= strength.max() < 1
    assert float(strength.mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_plan_mixes_disturbed_images(layout):
    """What each place shows, pixel by pixel: its share of the image and of its partner, each with its noise or without."""
    draw = seeded()
    pool, noise = torch.rand(3, 2, 4, 4, generator=draw).to(memory_format=layout), torch.rand(3, 2, 4, 4, generator=draw)
    own, order = (
        torch.rand(3, 2, 2, generator=draw),
        torch.stack([torch.randperm(4, generator=draw) for _ in range(6)]).view(3, 2, 4),
    )
    sources, disturbed = torch.tensor([[0, 2], [1, 0], [2, 1]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    plan = DisturbedPlan(
        sources=sources, masks=torch.stack([own, 1 - own], 1), warp=mixsage.Blocks(order), noise=noise, disturbed=disturbed
    )
    mixed = plan.apply(pool)
    for b in range(3):
        for place in range(4):
            top, left = place // 2, place % 2
            wanted = torch.zeros(2, 2, 2)
            for k in (0, 1):
                image = pool[sources[b, k]] + disturbed[b, k] * noise[sources[b, k]]
                row, column = int(order[b, k, place]) // 2, int(order[b, k, place]) % 2
                wanted += plan.masks[b, k, top, left] * image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            torch.testing.assert_close(mixed[b, :, 2 * top : 2 * top + 2, 2 * left : 2 * left + 2], wanted)
    assert mixed.is_contiguous(memory_format=layout)
    torch.testing.assert_close(plan.weights, plan.masks.mean(dim=(2, 3)))
    assert_same_plan(plan.to("cpu"), plan)
    assert type(plan.undisturbed) is mixsage.MixPlan
    assert plan.undisturbed.apply(torch.rand(3, 7, 8, 8)).shape == (3, 7, 8, 8)


@pytest.mark.parametrize("disturbed", [[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
@pytest.mark.parametrize("side", [1, 2])
def test_blocks_that_stay_where_they_are_are_disturbed_alike(disturbed, side):
    """Without moves, and where one of the two images only has noise."""
    draw = seeded()
    pool, noise = torch.rand(3, 2, 4, 4, generator=draw), torch.rand(3, 2, 4, 4, generator=draw)
    own, sources = torch.rand(3, side, side, generator=draw), torch.tensor([[0, 2], [1, 0], [2, 1]])
    happened = torch.tensor(disturbed)
    plan = DisturbedPlan(sources=sources, masks=torch.stack([own, 1 - own], 1), noise=noise, disturbed=happened)
    wanted = torch.zeros(3, 2, 4, 4)
    for k in (0, 1):
        share = torch.nn.functional.interpolate(plan.masks[:, k : k + 1], size=4)
        wanted += share * (pool[sources[:, k]] + happened[:, k].view(-1, 1, 1, 1) * noise[sources[:, k]])
    torch.testing.assert_close(plan.apply(pool), wanted)


def test_it_refuses_what_the_noise_does_not_fit():
    images, labels = batch()
    step = mixsage.accumulate(always(), small_model(), images, labels, generator=seeded())
    with pytest.raises(ValueError, match=r"disturbs images \[6, 3, 16, 16\], got \[6, 1, 16, 16\]; .*plan.undisturbed"):
        step.plan.apply(images[:, :1])


def test_a_step_mixes_images_disturbed_by_its_own_clean_gradient():
    images, labels = batch()
    model = small_model()
    step = mixsage.accumulate(always(), model, images, labels, generator=seeded(3))
    plain = mixsage.accumulate(always(adversarial=0.0), small_model(), images, labels, generator=seeded(3))
    assert_valid_plan(step.plan, 6)
    assert_same_plan(step.plan.undisturbed, plain.plan)
    leaf = images.clone().requires_grad_()
    fresh = small_model().eval()
    torch.nn.functional.cross_entropy(fresh(leaf), labels).backward()
    difference, sign = step.plan.noise, leaf.grad.sign()
    inside = (images + difference > 0) & (images + difference < 1)
    assert (difference.sign() == sign)[inside].all()
    size = difference.abs()[inside & (sign != 0)]
    assert 0 < size.max() <= 10 / 255
    torch.testing.assert_close(size, size.max().expand_as(size), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(step.plan.apply(images), plain.plan.apply(images + difference))


def test_disturbed_images_have_a_higher_loss():
    images, labels = batch()
    model = small_model()
    model(images)
    step = mixsage.accumulate(always(), model, images, labels, generator=seeded(3))
    with torch.no_grad():
        model.eval()
        before, after = (torch.nn.functional.cross_entropy(model(x), labels) for x in (images, images + step.plan.noise))
    assert after > before


def test_a_replayed_plan_gives_the_same_step():
    images, labels = batch()
    first, second = small_model(), small_model()
    step = mixsage.accumulate(always(), first, images, labels, generator=seeded(3))
    mixsage.accumulate(always(), second, images, labels, plan=step.plan)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_it_happens_as_often_as_it_says_and_for_each_image_if_asked():
    images, labels = batch()
    model, draw = small_model(), seeded()
    happened = [
        isinstance(mixsage.accumulate(always(adversarial=0.1), model, images, labels, generator=draw).plan, DisturbedPlan)
        for _ in range(150)
    ]
    assert 0.1 < sum(happened) / 150 < 0.3, "1 - 0.9² = 0.19"
    each = mixsage.accumulate(always(adversarial=0.5, per_sample=True), model, images, labels, generator=seeded(1)).plan
    assert each.disturbed.shape == (6, 2)
    assert len(each.noise.abs().amax(dim=(1, 2, 3)).unique()) > 1


def test_a_plain_call_with_a_model_and_half_precision():
    images, labels = batch()
    mixed, targets = always()(images, labels, model=small_model(), generator=seeded())
    assert not torch.equal(mixed, always(adversarial=0.0)(images, labels, model=small_model(), generator=seeded())[0])
    assert targets.shape == (6, 5)
    half, _ = always()(images.bfloat16(), labels, model=small_model().bfloat16(), generator=seeded())
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


def test_maps_alone_are_not_enough():
    images, _ = batch()
    with pytest.raises(ValueError, match="needs the gradient of the loss, not maps alone"):
        always().plan(images, saliency=torch.rand(6, 16, 16))
    with pytest.raises(ValueError, match="which Uniform does not take"):
        PuzzleMix(adversarial=0.1, saliency=Uniform())
    with pytest.raises(ValueError, match="adversarial must lie in"):
        PuzzleMix(adversarial=1.5)
    with pytest.raises(ValueError, match="epsilon must lie in"):
        PuzzleMix(epsilon=-1)
    assert PuzzleMix(adversarial=0.1, saliency=InputGradient(mode="train")).clean.mode == "train"
