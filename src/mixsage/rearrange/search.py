"""The search for the shift that keeps most saliency."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional

from mixsage.errors import check_number
from mixsage.rearrange import engines
from mixsage.rearrange.blend import Blend, Guided
from mixsage.rearrange.shifts import axis_shifts, sample_shifts


class Found(NamedTuple):
    """The best shift of each pair, and what it keeps."""

    shifts: Tensor
    """[B, 2] int64, rows first."""
    values: Tensor
    """[B] total saliency under that shift."""


def total_saliency(
    first: Tensor,
    second: Tensor,
    shifts: Tensor,
    *,
    engine: str = "auto",
    blend: Blend | None = None,
    memory: float | None = None,
) -> Tensor:
    """How much saliency each rearrangement keeps: v [B, N].

    Args:
        first: [B, H, W] maps of the images that stay, already normalised and rescaled; not negative.
        second: [B, H, W] maps of the images that move.
        shifts: [N, 2] int64, rows first; on the CPU (others are copied there). Nothing remains of a map shifted by a whole side or more.
        engine: "auto", "direct", "fourier" (about one part in a million off) or "triton".
        blend: how the two show through each other; `Guided` if left out.
        memory: MiB that may be taken beside maps and answer; the pairs are worked on in parts that fit.

    Example:
        >>> first, second = torch.eye(2)[None] / 2, torch.eye(2)[None] / 2
        >>> total_saliency(first, second, torch.tensor([[0, 0], [0, 1], [1, 1]]))
        tensor([[1.0000, 1.5000, 1.0000]])
    """
    _check(first, second)
    shifts, kernel = _within_sight(first, shifts), blend or Guided()
    if not len(shifts):
        engines.check_engine(engine)
        return first.new_zeros(len(first), 0)
    with torch.no_grad():
        loaded = engines.load(engine, first, shifts)
        pairs = engines.parts(loaded, first, second, len(shifts), memory)
        return torch.cat([kernel.total_saliency(*maps, shifts, loaded) for maps in pairs])


def best_of(
    first: Tensor,
    second: Tensor,
    shifts: Tensor,
    *,
    engine: str = "auto",
    blend: Blend | None = None,
    memory: float | None = None,
) -> Found:
    """The best of the given shifts for each pair; the earliest where several keep the same. Arguments as of `total_saliency`."""
    _check(first, second)
    if not len(shifts):
        raise ValueError("the best of no shifts was asked for; give at least one")
    near, kernel = _within_sight(first, shifts), blend or Guided()
    with torch.no_grad():
        loaded = engines.load(engine, first, near)
        pairs = engines.parts(loaded, first, second, len(near), memory)
        places, values = zip(*(kernel.best(*maps, near, loaded) for maps in pairs), strict=True)
    place = torch.cat(places)
    return Found(shifts.to(place.device, non_blocking=True)[place], torch.cat(values))


def search(
    first: Tensor,
    second: Tensor,
    portion: float = 0.01,
    *,
    engine: str = "auto",
    generator: Generator | None = None,
    blend: Blend | None = None,
    max_shift: float = 1.0,
    stride: int = 1,
    reduce: int = 1,
    memory: float | None = None,
) -> Found:
    """The shift of ``second`` that keeps most saliency, among a random portion of all rearrangements, shared by the pairs.

    The subset depends on the generator alone: it is the same with every engine and every budget.

    Args:
        first: [B, H, W] maps of the images that stay, already normalised and rescaled; not negative.
        second: [B, H, W] maps of the images that move.
        portion: share of the rearrangements that is tried; 1.0 tries all.
        engine: "auto", "direct", "fourier" or "triton".
        generator: where the random subset comes from; torch's default CPU generator if left out.
        blend: how the two show through each other; `Guided` if left out.
        max_shift: no shift is farther than this share of the side; 1.0 leaves all (2H-1)(2W-1) rearrangements.
        stride: shifts are multiples of so many pixels.
        reduce: search on maps that are so many times smaller, then try every single pixel around what was found.
        memory: MiB that may be taken beside the maps; the pairs are worked on in parts that fit.

    Example:
        >>> maps = torch.rand(8, 32, 32)
        >>> shifts, values = search(maps, maps.flip(0), portion=0.01)
        >>> shifts.shape, values.shape
        (torch.Size([8, 2]), torch.Size([8]))
    """
    _check(first, second)
    check_settings(portion, engine, max_shift, stride, reduce, memory)
    if reduce > 1:
        return _in_two_steps(first, second, portion, engine, generator, blend or Guided(), max_shift, reduce, memory)
    height, width = first.shape[-2:]
    shifts = sample_shifts(height, width, portion, generator, max_shift=max_shift, stride=stride)
    return best_of(first, second, shifts, engine=engine, blend=blend, memory=memory)


def check_settings(
    portion: float, engine: str, max_shift: float = 1.0, stride: int = 1, reduce: int = 1, memory: float | None = None
) -> None:
    """What a search may be asked for."""
    check_number("portion", portion)
    check_number("max_shift", max_shift)
    if not 0 < portion <= 1:
        raise ValueError(
            f"portion must lie in (0, 1], got {portion}; 0.01 tries one per cent of all rearrangements, 1.0 all of them"
        )
    engines.check_engine(engine)
    engines.check_memory(memory)
    if not 0 <= max_shift <= 1:
        raise ValueError(f"max_shift must lie in [0, 1], got {max_shift}; 0.25 moves the partner by a quarter of the side at most")
    _check_pixels("stride", stride)
    _check_pixels("reduce", reduce)
    if reduce > 1 and stride > 1:
        raise ValueError(f"reduce={reduce} refines to single pixels, which stride={stride} forbids; set one of them to 1")


def _check_pixels(name: str, value: object) -> None:
    # Not 2.0 either: shifts are int64, and a whole number in floating point would make others of them.
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of pixels, at least 1, got {value!r}")


def _in_two_steps(
    first: Tensor,
    second: Tensor,
    portion: float,
    engine: str,
    generator: Generator | None,
    blend: Blend,
    max_shift: float,
    reduce: int,
    memory: float | None,
) -> Found:
    """On reduced maps first; then every pixel between the neighbours of the shift that was found there."""
    height, width = first.shape[-2:]
    coarse = sample_shifts(height, width, portion, generator, max_shift=max_shift, stride=reduce) // reduce
    limit = torch.tensor([int(axis_shifts(size, max_shift, 1)[-1]) for size in (height, width)], device="cpu")
    # The values of one shift after the other: an index, and a few maps that come and go.
    each = height * width * (4 * first.element_size() + 9)
    found = []
    with torch.no_grad():
        for one, other in engines.within(memory, each, (2 * reduce - 1) ** 2, first, second):
            small = _reduced(one, reduce), _reduced(other, reduce)
            middle = reduce * best_of(*small, coarse, engine=engine, blend=blend, memory=memory).shifts
            found.append(_best_around(one, other, middle, reduce, limit.to(middle.device, non_blocking=True), blend))
    shifts, values = zip(*found, strict=True)
    return Found(torch.cat(shifts), torch.cat(values))


def _best_around(first: Tensor, second: Tensor, middle: Tensor, reach: int, limit: Tensor, blend: Blend) -> Found:
    """The best of the shifts that are less than ``reach`` away from ``middle`` [B, 2], along either axis, and no farther than ``limit`` [2]."""
    steps = torch.arange(1 - reach, reach, device="cpu")
    best, value = middle, blend.value(first, second, middle)
    for step in torch.cartesian_prod(steps, steps).to(middle.device, non_blocking=True):
        shifts = (middle + step).clamp(-limit, limit)
        kept = blend.value(first, second, shifts)
        best = torch.where((kept > value)[:, None], shifts, best)
        value = torch.maximum(kept, value)
    return Found(best, value)


def _reduced(maps: Tensor, factor: int) -> Tensor:
    """Sums over blocks; what is missing at the lower and right border counts as nothing."""
    height, width = maps.shape[-2:]
    padded = functional.pad(maps, (0, -width % factor, 0, -height % factor))
    return padded.unfold(1, factor, factor).unfold(2, factor, factor).sum(dim=(3, 4))


def _within_sight(first: Tensor, shifts: Tensor) -> Tensor:
    """The shifts on the CPU. From a shift by a whole side on, nothing of the second remains: farther ones are worth the same."""
    if not isinstance(shifts, Tensor):
        raise TypeError(f"shifts must be a tensor [N, 2] of whole numbers, rows first; got {type(shifts).__name__}")
    if shifts.ndim != 2 or shifts.shape[1] != 2 or shifts.is_floating_point():
        raise ValueError(f"shifts must be [N, 2] whole numbers, rows first; got {list(shifts.shape)} {shifts.dtype}")
    sides = torch.tensor(first.shape[-2:], device="cpu")
    return shifts.cpu().clamp(-sides, sides)


def _check(first: Tensor, second: Tensor) -> None:
    for maps in (first, second):
        if not isinstance(maps, Tensor):
            raise TypeError(f"maps must be two tensors [B, H, W], got {type(maps).__name__}")
    if first.ndim != 3 or first.shape != second.shape or not first.is_floating_point():
        raise ValueError(
            f"maps must be two floating-point tensors [B, H, W] of one shape, got {list(first.shape)} and {list(second.shape)}"
        )
    if first.dtype != second.dtype or first.dtype not in {torch.float32, torch.float64}:
        # The reciprocals of half precision overflow at the values that maps have, and transforms know no half precision on a CPU.
        raise TypeError(f"maps must both be float32, or both float64, got {first.dtype} and {second.dtype}; pass maps.float()")
