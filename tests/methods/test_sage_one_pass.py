"""SAGE in a single pass: clean rows and mixed rows in one batch, whose mean loss has the combined gradient in expectation."""

from __future__ import annotations

import pytest
import torch

import mixsage
from mixsage import SAGE, MixPlan, Shift


def test_first_rows_stay_clean_and_the_others_are_mixed() -> None:
    images, labels = torch.randn(10, 3, 16, 12), torch.arange(10)
    plan = SAGE(passes=1, mixed_share=0.7).plan(images, generator=torch.Generator().manual_seed(0))
    mixed, targets = plan.apply(images), plan.targets(labels, 10)
    assert torch.equal(mixed[:3], images[:3])
    assert torch.equal(targets[:3], torch.eye(10)[:3])
    assert not any(torch.equal(mixed[i], images[i]) for i in range(3, 10) if int(plan.sources[i, 1]) != i)


def test_mixed_rows_are_those_of_two_passes_with_uniform_maps() -> None:
    images = torch.randn(10, 3, 16, 12)
    one = SAGE(passes=1).plan(images, generator=torch.Generator().manual_seed(3))
    two = SAGE(saliency=mixsage.Uniform()).plan(images, generator=torch.Generator().manual_seed(3))
    assert isinstance(one.warp, Shift) and isinstance(two.warp, Shift)
    assert torch.equal(one.warp.offsets[3:], two.warp.offsets[3:])
    assert torch.equal(one.dense_masks()[3:], two.dense_masks()[3:])


def test_step_is_one_forward_pass_and_its_loss_is_the_share_of_clean_and_mixed_rows() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    images, labels = torch.randn(10, 3, 8, 8), torch.arange(10)
    step = mixsage.accumulate(SAGE(passes=1), model, images, labels)
    assert len(calls) == 1
    assert step.clean_loss is None
    targets = step.plan.targets(labels, 10)
    losses = [mixsage.cross_entropy(step.logits[rows], targets[rows]) for rows in (slice(0, 3), slice(3, 10))]
    assert torch.allclose(step.loss, 0.3 * losses[0] + 0.7 * losses[1])


def test_maps_that_are_handed_in_are_used() -> None:
    images, maps = torch.randn(6, 1, 9, 9), torch.rand(6, 9, 9)
    plan: MixPlan = SAGE(passes=1, mixed_share=1.0).plan(images, saliency=maps, generator=torch.Generator().manual_seed(1))
    two = SAGE().plan(images, saliency=maps, generator=torch.Generator().manual_seed(1))
    assert torch.equal(plan.dense_masks(), two.dense_masks())


@pytest.mark.parametrize(
    ("batch", "share", "clean"),
    [(100, 0.7, 30), (32, 0.7, 10), (8, 0.7, 2), (4, 0.7, 1), (2, 0.7, 1), (100, 0.5, 50), (10, 1.0, 0)],
)
def test_how_many_rows_stay_clean(batch: int, share: float, clean: int) -> None:
    images = torch.randn(batch, 1, 8, 8)
    plan = SAGE(passes=1, mixed_share=share).plan(images, generator=torch.Generator().manual_seed(0))
    untouched = (plan.dense_masks()[:, 0] == 1).flatten(1).all(dim=1)
    assert untouched[:clean].all() and not untouched[clean:].any()
    assert torch.equal(plan.weights[:, 0] == 1, untouched)
    assert torch.equal(plan.apply(images)[:clean], images[:clean])
    # Clean rows are partners as well.
    assert plan.sources[:, 1].sort().values.tolist() == list(range(batch))


def test_each_part_of_a_batch_keeps_its_own_clean_rows() -> None:
    torch.manual_seed(0)
    model = mixsage.models.small_convnet(num_classes=4, width=2, norm=False)
    images, labels = torch.randn(20, 1, 8, 8), torch.arange(20) % 4
    plans = [
        mixsage.accumulate(SAGE(passes=1), model, *part, weight=0.5).plan
        for part in zip(images.split(10), labels.split(10), strict=True)
    ]
    assert [(plan.weights[:, 0] == 1).nonzero().flatten().tolist() for plan in plans] == [[0, 1, 2], [0, 1, 2]]


def test_a_call_needs_no_maps_and_asks_no_model() -> None:
    images, labels = torch.randn(10, 1, 8, 8), torch.arange(10)

    class Silent(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise AssertionError("the model was asked")

    calls = [
        SAGE(passes=1, num_classes=10)(images, labels, model=model, generator=torch.Generator().manual_seed(2))
        for model in (None, Silent())
    ]
    for one, other in zip(*calls, strict=True):
        assert torch.equal(one, other)


def test_a_source_that_needs_no_gradient_is_asked() -> None:
    images = torch.rand(6, 3, 16, 16)
    source = mixsage.FineGrained()
    found, given = (
        mixer.plan(images, saliency=maps, generator=torch.Generator().manual_seed(1))
        for mixer, maps in ((SAGE(passes=1, saliency=source), None), (SAGE(passes=1), source(images, None)))
    )
    assert torch.equal(found.dense_masks(), given.dense_masks())
    uniform = SAGE(passes=1).plan(images, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(found.dense_masks(), uniform.dense_masks())


def test_statistics_of_batchnorm_move_once() -> None:
    norm = torch.nn.BatchNorm2d(1)
    model = torch.nn.Sequential(norm, torch.nn.Flatten(), torch.nn.Linear(64, 4))
    images = torch.randn(10, 1, 8, 8)
    step = mixsage.accumulate(SAGE(passes=1), model, images, torch.arange(10) % 4)
    assert norm.num_batches_tracked == 1
    torch.testing.assert_close(norm.running_mean, 0.1 * step.plan.apply(images).mean(dim=(0, 2, 3)))
