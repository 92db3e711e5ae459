"""Where a pixel comes from, against loops over every pixel."""

import itertools

import pytest
import torch

from helpers import seeded
from mixsage.warp import block_index, block_of, shift_index, side_of, translate

SIDES = [(1, 1), (1, 4), (4, 1), (3, 5), (5, 3), (4, 4)]


def moved(picture, row, column):
    """T(z, τ)[i, j] = z[i - τ_i, j - τ_j], zero where that falls outside."""
    height, width = len(picture), len(picture[0])
    out = [[0.0] * width for _ in range(height)]
    for i, j in itertools.product(range(height), range(width)):
        if 0 <= i - row < height and 0 <= j - column < width:
            out[i][j] = picture[i - row][j - column]
    return out


def every_shift(height, width, beyond=2):
    """All rearrangements, and some that leave nothing in the picture."""
    return torch.tensor(
        list(itertools.product(range(1 - height - beyond, height + beyond), range(1 - width - beyond, width + beyond)))
    )


@pytest.mark.parametrize(("height", "width"), SIDES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_translate_at_every_shift(height, width, dtype):
    offsets = every_shift(height, width)
    maps = torch.rand(len(offsets), height, width, generator=seeded(), dtype=torch.float64).to(dtype)
    before = maps.clone()
    out = translate(maps, offsets)
    expected = torch.tensor(
        [moved(picture.tolist(), *shift.tolist()) for picture, shift in zip(maps, offsets, strict=True)], dtype=dtype
    )
    assert torch.equal(out, expected)
    assert torch.equal(maps, before)


def test_translate_leaves_values_that_are_not_finite_behind():
    """What moves out of the picture is gone, not multiplied by zero."""
    maps = torch.tensor([[[float("nan"), 1.0], [float("inf"), 2.0]]])
    assert torch.equal(translate(maps, torch.tensor([[0, -1]])), torch.tensor([[[1.0, 0.0], [2.0, 0.0]]]))


def test_gradient_of_translate():
    maps = torch.rand(20, 2, 3, generator=seeded(), dtype=torch.float64, requires_grad=True)
    offsets = every_shift(2, 3, beyond=0)[:15]
    assert torch.autograd.gradcheck(lambda z: translate(z[:15], offsets), maps)


@pytest.mark.parametrize(("height", "width"), SIDES)
def test_shift_index_names_the_source_of_every_pixel(height, width):
    offsets = every_shift(height, width)
    index, inside = shift_index(offsets, height, width)
    assert index.shape == (len(offsets), height * width)
    assert inside.shape == (len(offsets), height, width)
    assert index.min() >= 0
    assert index.max() < height * width
    for b, i, j in itertools.product(range(len(offsets)), range(height), range(width)):
        row, column = i - int(offsets[b, 0]), j - int(offsets[b, 1])
        visible = 0 <= row < height and 0 <= column < width
        assert bool(inside[b, i, j]) == visible
        if visible:
            assert index[b, i * width + j] == row * width + column


@pytest.mark.parametrize("size", range(1, 12))
def test_block_of(size):
    """Blocks follow one another, none is empty, and their lengths differ by one pixel at most."""
    for blocks in range(1, size + 1):
        block = block_of(size, blocks).tolist()
        assert block == sorted(block)
        lengths = [block.count(b) for b in range(blocks)]
        assert sum(lengths) == size
        assert max(lengths) - min(lengths) <= 1
        assert min(lengths) >= 1
        if size % blocks == 0:
            assert block == [place // (size // blocks) for place in range(size)]


@pytest.mark.parametrize(("height", "width", "n"), [(4, 4, 2), (6, 4, 2), (3, 6, 3), (8, 8, 4)])
def test_blocks_change_places(height, width, n):
    """Where n divides the sides: cut the picture, deal the blocks out again."""
    rows, columns = height // n, width // n
    order = torch.stack([torch.randperm(n * n, generator=seeded(seed)) for seed in range(5)])
    picture = torch.arange(height * width)
    index = block_index(order, height, width)
    for b in range(len(order)):
        expected = torch.zeros(height, width, dtype=torch.int64)
        for target, source in enumerate(order[b].tolist()):
            ti, tj = (target // n) * rows, (target % n) * columns
            si, sj = (source // n) * rows, (source % n) * columns
            expected[ti : ti + rows, tj : tj + columns] = picture.view(height, width)[si : si + rows, sj : sj + columns]
        assert torch.equal(index[b].view(height, width), expected)


@pytest.mark.parametrize(("height", "width", "n"), [(5, 7, 2), (5, 7, 3), (7, 4, 4), (3, 3, 2), (33, 17, 8)])
def test_blocks_of_uneven_sides(height, width, n):
    """Each target block shows pixels of its own source block only, in their order; the identity moves nothing."""
    order = torch.stack([torch.arange(n * n), *[torch.randperm(n * n, generator=seeded(seed)) for seed in range(5)]])
    index = block_index(order, height, width)
    assert torch.equal(index[0], torch.arange(height * width))
    rows, columns = block_of(height, n), block_of(width, n)
    for b in range(len(order)):
        source_row, source_column = index[b].view(height, width) // width, index[b].view(height, width) % width
        shown = rows[source_row] * n + columns[source_column]
        target = rows[:, None] * n + columns[None, :]
        assert torch.equal(shown, order[b][target])
        # The first pixel of a target shows the first of its source.
        for t in range(n * n):
            i, j = (torch.nonzero(target == t)[0]).tolist()
            first = torch.nonzero(target == order[b, t])[0].tolist()
            assert [source_row[i, j], source_column[i, j]] == first


def test_side_of():
    assert [side_of(n * n) for n in range(1, 300)] == list(range(1, 300))
    with pytest.raises(ValueError, match=r"names 6 blocks an image, which is no square grid; give n·n of them"):
        side_of(6)
