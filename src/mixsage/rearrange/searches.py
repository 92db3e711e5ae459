"""The searches that a method can be composed with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from mixsage.rearrange.blend import Blend
from mixsage.rearrange.search import check_settings, search


class Search(ABC):
    """Which rearrangements a method tries."""

    @abstractmethod
    def __call__(self, first: Tensor, second: Tensor, *, blend: Blend, generator: Generator | None) -> Tensor:
        """The shift [B, 2] of each second map."""


@dataclass(frozen=True)
class Sampled(Search):
    """A random portion of all rearrangements, drawn anew for each batch and shared by its pairs."""

    portion: float = 0.01
    """Share of the rearrangements that is tried; 1 % in all the paper's experiments."""
    engine: str = "auto"
    """Which engine looks for the best: "auto", "direct", "fourier" or "triton"."""
    max_shift: float = 1.0
    """No shift is farther than this share of the side; 1.0 leaves all (2H-1)(2W-1) rearrangements."""
    stride: int = 1
    """Shifts are multiples of so many pixels."""
    reduce: int = 1
    """Search on maps that are so many times smaller, then try every single pixel around what was found."""
    memory: float | None = None
    """MiB that the search may take beside its maps; it then works in parts that fit, with the same result."""

    def __post_init__(self) -> None:
        check_settings(self.portion, self.engine, self.max_shift, self.stride, self.reduce, self.memory)

    def __call__(self, first: Tensor, second: Tensor, *, blend: Blend, generator: Generator | None) -> Tensor:
        """The best of the sampled shifts."""
        return search(
            first,
            second,
            self.portion,
            engine=self.engine,
            generator=generator,
            blend=blend,
            max_shift=self.max_shift,
            stride=self.stride,
            reduce=self.reduce,
            memory=self.memory,
        ).shifts


@dataclass(frozen=True)
class Full(Search):
    """Every rearrangement."""

    engine: str = "auto"
    """Which engine looks for the best: "auto", "direct", "fourier" or "triton"."""
    max_shift: float = 1.0
    """No shift is farther than this share of the side."""
    stride: int = 1
    """Shifts are multiples of so many pixels."""
    reduce: int = 1
    """Search on maps that are so many times smaller, then try every single pixel around what was found."""
    memory: float | None = None
    """MiB that the search may take beside its maps; it then works in parts that fit, with the same result."""

    def __post_init__(self) -> None:
        self._sampled()

    def __call__(self, first: Tensor, second: Tensor, *, blend: Blend, generator: Generator | None) -> Tensor:
        """The best of all shifts."""
        return self._sampled()(first, second, blend=blend, generator=None)

    def _sampled(self) -> Sampled:
        return Sampled(1.0, self.engine, self.max_shift, self.stride, self.reduce, self.memory)


@dataclass(frozen=True)
class NoShift(Search):
    """No image moves: the ablation without rearrangement."""

    def __call__(self, first: Tensor, second: Tensor, *, blend: Blend, generator: Generator | None) -> Tensor:
        """Zero for every pair."""
        return torch.zeros(len(first), 2, dtype=torch.int64, device=first.device)
