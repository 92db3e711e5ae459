"""The search for the shift that keeps most saliency, and the searches that a method can be composed with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from mixsage.errors import unknown_name
from mixsage.rearrange import direct
from mixsage.rearrange.blend import Blend, Engine, Guided
from mixsage.rearrange.shifts import all_shifts, sample_shifts

ENGINES: dict[str, Engine] = {"direct": direct.total_saliency}
"""Engines by name; "auto" chooses among them."""


class Found(NamedTuple):
    """The best shift of each pair, and what it keeps."""

    shifts: Tensor
    """[B, 2] int64, rows first."""
    values: Tensor
    """[B] total saliency under that shift."""


def total_saliency(first: Tensor, second: Tensor, shifts: Tensor, *, engine: str = "auto", blend: Blend | None = None) -> Tensor:
    """How much saliency each rearrangement keeps: v [B, N].

    Args:
        first: [B, H, W] maps of the images that stay, already normalised and rescaled.
        second: [B, H, W] maps of the images that move.
        shifts: [N, 2] int64, rows first; on the CPU (others are copied there). Nothing remains of a map shifted by a whole side or more.
        engine: "auto" or one of `ENGINES`.
        blend: how the two show through each other; `Guided` if left out.

    Example:
        >>> first, second = torch.eye(2)[None] / 2, torch.eye(2)[None] / 2
        >>> total_saliency(first, second, torch.tensor([[0, 0], [0, 1], [1, 1]]))
        tensor([[1.0000, 1.5000, 1.0000]])
    """
    _check(first, second)
    if shifts.ndim != 2 or shifts.shape[1] != 2 or shifts.is_floating_point():
        raise ValueError(f"shifts must be [N, 2] whole numbers, rows first; got {list(shifts.shape)} {shifts.dtype}")
    # From a shift by a whole side on, nothing of the second remains: farther ones are worth the same.
    sides = torch.tensor(first.shape[-2:])
    shifts = shifts.cpu().clamp(-sides, sides)
    with torch.no_grad():
        return (blend or Guided()).total_saliency(first, second, shifts, _engine(engine))


def best_of(first: Tensor, second: Tensor, shifts: Tensor, *, engine: str = "auto", blend: Blend | None = None) -> Found:
    """The best of the given shifts for each pair; the earliest where several keep the same."""
    shifts = shifts.cpu()
    values, place = total_saliency(first, second, shifts, engine=engine, blend=blend).max(dim=1)
    return Found(shifts.to(place.device, non_blocking=True)[place], values)


def search(
    first: Tensor,
    second: Tensor,
    portion: float = 0.01,
    *,
    engine: str = "auto",
    generator: Generator | None = None,
    blend: Blend | None = None,
) -> Found:
    """The shift of ``second`` that keeps most saliency, among a random portion of all rearrangements, shared by the pairs.

    Args:
        first: [B, H, W] maps of the images that stay, already normalised and rescaled.
        second: [B, H, W] maps of the images that move.
        portion: share of the (2H-1)(2W-1) rearrangements that is tried; 1.0 tries all.
        engine: "auto" or one of `ENGINES`.
        generator: where the random subset comes from; torch's default CPU generator if left out.
        blend: how the two show through each other; `Guided` if left out.

    Example:
        >>> maps = torch.rand(8, 32, 32)
        >>> shifts, values = search(maps, maps.flip(0), portion=0.01)
        >>> shifts.shape, values.shape
        (torch.Size([8, 2]), torch.Size([8]))
    """
    _check(first, second)
    _check_portion(portion)
    shifts = sample_shifts(first.shape[-2], first.shape[-1], portion, generator)
    return best_of(first, second, shifts, engine=engine, blend=blend)


class Search(ABC):
    """Which rearrangements a method tries."""

    @abstractmethod
    def __call__(self, first: Tensor, second: Tensor, *, blend: Blend, generator: Generator | None) -> Tensor:
        """The shift [B, 2] of each second map."""


@dataclass(frozen=True)
class Sampled(Search):
    """A random portion of all rearrangements, drawn anew for each batch and shared by its pairs."""

    portion: float = 0.01
    """Share of the (2H-1)(2W-1) rearrangements that is tried; 1 % in all the paper's experiments."""
    engine: str = "auto"
    """Which engine computes the values."""

    def __post_init__(self) -> None:
        _check_portion(self.portion)
        _check_engine(self.engine)

    def __call__(self, first: Tensor, second: Tensor, *, blend: Blend, generator: Generator | None) -> Tensor:
        """The best of the sampled shifts."""
        return search(first, second, self.portion, engine=self.engine, generator=generator, blend=blend).shifts


@dataclass(frozen=True)
class Full(Search):
    """Every rearrangement."""

    engine: str = "auto"
    """Which engine computes the values."""

    def __post_init__(self) -> None:
        _check_engine(self.engine)

    def __call__(self, first: Tensor, second: Tensor, *, blend: Blend, generator: Generator | None) -> Tensor:
        """The best of all shifts."""
        return best_of(first, second, all_shifts(first.shape[-2], first.shape[-1]), engine=self.engine, blend=blend).shifts


@dataclass(frozen=True)
class NoShift(Search):
    """No image moves: the ablation without rearrangement."""

    def __call__(self, first: Tensor, second: Tensor, *, blend: Blend, generator: Generator | None) -> Tensor:
        """Zero for every pair."""
        return torch.zeros(len(first), 2, dtype=torch.int64, device=first.device)


def _engine(name: str) -> Engine:
    _check_engine(name)
    return direct.total_saliency if name == "auto" else ENGINES[name]


def _check_engine(name: str) -> None:
    if name != "auto" and name not in ENGINES:
        raise ValueError(unknown_name("engine", name, ["auto", *ENGINES]))


def _check_portion(portion: float) -> None:
    if not 0 < portion <= 1:
        raise ValueError(
            f"portion must lie in (0, 1], got {portion}; 0.01 tries one per cent of all rearrangements, 1.0 all of them"
        )


def _check(first: Tensor, second: Tensor) -> None:
    if first.ndim != 3 or first.shape != second.shape or not first.is_floating_point():
        raise ValueError(
            f"maps must be two floating-point tensors [B, H, W] of one shape, got {list(first.shape)} and {list(second.shape)}"
        )
