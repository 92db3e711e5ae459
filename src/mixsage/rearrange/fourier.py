"""The fourier engine: all rearrangements at once.

v(τ) = Σ a + Σ_overlap b - 2·H(τ) with H = Σ_overlap ab/(a+b). With X = max a + max b and 1/x ≈ Σ_k w_k e^(-t_k x) on (0, 1],

    H(τ) ≈ (1/X)·Σ_k w_k Σ_p [a e^(-t_k a/X)](p) · [b e^(-t_k b/X)](p - τ),

a sum of K cross-correlations, so that all (2H-1)(2W-1) values cost K products of spectra and one transform back. Of the maps that are
transformed, each is divided by its own maximum first, so that their scale (λ = 1e-12, denormal numbers) does not matter.

The error bound. Let ε and c be the error and the knee of the exponential sum (`Exponentials`), u the unit roundoff.

1. The sum. A pixel's error is ab/(a+b)·|1 - x·Σ w e^(-tx)| at x = (a+b)/X, at most h·ε(1 + c/x) with h = ab/(a+b). The first part sums to
   εH(τ). The second, εcX·ab/(a+b)², is at most εcX/4; and it cannot exceed min(a, εcX), nor min(b, εcX). So over the picture it is at most
   s = min(εcX·HW/4, Σ min(a, εcX), Σ min(b, εcX)). Pixels where either map is zero have no error at all.
2. Forming the terms: e^(-ta) has the relative error (1 + ta)u, and Σ_k w_k t_k x² e^(-t_k x), which is what that adds up to, stays below 1.5;
   with the products around it below 8u·h in all. ε is enlarged by 8u. That no exponent goes below -60 adds at most e^-60·Σ_k w_k < 2e-18 of h,
   which is in the slack of the 8.
3. The transforms. Each has a relative error in the 2-norm of at most 6.7·log2(L)·u for L points (Higham, Accuracy and Stability of Numerical
   Algorithms, theorem 24.2), and by Cauchy and Schwarz errors of two spectra cost at most that much of ‖a_k‖‖b_k‖ at any shift; there are
   three transforms, and the products and their sum add less than the slack in 6.7: r = 20·log2(L)·u·(1/X)·Σ_k w_k ‖a_k‖‖b_k‖.
4. The sums outside H are formed in double precision, rounded to the type of the maps, and H is taken from them there: 4u·(Σa + Σb).

With g = s + r, |H̃ - H| ≤ εH + g, hence (H̃ - g)/(1 + ε) ≤ H ≤ (H̃ + g)/(1 - ε), and H ≥ 0: an interval for every v(τ). No shift whose upper end lies below the
highest lower end can be the best; the others are rescored exactly (`direct.at`). A plateau may leave very many. Then a finer sum in double
precision narrows the intervals, and once they are narrower than 1e-6 of v altogether, the earliest `PLATEAU` of the plateau are enough.

That needs a look at the values, which would make the host wait for a device. On other devices than the CPU the finer sum is used at once, in
the maps' own type, and a fixed number of shifts, the `TOP` highest, is rescored: the value returned is exact, and the shift is the best
wherever no more than that lie within the interval of the best; otherwise it keeps at most the width of the interval less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mixsage.rearrange import direct
from mixsage.rearrange.exponentials import COARSE, FINE, Exponentials
from mixsage.rearrange.shifts import overlap_grid, wide

PLATEAU = 256
"""So many shifts of a pair are rescored before a finer sum is tried."""
TOP = 16
"""So many shifts of a pair are rescored where the host must not look at values."""
_GOOD = (1, 3, 5, 7, 9, 15)
_RESCORED_PIXELS = 2**18
"""So many pixels are rescored at a time on a CPU, to stay in its cache."""
_RESCORED_AT_A_TIME = 4
"""So many shifts of every pair are rescored at a time on a device: its launches do not grow with the batch then, and no more memory is taken
than the surface has just given back.
"""
_VANISHED = 60.0
"""e^-x stays at this x: beyond, it leaves the range of normal numbers, where processors and libraries are some ten times slower."""


@dataclass(frozen=True, eq=False)
class Surface:
    """What is known of v at the shifts of a list."""

    lower: Tensor
    """[B, N] v is at least this."""
    upper: Tensor
    """[B, N] v is at most this."""


def total_saliency(first: Tensor, second: Tensor, shifts: Tensor) -> Tensor:
    """v [B, N] within the bound of the finer sum, from all rearrangements at once."""
    found = (surface(*maps, shifts, FINE) for maps in _widened(first, second))
    return torch.cat([each.lower.add_(each.upper).div_(2).to(first.dtype) for each in found])


def best(first: Tensor, second: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """The place [B] of each pair's best shift in the list, and its exact v [B]."""
    return _best_within_bounds(first, second, shifts) if first.device.type == "cpu" else best_of_top(first, second, shifts)


