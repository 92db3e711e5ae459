"""Co-Mixup: what it draws, whom it mixes with whom, and the clean pass that it keeps."""

import pytest
import torch

import mixsage
from helpers import assert_same_plan, assert_valid_plan, seeded, small_model
from mixsage import CoMixup, FineGrained, sampling
from mixsage.solvers.comixup import Parts, Weights, joint_problem
from mixsage.solvers.joint import solve


def peaked(count, size=(32, 32), seed=1):
    coarse = torch.rand(count, 1, 6, 6, generator=seeded(seed)) ** 4
    return torch.nn.functional.interpolate(coarse, size=size, mode="bilinear")[:, 0]


def test_masks_are_the_solvers():
    images, maps = torch.randn(11, 3, 32, 32), peaked(11)
    plan = CoMixup(part=6).plan(images, saliency=maps, generator=seeded(5))
    draw, parts = seeded(5), Parts.of(11, 6)
    expected = sampling.dirichlet(2.0, parts.member, draw)
    starts = parts.draw_members((2, 6, 16), draw)
    weights = Weights(smoothness=0.32, diversity=1.0, prior=0.05, threshold=0.83, compatibility=0.001)
    shares = parts.spread(solve(joint_problem(maps, expected, parts, 4, weights), starts, 4, apart=1.0))
    assert_valid_plan(plan, 11)
    for b in range(11):
        first = 0 if b < 6 else 6
        for source, mask in zip(plan.sources[b].tolist(), plan.masks[b], strict=True):
            if mask.any():
                torch.testing.assert_close(mask, shares[b, :, :, source - first])
    torch.testing.assert_close(plan.weights, plan.masks.mean(dim=(2, 3)))


def test_images_mix_within_their_part_only():
    plan = CoMixup(part=5).plan(torch.randn(12, 3, 32, 32), saliency=peaked(12), generator=seeded(0))
    part = torch.tensor([0] * 4 + [1] * 4 + [2] * 4)
    used = plan.weights > 0
    assert (part[plan.sources] == part[:, None])[used].all()
    assert used.sum(dim=1).max() >= 2


