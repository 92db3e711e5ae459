"""The exponential sums of the fourier engine: Σ w·e^(-t·x) that stays close to 1/x on (0, 1].

python tools/fit_exponentials.py

Prints the constants of `mixsage.rearrange.exponentials`. What is made small is the largest |1 - x·Σ w·e^(-t·x)| / (1 + c/x): relative error
where the maps are large, and ever less care below c, where the maps have little to keep. Lawson's method: least squares again and again, each
time with more weight where the error was large.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Array = NDArray[np.float64]
SUMS = {"COARSE": (range(8, 9), 3e-2, 7e-4), "FINE": (range(24, 29), 1e-2, 1e-7)}
"""Name → numbers of terms, each fit starting from the one before; c; and about the error that is expected, which says how far down it reaches."""


def error(parameters: Array, x: Array, knee: float) -> Array:
    """The weighed relative error at every x."""
    exponents, weights = np.exp(np.clip(parameters, -50, 60)).reshape(2, -1)
    return (1 - x * (np.exp(-np.outer(x, exponents)) @ weights)) / (1 + knee / x)


def slope(parameters: Array, x: Array, knee: float) -> Array:
    """Derivatives of `error` by the logarithms of exponents and weights."""
    exponents, weights = np.exp(np.clip(parameters, -50, 60)).reshape(2, -1)
    terms = np.exp(-np.outer(x, exponents)) * weights * (x / (1 + knee / x))[:, None]
    return np.concatenate([terms * np.outer(x, exponents), -terms], axis=1)


def fit(terms: range, knee: float, expected: float) -> Array:
    """Logarithms of exponents, then of weights."""
    x = np.exp(np.linspace(np.log(expected * knee) - 3, 0, 5000))
    exponents = np.linspace(np.log(0.15), np.log(2 / (expected * knee)), terms[0])
    weights = exponents + np.log(exponents[1] - exponents[0])
    for count in terms:
        exponents, weights = refine(*stretched(exponents, weights, count), x, knee)
    return np.concatenate([exponents, weights])


def stretched(exponents: Array, weights: Array, count: int) -> tuple[Array, Array]:
    """As many terms as are asked for along the same line, which reaches a little farther up where there are more."""
    if count == len(exponents):
        return exponents, weights
    places, known = np.linspace(0, len(exponents) - 0.4, count), np.arange(len(exponents) + 1)
    longer = [np.append(values, 2 * values[-1] - values[-2]) for values in (exponents, weights)]
    return np.interp(places, known, longer[0]), np.interp(places, known, longer[1]) + np.log(len(exponents) / count)


def refine(exponents: Array, weights: Array, x: Array, knee: float, rounds: int = 30) -> tuple[Array, Array]:
    """Lawson's rounds; the best of them, in rising order."""
    parameters = np.concatenate([exponents, weights])
    best, best_error, importance = parameters, np.inf, np.ones_like(x)
    for _ in range(rounds):
        scale, root = np.abs(error(parameters, x, knee)).max(), np.sqrt(importance)
        parameters = least_squares(
            lambda p, root=root, scale=scale: root * error(p, x, knee) / scale,
            parameters,
            lambda p, root=root, scale=scale: root[:, None] * slope(p, x, knee) / scale,
            method="lm",
            max_nfev=60,
            xtol=1e-15,
            ftol=1e-13,
            gtol=1e-15,
        ).x
        size = np.abs(error(parameters, x, knee))
        if size.max() < best_error:
            best, best_error = parameters.copy(), size.max()
        importance *= size / size.max() + 1e-3
        importance /= importance.mean()
    exponents, weights = best.reshape(2, -1)
    order = exponents.argsort()
    return exponents[order], weights[order]


def main() -> None:
    for name, (terms, knee, expected) in SUMS.items():
        parameters = fit(terms, knee, expected)
        # Errors are smooth in log x: between points 1e-4 apart they exceed those at the points by less than 1 in 10^4 of themselves.
        dense = np.exp(np.arange(np.log(1e-16), 1e-4, 1e-4).clip(max=0))
        worst = 1.001 * np.abs(error(parameters, dense, knee)).max()
        exponents, weights = np.exp(parameters).reshape(2, -1)
        print(f"{name} = Exponentials(")
        for field, values in (("exponents", exponents), ("weights", weights)):
            print(f"    {field}=({', '.join(f'{value:.9e}' for value in values)}),")
        print(f"    error={worst:.3e},\n    knee={knee},\n)")


if __name__ == "__main__":
    main()
