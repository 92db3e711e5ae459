"""1/x as a short sum of exponentials, which turns Σ ab/(a+b) into correlations.

For 0 < x ≤ 1, |1 - x·Σ w·e^(-t·x)| ≤ error·(1 + knee/x). The constants come from tools/fit_exponentials.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exponentials:
    """One such sum."""

    exponents: tuple[float, ...]
    """t, from slow to fast."""
    weights: tuple[float, ...]
    """w, in the same order."""
    error: float
    """The relative error where x is well above the knee."""
    knee: float
    """Where care for small x ends: the relative error may grow as knee/x below it."""


COARSE = Exponentials(
    exponents=(
        8.067688661e-01,
        4.758007616e00,
        1.501291053e01,
        4.273151451e01,
        1.234579657e02,
        3.790394709e02,
        1.326374204e03,
        6.032015145e03,
    ),
    weights=(
        2.120237639e00,
        6.211916933e00,
        1.593012236e01,
        4.470356776e01,
        1.336044445e02,
        4.448360664e02,
        1.791236366e03,
        1.066984095e04,
    ),
    error=8.327e-04,
    knee=0.03,
)
"""For the first look."""

FINE = Exponentials(
    exponents=(
        1.120644137e-01,
        3.815657869e-01,
        9.961061822e-01,
        2.989405691e00,
        7.091452000e00,
        1.405200841e01,
        2.549366511e01,
        4.448396232e01,
        7.642822406e01,
        1.305104019e02,
        2.222761288e02,
        3.783212176e02,
        6.447152556e02,
        1.102281463e03,
        1.895390103e03,
        3.289471321e03,
        5.791135484e03,
        1.040302812e04,
        1.917499123e04,
        3.645133666e04,
        7.186639950e04,
        1.480040599e05,
        3.214216697e05,
        7.456641479e05,
        1.883252404e06,
        5.341310895e06,
        1.804623790e07,
        8.385056810e07,
    ),
    weights=(
        1.865436068e-01,
        4.157210316e-01,
        1.069926860e00,
        2.976801117e00,
        5.347567952e00,
        8.834327570e00,
        1.454583030e01,
        2.431311425e01,
        4.106518305e01,
        6.961556717e01,
        1.182148793e02,
        2.013129373e02,
        3.444981159e02,
        5.938115984e02,
        1.034798045e03,
        1.833887406e03,
        3.328177916e03,
        6.218585623e03,
        1.200522452e04,
        2.404217920e04,
        5.025405357e04,
        1.105821951e05,
        2.590614531e05,
        6.562776234e05,
        1.841417301e06,
        5.962587601e06,
        2.417986623e07,
        1.515946400e08,
    ),
    error=1.771e-07,
    knee=0.01,
)
"""For plateaus, and where no second look can be taken."""
