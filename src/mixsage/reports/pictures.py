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