@pytest.mark.parametrize("diversity", [1e4, 1e6])
def test_a_part_that_is_filled_up_shows_no_filling_however_much_its_inputs_cost(diversity):
    mixer = CoMixup(diversity=diversity, threshold=0.0, compatibility=1.0)
    for count in (21, 41):
        plan = mixer.plan(torch.randn(count, 3, 32, 32), saliency=peaked(count), generator=seeded(0))
        parts = -(-count // 20)
        part = torch.arange(count) * parts // count
        assert (part[plan.sources] == part[:, None])[plan.weights > 0].all()
        assert_valid_plan(plan, count)


@pytest.fixture
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_a_script_in_double_precision_gets_shares_of_single_precision(double_precision):
    images, maps = torch.randn(7, 3, 16, 16).float(), peaked(7, (16, 16)).float()
    plan = CoMixup(part=4).plan(images, saliency=maps, generator=seeded(0))
    assert plan.masks.dtype == plan.weights.dtype == plan.apply(images).dtype == torch.float32
    assert_valid_plan(plan, 7)


def test_outputs_differ_and_all_inputs_are_used():
    plan = CoMixup().plan(torch.randn(40, 3, 32, 32), saliency=peaked(40), generator=seeded(0))
    use = torch.zeros(40).index_add_(0, plan.sources.flatten(), plan.weights.flatten())
    assert (use > 0).float().mean() > 0.9
    contents = {
        tuple(sorted(s for s, w in zip(row, weight, strict=True) if w > 0))
        for row, weight in zip(plan.sources.tolist(), plan.weights.tolist(), strict=True)
    }
    assert len(contents) > 25


@pytest.mark.parametrize("count", [2, 3, 20, 21, 41])
@pytest.mark.parametrize("size", [(8, 8), (33, 17), (3, 5), (224, 224)])
def test_any_batch_and_any_size(count, size):
    if count > 3 and size == (224, 224):
        count = 4
    images = torch.rand(count, 3, *size, generator=seeded())
    plan = CoMixup().plan(images, saliency=peaked(count, size), generator=seeded(0))
    assert_valid_plan(plan, count)
    assert plan.masks.shape[-1] == min(4, *size)
    mixed = plan.apply(images)
    assert images.min() <= mixed.min()
    assert mixed.max() <= images.max() + 1e-6


def test_labels_are_shares_of_blocks():
    images, maps = torch.randn(20, 3, 32, 32), peaked(20)
    _, targets = CoMixup(num_classes=20)(images, torch.arange(20), saliency=maps, generator=seeded(3))
    plan = CoMixup().plan(images, saliency=maps, generator=seeded(3))
    wanted = torch.zeros(20, 20)
    for b in range(20):
        for source, mask in zip(plan.sources[b].tolist(), plan.masks[b], strict=True):
            wanted[b, source] += mask.sum() / 16
    torch.testing.assert_close(targets, wanted)


def test_one_class_only():
    model, labels = small_model(classes=2), torch.zeros(6, dtype=torch.int64)
    step = mixsage.accumulate(CoMixup(), model, torch.randn(6, 3, 16, 16), labels, generator=seeded(0))
    assert step.loss.isfinite()
    torch.testing.assert_close(step.plan.targets(labels, 2), torch.tensor([[1.0, 0.0]]).expand(6, 2))


def test_the_clean_pass_is_kept():
    clean = CoMixup().clean
    assert (clean.mode, clean.weight, clean.criterion) == ("train", 1.0, None)
    assert CoMixup(clean_weight=0.5).clean.weight == 0.5
    assert CoMixup(clean_weight=0.0, saliency=FineGrained()).clean is None
    model, labels = small_model(classes=4), torch.tensor([0, 1, 2, 3, 0, 1])
    images = torch.randn(6, 3, 16, 16, generator=seeded())
    step = mixsage.accumulate(CoMixup(), model, images, labels, generator=seeded(0))
    torch.testing.assert_close(step.loss, step.clean_loss + step.mixed_loss)


def test_a_replayed_plan_gives_the_same_step():
    labels, images = torch.tensor([0, 1, 2, 3]), torch.randn(4, 3, 16, 16, generator=seeded())
    first, second = small_model(classes=4), small_model(classes=4)
    step = mixsage.accumulate(CoMixup(), first, images, labels, generator=seeded(0))
    again = mixsage.accumulate(CoMixup(), second, images, labels, plan=step.plan)
    assert_same_plan(step.plan, again.plan)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"part": 1}, "part must be at least 2, got 1"),
        ({"grid": 0}, "grid must be at least 1"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"starts": 0}, "starts must be at least 1"),
        ({"alpha": -1}, "alpha must be positive"),
        ({"compatibility": 2}, "compatibility must lie in"),
        ({"threshold": -0.1}, "threshold must lie in"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        CoMixup(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"part": 2.5}, "part must be a whole number, got 2.5"),
        ({"grid": 4.0}, "grid must be a whole number, got 4.0"),
        ({"iterations": "4"}, "iterations must be a whole number, got '4'"),
        ({"starts": 1.5}, "starts must be a whole number, got 1.5"),
        ({"saliency": "finegrained"}, r"saliency must be a Saliency, such as InputGradient\(\) or Uniform\(\), got 'finegrained'"),
        ({"saliency": FineGrained}, "saliency must be a Saliency, .*got <class"),
    ],
)
def test_settings_of_another_kind(settings, message):
    with pytest.raises(TypeError, match=message):
        CoMixup(**settings)


def test_dirichlet_shares():
    member = torch.ones(4000, 3, dtype=torch.bool)
    member[:, 2] = torch.arange(4000) % 2 == 0
    shares = sampling.dirichlet(2.0, member, seeded(0))
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(4000))
    assert (shares[1::2, 2] == 0).all()
    three = shares[::2]
    # Var = (1/m)(1 - 1/m) / (m·α + 1).
    torch.testing.assert_close(three.mean(dim=0), torch.full((3,), 1 / 3), rtol=0, atol=0.02)
    torch.testing.assert_close(three.var(dim=0), torch.full((3,), 2 / 9 / 7), rtol=0.1, atol=0)
    extreme = sampling.dirichlet(1e-4, member, seeded(0))
    assert extreme.isfinite().all()
    assert extreme.amax(dim=1).mean() > 0.99
