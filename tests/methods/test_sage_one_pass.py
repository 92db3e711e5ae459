"""SAGE in a single pass: clean rows and mixed rows in one batch, whose mean loss has the combined gradient in expectation."""

from __future__ import annotations

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
