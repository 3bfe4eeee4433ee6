"""The privacy loss of spherical Laplace noise on all records, exactly.

The noise has density ~ e^(-|x|) in m >= 2 dimensions (scale 1) and the value moves by a vector of length t. The loss is
L = |x + t u| - |x| for a unit vector u. In prolate spheroidal coordinates with the foci 0 and -t u,

    sigma = (|x| + |x + t u|) / t >= 1,        y = (|x + t u| - |x|) / t = L/t  in [-1, 1],                        (1)

the distance from the axis is (t/2) sqrt((sigma^2 - 1)(1 - y^2)), so that the element of volume is

    ~ (sigma^2 - y^2) ((sigma^2 - 1)(1 - y^2))^((m-3)/2) d sigma d y,      and |x| = (sigma - y) t/2.              (2)

With a = t/2 the integrals over sigma are Bessel functions: int_1^oo e^(-a sigma) (sigma^2 - 1)^(n - 1/2) d sigma
= Gamma(n + 1/2) pi^(-1/2) (2/a)^n K_n(a). Writing sigma^2 - y^2 as (sigma^2 - 1) + (1 - y^2), y has the density

    f(y) ~ e^(a y) (1 - y^2)^((m-3)/2) (k + 1 - y^2),      k = (m-1)/a K_{m/2}(a) / K_{m/2-1}(a)                   (3)

where the ratio of Bessel functions follows from R_n = K_{n+1}/K_n = 2n/a + 1/R_{n-1}. With y = sin(p) the integrand
e^(a sin p) cos(p)^(m-2) (k + cos(p)^2) is analytic, for m = 2 too. f(y)/f(-y) = e^(ty): the loss is its own mirror
image. m = 1 is Laplace noise.

A longer shift costs more at every epsilon, so that t may be an upper bound: along every line parallel to u the noise is
log-concave, the likelihood ratio of a shift monotone, and its best test a half-line; with F the distribution function
on the line, max_a F(a) - e^eps F(a - t) grows with t.

The loss is put on multiples of h by connecting the dots (Doroshenko et al. 2022): a loss l in [jh, (j+1)h] becomes

    (j+1)h with probability (1 - e^(jh - l)) / (1 - e^-h),       else jh                                           (4)

which keeps the masses of both distributions and can only raise delta(eps), alone and composed. The integrals of (3) and
(4) are Gauss-Legendre sums on panels no wider than half a deviation of y, which are exact to rounding; their relative
error, together with that of the ratio, is below `RELATIVE_ERROR`. If all masses of a release are within a factor
e^(+-w) of the true ones, then by (5) of discrete_gaussian.py the true epsilon at delta is at most that of T such
releases at e^(-T w) delta, plus 2 T w.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpmpi.core import Array

RELATIVE_ERROR = 1e-11
_NODES = 16


class Masses(NamedTuple):
    """A loss on multiples of a step: the first multiple, and the masses from there on."""

    first: int
    masses: Array


def bessel_term(t: float, m: int) -> float:
    """Return k of equation (3), for m >= 2."""
    from scipy.special import k0e, k1e  # noqa: PLC0415 - slow

    a = t / 2
    ratio = float(k1e(a) / k0e(a)) if m % 2 == 0 else 1.0  # R_0, or R_{-1/2}
    for n in range(1, m // 2) if m % 2 == 0 else range(m // 2):
        ratio = 2 * (n if m % 2 == 0 else n + 0.5) / a + 1 / ratio
    return (m - 1) / a * ratio


def log_density(p: Array, t: float, m: int, k: float) -> Array:
    """Return the logarithm of the integrand over p, y = sin(p), up to a constant."""
    cosine = np.cos(p)
    with np.errstate(divide="ignore"):
        power = (m - 2) * np.log(cosine) if m > 2 else 0.0
    return np.asarray(t / 2 * np.sin(p) + power + np.log1p(cosine * cosine / k))


def loss_masses(t: float, m: int, h: float) -> Masses:
    """Return the loss of one release with a shift of `t` scales in `m` >= 2 dimensions on multiples of h, by (4)."""
    k = bessel_term(t, m)
    last = math.ceil(t / h)
    ends = np.arcsin(np.clip(np.arange(-last, last + 1) * (h / t), -1.0, 1.0))
    width = min(0.5 / math.sqrt(m), 4 / t)  # no panel is wider
    pieces = np.maximum(np.ceil(np.diff(ends) / width), 1).astype(int)
    cell = np.repeat(np.arange(2 * last), pieces)
    place = np.arange(len(cell)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    size = (np.diff(ends) / pieces)[cell]
    start = ends[cell] + place * size
    x, w = np.polynomial.legendre.leggauss(_NODES)
    up, total = np.zeros(2 * last), np.zeros(2 * last)
    top = float(log_density(np.linspace(-1.5, 1.5, 4001), t, m, k).max())
    for node, weight in zip(((x + 1) / 2).tolist(), (w / 2).tolist(), strict=True):
        p = start + node * size
        mass = np.exp(log_density(p, t, m, k) - top) * (weight * size)
        above = np.clip(t * np.sin(p) - (cell - last) * h, 0.0, h)
        total += np.bincount(cell, mass, 2 * last)
        up += np.bincount(cell, mass * (np.expm1(-above) / math.expm1(-h)), 2 * last)  # (4)
    masses = np.append(np.maximum(total - up, 0.0), 0.0)
    masses[1:] += up
    return Masses(-last, masses / total.sum())
