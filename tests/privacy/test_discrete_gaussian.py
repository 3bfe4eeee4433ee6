"""The price of discrete Gaussian noise against exact sums over the integers."""

import math

import mpmath
import numpy as np
import pytest

from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.calibration import calibrate
from dpmpi.privacy.discrete_gaussian import CONTINUOUS_SHARE, LEAST_STEPS, MOST_COORDINATES, ROUNDING_VARIANCE
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.gdp import gdp_delta, gdp_epsilon, gdp_mu
from dpmpi.privacy.mechanisms import sum_pricing

FULL = Sampling("full", 1000.0, 1000)
POISSON = Sampling("poisson", 30.0, 1000)
FIXED = Sampling("fixed", 30.0, 1000)


def lattice(s, v=0, reach=14):
    """The masses of the discrete Gaussian around v on the integers within `reach` deviations of 0."""
    j = np.arange(-math.ceil(reach * s), math.ceil(reach * s) + 1)
    masses = np.exp(-((j - v) ** 2) / (2 * s * s))
    return masses / masses.sum()


def composed_delta(p, q, times, epsilon, h=2e-4):
    """delta of `times` releases of the pair p, q: losses rounded down to a grid and convolved. A lower bound."""
    kept = (p > 1e-30) & (q > 1e-30)
    steps = np.floor(np.log(p[kept] / q[kept]) / h).astype(int)
    one = np.bincount(steps - steps.min(), p[kept])
    size = 1 << math.ceil(math.log2(times * len(one)))
    masses = np.maximum(np.fft.irfft(np.fft.rfft(one, size) ** times, size), 0.0)
    losses = (np.arange(size) + times * steps.min()) * h
    return float(np.sum(masses * np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)))


@pytest.mark.parametrize(("s", "r2"), [(6.0, 4.0), (3.0, 4.0), (5.0, 8.0), (64.0, 8.0)])
def test_a_discrete_gaussian_is_a_randomised_rounding_of_a_continuous_one(s, r2):
    """(3), by integration to 90 digits."""
    with mpmath.workdps(90):
        v, variance, normal = 3, mpmath.mpf(s) ** 2 - r2, lambda x, w: mpmath.exp(-x * x / (2 * w))

        def rounded(j):
            def mass(x):
                near = range(math.floor(x) - 60, math.floor(x) + 60)
                return normal(x - v, variance) * normal(x - j, r2) / mpmath.fsum(normal(x - i, r2) for i in near)

            h = mpmath.mpf(1) / 4  # the trapezoidal rule is exact to e^(-2 pi^2 w/h^2) for a Gaussian of variance w > 2
            middle = (v * r2 + j * variance) / (variance + r2)
            reach = 24 * mpmath.sqrt(variance * r2 / (variance + r2))
            n = math.ceil(2 * reach / h)
            total = mpmath.fsum(mass(middle - reach + k * h) for k in range(n))
            return total * h / mpmath.sqrt(2 * mpmath.pi * variance)

        whole = mpmath.fsum(normal(j, mpmath.mpf(s) ** 2) for j in range(-25 * int(s), 25 * int(s)))
        c = 3 * mpmath.exp(-2 * mpmath.pi**2 * r2)
        for j in (3, 5) if s < 20 else (40,):
            ratio = normal(j - v, mpmath.mpf(s) ** 2) / whole / rounded(j)
            assert abs(mpmath.log(ratio)) <= c


def test_the_slack_is_below_double_precision():
    """(4) for 2^64 releases of the longest vectors, and (6)."""
    c = 3 * mpmath.exp(-2 * mpmath.pi**2 * ROUNDING_VARIANCE)
    tau = 5 * 10**9 * mpmath.exp(-(mpmath.pi**2) * LEAST_STEPS**2)  # of a billion ranks
    assert 2**64 * MOST_COORDINATES * (c + tau) < 1e-36
    assert pytest.approx(LEAST_STEPS**2 - ROUNDING_VARIANCE) == (LEAST_STEPS * CONTINUOUS_SHARE) ** 2
    with pytest.raises(ConfigError, match=r"expected at most 2\^40 coordinates"):
        sum_pricing(1.0, 40, MOST_COORDINATES + 1)


@pytest.mark.parametrize(("shift", "times"), [(16, 1), (16, 20), (64, 1), (64, 5), (7, 100)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5])
def test_all_records_cost_no_less_than_exact_convolution_and_hardly_more(shift, times, delta):
    """At 64 steps, the fewest there can be, and by equation (1) of gdp.py at the smaller deviation."""
    epsilon = certified_epsilon({ReleaseEvent("discrete-gaussian", 64.0, float(shift), FULL): times}, delta)
    p, q = lattice(64.0), lattice(64.0, shift)
    assert composed_delta(p, q, times, epsilon) <= delta
    assert composed_delta(p, q, times, epsilon * 0.99 - times * 2e-4) > delta
    continuous = gdp_epsilon(math.sqrt(times) * shift / 64.0, delta)
    assert continuous < epsilon < 1.002 * continuous + 1e-12


@pytest.mark.parametrize("s", [3.0, 4.0, 8.0, 20.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_few_steps_keep_the_profile_of_the_smaller_variance(s, shift):
    """(2) to (5) need no 64 steps if the variance is that of r^2 = 4, for which c is 2e-34."""
    p, q = lattice(s, reach=24), lattice(s, shift, reach=24)
    for epsilon in np.linspace(0, 3 * shift / s, 13):
        exact = float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))
        assert exact <= gdp_delta(shift / math.sqrt(s * s - 4), epsilon) * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("sampling", [POISSON, FIXED], ids=lambda s: s.kind)
@pytest.mark.parametrize(("shift", "times"), [(16, 100), (32, 20), (64, 1)])
def test_batches_cost_no_less_than_exact_convolution(sampling, shift, times):
    """One record moves the sum by `shift` to either side; fixed batches: by twice that, from another one."""
    s, delta = sampling.rate, 1e-5
    epsilon = certified_epsilon({ReleaseEvent("discrete-gaussian", 64.0, 2.0 * shift, sampling): times}, delta)
    without = lattice(64.0)
    near, far = (shift, -shift) if sampling is POISSON else (2 * shift, 0)
    p, q = ((1 - s) * without + s * lattice(64.0, v) for v in (near, far))
    for one, other in ((p, q), (q, p)):
        assert composed_delta(one, other, times, epsilon, h=2e-5) <= delta
    if sampling is POISSON:
        assert composed_delta(p, q, times, 0.98 * epsilon - times * 2e-5, h=2e-5) > delta


def noise(kind, sampling, releases, epsilon, sensitivity=0.01):
    return calibrate(lambda scale: {ReleaseEvent(kind, scale, sensitivity, sampling): releases}, epsilon, 1e-5)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 5.0])
def test_noise_in_a_sum_is_gaussian_noise(epsilon):
    inside = noise("discrete-gaussian", FULL, 60, epsilon)
    assert 1 <= inside / (0.01 * math.sqrt(60) / gdp_mu(epsilon, 1e-5)) < 1.0011
    for sampling in (POISSON, FIXED):
        assert noise("discrete-gaussian", sampling, 300, epsilon) < 1.01 * noise("gaussian", sampling, 300, epsilon)


def test_sums_and_values_compose_to_one_gaussian():
    both = {ReleaseEvent("gaussian", 8.0, 1.0, FULL): 3, ReleaseEvent("discrete-gaussian", 5.0, 1.0, FULL): 4}
    mu = math.sqrt(3 / 64 + 4 / 25 / CONTINUOUS_SHARE**2)
    assert certified_epsilon(both, 1e-5) == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-12)
