"""The exact loss of spherical Laplace noise against draws of the noise, high precision and verify's own quadrature."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from dpmpi.core import Sampling
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.calibration import calibrate
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.mechanisms import pricing
from dpmpi.privacy.replay import replay
from dpmpi.privacy.spherical_laplace import bessel_term, loss_masses

FULL = Sampling("full", 1000.0, 1000)
SOME = Sampling("fixed", 50.0, 1000)


def event(scale, m, sampling=FULL):
    return ReleaseEvent("spherical-laplace", scale, 1.0, sampling, dimension=m)


def noise(m, times, delta=1e-5):
    return calibrate(lambda scale: {event(scale, m): times}, 1.0, delta)


def drawn_losses(rng, t, m, n):
    """The loss of n draws of the noise itself: a normal vector for the direction, a radius, no formula for L."""
    first = rng.standard_normal(n)
    cosine = first / np.sqrt(first**2 + rng.chisquare(m - 1, n))
    r = rng.gamma(m, size=n)
    return t * (2 * r * cosine + t) / (np.sqrt(r * r + 2 * r * t * cosine + t * t) + r)


@pytest.mark.parametrize("m", [2, 3, 12, 104])
@pytest.mark.parametrize("times", [1, 10])
def test_never_below_draws_and_within_two_percent(m, times):
    delta, n = 1e-2, 1_000_000
    scale = noise(m, times, delta)
    epsilon = certified_epsilon({event(scale, m): times}, delta)
    rng, losses = np.random.default_rng([m, times]), np.zeros(n)
    for _ in range(times):
        losses += drawn_losses(rng, 1 / scale, m, n)
    for at, side in ((epsilon, 1), (0.98 * epsilon, -1)):
        values = np.maximum(-np.expm1(at - losses), 0.0)
        assert side * (values.mean() - delta) <= 5 * values.std() / math.sqrt(n)


@pytest.mark.slow
@pytest.mark.parametrize("m", [3, 12, 104])
@pytest.mark.parametrize("times", [1, 10])
def test_within_two_percent_of_a_hundred_million_draws_and_never_below(m, times):
    """At (1, 1e-5); the epsilon of the draws is where their delta is 1e-5, its error that of their mean there."""
    delta, n, chunk = 1e-5, 10**8, 10**6
    scale = noise(m, times, delta)
    epsilon = certified_epsilon({event(scale, m): times}, delta)
    rng, tail = np.random.default_rng([m, times, 8]), []
    for _ in range(n // chunk):
        losses = sum(drawn_losses(rng, 1 / scale, m, chunk) for _ in range(times))
        tail.append(losses[losses > 0.9 * epsilon])
    losses = np.concatenate(tail)

    def lost(at):
        return np.maximum(-np.expm1(at - losses), 0.0)

    low, high = 0.9 * epsilon, 1.1 * epsilon
    assert lost(low).sum() / n > delta > lost(high).sum() / n
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if lost(middle).sum() / n > delta else (low, middle)
    error = math.sqrt(np.square(lost(high)).sum()) / np.exp(high - losses[losses > high]).sum()  # of high
    print(f"m {m}, {times} releases: certified {epsilon:.4f}, drawn {high:.4f} +- {error:.4f}")
    assert high - 4 * error <= epsilon <= 1.02 * (high + 4 * error)


@pytest.mark.parametrize(("t", "m"), [(0.3, 2), (2.0, 3), (1.0, 12), (0.01, 5), (3.0, 104), (20.0, 2000)])
def test_the_bessel_ratio_and_the_masses_to_many_digits(t, m):
    """(3) and (4), cell by cell, by integration to 40 digits."""
    with mpmath.workdps(40):
        a = mpmath.mpf(t) / 2
        k = (m - 1) / a * mpmath.besselk(mpmath.mpf(m) / 2, a) / mpmath.besselk(mpmath.mpf(m) / 2 - 1, a)
        assert bessel_term(t, m) == pytest.approx(float(k), rel=1e-13)

        def density(p):
            return mpmath.exp(a * mpmath.sin(p)) * mpmath.cos(p) ** (m - 2) * (k + mpmath.cos(p) ** 2)

        h, (first, masses) = t / 16, loss_masses(t, m, t / 16)
        ends = [mpmath.asin(mpmath.mpf(j) / 16) for j in range(-16, 17)]
        total = mpmath.fsum(mpmath.quad(density, [u, v]) for u, v in itertools.pairwise(ends))
        assert first == -16
        assert masses.sum() == pytest.approx(1.0, rel=1e-13)
        for j in (-3, 0, 2):
            u, at, v = ends[j + 15], ends[j + 16], ends[j + 17]
            rising = mpmath.quad(lambda p, j=j: density(p) * -mpmath.expm1((j - 1) * h - t * mpmath.sin(p)), [u, at])
            falling = mpmath.quad(lambda p, j=j: density(p) * mpmath.expm1((j + 1) * h - t * mpmath.sin(p)), [at, v])
            exact = (rising / -mpmath.expm1(-h) + falling / mpmath.expm1(h)) / total
            assert masses[j + 16] == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize("m", [1, 2, 3, 12, 104])
@pytest.mark.parametrize("times", [1, 10, 300])
def test_the_figure_lies_between_the_bounds_of_verify(m, times):
    scale = noise(m, times)
    figure, bounds = certified_epsilon({event(scale, m): times}, 1e-5), replay({event(scale, m): times}, 1e-5, m)
    assert 0.98 < figure <= 1
    assert bounds.lower <= figure <= 1.01 * bounds.upper


def test_known_gains_over_randomised_response():
    for m, gain in [(12, 2.99), (104, 8.62)]:
        assert noise(0, 10) / noise(m, 10) == pytest.approx(gain, rel=0.02)


def test_more_dimensions_and_shorter_shifts_cost_less():
    costs = [certified_epsilon({event(4.0, m): 10}, 1e-5) for m in (0, 1, 2, 3, 12, 104)]
    assert sorted(costs, reverse=True) == costs
    shifts = [certified_epsilon({event(scale, 12): 10}, 1e-5) for scale in (3.0, 3.1, 4.0, 8.0)]
    assert sorted(shifts, reverse=True) == shifts
    assert certified_epsilon({event(4.0, 12): 10}, 0.0) == pytest.approx(2.5)


def test_where_the_shift_is_not_fixed_or_records_are_drawn_the_loss_is_any_pure_one():
    price = pricing("spherical-laplace", 2.0, 12)
    plain, inside = (price.event(0.5, FULL, extra=extra) for extra in (0.0, 0.1))
    assert (plain.dimension, inside.dimension) == (12, 0)
    unknown = ReleaseEvent("spherical-laplace", inside.scale, inside.sensitivity, FULL)
    assert certified_epsilon({inside: 5}, 1e-5) == certified_epsilon({unknown: 5}, 1e-5)
    assert certified_epsilon({event(3.0, 12, SOME): 5}, 1e-5) == certified_epsilon({event(3.0, 0, SOME): 5}, 1e-5)


def test_the_dimension_is_kept_in_ledgers_and_old_ledgers_are_read():
    made = event(3.0, 12)
    told = made.to_dict()
    assert ReleaseEvent.from_dict(told) == made
    del told["dimension"]
    assert ReleaseEvent.from_dict(told) == event(3.0, 0)
