"""Puzzle Mix: what it draws, where its blocks come from, and the pass that it asks for."""

import pytest
import torch

import mixsage
from graph_cuts import minimum_cuts
from helpers import assert_same_plan, assert_valid_plan, seeded, small_model
from mixsage import Blocks, FineGrained, PuzzleMix, Uniform, sampling
from mixsage.solvers import transport
from mixsage.solvers.puzzle import Weights, block_means, mask_problem


def batch(count=6, size=(32, 32), seed=0):
    images = torch.rand(count, 3, *size, generator=seeded(seed))
    coarse = torch.rand(count, 1, 5, 5, generator=seeded(seed + 1)) ** 4
    return images, torch.nn.functional.interpolate(coarse, size=size, mode="bilinear")[:, 0]


@pytest.mark.parametrize("side", [2, 4, 8, 16])
def test_mask_and_moves_are_the_solvers(side):
    images, maps = batch()
    mixer = PuzzleMix(grids=(side,))
    plan = mixer.plan(images, saliency=maps, generator=seeded(7))
    draw = seeded(7)
    partners, share = sampling.partners(6, draw), sampling.beta(1.0, 1, draw)
    block = 32 // side
    problem = mask_problem(
        images,
        maps,
        partners,
        share,
        side=side,
        parts=max(1, block // 4),
        levels=3,
        weights=Weights(smoothness=1.2, data_smoothness=0.5, prior=0.2),
    )
    assert_valid_plan(plan, 6)
    assert torch.equal(plan.sources, torch.stack([torch.arange(6), partners], dim=1))
    assert set((plan.masks[:, 0] * 2).unique().tolist()) <= {0.0, 1.0, 2.0}
    levels = (plan.masks[:, 0] * 2).long()
    exact = problem.energy(minimum_cuts(problem))
    assert (problem.energy(levels) - exact).mean() < 1e-4
    torch.testing.assert_close(plan.weights, plan.masks.mean(dim=(2, 3)))

    finer = max(side, 8)
    saliency = block_means(maps, finer).flatten(1)
    saliency = saliency / saliency.sum(dim=1, keepdim=True)
    for k in (0, 1):
        visible = (plan.masks[:, k] > 0).repeat_interleave(finer // side, 1).repeat_interleave(finer // side, 2).flatten(1)
        assert torch.equal(plan.warp.order[:, k], transport(saliency[plan.sources[:, k]], visible, 0.8))


def test_pixels_come_from_the_blocks_that_the_plan_names():
    images, maps = batch(3, (16, 16))
    plan = PuzzleMix(grids=(2,)).plan(images, saliency=maps, generator=seeded(1))
    mixed, side = plan.apply(images), 4
    assert plan.warp.order.shape == (3, 2, side**2)
    for b in range(3):
        for place in range(side**2):
            rows, columns = slice(place // side * 4, place // side * 4 + 4), slice(place % side * 4, place % side * 4 + 4)
            wanted = torch.zeros(3, 4, 4)
            for k in (0, 1):
                block = int(plan.warp.order[b, k, place])
                top, left = block // side * 4, block % side * 4
                share = plan.masks[b, k, place // side // 2, place % side // 2]
                wanted += share * images[plan.sources[b, k], :, top : top + 4, left : left + 4]
            torch.testing.assert_close(mixed[b, :, rows, columns], wanted)


def test_the_grid_is_drawn_for_each_batch():
    images, maps = batch(2)
    draw = seeded(0)
    drawn = [PuzzleMix().plan(images, saliency=maps, generator=draw).masks.shape[-1] for _ in range(60)]
    assert set(drawn) == {2, 4, 8, 16}


@pytest.mark.parametrize(
    ("size", "side", "masks", "moved"),
    [
        ((32, 32), 2, 2, 8),
        ((32, 32), 16, 16, 16),
        ((224, 224), 2, 2, 16),
        ((224, 224), 16, 16, 16),
        ((33, 17), 16, 16, 16),
        ((40, 24), 4, 4, 4),
        ((48, 64), 4, 4, 12),
        ((5, 9), 16, 5, 5),
        ((1, 1), 4, 1, 1),
    ],
)
def test_sides_that_the_grid_does_not_divide(size, side, masks, moved):
    images, maps = batch(2, size)
    plan = PuzzleMix(grids=(side,)).plan(images, saliency=maps, generator=seeded(0))
    assert plan.masks.shape == (2, 2, masks, masks)
    assert plan.warp.order.shape == (2, 2, moved**2)
    assert plan.apply(images).shape == images.shape


def test_share_of_the_image_follows_lambda(monkeypatch):
    images, maps = batch(20)
    shares = []
    for share in (0.02, 0.3, 0.5, 0.7, 0.98):
        monkeypatch.setattr(sampling, "beta", lambda alpha, count, generator, share=share: torch.full((count,), share))
        shares.append(PuzzleMix(grids=(4,)).plan(images, saliency=maps, generator=seeded(0)).weights[:, 0].mean().item())
    assert shares == sorted(shares)
    assert shares[0] < 0.2 < 0.8 < shares[-1]


def test_one_share_a_batch_or_one_an_image():
    images = torch.full((40, 3, 8, 8), 0.5)
    maps = torch.ones(40, 8, 8)
    one = PuzzleMix(grids=(2,)).plan(images, saliency=maps, generator=seeded(3)).weights[:, 0]
    each = PuzzleMix(grids=(2,), per_sample=True).plan(images, saliency=maps, generator=seeded(3)).weights[:, 0]
    assert len(one.unique()) == 1
    assert len(each.unique()) > 1


@pytest.mark.parametrize("levels", [2, 3, 4])
def test_levels(levels):
    images, maps = batch(12)
    for side in (2, 8):
        masks = PuzzleMix(grids=(side,), levels=levels, per_sample=True).plan(images, saliency=maps, generator=seeded(2)).masks
        steps = masks * (levels - 1)
        torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-6)
        assert len(steps[:, 0].round().unique()) == levels


@pytest.fixture
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("side", [2, 8])
@pytest.mark.parametrize("levels", [2, 3])
def test_a_script_in_double_precision_gets_shares_of_single_precision(double_precision, side, levels):
    images, maps = (values.float() for values in batch())
    plan = PuzzleMix(grids=(side,), levels=levels).plan(images, saliency=maps, generator=seeded(0))
    assert plan.masks.dtype == plan.weights.dtype == plan.apply(images).dtype == torch.float32
    assert_valid_plan(plan, 6)


def test_without_moves():
    images, maps = batch()
    plan = PuzzleMix(moved_block=None).plan(images, saliency=maps, generator=seeded(0))
    assert plan.warp is None
    moving = PuzzleMix().plan(images, saliency=maps, generator=seeded(0))
    assert torch.equal(plan.masks, moving.masks)
    assert isinstance(moving.warp, Blocks)


def test_colours_are_those_of_the_picture():
    """Normalised images with their mean and std are mixed as the pictures are."""
    images, maps = batch()
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    normalised = (images - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    plain = PuzzleMix(grids=(4,)).plan(images, saliency=maps, generator=seeded(0))
    assert_same_plan(plain, PuzzleMix(grids=(4,), mean=mean, std=std).plan(normalised, saliency=maps, generator=seeded(0)))


def test_the_clean_pass_is_for_the_saliency_alone():
    clean = PuzzleMix().clean
    assert (clean.mode, clean.weight, clean.criterion) == ("eval", 0, mixsage.cross_entropy)
    assert PuzzleMix().mixed_weight == 1
    assert PuzzleMix(saliency=Uniform()).clean is None
    assert PuzzleMix(saliency=FineGrained()).clean is None


def test_its_maps_are_gradients_of_cross_entropy_in_eval_mode():
    model, (images, _), labels = small_model(classes=4).train(), batch(), torch.tensor([0, 1, 2, 3, 0, 1])
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    leaf = images.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(model.eval()(leaf), labels)
    maps = torch.autograd.grad(loss, leaf)[0].square().mean(dim=1).sqrt()
    model.train()
    wanted = PuzzleMix(grids=(4,)).plan(images, saliency=maps, generator=seeded(0))
    step = mixsage.accumulate(
        PuzzleMix(grids=(4,)), model, images, labels, criterion=mixsage.binary_cross_entropy, generator=seeded(0)
    )
    assert_same_plan(step.plan, wanted)
    moved = [name for name, buffer in model.named_buffers() if "num_batches" in name and buffer - kept[name] != 1]
    assert not moved, "BatchNorm statistics move once a step"
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0}, "alpha must be positive"),
        ({"grids": ()}, "grids must name at least one"),
        ({"grids": (4, 0)}, "grids must be at least 1"),
        ({"moved_block": 0}, "moved_block must be at least 1, got 0"),
        ({"colour_block": -1}, "colour_block must be at least 1"),
        ({"levels": 1}, "levels must be at least 2, got 1"),
        ({"levels": 17}, "levels must lie in"),
        ({"grids": 4}, "grids must name at least one number of blocks, .*got 4"),
        ({"data_smoothness": 1.5}, "data_smoothness must lie in"),
        ({"smoothness": -1}, "smoothness must lie in"),
        ({"mean": (0.5,)}, "mean and std belong together"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message):
        PuzzleMix(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grids": (2.5,)}, "grids must be a whole number, got 2.5"),
        ({"grids": (4, "8")}, "grids must be a whole number, got '8'"),
        ({"levels": 2.5}, "levels must be a whole number, got 2.5"),
        ({"colour_block": None}, "colour_block must be a whole number, got None"),
        ({"moved_block": 2.5}, "moved_block must be a whole number, got 2.5"),
        (
            {"saliency": "finegrained"},
            r"saliency must be a Saliency, such as InputGradient\(mode='eval'\) or Uniform\(\), got 'finegrained'",
        ),
        ({"saliency": FineGrained}, "saliency must be a Saliency, .*got <class"),
    ],
)
def test_settings_of_another_kind(settings, message):
    with pytest.raises(TypeError, match=message):
        PuzzleMix(**settings)
