"""Noise that cancels between neighbours, and what it hides a rank behind.

On a graph whose edges are pairs of ranks with a common secret, rank i releases

    r_i = g_i + sigma nu_i + kappa sigma sum_{j ~ i} s_ij v_ij,     s_ij = -s_ji = +-1,   v_ij = v_ji          (1)

with nu_i its own standard normals and v_ij normals that i and j draw from their secret. In the mean over the ranks the
v_ij cancel: its noise is sigma / sqrt(n). Somebody who sees all r_i and has the secrets of the ranks in C knows the
v_ij with an end in C and the vectors of C. What is left of the others, H, is jointly Gaussian with covariance

    sigma^2 (I + kappa^2 L_H)                                                                                   (2)

L_H the Laplacian of the graph on H. A record of rank u moves g_u alone, so that for a release of sensitivity D

    mu(u, C) = D / sigma_eff,     sigma_eff = gain(u, C) sigma,     gain(u, C)^-2 = [ (I + kappa^2 L_H)^-1 ]_uu  (3)

in Gaussian DP, exactly. Rounds compose as usual: all of a round is seen, and the next one depends on it. Batches that
are drawn at random change g_u alone too, so that sampled Gaussian accounting applies with sigma_eff. Noise is
calibrated to the worst u and C, |C| = c; fewer colluders are no worse:

    Removing an edge of H lowers L_H (in the order of quadratic forms), hence raises (I + kappa^2 L_H)^-1 and its
    diagonal; adding a rank to C removes its edges, and what it leaves does not depend on it.                     (4)

By (4) with all edges removed but those of u, of which at least d_u - c stay, a star,

    gain(u, C)^2 >= 1 + (d_u - c) kappa^2 / (1 + kappa^2)                                                        (5)

which serves where there are too many sets C to try.

The v_ij are drawn as discrete Gaussians on a grid gamma = 2^(floor(log2 sigma) - 30), and g_i is rounded to it first,
so that sums of them are exact and the same on every machine. Rounding moves two values apart by 2 sqrt(m) gamma at
most, as in (5) of `SumMechanism`: that is added to D. A discrete Gaussian of kappa sigma / gamma steps plus the
continuous sigma nu_i of 2^30 steps at least has the density of (2) up to a factor 1 +- exp(-2 pi^2 r^2) for each
coordinate, r the deviation in steps of what is drawn on the grid given the sum. In rounds whose noise is s times that
of the first, on the same grid,

    r >= 2^30 s / sqrt(1/kappa^2 + 2 d)                                                                         (6)

by (2). `steps` computes it, and runs in which it is below `LEAST_STEPS` are refused: at 64 steps the factor is off by
less than 2^-1000, which is never seen.

[AKGS] Allouah, Koloskova, El Firdoussi, Jaggi, Guerraoui. The privacy power of correlated noise in decentralized
learning. ICML 2024: (1), with Renyi accounting; (3) is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import ClassVar

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.privacy.mechanisms import NoiseMechanism, Pricing
from dpmpi.privacy.samplers import GaussianNoise, discrete_gaussian
from dpmpi.rng import PrivateStream

GRID_BITS = 30
MOST_SETS = 20_000
"""Sets of colluders that are tried one by one."""
_ROUNDING = 1e-9
"""What the computed inverse may be off by at least, relatively; see `_rounding`."""
LARGEST_DEGREE = 1000
LEAST_STEPS = 64.0
"""Of (6)."""


@frozen
class Gain:
    """How much more noise than its own a rank hides behind, at least, and how that was found."""

    value: float
    exact: bool
    """Whether every set of colluders was tried; else (5)."""


@lru_cache(maxsize=64)
def worst_gain(edges: tuple[tuple[int, int], ...], size: int, kappa: float, colluders: int) -> Gain:
    """Return the least gain of (3) over all ranks and all sets of `colluders` others."""
    degrees = np.zeros(size, np.int64)
    for i, j in edges:
        degrees[i] += 1
        degrees[j] += 1
    c, slack = min(colluders, size - 1), _rounding(size, kappa, int(degrees.max(initial=0)))
    if 2 * len(edges) == size * (size - 1):  # all pairs: no set differs from another
        return Gain(1.0 / math.sqrt(float(_hidden(edges, size, kappa, range(c))[0]) * (1.0 + slack)), exact=True)
    if math.comb(size, c) > MOST_SETS or size > 400:
        left = max(0, int(degrees.min()) - c)
        return Gain(math.sqrt(1.0 + left * kappa**2 / (1.0 + kappa**2)) * (1.0 - _ROUNDING), exact=False)  # (5)
    worst = max(float(_hidden(edges, size, kappa, known).max()) for known in combinations(range(size), c))
    return Gain(1.0 / math.sqrt(worst * (1.0 + slack)), exact=True)


def _rounding(size: int, kappa: float, degree: int) -> float:
    """Return what the computed diagonal of (3) may be off by, relatively.

    Elimination in a symmetric matrix A of n rows, its diagonal not less than the sum of the rest of a row, leaves
    |A X - 1| <= 3 n 2^-52 |A| max |X|, whose norm is 1 + 2 kappa^2 d. A^-1 has no negative entries and rows of sum 1,
    so that X is off by as much, and its largest entries are on the diagonal.
    """
    return max(_ROUNDING, 4.0 * size * 2.0**-52 * (1.0 + 2.0 * kappa**2 * degree))


def _hidden(edges: Iterable[tuple[int, int]], size: int, kappa: float, known: Sequence[int]) -> Array:
    """Return the diagonal of (I + kappa^2 L_H)^-1 for these colluders."""
    diagonal: Array = np.diag(_inverse(edges, size, kappa, known))
    return diagonal


def worst_colluders(edges: Sequence[tuple[int, int]], size: int, kappa: float, colluders: int) -> tuple[int, ...]:
    """Return the colluders who leave rank 0 the least gain; the last ranks where there are too many sets to try."""
    if math.comb(size - 1, colluders) > MOST_SETS or size > 400:
        return tuple(range(size - colluders, size))
    sets = combinations(range(1, size), colluders)
    return max(sets, key=lambda known: float(_hidden(edges, size, kappa, known)[0]))


def best_weights(edges: Iterable[tuple[int, int]], size: int, kappa: float, known: Sequence[int]) -> Array:
    """Return the weights of all ranks' releases in the best test of rank 0's, its own 1, those of colluders 0.

    That is the row of rank 0 of (I + kappa^2 L_H)^-1, relative to its diagonal.
    """
    row = _inverse(edges, size, kappa, known)[0]
    weights = np.zeros(size)
    weights[[rank for rank in range(size) if rank not in known]] = row / row[0]
    return weights


def _inverse(edges: Iterable[tuple[int, int]], size: int, kappa: float, known: Sequence[int]) -> Array:
    """Return (I + kappa^2 L_H)^-1 for these colluders."""
    honest = [rank for rank in range(size) if rank not in known]
    place = {rank: k for k, rank in enumerate(honest)}
    matrix = np.eye(len(honest))
    for i, j in edges:
        if i in place and j in place:
            a, b = place[i], place[j]
            matrix[[a, b], [a, b]] += kappa**2
            matrix[[a, b], [b, a]] -= kappa**2
    return np.asarray(np.linalg.inv(matrix))


def pair_pricing(effective: float, own: float, width: int) -> Pricing:
    """Return the pricing of releases behind noise of deviation `effective`, drawn around `own`."""
    return Pricing("gaussian", effective, slack=2.0 * math.sqrt(width) * grid(own))


def grid(own: float) -> float:
    """Return gamma."""
    return math.ldexp(1.0, math.frexp(own)[1] - 1 - GRID_BITS)


def steps(kappa: float, degree: int, scale: float) -> float:
    """Return the bound (6) for noise of this scale relative to the first."""
    return 2.0**GRID_BITS * scale / math.sqrt(kappa**-2 + 2.0 * degree)


class PairMechanism(NoiseMechanism):
    """A rank's own noise, and its part of the noise that cancels between it and its neighbours, (1)."""

    cancels: ClassVar[bool] = True

    def __init__(
        self, effective: float, gain: float, kappa: float, key: bytes, width: int, streams: Mapping[int, PrivateStream]
    ) -> None:
        """Take `streams[s]`, s = +-(1 + neighbour): the stream of a pair, with the sign that this rank adds it with."""
        self.own = effective / gain
        self._kappa = kappa
        self._pairs = dict(streams)
        self.told: Callable[[int, Array], None] | None = None
        """Called with each neighbour and the noise that was just added with it: for colluders in an audit."""
        self._step = grid(self.own)
        self._steps = np.empty(width)
        price = pair_pricing(effective, self.own, width)
        super().__init__("gaussian", effective, GaussianNoise(PrivateStream(key, "noise"), width), price)

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Add the noise to `value`, in place."""
        steps = self._steps
        np.divide(value, self._step, out=steps)
        np.rint(steps, out=steps)
        deviation = self._kappa * self.own * scale / self._step
        for sign, stream in self._pairs.items():
            drawn = discrete_gaussian(stream, deviation, len(steps))
            (np.add if sign > 0 else np.subtract)(steps, drawn, out=steps)
            if self.told is not None:
                self.told(abs(sign) - 1, np.asarray(math.copysign(self._step, sign) * drawn, np.float64))
        np.multiply(steps, self._step, out=value)
        self.noise.add(value, self.own * scale)

    def streams(self) -> tuple[PrivateStream, ...]:
        """Return the streams that the noise is drawn from."""
        return (*self.noise.streams(), *self._pairs.values())


def pair_streams(rank: int, neighbours: Iterable[int], secrets: Mapping[int, bytes]) -> dict[int, PrivateStream]:
    """Return the streams of a rank's pairs, by neighbour, positive for a neighbour with a larger number."""
    return {
        (1 + peer) * (1 if peer > rank else -1): PrivateStream(secrets[peer], "pair noise")
        for peer in sorted(neighbours)
    }
