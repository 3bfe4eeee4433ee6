"""The second way to a price: its bounds hold the truth between them, and a price that is too low falls out of them."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import integrate, stats

from dpmpi.core import Sampling
from dpmpi.privacy.accountants import certified_epsilon, equal_split_pld_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.loss_pairs import (
    gaussian_loss,
    gaussian_tails,
    laplace_loss,
    laplace_pair,
    laplace_tails,
    mirrored,
    one_sided,
    pure_tails,
    spherical_loss,
)
from dpmpi.privacy.loss_sums import Loss, epsilon_bounds
from dpmpi.privacy.replay import replay

FULL = Sampling("full", 1000.0, 1000)
POISSON = Sampling("poisson", 50.0, 1000)
FIXED = Sampling("fixed", 50.0, 1000)


def event(noise, scale, sampling=FULL, coordinates=1):
    return ReleaseEvent(noise, scale, 1.0, sampling, coordinates)


# --- the bounds hold the truth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (5.0, 1e-3)])
def test_gaussian_noise_against_its_closed_form(epsilon, delta):
    for noise in ("gaussian", "discrete-gaussian"):
        spending = {event(noise, 20.0): 30, event(noise, 30.0 / epsilon): 7}
        exact = gdp_epsilon(math.sqrt(30 / 400 + 7 * epsilon**2 / 900), delta)
        found = replay(spending, delta)
        assert found.lower <= exact <= certified_epsilon(spending, delta) <= found.upper <= 1.01 * found.lower


@pytest.mark.parametrize("sampling", [POISSON, FIXED], ids=lambda s: s.kind)
@pytest.mark.parametrize(("scale", "count"), [(1.0, 20), (4.0, 500)])
def test_sampled_noise_against_the_library(sampling, scale, count):
    spending = {event("gaussian", scale, sampling): count}
    found, library = replay(spending, 1e-5), certified_epsilon(spending, 1e-5)
    assert found.lower <= library  # the library's figure is an upper bound itself
    assert found.upper == pytest.approx(library, rel=0.01)
    assert found.lower >= (0.99 if sampling is POISSON else 0.5) * found.upper


def test_laplace_noise_against_the_library():
    spending = {event("laplace", 40.0): 100, event("laplace", 20.0): 10}
    found = replay(spending, 1e-5)
    assert found.lower <= certified_epsilon(spending, 1e-5) <= 1.01 * found.upper
    assert found.upper <= 1.01 * found.lower


def test_vectors_under_laplace_noise_lie_between_even_shifts_and_renyi():
    spending = {event("laplace", 10.0, coordinates=14): 100}
    found = replay(spending, 1e-5)
    assert found.lower == pytest.approx(equal_split_pld_epsilon(spending, 1e-5), rel=0.01)
    assert found.upper == pytest.approx(certified_epsilon(spending, 1e-5), rel=0.01)


@pytest.mark.parametrize("m", [2, 3, 12, 500])
def test_spherical_noise_against_draws(m):
    """delta of one release, by many draws of the noise itself: a direction and a radius, no formula for c."""
    rng, t, n, epsilon = np.random.default_rng(m), 0.5 * math.sqrt(m), 400_000, 0.5
    first = rng.standard_normal(n)
    cosine = first / np.sqrt(first**2 + rng.chisquare(m - 1, n))
    r = rng.gamma(m, size=n)
    loss = np.sqrt(r**2 + 2 * r * t * cosine + t**2) - r
    values = np.maximum(-np.expm1(epsilon - loss), 0.0)
    delta, error = values.mean(), values.std() / math.sqrt(n)
    lower, upper = (epsilon_bounds([spherical_loss(t, m)], delta + side * 5 * error)[side < 0] for side in (1, -1))
    assert lower <= epsilon <= upper
    assert upper - lower < 0.05


def test_spherical_noise_in_one_dimension_is_laplace_noise():
    grid = np.linspace(-0.4, 0.4, 101)
    assert np.array_equal(spherical_loss(0.3, 1).cdf(grid), laplace_loss(0.3).cdf(grid))


def test_spherical_noise_is_cheaper_than_anything_pure():
    spending = {event("spherical-laplace", 10.0): 10}
    known, unknown = replay(spending, 1e-5, 12), replay(spending, 1e-5)
    assert known.upper < unknown.upper / 3
    assert unknown.upper == pytest.approx(certified_epsilon(spending, 1e-5), rel=0.01)
    assert unknown.missing == ("no lower bound for spherical-laplace noise",)
    assert replay(spending, 1e-5, 12, extra=True).lower == 0
    assert replay(spending, 0.0, 12).lower == replay(spending, 0.0, 12).upper == pytest.approx(1.0)


# --- distribution functions ------------------------------------------------------------------------------------------

PAIRS = {
    "gaussian": (gaussian_loss(0.7, 1.0), stats.norm(0.35).pdf, stats.norm(-0.35).pdf),
    "poisson": (
        gaussian_loss(0.7, 0.1),
        lambda x: 0.9 * stats.norm.pdf(x) + 0.1 * stats.norm.pdf(x - 0.35),
        lambda x: 0.9 * stats.norm.pdf(x) + 0.1 * stats.norm.pdf(x + 0.35),
    ),
    "one-sided": (
        one_sided(0.7, 0.1),
        lambda x: 0.9 * stats.norm.pdf(x) + 0.1 * stats.norm.pdf(x - 0.7),
        stats.norm.pdf,
    ),
    "laplace": (laplace_loss(0.7), stats.laplace.pdf, stats.laplace(0.7).pdf),
    "laplace sampled": (
        laplace_pair(0.7, 0.1),
        lambda x: 0.9 * stats.laplace.pdf(x) + 0.1 * stats.laplace.pdf(x - 0.35),
        lambda x: 0.9 * stats.laplace.pdf(x) + 0.1 * stats.laplace.pdf(x + 0.35),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_loss_of_one_release_is_that_of_its_densities(name):
    """delta(eps) by quadrature over the densities themselves."""
    loss, p, q = PAIRS[name]
    for epsilon in (0.2, 0.5) if name in ("gaussian", "laplace") else (0.01, 0.05):
        delta = integrate.quad(lambda x, e=epsilon: max(p(x) - math.exp(e) * q(x), 0.0), -12, 12, limit=2000)[0]
        lower, upper = epsilon_bounds([loss], delta)
        assert lower - 1e-6 <= epsilon <= upper + 1e-6
        assert upper - lower <= 0.02 * epsilon


@pytest.mark.parametrize("tails", [gaussian_tails(0.7, 0.1), laplace_tails(0.7, 0.1), pure_tails(0.7, 0.1)])
def test_mirrored_losses_keep_the_profile(tails):
    """delta(-eps) = 1 - e^-eps + e^-eps delta(eps): the pair against its own mirror image."""
    loss = mirrored(tails, 0.7, 0.1, math.inf if tails(np.array([5.0]))[1][0] > 0 else 0.7)
    x = (np.arange(-1_500_000, 1_500_000) + 0.5) * 1e-6
    middle, masses = (x[1:] + x[:-1]) / 2, np.diff(loss.cdf(x))

    def profile(epsilon):
        return float(np.sum(masses * np.maximum(-np.expm1(epsilon - middle), 0.0)))

    for epsilon in (0.01, 0.03):
        assert profile(-epsilon) == pytest.approx(
            -math.expm1(-epsilon) + math.exp(-epsilon) * profile(epsilon), abs=1e-6
        )


# --- what falls out --------------------------------------------------------------------------------------------------

CHEAP = {
    "half of the sensitivity": lambda e: ReleaseEvent(e.noise, e.scale, e.sensitivity / 2, e.sampling, e.coordinates),
    "twice the noise": lambda e: ReleaseEvent(e.noise, 2 * e.scale, e.sensitivity, e.sampling, e.coordinates),
}
EVENTS = {
    "gaussian": (event("gaussian", 40.0), 100),
    "poisson": (event("gaussian", 3.0, POISSON), 100),
    "sum": (event("discrete-gaussian", 40.0), 100),
    "sum poisson": (event("discrete-gaussian", 3.0, POISSON), 100),
    "laplace": (event("laplace", 30.0), 50),
}


@pytest.mark.parametrize("what", CHEAP)
@pytest.mark.parametrize("kind", EVENTS)
def test_a_price_for_less_than_was_released_is_below_the_lower_bound(kind, what):
    made, count = EVENTS[kind]
    found = replay({made: count}, 1e-5)
    assert certified_epsilon({made: count}, 1e-5) >= found.lower
    assert certified_epsilon({CHEAP[what](made): count}, 1e-5) < found.lower


def test_spherical_noise_priced_as_gaussian_noise_is_found_out():
    """A planted accountant. In m dimensions a shift shows by 1/m of the noise, a Gaussian of that variance 1/(m+1)."""
    made, count, m = event("spherical-laplace", 30.0), 400, 2
    found = replay({made: count}, 1e-5, m)
    planted = gdp_epsilon(math.sqrt(count / (m + 1)) / 30.0, 1e-5)
    assert planted < found.lower <= found.upper < certified_epsilon({made: count}, 1e-5)


# --- corners ---------------------------------------------------------------------------------------------------------


def test_nothing_costs_nothing_and_no_noise_everything():
    assert replay({}, 1e-5).upper == 0
    assert replay({event("none", 0.0): 1}, 1e-5).lower == math.inf
    assert replay({event("gaussian", 1.0): 0}, 1e-5).upper == 0


def test_many_kinds_are_merged_to_either_side():
    spending = Counter({event("gaussian", 3.0 * (1 + k / 200), POISSON): 1 for k in range(200)})
    found = replay(spending, 1e-5)
    assert found.lower <= certified_epsilon(spending, 1e-5) * 1.01
    assert found.upper >= certified_epsilon(spending, 1e-5) * 0.99
    assert found.upper <= 1.05 * found.lower


@pytest.mark.parametrize(
    ("spending", "delta"),
    [
        ({event("gaussian", 1e-3, POISSON): 10}, 1e-5),
        ({event("gaussian", 1e-9): 10}, 1e-5),
        ({event("gaussian", 1e3, POISSON): 10}, 1e-15),
        ({event("laplace", 1e-3, POISSON): 3}, 1e-5),
    ],
)
def test_where_nothing_can_be_said_the_bounds_say_so(spending, delta):
    found = replay(spending, delta)
    assert 0 <= found.lower <= found.upper


@pytest.mark.parametrize(("t", "p", "n"), [(0.3, None, 40), (0.002, 0.99, 900)], ids=["even", "one-sided"])
def test_a_loss_that_is_rounded_badly_would_show(t, p, n):
    """The bounds of a known sum: n coins, composed exactly by the binomial distribution.

    The heads of the one-sided coin are all rounded the same way: without the shift of the mean their errors add up.
    """
    delta, p = 1e-4, math.exp(t) / (1 + math.exp(t)) if p is None else p
    tails = math.log((1 - p) / (1 - p * math.exp(-t)))
    reach = 1.37 * max(t, -tails)  # so that neither loss is on the grid
    loss = Loss(lambda x: np.where(x >= t, 1.0, np.where(x >= tails, 1 - p, 0.0)), lambda q: reach, (tails, t), n)
    k = np.arange(n + 1)
    sums, masses = t * k + tails * (n - k), stats.binom.pmf(k, n, p)
    lower, upper = epsilon_bounds([loss], delta)
    for bound, side in ((lower, 1), (upper, -1)):
        found = float(np.sum(masses * np.maximum(-np.expm1(bound - sums), 0.0)))
        assert side * (found - delta) >= 0
    assert 0 < lower <= upper <= 1.01 * lower
