"""Composition by Renyi divergence: divergences of the same order add up.

The certified figure for Laplace noise on vectors, or where delta is too small for loss distributions; elsewhere a check
on them. Orders are taken from a grid; sampled Gaussian noise is bounded at integer orders only, by the moments of
`_sampled_moments`, and so is sampled Laplace noise on vectors.

Laplace noise of scale 1 has, for a shift t >= 0 (Mironov 2017, Prop. 6),

    D(t) = log( (alpha e^((alpha-1) t) + (alpha-1) e^(-alpha t)) / (2 alpha - 1) ) / (alpha - 1)       (5)
    D'(t) = alpha (1 - y) / (alpha + (alpha-1) y),    y = e^(-(2 alpha - 1) t)                         (6)

On a vector, with independent noise in every coordinate, the divergences D(t_i) of the coordinates add up, and the
certified bound is that of the equal split: if |t|_1 <= S and |t|_2 <= S/sqrt(k), for any k >= 1 and in any dimension,

    sum_i D(t_i) <= k D(S/k).                                                                          (7)

Proof. By (6), D'' = c y / (alpha + (alpha-1) y)^2 with a constant c > 0, which grows with y, as its derivative in y has
the sign of alpha - (alpha-1) y > 0; and y falls with t. So D' is concave and increasing, with D'(0) = 0. (It follows
that D'(t)/t falls, that is, D is concave in t^2, and that D(t) <= alpha t^2/2: Laplace noise is t^2/2-zCDP.) Let
t0 = S/k and take a, b with a t0^2 + b t0 = D(t0), 2 a t0 + b = D'(t0). Then a t0^2 = t0 D'(t0) - D(t0) >= 0 as D is
convex, and b t0 = 2 D(t0) - t0 D'(t0) >= 0 as D' is concave. Let r(t) = D(t) - a t^2 - b t: r' is concave with
r'(0) = -b <= 0 and r'(t0) = 0, and r(0) = r(t0) = 0, so r falls, then rises to 0 at t0, then falls: r <= 0. Hence
sum_i D(t_i) <= a |t|_2^2 + b |t|_1 <= a k t0^2 + b k t0 = k D(t0).

For sampled batches the moments need E_r |p/r - 1|^j too, for Laplace noise moved by t, |t|_2 <= T. That of j = 2 is
e^(D_2) - 1, which (7) bounds; the others are at most those of

    a Gaussian moved by sqrt(pi/2) T deviations.                                                       (8)

Proof. One coordinate is t_i-DP. The trade-off function of t-DP is made of the chords from (0, 1) to (c, c) to (1, 0),
c = 1/(1 + e^t); that of a Gaussian moved by m is convex and goes through these points if Phi(-m/2) = c, so that it is
below (Dong, Roth, Su 2022). m <= sqrt(pi/2) t, as Phi(sqrt(pi/8) t) >= 1/(1 + e^-t): both sides agree at t = 0 and at
infinity, and the difference grows as long as 2 log cosh(t/2) >= pi t^2/16 and falls after, as 2 log cosh(t/2) / t^2
falls from 1/4 to 0. The squares of the coordinates' m add up, to at most (pi/2) T^2. What is dominated in this sense is
post-processing of what dominates (Blackwell), hence has the smaller divergence for every convex function.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpmpi.core import Array
from dpmpi.privacy.objective_noise import objective_divergences
from dpmpi.privacy.spending import GAUSSIAN_FACTOR, ReleaseGroup, pure_epsilon, pure_sum

_INTEGER_ORDERS = np.array([*range(2, 65), *range(72, 129, 8), *range(144, 257, 16), *range(320, 513, 64)], float)
_ORDERS = 1.0 + np.geomspace(0.02, 2e4, 1200)
_ALL_ORDERS = np.array(sorted({*_ORDERS, *_INTEGER_ORDERS}))  # np.union1d would import numpy.ma


_MOST_Z = 1e150
"""More noise than that is priced as that much: below, all shifts and their squares are numbers."""


def _central_moments(d: float, j: Array) -> Array:
    """Return log E_r |p/r - 1|^j for even j, p = N(d, 1), r = N(0, 1); for d > 1 an upper bound."""
    if d > 1:
        return np.where(j == 2, d * d + np.log(-np.expm1(-d * d)), np.logaddexp(0.0, j * (j - 1) * d * d / 2))
    x = np.arange(-13.0, j[-1] * d + 13.0, 0.05)  # the trapezoidal rule is exact to rounding for such integrands
    with np.errstate(divide="ignore"):
        logs = np.multiply.outer(j, np.log(np.abs(np.expm1(x * d - d * d / 2)))) - x * x / 2
    peak = logs.max(axis=1)
    return np.asarray(peak + np.log(np.exp(logs - peak[:, None]).sum(axis=1) * 0.05 / math.sqrt(2 * math.pi)))


def _gaussian_moments(d: float, top: int, minkowski: bool) -> Array:
    """Return `_moments` of p = N(d, 1), r = N(0, 1)."""
    j, even = np.arange(2.0, top + 1), np.arange(2.0, top + 2, 2)
    return _moments(j * (j - 1) * d * d / 2, _central_moments(d, even), minkowski)


def _laplace_moments(t: float, k: int, top: int, minkowski: bool) -> Array:
    """Return `_moments` of Laplace noise whose shift is t in L2 and sqrt(k) t in L1 at most, by (7) and (8)."""
    j, even = np.arange(2.0, top + 1), np.arange(2.0, top + 2, 2)
    powers = (j - 1) * k * laplace_divergence(j, t / math.sqrt(k))
    central = _central_moments(GAUSSIAN_FACTOR * t, even)
    central[0] = min(central[0], powers[0] + math.log(-math.expm1(-powers[0])))
    return _moments(powers, central, minkowski)


def _moments(powers: Array, central: Array, minkowski: bool) -> Array:
    """Return log bounds of E_r |p/r - 1|^j, or with `minkowski` of E_r |(p-q)/r|^j by (4), j = 2, 3 ...

    `powers` are those of E_r (p/r)^j, `central` those of E_r |p/r - 1|^j for even j, up to one beyond the last power.
    """
    bounds = powers + math.log(2) if minkowski else np.logaddexp(0.0, powers)  # |a - b|^j <= a^j + b^j
    central = central + (2 * np.arange(1, len(central) + 1) * math.log(2) if minkowski else 0.0)
    bounds[::2] = np.minimum(bounds[::2], central[: len(bounds[::2])])
    bounds[1::2] = np.minimum(bounds[1::2], ((central[:-1] + central[1:]) / 2)[: len(bounds[1::2])])  # Cauchy-Schwarz
    return np.asarray(bounds)


@lru_cache(maxsize=1024)
def _sampled_moments(z: float, rate: float, poisson: bool, top: int, coordinates: int = 0) -> Array:
    """Return log bounds of E_Q |(p-q)/Q|^j, j = 2 ... top, of a sampled release.

    It has Gaussian noise or, with `coordinates` k, Laplace noise on a vector, z in L2. Let p, q be the output with
    either record in the batch and r without; P = (1-s) r + s p, Q = (1-s) r + s q. Then

        E_Q (P/Q)^alpha = 1 + sum_{j=2..alpha} C(alpha,j) s^j E_Q ((p-q)/Q)^j                          (1)
        E_Q |(p-q)/Q|^j <= (1-s) E_r |(p-q)/r|^j + s E_q |p/q - 1|^j            (joint convexity)      (2)
        E_Q |(p-q)/Q|^j <= (1-s)^(1-j) E_r |(p-q)/r|^j                          (Q >= (1-s) r)         (3)
        E_r |(p-q)/r|^j <= 2^j E_r |p/r - 1|^j  (Minkowski),  <= E_r (p/r)^j + E_r (q/r)^j             (4)

    p and q are 1/z apart (in units of the noise); from r they are 1/(2z) for Poisson batches (a record adds at most
    half of what replacing it can do) and 1/z for fixed ones (r has another record in its place). For even j and
    Gaussian noise the right hand sides are polynomials in p/r, whose moments are E_r (p/r)^k = e^{k(k-1)d^2/2}; odd j
    follow by Cauchy-Schwarz. After Wang, Balle, Kasiviswanathan 2019, whose adjacency is replace-one as here, for draws
    without replacement; what Zhu, Wang 2019 have for Poisson batches is about adding a record, the pair of p and r. P
    and Q are for one draw of the other records; E_Q (P/Q)^alpha is jointly convex in P and Q, so that the bound holds
    for their mixture over all draws.
    """

    def moments(shift: float, minkowski: bool) -> Array:
        if coordinates:
            return _laplace_moments(shift, coordinates, top, minkowski)
        return _gaussian_moments(shift, top, minkowski)

    j = np.arange(2.0, top + 1)
    apart = moments(1 / (2 * z) if poisson else 1 / z, True)
    mixed = np.logaddexp(math.log1p(-rate) + apart, math.log(rate) + moments(1 / z, False))  # (2)
    return np.asarray(np.minimum(mixed, apart - (j - 1) * math.log1p(-rate)))  # (3)


def _sampled_rdp(group: ReleaseGroup, orders: Array) -> Array:
    """Return upper bounds of the Renyi divergences of a sampled release at integer orders, equation (1)."""
    top, k = int(orders.max()), group.coordinates if group.noise == "laplace" else 0
    z = min(group.z * math.sqrt(k or 1), _MOST_Z)
    moments = _sampled_moments(z, group.rate, group.kind == "poisson", top, k)
    log_factorial = np.array([math.lgamma(n + 1) for n in range(top + 1)])
    found = []
    for order in orders.astype(int):
        j = np.arange(2, order + 1)
        log_comb = log_factorial[order] - log_factorial[j] - log_factorial[order - j]
        power = np.logaddexp(0.0, np.logaddexp.reduce(log_comb + j * math.log(group.rate) + moments[: order - 1]))
        found.append(float(power) / (order - 1))
    return np.asarray(np.minimum(np.array(found), _unsampled(group, orders)))


def _unsampled(group: ReleaseGroup, orders: Array) -> Array:
    """Return the divergences of a Gaussian or Laplace release on all records, which sampling does not raise."""
    if group.noise == "gaussian":
        return np.asarray(orders / group.z / (2 * group.z))
    k = group.coordinates
    return np.asarray(k * laplace_divergence(orders, 1 / group.z / k))  # (7)


def exp_rest(x: Array) -> Array:
    """Return e^x - 1 - x, to full relative precision."""
    near = np.clip(x, -0.5, 0.5)
    series = np.ones_like(x)
    for n in range(16, 2, -1):
        series = 1.0 + near / n * series
    return np.asarray(np.where(near == x, x * x / 2 * series, np.expm1(x) - x))


def laplace_divergence(orders: Array | float, shift: Array | float) -> Array:
    """Return D(shift) of equation (5), for noise of scale 1; the arguments are broadcast."""
    a, t = np.broadcast_arrays(np.asarray(orders, float), np.asarray(shift, float))
    small = np.minimum(t, 30 / a)  # where both exponents are moderate: no cancellation, no overflow
    power = (a * exp_rest((a - 1) * small) + (a - 1) * exp_rest(-a * small)) / (2 * a - 1)
    large = t + np.log1p((a - 1) * np.expm1((1 - 2 * a) * t) / (2 * a - 1)) / (a - 1)
    return np.asarray(np.where(t == small, np.log1p(power) / (a - 1), large))


def divergences(group: ReleaseGroup, orders: Array) -> Array:
    """Return the Renyi divergences of one release."""
    if group.z == 0:
        return np.full(orders.shape, math.inf)
    if group.noise == "objective":
        return objective_divergences(1 / group.z, group.extra, orders)
    if group.noise in ("gaussian", "laplace") and group.kind == "full":
        return _unsampled(group, orders)
    if group.noise == "gaussian":
        return _sampled_rdp(group, orders)
    eps = pure_epsilon(group)
    power = np.logaddexp(orders * eps, (1 - orders) * eps) - np.logaddexp(0.0, eps)  # of (4) in pld.py
    pure = np.minimum(power / (orders - 1), orders * eps * eps / 2)
    whole = np.isin(orders, _INTEGER_ORDERS)
    if group.coordinates > 1 and np.any(whole):
        pure[whole] = np.minimum(pure[whole], _sampled_rdp(group, orders[whole]))
    return np.asarray(pure)


def needs_integers(groups: tuple[ReleaseGroup, ...]) -> bool:
    """Return whether some release is priced at integer orders only."""
    return any(group.kind != "full" and group.noise == "gaussian" for group in groups)


def epsilon_conversion(orders: Array, delta: float) -> Array:
    """Return the difference of eps at `delta` to the Renyi divergence (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    return np.asarray(np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))


def composed_divergences(groups: tuple[ReleaseGroup, ...]) -> tuple[Array, Array]:
    """Return orders, and the Renyi divergences of all releases together at them."""
    sampled = any(group.kind != "full" and group.coordinates > 1 for group in groups)
    orders = _INTEGER_ORDERS if needs_integers(groups) else _ALL_ORDERS if sampled else _ORDERS
    return orders, sum((group.times * divergences(group, orders) for group in groups), np.zeros_like(orders))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the epsilon at `delta` of rho-zCDP, that is of a Renyi divergence of rho alpha at every order alpha."""
    if delta <= 0:
        return math.inf if rho > 0 else 0.0
    return max(0.0, float(np.min(rho * _ORDERS + epsilon_conversion(_ORDERS, delta)))) if rho > 0 else 0.0


def renyi_epsilon(groups: tuple[ReleaseGroup, ...], delta: float) -> float:
    """Return the epsilon at `delta` of all releases together: of the best order, or of their pure epsilons' sum."""
    if delta <= 0:
        return pure_sum(groups)
    orders, total = composed_divergences(groups)
    return min(pure_sum(groups), max(0.0, float(np.min(total + epsilon_conversion(orders, delta)))))
