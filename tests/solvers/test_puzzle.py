"""The mask problem of Puzzle Mix against its objective written out, a pair of blocks at a time."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import avg_pool2d

from mixsage.solvers.puzzle import Weights, block_means, mask_problem

WEIGHTS = Weights(smoothness=1.2, data_smoothness=0.5, prior=0.2)


def pixels_of(block, blocks, size):
    """The pixels of a block when a side is cut into blocks: pixel i lies in block ⌊i·n/size⌋."""
    return [i for i in range(size) if i * blocks // size == block]


def mean_of(picture, row, column, blocks):
    rows, columns = pixels_of(row, blocks, picture.shape[-2]), pixels_of(column, blocks, picture.shape[-1])
    return picture[..., rows, :][..., columns].mean(dim=(-2, -1))


def step_across(first, second, row, column, down, side, parts):
    """Mean absolute difference of the sub-blocks that meet at the border behind a block, ``first`` lying before it and ``second`` after it."""
    differences = []
    for k in range(parts):
        if down:
            before, after = (row * parts + parts - 1, column * parts + k), ((row + 1) * parts, column * parts + k)
        else:
            before, after = (row * parts + k, column * parts + parts - 1), (row * parts + k, (column + 1) * parts)
        one, other = mean_of(first, *before, side * parts), mean_of(second, *after, side * parts)
        differences.append((one - other).abs().mean())
    return sum(differences) / parts


def literal(images, maps, partner, b, share, mask, side, parts, levels):
    """The cost of a mask [n, n] (the share of the image itself at each block, in levels 0 to L - 1), term by term."""
    own, other = images[b], images[partner[b]]
    pooled = [[[float(mean_of(m, i, j, side)) for j in range(side)] for i in range(side)] for m in (maps[b], maps[partner[b]])]
    lost = [[[value / sum(map(sum, grid)) for value in row] for row in grid] for grid in pooled]
    beta, top, total = WEIGHTS.smoothness / (16 * side), levels - 1, 0.0
    for i, j in itertools.product(range(side), repeat=2):
        m = int(mask[i, j])
        total += (1 - m / top) * lost[0][i][j] + m / top * lost[1][i][j]
        chance = math.comb(top, m) * share**m * (1 - share) ** (top - m)
        total -= WEIGHTS.prior * math.log(chance) / side**2
        for down, (k, l) in ((True, (i + 1, j)), (False, (i, j + 1))):
            if k == side or l == side:
                continue
            x, y = m / top, int(mask[k, l]) / top
            total += beta * (x - y) ** 2
            d = {
                (p, q): beta * WEIGHTS.data_smoothness * float(step_across(first, second, i, j, down, side, parts))
                for p, first in ((1, own), (0, other))
                for q, second in ((1, own), (0, other))
            }
            # Linear in either share, but for the product: half of what x² and y² are beyond (x - y)², and a share counts as its own square.
            total += x * (d[1, 0] + d[1, 1]) / 2 + (1 - x) * (d[0, 1] + d[0, 0]) / 2
            total += y * (d[0, 1] + d[1, 1]) / 2 + (1 - y) * (d[1, 0] + d[0, 0]) / 2
            total += (d[1, 0] + d[0, 1] - d[1, 1] - d[0, 0]) / 2 * (x - y) ** 2
    return total


@pytest.mark.parametrize(
    ("size", "side", "parts", "levels"),
    [((8, 8), 2, 1, 3), ((8, 8), 4, 2, 2), ((9, 13), 3, 1, 4), ((16, 16), 2, 2, 3), ((11, 7), 3, 2, 3)],
)
def test_energies_are_the_written_out_objective(size, side, parts, levels):
    draw = torch.Generator().manual_seed(0)
    images, maps = torch.rand(3, 2, *size, generator=draw), torch.rand(3, *size, generator=draw) ** 3
    partner, share = torch.tensor([2, 1, 0]), torch.rand(3, generator=draw) * 0.8 + 0.1
    problem = mask_problem(images, maps, partner, share, side=side, parts=parts, levels=levels, weights=WEIGHTS)
    masks = torch.randint(levels, (3, side, side), generator=draw)
    expected = [literal(images, maps, partner, b, float(share[b]), masks[b], side, parts, levels) for b in range(3)]
    torch.testing.assert_close(problem.energy(masks), torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_of_two_levels_the_colours_that_meet_are_paid_for_as_they_are():
    """For whole blocks the data term is the difference of colours between what shows on the two sides, but for a constant."""
    draw = torch.Generator().manual_seed(1)
    images, partner, side = torch.rand(2, 3, 8, 8, generator=draw), torch.tensor([1, 0]), 2
    only_data = Weights(smoothness=1.0, data_smoothness=1.0, prior=0.0)
    without = Weights(smoothness=1.0, data_smoothness=0.0, prior=0.0)
    maps, share = torch.ones(2, 8, 8), torch.tensor([0.5])
    settings = {"side": side, "parts": 1, "levels": 2}
    problem = mask_problem(images, maps, partner, share, weights=only_data, **settings)
    base = mask_problem(images, maps, partner, share, weights=without, **settings)
    colours, surplus = avg_pool2d(images, 4), []
    for chosen in itertools.product((0, 1), repeat=4):
        mask = torch.tensor(chosen).view(1, 2, 2).expand(2, 2, 2)
        shown = torch.where(mask[:, None] == 1, colours, colours[partner])
        steps = shown.diff(dim=2).abs().mean(dim=1).sum(dim=(1, 2)) + shown.diff(dim=3).abs().mean(dim=1).sum(dim=(1, 2))
        surplus.append(problem.energy(mask) - base.energy(mask) - steps / 32)
    torch.testing.assert_close(torch.stack(surplus), surplus[0].expand(16, 2), rtol=1e-4, atol=1e-6)


def test_weights_are_never_negative():
    """Where the images differ most within themselves, and least from one another."""
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2
    images = torch.stack([board, 1 - board]).float()[:, None]
    problem = mask_problem(
        images,
        torch.ones(2, 8, 8),
        torch.tensor([1, 0]),
        torch.tensor([0.5]),
        side=8,
        parts=1,
        levels=3,
        weights=Weights(smoothness=1.0, data_smoothness=1.0, prior=0.0),
    )
    assert problem.down.min() == 0
    assert problem.across.min() == 0


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_certain_prior_is_finite(share):
    images, maps = torch.rand(2, 3, 8, 8), torch.rand(2, 8, 8)
    problem = mask_problem(
        images,
        maps,
        torch.tensor([1, 0]),
        torch.tensor([share]),
        side=4,
        parts=1,
        levels=3,
        weights=Weights(smoothness=1, data_smoothness=0, prior=50),
    )
    assert problem.unary.isfinite().all()
    assert (problem.unary.argmin(dim=-1) == 2 * share).all()


@pytest.mark.parametrize(("size", "side"), [((8, 12), 4), ((7, 5), 3), ((5, 5), 5), ((33, 17), 16), ((1, 1), 1)])
def test_block_means(size, side):
    values = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([mean_of(values, i, j, side) for i in range(side) for j in range(side)], dim=-1).view(2, 3, side, side)
    torch.testing.assert_close(block_means(values, side), expected)
