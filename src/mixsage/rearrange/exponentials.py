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
        4.343657901e00,
        7.464136538e-01,
        1.329354979e01,
        3.572752892e01,
        9.470302430e01,
        2.542707842e02,
        7.070092138e02,
        2.113778695e03,
        7.277908077e03,
        3.355300144e04,
    ),
    weights=(
        5.582524917e00,
        1.956187675e00,
        1.353819413e01,
        3.481984021e01,
        9.264553211e01,
        2.544071634e02,
        7.429962803e02,
        2.430468886e03,
        9.807771980e03,
        5.974880380e04,
    ),
    error=4.481e-04,
    knee=0.01,
)
"""For the first look."""

FINE = Exponentials(
    exponents=(
        5.195039174e-02,
        4.309538956e-01,
        1.158393625e00,
        3.410598187e00,
        7.932711783e00,
        1.581666750e01,
        2.938140417e01,
        5.315128319e01,
        9.549168855e01,
        1.714313166e02,
        3.084016351e02,
        5.582629184e02,
        1.020991779e03,
        1.893336841e03,
        3.578694580e03,
        6.931288892e03,
        1.383309861e04,
        2.867789625e04,
        6.223670282e04,
        1.436436448e05,
        3.617543613e05,
        1.027303347e06,
        3.492315244e06,
        1.663381744e07,
    ),
    weights=(
        1.867870753e-01,
        4.655089324e-01,
        1.305479004e00,
        3.273565839e00,
        5.943536777e00,
        1.019513179e01,
        1.766202223e01,
        3.122853822e01,
        5.587025319e01,
        1.003907541e02,
        1.818249042e02,
        3.338251019e02,
        6.227746868e02,
        1.185358254e03,
        2.319580590e03,
        4.676788535e03,
        9.805302864e03,
        2.151714676e04,
        4.991357243e04,
        1.257237924e05,
        3.534364618e05,
        1.149957290e06,
        4.732773456e06,
        3.018493655e07,
    ),
    error=9.761e-07,
    knee=0.01,
)
"""For plateaus, and where no second look can be taken."""
