"""A batch cut into parts and put together again; compatibility; the inputs of each output."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixsage.solvers.comixup import Parts, Weights, inputs_of_outputs, joint_problem

WEIGHTS = Weights(smoothness=0.32, diversity=1.0, prior=0.05, threshold=0.83, compatibility=0.25)


@given(st.integers(2, 200), st.integers(2, 40))
def test_parts_are_equal_to_the_image_and_hold_every_row_once(batch, most):
    parts = Parts.of(batch, most)
    sizes = parts.member.sum(dim=1)
    assert sizes.max() <= most
    assert sizes.max() - sizes.min() <= 1
    assert len(sizes) == -(-batch // most)
    assert parts.rows[parts.member].tolist() == list(range(batch))
    values = torch.arange(batch) * 10
    assert torch.equal(parts.spread(parts.gather(values)), values)


def test_published_parts():
    assert Parts.of(100, 20).rows.tolist() == [list(range(20 * p, 20 * p + 20)) for p in range(5)]
    assert Parts.of(2, 20).member.tolist() == [[True, True, False]]


def test_starts_are_members():
    parts = Parts.of(21, 20)
    drawn = parts.draw_members((3, 11, 16), torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 3, 11, 16)
    assert set(drawn[0].unique().tolist()) == set(range(11))
    assert set(drawn[1].unique().tolist()) == set(range(10))


def test_costs_and_compatibility_written_out():
    draw = torch.Generator().manual_seed(0)
    maps = torch.rand(5, 20, 24, generator=draw) ** 6
    parts = Parts.of(5, 3)
    expected = torch.rand(2, 3, generator=draw)
    problem = joint_problem(maps, expected, parts, 4, WEIGHTS)
    centres = []
    for one in maps:
        sums = {(i, j): one[i : i + 8, j : j + 8].sum() for i in range(13) for j in range(17)}
        centres.append(max(sums, key=sums.get))
    for p, rows in enumerate(([0, 1, 2], [3, 4])):
        distance = {(a, b): sum(abs(x - y) for x, y in zip(centres[a], centres[b], strict=True)) for a in rows for b in rows}
        total = sum(distance.values())
        for i, a in enumerate(rows):
            for j, b in enumerate(rows):
                wanted = 0.75 * (i == j) + 0.25 * distance[a, b] * len(rows) / total
                assert problem.compatibility[p, i, j].item() == pytest.approx(wanted, abs=1e-5)
            blocks = maps[a].view(4, 5, 4, 6).sum(dim=(1, 3))
            cost = -blocks / blocks.sum() - 0.05 / 16 * torch.log(expected[p, i])
            torch.testing.assert_close(problem.cost[p, i], cost, rtol=1e-4, atol=1e-5)
    assert (problem.smoothness, problem.diversity, problem.threshold) == (0.32 / 16, 1 / 16, 0.83 * 16)


def test_all_centres_in_one_place():
    problem = joint_problem(torch.ones(4, 8, 8), torch.full((1, 4), 0.25), Parts.of(4, 20), 4, WEIGHTS)
    torch.testing.assert_close(problem.compatibility[0], 0.75 * torch.eye(4))


def test_inputs_of_an_output_begin_with_itself_then_fall():
    parts = Parts.of(5, 3)
    draw = torch.Generator().manual_seed(0)
    shares = torch.rand(2, 3, 4, 4, 3, generator=draw) * parts.member[:, None, None, None]
    shares = shares / shares.sum(dim=-1, keepdim=True)
    sources, masks = inputs_of_outputs(shares, parts)
    assert sources[:, 0].tolist() == list(range(5))
    assert torch.allclose(masks.sum(dim=1), torch.ones(5, 4, 4))
    amount = masks.mean(dim=(2, 3))[:, 1:]
    assert (amount.diff(dim=1) <= 1e-6).all()
    for row, (p, slot) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]):
        for source, mask in zip(sources[row], masks[row], strict=True):
            if mask.any():
                torch.testing.assert_close(mask, shares[p, slot, :, :, parts.rows[p].tolist().index(source)])
