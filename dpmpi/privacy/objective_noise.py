"""Gaussian noise inside an objective: what the minimiser gives away.

Released is x = argmin_w f_D(w) - <p, w> + <nu, w> + (q/2) |w|^2 with nu ~ N(0, sigma^2 I). A record's loss depends on
w through <a, w> alone and has a gradient of at most L, so that it adds c a/m to grad f_D, |c a| <= L. As in
`algorithms/bases/objective_perturbation.py`, nu -> x is a bijection with inverse nu_D(x), and for two shards that
differ in one of m records the determinants in the densities of x differ by a factor of at most e^J. With
g(x) = grad f_D(x) - grad f_D'(x) = nu_D'(x) - nu_D(x), the loss log p_D(x)/p_D'(x) on x drawn with D is at most

    J + <nu, g(x)>/sigma^2 + |g(x)|^2/(2 sigma^2),      nu = nu_D(x) ~ N(0, sigma^2 I).                            (1)

This is no Gaussian mechanism: g depends on x, hence on nu. Let u, u' be the directions of the two records' a. Then
g = (L/m) (s u - s' u') with s, s' in [-1, 1], and (1) is convex in (s, s'), so that it is largest at one of the four
corners. u + u' and u - u' are orthogonal, of lengths 2 cos(r) and 2 sin(r) for some r. With mu = 2 L/(m sigma) and two
independent standard normal numbers A, B, the components of nu along them, (1) is at most

    J + max( w |A| + w^2/2, v |B| + v^2/2 ),      w = mu cos(r),  v = mu sin(r).                                   (2)

The profile of a pair is delta(eps) = int_eps^oo e^(eps-l) P(loss > l) dl, and P((2) > l) is at most the sum of the two
tails. With delta_mu that of Gaussian DP (gdp.py), hence for eps >= J

    delta(eps) <= 2 delta_w(eps - J) + 2 delta_v(eps - J),      w^2 + v^2 = mu^2.                                  (3)

(3) is at most h(eps) = 2 delta_mu(eps - J), whatever r is, as soon as

    t = (eps - J)/mu - mu/2 >= `LEAST`,                                                                            (4)

as delta_w/w^2 then grows with w up to mu. Proof: d delta_w/dw = phi(t) at t = e/w - w/2, e = eps - J, and with Mills'
ratio R, which is convex, delta_w = phi(t) (R(t) - R(t+w)) <= phi(t) w (1 - t R(t)), so that
w d delta_w/dw >= 2 delta_w if t R(t) >= 1/2. t R(t) grows, is above 1/2 at `LEAST`, and a smaller w has a larger t.

Below (4), and for small eps in general, (3) counts more than there is: both tails together cannot have more than all
the mass. Let P, Q be the outputs on D and D', V their total variation, y = e^eps. As P(loss > 0) + P(loss < 0) <= 1 and
Q(loss > 0) = P(loss > 0) - V, the profiles of both orders, convex in y with the value V at 1, have slopes there whose
sum is at least V - 1. So one of them is at least V - (1-V)(y-1)/2 at every y >= 1, and both are at most h(y) where (4)
holds. With any such y, the `knee`,

    V <= 1 - 2 (1-h)/(1+y),      and on [1, y] both profiles are below the chord from there to (y, h).             (5)

The best y is the smallest that satisfies (4) and has the two tails within all the mass,

    2 Phi(-t) + 2 e^(-J) Phi(-t-mu) <= 1,                                                                          (6)

at which chord and h meet in a convex function. It is the profile of a pair that is its own mirror image: a loss
J + mu^2/2 + mu z with density 2 phi(z) for z >= t, an atom at the knee of the mass that (6) leaves, over 1 + e^-knee,
and for each loss l its mirror image -l with e^-l of the mass. So the release may be composed like any other, adaptively
too (Zhu, Dong, Wang 2022). The pair's Renyi divergence is, with k = J + mu^2/2,

    e^((alpha-1) D) = atom (e^((alpha-1) knee) + e^(-alpha knee))
                      + 2 e^((alpha-1) k + (alpha-1)^2 mu^2/2) Phi((alpha-1) mu - t)
                      + 2 e^(-alpha k + alpha^2 mu^2/2) Phi(-t - alpha mu).                                        (7)

For small mu the second moment of the loss is 1.86 mu^2, that of the Gaussian mechanism mu^2: noise inside an objective
has to be 1.36 times as large, and a little more for J. After Redberg, Koskela, Wang 2023, who have (1) for one record
that is added, and its Renyi divergence without the mirror image: as alpha falls to 1 that has a term .8 mu for every
release, where (7) has one in mu^2.

A mean, f_D(w) = mean of |w - d_r|^2/2, moves by a fixed g, which is within (2). A loss of several scores is not.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpmpi.core import Array
from dpmpi.privacy.gdp import gdp_delta

LEAST = 0.6125
"""t R(t) >= 1/2 from there on, (4)."""


class Knee(NamedTuple):
    """Where the profile turns from a chord to h."""

    t: float
    eps: float
    delta: float
    """h there."""
    atom: float


def _tail(x: float) -> float:
    """Return Phi(-x)."""
    return math.erfc(x / math.sqrt(2)) / 2


@lru_cache(maxsize=1024)
def knee(mu: float, extra: float) -> Knee:
    """Return the best knee, by (4) and (6), for the loss `extra` of the determinant, J."""

    def mass(t: float) -> float:
        return 2 * _tail(t) + 2 * math.exp(-extra) * _tail(t + mu)  # (6)

    low, high = LEAST, 1.0
    if mass(low) <= 1:
        high = low
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if mass(middle) <= 1 else (middle, high)
    eps = extra + mu * mu / 2 + mu * high
    atom = max(0.0, 1 - mass(high)) / (1 + math.exp(-eps))
    return Knee(high, eps, 2 * gdp_delta(mu, eps - extra), atom)


def chord(point: Knee, eps: Array) -> Array:
    """Return the profile below the knee, by (5)."""
    rise = -np.expm1(np.minimum(eps - point.eps, 0.0)) / (1 + math.exp(-point.eps))
    return np.asarray(point.delta + (1 - point.delta) * rise)


def span(mu: float, extra: float) -> float:
    """Return the loss beyond which there is a mass of at most 1e-22."""
    return extra + mu * mu / 2 + 10 * mu


def objective_divergences(mu: float, extra: float, orders: Array) -> Array:
    """Return the Renyi divergences (7), rounded up."""
    from scipy.special import log_ndtr  # noqa: PLC0415 - slow

    at, k, less = knee(mu, extra), extra + mu * mu / 2, orders - 1
    terms = [
        math.log(2) + less * k + (less * mu) ** 2 / 2 + log_ndtr(less * mu - at.t),
        math.log(2) - orders * k + (orders * mu) ** 2 / 2 + log_ndtr(-at.t - orders * mu),
    ]
    if at.atom > 0:
        terms += [math.log(at.atom) + less * at.eps, math.log(at.atom) - orders * at.eps]
    return np.asarray((np.maximum(np.logaddexp.reduce(terms), 0.0) + 1e-13) / less)
