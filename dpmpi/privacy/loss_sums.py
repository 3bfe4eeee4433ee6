"""Sums of privacy losses between two proven bounds: a second way to a composed epsilon, for `verify` alone.

It shares no code and no idea with the accountants of a run (closed forms, connected dots of `dp_accounting`, Renyi
divergence). A release is a pair of distributions P, Q with loss L = log dP/dQ; of n releases together

    delta(eps) = E_P (1 - e^(eps - L_1 - ... - L_n))+                                                            (1)

Each L is rounded to the nearest multiple of h, which moves it by an error in an interval of length h, and shifted so
that its mean stays. The errors are independent with mean 0, hence by Hoeffding (Gopi, Lee, Wutschitz 2021)

    |sum of the errors| <= e = h sqrt(n log(2/eta) / 2)       except with probability eta                        (2)

and with X the sum of the rounded losses, and s the probabilities left out (eta, tails, rounding of the transforms),

    delta_X(eps + e) - s <= delta(eps) <= delta_X(eps - e) + s.                                                  (3)

delta_X comes from one Fourier transform on a window that X leaves with a probability in s, by Chernoff. h is made
smaller until both ends of (3) give nearly the same epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen

MOST_POINTS = 1 << 22
"""The longest transform: half a second, 200 MB."""
MOST_EPSILON = 300.0
_CLOSE = 0.005  # the bounds are good when they differ by this fraction
_SHARE = 1e-4  # of delta, for each of the probabilities that are left out


@frozen
class Loss:
    """The loss of one release under P, `times` over: its distribution function, and where it lives."""

    cdf: Callable[[Array], Array]
    """P(L <= l), right-continuous."""
    reach: Callable[[float], float]
    """A b with P(|L| > b) <= the argument."""
    kinks: tuple[float, ...] = ()
    """Where the distribution function jumps or bends: quadrature stops there."""
    times: int = 1


@frozen
class _Grid:
    """A rounded loss: masses of k h for k = first, first + 1 ..., and what is added so that the mean stays."""

    first: int
    masses: Array
    shift: float
    times: int


def epsilon_bounds(losses: Sequence[Loss], delta: float) -> tuple[float, float]:
    """Return an epsilon that the releases reach at `delta`, and one that they keep.

    The second is infinite where it is beyond `MOST_EPSILON`, or where `delta` is too small for the transforms.
    """
    losses = [loss for loss in losses if loss.times]
    if not losses:
        return 0.0, 0.0
    n = sum(loss.times for loss in losses)
    reach = [loss.reach(_SHARE * delta / n) for loss in losses]
    h = max(reach) / 128
    best = (0.0, math.inf)
    while True:
        found = _bounds([_rounded(loss, b, h) for loss, b in zip(losses, reach, strict=True)], h, delta)
        if found is None:
            return best
        best = (max(best[0], found[0]), min(best[1], found[1]))
        if best[1] - best[0] <= max(_CLOSE * best[1], 1e-6) or max(reach) / h > MOST_POINTS / 4:
            return best
        h /= 4


def _rounded(loss: Loss, b: float, h: float) -> _Grid:
    """Return a loss within [-b, b] on multiples of h; what is outside of it goes to the ends."""
    last = math.ceil(b / h)
    edges = (np.arange(-last, last, dtype=np.float64) + 0.5) * h
    inside = np.minimum(np.maximum(loss.cdf(edges), 0.0), 1.0)
    masses = np.maximum(np.diff(np.concatenate([[0.0], inside, [1.0]])), 0.0)
    low, high = -(last + 0.5) * h, (last + 0.5) * h
    mean = high - _integral(loss.cdf, low, high, [k for k in loss.kinks if low < k < high])  # by parts
    return _Grid(-last, masses, mean - float(np.sum(masses * np.arange(-last, last + 1))) * h, loss.times)


def _integral(f: Callable[[Array], Array], low: float, high: float, kinks: Sequence[float]) -> float:
    """Return the integral of f, by Gauss-Legendre on panels that end at the kinks."""
    x, w = np.polynomial.legendre.leggauss(24)
    ends = np.unique(np.concatenate([[low, high, 0.0], kinks]))
    parts = [np.linspace(a, b, 64) for a, b in pairwise(ends)]
    total = 0.0
    for part in parts:
        middle, half = (part[1:] + part[:-1]) / 2, (part[1:] - part[:-1]) / 2
        nodes = middle[:, None] + half[:, None] * x
        total += float(half @ (np.asarray(f(nodes.ravel())).reshape(nodes.shape) @ w))
    return total


def _bounds(parts: Sequence[_Grid], h: float, delta: float) -> tuple[float, float] | None:
    """Return the bounds (3) of epsilon for rounded losses; None if the transform would be too long."""
    n, spare = sum(part.times for part in parts), _SHARE * delta
    low, high = _edge(parts, h, spare, -1), _edge(parts, h, spare, +1)
    size = 1 << max(6, math.ceil(math.log2((high - low) / h + 2)))
    if size > MOST_POINTS:
        return None
    spectrum = np.ones(size // 2 + 1, complex)
    for part in parts:
        places = np.arange(part.first, part.first + len(part.masses)) % size
        spectrum *= np.fft.rfft(np.bincount(places, part.masses, size)) ** part.times
    masses = np.maximum(np.asarray(np.fft.irfft(spectrum, size), np.float64), 0.0)
    start = math.floor(low / h)
    masses = np.roll(masses, -(start % size))
    values = np.arange(start, start + size, dtype=np.float64) * h + math.fsum(part.shift * part.times for part in parts)
    error = 0.0 if n == 0 else h * math.sqrt(n * math.log(2 / spare) / 2)  # (2)
    slack = 4 * spare + size * 1e-17 + n * 1e-15  # eta, the ends of each loss, two tails; rounding of the transforms
    if slack >= delta:
        return 0.0, math.inf
    least, most = _inverse(values, masses, delta + slack) - error, _inverse(values, masses, delta - slack) + error
    return max(0.0, least), most if most < MOST_EPSILON else math.inf


def _edge(parts: Sequence[_Grid], h: float, spare: float, side: int) -> float:
    """Return a Chernoff bound on this side of the sum of the grid losses, which fails with probability `spare`."""
    best = math.inf
    widest = max(max(-part.first, 1) for part in parts) * h
    found = [np.flatnonzero(part.masses) for part in parts]
    for rate in np.geomspace(1e-3, 1e4, 57) / widest:
        total = 0.0
        for part, places in zip(parts, found, strict=True):
            points = side * rate * h * (part.first + places)
            top = float(points.max())
            total += part.times * (top + math.log(float(np.sum(part.masses[places] * np.exp(points - top)))))
        best = min(best, (total - math.log(spare)) / rate)
    return side * best


def _inverse(values: Array, masses: Array, delta: float) -> float:
    """Return the smallest eps >= 0 whose delta (1) is at most `delta`."""
    kept = values > 0
    v, p = values[kept], masses[kept]
    tail, weighted = np.cumsum(p[::-1])[::-1], np.cumsum((p * np.exp(-v))[::-1])[::-1]  # over this value and above
    with np.errstate(over="ignore", invalid="ignore"):
        at = tail - np.exp(np.minimum(v, 700.0)) * weighted  # delta at eps = each value
    above = np.flatnonzero(at > delta)
    first = 0 if len(above) == 0 else int(above[-1]) + 1
    if first >= len(v):
        return float(v[-1]) if len(v) else 0.0
    if tail[first] <= delta or weighted[first] <= 0:
        return float(v[first - 1]) if first else 0.0
    return max(0.0, math.log((tail[first] - delta) / weighted[first]))
