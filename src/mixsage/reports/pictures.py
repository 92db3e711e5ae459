"""What the figures draw, as plain arrays: filled by `mixsage.evaluation.explain`, or by anyone who has such arrays.

Pictures are [H, W, 3] (or [H, W, 1] in grey), with values between 0 and 1; maps and masks are [H, W].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
"""Any array of real numbers."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Mix:
    """One mixed picture, and how it came about."""

    picture: Array
    """[H, W, 3] the mix."""
    names: tuple[str, ...]
    """Names of the classes that went in, the image's own first."""
    shares: tuple[float, ...]
    """Their shares of the label."""
    mask: Array
    """[H, W] the share of the image itself at each pixel."""
    offset: tuple[int, int] | None = None
    """How far the partner was moved, rows first; None where nothing moves."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Pair:
    """An image, its partner, and what each method makes of them."""

    image: Array
    """[H, W, 3] the image itself."""
    partner: Array
    """[H, W, 3] the image that is mixed into it."""
    names: tuple[str, str]
    """Class names of the image and of the partner."""
    saliency: tuple[Array, Array] | None
    """[H, W] maps of both, smoothed and normalised; None where no model was looked at."""
    mixes: dict[str, Mix]
    """The mix of each method, by the method's name for people."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrangement:
    """One way to lay the partner over the image, and the saliency that it keeps."""

    value: float
    """Total saliency v(τ)."""
    mix: Mix
    """What comes of it; its offset is τ."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Story:
    """How SAGE mixes one pair, step by step."""

    image: Array
    """[H, W, 3] the image itself."""
    partner: Array
    """[H, W, 3] the image that is mixed into it."""
    names: tuple[str, str]
    """Class names of the image and of the partner."""
    saliency: tuple[Array, Array]
    """[H, W] maps of both, smoothed, each summing to 1."""
    share: float
    """The share λ that scales the image's saliency; the partner's has the rest."""
    surface: Array
    """[2H-1, 2W-1] total saliency of every rearrangement; no shift stands in the middle."""
    tried: Array
    """[N, 2] the offsets that were tried, rows first."""
    best: Arrangement
    """The best of those that were tried."""
    others: tuple[Arrangement, ...]
    """Others, for comparison."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """Numbers over the course of training, of several runs of one arm."""

    arm: str
    """The arm."""
    epochs: tuple[int, ...]
    """The epochs."""
    values: Array
    """[runs, epochs]."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """An arm in a plane, with the half widths of its intervals where there are some."""

    arm: str
    """The arm."""
    x: float
    """Where it stands."""
    y: float
    """Where it stands."""
    x_error: float | None = None
    """Half the width of the interval."""
    y_error: float | None = None
    """Half the width of the interval."""