def bytes_per_pair(height: int, width: int, count: int, itemsize: int) -> int:
    """Three spectra of the padded maps, the terms, the surface and its two ends."""
    spectrum = _good_size(2 * height) * (_good_size(2 * width) // 2 + 1) * 2 * itemsize
    return 4 * spectrum + 6 * height * width * itemsize + (2 * height) * (2 * width) * 16 + count * (3 * itemsize + 1)


def work(height: int, width: int, shifts: Tensor) -> tuple[int, int]:
    """Points of a transform for these shifts, and how many transforms a pair takes at first."""
    reach = _reach(height, width, shifts)
    return _good_size(height + reach[0]) * _good_size(width + reach[1]), 2 * len(COARSE.exponents) + 1


def surface(first: Tensor, second: Tensor, shifts: Tensor, terms: Exponentials) -> Surface:
    """Bounds of v at every shift of the list, in the type of the maps."""
    reach = _reach(first.shape[1], first.shape[2], shifts)
    shared, slack = _correlate(first, second, reach, terms)
    rows, columns = (torch.arange(-far, far + 1, device=first.device) for far in reach)
    kept = overlap_grid(second, rows, columns) + first.sum(dim=(1, 2), dtype=wide(first.device))[:, None, None]
    kept, shared = (_pick(values, shifts, reach) for values in (kept.to(first.dtype), shared))
    gone = (shifts.abs() > torch.tensor(reach, device="cpu")).any(dim=1)
    if gone.any():  # nothing of the second map is left; the shifts lie on the host, so that this waits for nothing
        gone = gone.to(first.device, non_blocking=True)
        kept = torch.where(gone, first.sum(dim=(1, 2))[:, None], kept)
        shared = shared.masked_fill(gone, 0)
    unit = _roundoff(first.dtype)
    error, slack = terms.error + 8 * unit, slack[:, None]
    rounding = 4 * unit * (first + second).sum(dim=(1, 2))[:, None]
    return Surface(
        lower=torch.sub(kept - rounding, (shared + slack).clamp_(min=0), alpha=2 / (1 - error)),
        upper=torch.sub(kept + rounding, (shared - slack).clamp_(min=0), alpha=2 / (1 + error)),
    )


def _reach(height: int, width: int, shifts: Tensor) -> list[int]:
    """The farthest shift of each axis that leaves something to see."""
    return [min(size - 1, int(axis.abs().max())) for axis, size in zip(shifts.unbind(-1), (height, width), strict=True)]


def _correlate(first: Tensor, second: Tensor, reach: list[int], terms: Exponentials) -> tuple[Tensor, Tensor]:
    """H̃ [B, 2I+1, 2J+1] at every shift within reach, and g [B] of its error bound."""
    batch, height, width = first.shape
    (down, right), unit = reach, _roundoff(first.dtype)
    size = (_good_size(height + down), _good_size(width + right))
    # The second map turned about, a correlation is a convolution; and both go through each step in one tensor.
    maps = torch.cat([first, second.flip(1, 2)])
    peaks = maps.amax(dim=(1, 2), keepdim=True)
    total = peaks[:batch] + peaks[batch:]
    shares = maps / peaks.clamp_min(torch.finfo(maps.dtype).tiny)
    places = maps / total.repeat(2, 1, 1).clamp_min(torch.finfo(maps.dtype).tiny)
    spectrum, norms = None, first.new_zeros(batch)
    term = torch.empty_like(maps)
    for exponent, weight in zip(terms.exponents, terms.weights, strict=True):
        torch.mul(places, -exponent, out=term)
        if exponent > _VANISHED:
            term.clamp_min_(-_VANISHED)
        term.exp_().mul_(shares)
        lengths = torch.linalg.vector_norm(term.flatten(1), dim=1)
        norms.add_(lengths[:batch] * lengths[batch:], alpha=weight)
        one, other = torch.split(torch.fft.rfft2(term, s=size), batch)
        one.mul_(weight)
        spectrum = one.mul_(other) if spectrum is None else spectrum.addcmul_(one, other)
    assert spectrum is not None
    sums = torch.fft.irfft2(spectrum, s=size)
    rows, columns = slice(height - 1 - down, height + down), slice(width - 1 - right, width + right)
    # max a · max b / X, without leaving the range of the type on the way.
    scale = (peaks[:batch].reciprocal() + peaks[batch:].reciprocal()).reciprocal()
    small = terms.error * terms.knee * total
    missed = torch.minimum(maps, small.repeat(2, 1, 1)).sum(dim=(1, 2))
    slack = torch.minimum(missed[:batch], missed[batch:]).minimum(small[:, 0, 0] * (height * width / 4))
    slack = slack + 20 * math.log2(size[0] * size[1]) * unit * norms * scale[:, 0, 0]
    return sums[:, rows, columns] * scale, slack


def _pick(values: Tensor, shifts: Tensor, reach: list[int]) -> Tensor:
    """The values [B, N] at the shifts, of a grid [B, 2I+1, 2J+1] of them."""
    far = torch.tensor(reach, device="cpu")
    place = (shifts.clamp(-far, far) + far) @ torch.tensor([2 * reach[1] + 1, 1], device="cpu")
    flat = values.flatten(1)
    if torch.equal(place, torch.arange(flat.shape[1], device="cpu")):
        return flat
    return flat.index_select(1, place.to(values.device, non_blocking=True))


def _best_within_bounds(first: Tensor, second: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    possible = _possible(surface(first, second, shifts, COARSE))
    count = possible.sum(dim=1)
    # Of maps that hold NaN nothing is known: as with the direct engine, the first shift stands for all, and its value says it.
    possible[:, 0] |= count == 0
    crowded = (count > PLATEAU).nonzero()[:, 0]
    if len(crowded):
        possible[crowded] = torch.cat([_thin(*maps, shifts) for maps in _widened(first[crowded], second[crowded])])
    pair, place = possible.nonzero().unbind(1)
    values = _rescore(first, second, pair, shifts[place])
    highest = values.new_full((len(first),), -torch.inf).scatter_reduce(0, pair, values, "amax")
    earliest = place.masked_fill(values < highest[pair], len(shifts))
    return torch.full((len(first),), len(shifts), device="cpu").scatter_reduce(0, pair, earliest, "amin"), highest


def _widened(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs in double precision, where each takes twice the memory: half of them at a time, to stay within what `bytes_per_pair` says."""
    half = max(1, math.ceil(len(first) * first.element_size() / wide(first.device).itemsize))
    for one, other in zip(torch.split(first, half), torch.split(second, half), strict=True):
        yield one.to(wide(one.device)), other.to(wide(other.device))


def _thin(first: Tensor, second: Tensor, shifts: Tensor) -> Tensor:
    """Which shifts [B, N] of crowded pairs to rescore: those that a finer sum leaves, and of a true plateau the first."""
    found = surface(first, second, shifts, FINE)
    possible = _possible(found)
    narrow = ((found.upper - found.lower) * possible).amax(dim=1) <= 4.5e-7 * found.lower.amax(dim=1).abs()
    enough = possible.cumsum(dim=1) <= PLATEAU
    return possible & (enough | ~narrow[:, None])


def _possible(found: Surface) -> Tensor:
    return found.upper >= found.lower.amax(dim=1, keepdim=True)


def best_of_top(first: Tensor, second: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """As `best`, with sizes that are known beforehand: nothing waits for the device."""
    count = min(TOP, len(shifts))
    places = surface(first, second, shifts, FINE).upper.topk(count, dim=1).indices
    pair = torch.arange(len(first), device=first.device).repeat_interleave(count)
    offsets = shifts.to(first.device, non_blocking=True)[places.flatten()]
    values = _rescore(first, second, pair, offsets, part=_RESCORED_AT_A_TIME * len(first)).view(-1, count)
    highest = values.amax(dim=1)
    return places.masked_fill(values < highest[:, None], len(shifts)).amin(dim=1), highest


def _rescore(first: Tensor, second: Tensor, pair: Tensor, offsets: Tensor, part: int | None = None) -> Tensor:
    """Exact v of these pairs, each under its shift; so many at a time, as each holds a copy of its maps."""
    part = part or max(1, _RESCORED_PIXELS // first[0].numel())
    parts = zip(torch.split(pair, part), torch.split(offsets, part), strict=True)
    return torch.cat([direct.at(first[rows], second[rows], moves) for rows, moves in parts])


def _good_size(least: int) -> int:
    """The least size with small factors, which transforms are quick on."""
    return min(factor << max(0, math.ceil(math.log2(least / factor))) for factor in _GOOD)


def _roundoff(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2
