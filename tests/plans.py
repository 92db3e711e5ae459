"""Plans of every form for the tests, and what they mean at a single pixel: slow, by the definition."""

import itertools

import torch

from helpers import seeded
from mixsage import Blocks, Boxes, MixPlan, Shift

BATCH, POOL, HEIGHT, WIDTH = 3, 5, 5, 7


# ------------------------------------------------------------------------------------------------------------------------------ oracles


def block_at(place, size, blocks):
    """The block of a pixel, by counting."""
    return next(block for block in reversed(range(blocks)) if place * blocks >= block * size)


def pixels_of(block, size, blocks):
    return [place for place in range(size) if block_at(place, size, blocks) == block]


def source_place(warp, b, k, i, j, height, width):
    """Where pixel (i, j) of output b shows its source k, or None if that lies outside."""
    if warp is None:
        return i, j
    if isinstance(warp, Shift):
        row, column = (int(x) for x in warp.offsets[b, k])
        i, j = i - row, j - column
        return (i, j) if 0 <= i < height and 0 <= j < width else None
    n = round(warp.order.shape[2] ** 0.5)
    target = block_at(i, height, n) * n + block_at(j, width, n)
    row, column = divmod(int(warp.order[b, k, target]), n)
    return (
        moved(i, block_at(i, height, n), row, height, n),
        moved(j, block_at(j, width, n), column, width, n),
    )


def moved(place, target, source, size, blocks):
    """The same place inside the source block; the last pixel of it where it is too short."""
    within = pixels_of(target, size, blocks).index(place)
    candidates = pixels_of(source, size, blocks)
    return candidates[min(within, len(candidates) - 1)]


def share_at(masks, b, k, i, j, height, width):
    if isinstance(masks, Boxes):
        top, left, bottom, right = (int(x) for x in masks.corners[b if len(masks.corners) > 1 else 0])
        inside = top <= i < bottom and left <= j < right
        return float(inside == (k == 1))
    h, w = masks.shape[2:]
    return float(masks[b, k, block_at(i, height, h), block_at(j, width, w)])


def mixed_by_hand(plan, pool):
    """The mixed batch in float64, by the definition."""
    batch, count = plan.sources.shape
    values = pool.detach().double()
    height, width = values.shape[-2:]
    out = torch.zeros(batch, *values.shape[1:], dtype=torch.float64)
    for b, k, i, j in itertools.product(range(batch), range(count), range(height), range(width)):
        place = source_place(plan.warp, b, k, i, j, height, width)
        if place is not None:
            share = share_at(plan.masks, b, k, i, j, height, width)
            out[b, ..., i, j] += share * values[plan.sources[b, k], ..., place[0], place[1]]
    return out


# -------------------------------------------------------------------------------------------------------------------------------- plans


def shares(generator, batch, count, *sides):
    raw = torch.rand(batch, count, *sides, generator=generator)
    return raw / raw.sum(dim=1, keepdim=True)


def offsets(generator, batch, count, height, width):
    rows = torch.randint(-height, height + 1, (batch, count), generator=generator)
    columns = torch.randint(-width, width + 1, (batch, count), generator=generator)
    return torch.stack([rows, columns], dim=2)


def orders(generator, batch, count, n):
    return torch.stack([torch.stack([torch.randperm(n * n, generator=generator) for _ in range(count)]) for _ in range(batch)])


def corners(generator, count, height, width):
    """Boxes that cover something, but not all (where there are two pixels to a side)."""
    top, left = (torch.randint((side + 1) // 2, (count,), generator=generator) for side in (height, width))
    rows, columns = (1 + torch.randint(side // 2 or 1, (count,), generator=generator) for side in (height, width))
    return torch.stack([top, left, top + rows, left + columns], dim=1)


def masks_of(form, generator, batch, count, height, width):
    match form:
        case "blend":
            return shares(generator, batch, count, 1, 1)
        case "grid":
            return shares(generator, batch, count, 2, 2)
        case "grid of a third":
            return shares(generator, batch, count, 3, 3)
        case "pixels":
            return shares(generator, batch, count, height, width)
        case "boxes":
            return Boxes(corners(generator, batch, height, width), height, width)
        case "one box":
            return Boxes(corners(generator, 1, height, width), height, width)


def warp_of(form, generator, batch, count, height, width):
    match form:
        case "shift":
            return Shift(offsets(generator, batch, count, height, width))
        case "blocks":
            return Blocks(orders(generator, batch, count, 2))
        case "finer blocks":
            return Blocks(orders(generator, batch, count, 4))
    return None


def plan_of(masks="blend", warp=None, count=2, *, batch=BATCH, pool=POOL, height=HEIGHT, width=WIDTH, own_first=False, seed=0):
    generator = seeded(seed)
    sources = torch.randint(pool, (batch, count), generator=generator)
    if own_first:
        sources[:, 0] = torch.arange(batch)
    return MixPlan(
        sources=sources,
        masks=masks_of(masks, generator, batch, count, height, width),
        warp=warp_of(warp, generator, batch, count, height, width),
    )


FORMS = [
    (masks, warp) for masks in ("blend", "grid", "grid of a third", "pixels") for warp in (None, "shift", "blocks", "finer blocks")
]
BOXED = [("boxes", None), ("one box", None)]


def rand(*shape, dtype=torch.float32, seed=1):
    return (torch.rand(*shape, generator=seeded(seed)) * 2 - 1).to(dtype)
