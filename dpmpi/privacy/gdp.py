"""Gaussian noise on all records: exact, and two `erfc` are enough.

A release of noise multiplier z = scale/sensitivity is 1/z-Gaussian DP, and n releases compose to mu^2 = sum 1/z^2. With
Mills' ratio R(t) = Phi(-t)/phi(t),

    delta(eps) = Phi(a) - e^eps Phi(b) = phi(a) (R(-a) - R(-b)),   a, b = -eps/mu +- mu/2              (1)
"""

from __future__ import annotations

import math
from collections.abc import Callable

ROUNDING = 1.0 + 5e-10
"""Four times the largest relative error of `gdp_delta`, which is near mu = 1e-3."""


def _mills(t: float) -> float:
    """Return R(t) = Phi(-t)/phi(t), to full relative precision."""
    x = t / math.sqrt(2)
    if x < 10:
        return math.sqrt(math.pi / 2) * math.exp(x * x) * math.erfc(x)
    term = total = 1.0
    for n in range(1, 13):
        term *= -(2 * n - 1) / (t * t)
        total += term
    return total / t


def gdp_delta(mu: float, eps: float) -> float:
    """Return the delta at `eps` of mu-Gaussian DP, equation (1)."""
    if mu == 0 or eps == math.inf:
        return 0.0
    a, b = -eps / mu + mu / 2, -eps / mu - mu / 2
    if a < -38:
        return 0.0
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if a > 5:
        return 0.5 * math.erfc(-a / math.sqrt(2)) - density * _mills(-b)
    if mu < 1e-3:  # the difference would cancel: it is -mu R'(t) - mu^3 R'''(t)/24 at t = eps/mu, with R' = t R - 1
        t = eps / mu
        first = t * _mills(t) - 1
        third = 2 * first + t * (_mills(t) + t * first)
        return density * mu * -(first + mu * mu / 24 * third)
    return density * (_mills(-a) - _mills(-b))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest eps with gdp_delta(mu, eps) <= delta, rounded up."""
    if ROUNDING * gdp_delta(mu, 0.0) <= delta:
        return 0.0
    if delta <= 0 or mu == math.inf:
        return math.inf
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta)) + mu  # beyond the Gaussian tail bound
    return _bisect(low, high, lambda eps: ROUNDING * gdp_delta(mu, eps) > delta)[1]


def gdp_mu(eps: float, delta: float) -> float:
    """Return the largest mu with gdp_delta(mu, eps) <= delta, rounded down."""
    if eps == math.inf or delta >= 1:
        return math.inf
    if delta <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while ROUNDING * gdp_delta(high, eps) <= delta:
        low, high = high, 2 * high
    return _bisect(low, high, lambda mu: ROUNDING * gdp_delta(mu, eps) <= delta)[0]


def _bisect(low: float, high: float, is_low: Callable[[float], bool]) -> tuple[float, float]:
    """Return the numbers next to each other, to 14 digits, between which `is_low` ends."""
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low, high
