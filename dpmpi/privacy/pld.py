"""Composition of privacy loss distributions by `dp_accounting`.

z is a release's noise multiplier, s the probability that a given record takes part in it. Poisson batches of Gaussian
noise are the library's own REPLACE_ONE pair (1-s) N(0) + s N(+-1/2): it takes the noise multiplier of ONE record's norm
and doubles the sensitivity itself, so that it must be given 2 z. The others are given by a profile. If delta_M is the
profile of the mechanism on all records, drawing records at rate s (a fixed number without replacement, or Poisson) has
at most

    delta(eps) = s delta_M( log(1 + (e^eps - 1)/s) ),          eps >= 0                                (1)
    delta(eps) = 1 - e^eps + e^eps delta(-eps),                eps < 0                                 (2)

because the outputs p, q with either record in the batch and r with neither are within one replacement of each other
(Balle, Barthe, Gaboardi 2018, advanced joint convexity; Zhu, Dong, Wang 2022 for the composition). delta_M is that of
gdp.py with mu = 1/z or, as an L1 shift is worst in one coordinate,

    Laplace:                delta_M(eps) = (1 - e^((eps - 1/z)/2))+                                    (3)
    any pure 1/z-DP:        delta_M(eps) = (e^(1/z) - e^eps)+ / (1 + e^(1/z))                          (4)

Laplace noise on a vector whose L2 sensitivity is d times the scale gives away no more than a Gaussian release of
mu = sqrt(pi/2) d between any two of p, q and r, (8) of renyi.py. That says nothing of the three together, so that the
library's pair for Poisson batches does not stand in for it. But p and r differ by half of what p and q do there, and
advanced joint convexity has the profile of p against (1-c) r + c q, c = e^eps/(1 + (e^eps - 1)/s), hence at most

    delta(eps) = s ( (1-c) delta_mu/2 + c delta_mu )( log(1 + (e^eps - 1)/s) ),        eps >= 0         (5)

with delta_mu of gdp.py; for fixed batches mu in place of mu/2, which is (1).

Gaussian noise inside an objective has the profile of objective_noise.py, on all records.
Spherical Laplace noise in a known dimension has its exact loss distribution (spherical_laplace.py); elsewhere it is
priced as (4).

A profile is turned into a discrete loss distribution by connecting its dots (Doroshenko et al. 2022): linear
interpolation in e^eps lies above the convex truth, so that what comes out is an upper bound.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.privacy import objective_noise
from dpmpi.privacy.spending import GAUSSIAN_FACTOR, ReleaseGroup, pure_epsilon
from dpmpi.privacy.spherical_laplace import RELATIVE_ERROR, loss_masses

_MOST_POINTS = 2**18  # the finest grid has about this many
_CONVERGED = 0.002


def _gaussian_z(group: ReleaseGroup) -> float:
    """Return the noise multiplier of a Gaussian release, or of the one that dominates Laplace noise on a vector."""
    return group.z if group.noise == "gaussian" else group.z * math.sqrt(group.coordinates) / GAUSSIAN_FACTOR


def _span(group: ReleaseGroup) -> float:
    """Return the loss of one release beyond which there is a mass of at most 1e-22."""
    if group.noise == "objective":
        return objective_noise.span(1 / group.z, group.extra)
    if group.noise != "gaussian" and group.coordinates == 1:
        return pure_epsilon(group)
    z = _gaussian_z(group)
    top = (0.5 + 10 * z) / z**2 + math.log(group.rate)
    return top if group.rate == 1 else float(np.logaddexp(math.log1p(-group.rate), top))


def _profile(group: ReleaseGroup, eps: Array) -> Array:
    """Return delta(eps) of one release for eps >= 0, equations (1), (3), (4), (5)."""
    amplified = np.log1p(np.expm1(np.minimum(eps, 500)) / group.rate) + np.maximum(eps - 500, 0)
    if group.noise == "gaussian":
        profile = _gaussian_profile(group.z, amplified)
    elif group.noise == "objective":
        knee = objective_noise.knee(1 / group.z, group.extra)
        above = 2 * _gaussian_profile(group.z, np.maximum(eps, knee.eps) - group.extra)
        profile = np.where(eps < knee.eps, objective_noise.chord(knee, eps), above)
    elif group.coordinates > 1:
        z, c = _gaussian_z(group), np.exp(eps - amplified)
        apart = _gaussian_profile(2 * z if group.kind == "poisson" else z, amplified)
        profile = (1 - c) * apart + c * _gaussian_profile(z, amplified)  # (5)
    elif group.noise == "laplace":
        profile = -np.expm1(np.minimum(amplified - 1 / group.z, 0) / 2)  # (3)
    else:
        profile = -np.expm1(np.minimum(amplified - 1 / group.z, 0)) / (1 + math.exp(-1 / group.z))  # (4)
    return np.asarray(group.rate * profile)  # (1)


def _gaussian_profile(z: float, eps: Array) -> Array:
    """Return delta(eps) of Gaussian noise on all records, as in gdp.py, without cancellation in either tail."""
    from scipy.special import erfcx, ndtr  # noqa: PLC0415 - ranks that need no profile do not pay for it

    a, b = -eps * z + 0.5 / z, -eps * z - 0.5 / z
    mills = math.sqrt(math.pi / 2) * (erfcx(np.maximum(-a, -5) / math.sqrt(2)) - erfcx(-b / math.sqrt(2)))
    density = np.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    tail = ndtr(a) - density * math.sqrt(math.pi / 2) * erfcx(-b / math.sqrt(2))
    return np.asarray(np.where(a > 5, tail, density * mills))


def _loss_distribution(group: ReleaseGroup, h: float, top: float) -> Any:
    """Return one release's loss distribution on multiples of `h`, rounded up; above `top` it may be infinite."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution  # noqa: PLC0415 - takes a second to import
    from dp_accounting.privacy_accountant import NeighboringRelation  # noqa: PLC0415 - likewise

    if group.kind == "poisson" and group.noise == "gaussian":
        return privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=2 * group.z,  # in units of one record's norm, half of the replace-one sensitivity
            value_discretization_interval=h,
            sampling_prob=group.rate,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
    if group.dimension:
        first, masses = loss_masses(1 / group.z, group.dimension, h)
        exact = pld_pmf.DensePLDPmf(h, first, masses, 0.0, True)
        return privacy_loss_distribution.PrivacyLossDistribution(exact)
    eps = np.arange(math.ceil(min(_span(group), top) / h) + 2, dtype=np.float64) * h
    delta = np.minimum.accumulate(_profile(group, eps))
    steps = -np.diff(delta)
    above = np.maximum((steps - math.exp(-h) * np.append(steps[1:], 0.0)) / -math.expm1(-h), 0.0)
    below = above * np.exp(-eps[1:])  # (2): the pair is its own mirror image
    at_zero = max(1.0 - delta[-1] - above.sum() - below.sum(), 0.0)
    masses = np.concatenate([below[::-1], [at_zero], above])
    pmf = pld_pmf.DensePLDPmf(h, -len(above), masses, float(delta[-1]), True)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


@lru_cache(maxsize=256)  # the ranks of a run have mostly spent the same
def pld_epsilon(groups: tuple[ReleaseGroup, ...], delta: float) -> float:
    """Return the epsilon of composed loss distributions, on ever finer grids until it no longer falls."""
    usable = delta - sum(group.times for group in groups) * 2.0**-50  # covers the rounding of the Fourier transforms
    slack = sum(group.times for group in groups if group.dimension) * RELATIVE_ERROR
    usable *= math.exp(-slack)
    if usable <= 0:
        return math.inf
    span = max(map(_span, groups))
    h = 2.0 ** math.ceil(math.log2(span / 64))
    best = math.inf
    while True:
        top = 2 * best + 40  # a loss so far above epsilon counts like an infinite one, up to e^-40
        with np.errstate(over="ignore"):  # the library's Chernoff bounds try orders that are too large
            parts = [_loss_distribution(group, h, top).self_compose(group.times) for group in groups]
            epsilon = (
                float(reduce(lambda done, part: done.compose(part), parts).get_epsilon_for_delta(usable)) + 2 * slack
            )
        points = max(4 * epsilon, min(span, 2 * epsilon + 40)) / h
        settled = epsilon >= min((1 - _CONVERGED) * best, best - 5e-5) or epsilon in (2 * slack, math.inf)
        if settled or points > _MOST_POINTS:
            return min(best, epsilon)
        best, h = epsilon, h / 4
