"""Laplace noise on vectors over sampled batches: the L2 sensitivity counts, by Renyi divergence and by domination."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpmpi.core import Sampling
from dpmpi.privacy.accountants import certified_epsilon, rdp_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.filters import RdpFilter, best_order
from dpmpi.privacy.gdp import gdp_delta
from dpmpi.privacy.renyi import divergences
from dpmpi.privacy.replay import replay
from dpmpi.privacy.spending import GAUSSIAN_FACTOR, release_group

KINDS = ("poisson", "fixed")


def event(shift, k, rate, kind):
    """Return a release whose L2 sensitivity is `shift` times the scale, in k coordinates."""
    return ReleaseEvent("laplace", 1.0, shift * math.sqrt(k), Sampling(kind, 1000.0 * rate, 1000), k)


def without_l2(one):
    return ReleaseEvent(one.noise, one.scale, one.sensitivity, one.sampling)


# --- what it rests on ------------------------------------------------------------------------------------------------


def test_a_gaussian_dominates_laplace_noise():
    """(8) of renyi.py: the inequality of its proof, and profiles of one and of two shifts by quadrature."""
    t = np.concatenate([np.geomspace(1e-4, 30, 4000)])
    assert np.all(stats.norm.cdf(math.sqrt(math.pi / 8) * t) >= (1 - 1e-12) / (1 + np.exp(-t)))
    x = (np.arange(-1600, 1600) + 0.5) * 0.01
    for shift in (0.05, 0.4, 1.0, 2.5):
        one = stats.laplace.pdf(x - shift)
        two = np.multiply.outer(stats.laplace.pdf(x - 0.6 * shift), stats.laplace.pdf(x - 0.8 * shift))
        for eps in shift * np.array([0.0, 0.1, 0.3, 0.6, 0.9, 1.2]):
            most = gdp_delta(GAUSSIAN_FACTOR * shift, float(eps))
            assert np.sum(np.maximum(one - math.exp(eps) * stats.laplace.pdf(x), 0)) * 0.01 <= most + 1e-5
            still = np.multiply.outer(stats.laplace.pdf(x), stats.laplace.pdf(x))
            assert np.sum(np.maximum(two - math.exp(eps) * still, 0)) * 1e-4 <= most + 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shift", "rate", "order"), [(0.3, 0.1, 2), (0.3, 0.1, 7), (1.0, 0.01, 16), (1.5, 0.3, 4)])
def test_the_renyi_bound_holds_for_shifts_of_one_and_of_two_coordinates(kind, shift, rate, order):
    bound = float(divergences(release_group(event(shift, 2, rate, kind)), np.array([float(order)]))[0])
    x = (np.arange(-2000, 2000) + 0.5) * 0.02
    a = shift / 2
    for across in (a, a / math.sqrt(2)):
        along = math.sqrt(a * a - across * across)

        def density(side, across=across, along=along):
            return np.multiply.outer(stats.laplace.pdf(x - side * across), stats.laplace.pdf(x - side * along))

        r = density(0)
        p, q = (1 - rate) * r + rate * density(1), (1 - rate) * r + rate * density(-1)
        found = math.log(np.sum(q * (p / q) ** order) * 0.02**2) / (order - 1)
        assert found <= bound * (1 + 1e-3)


# --- Monte Carlo -----------------------------------------------------------------------------------------------------


def drawn_losses(one, count, spread, end, rng):
    """Return losses of `count` releases under P, for a record that moves by the sensitivity.

    The shift is spread evenly over `spread` of the coordinates. All other records lie in the middle of it or, with
    `end`, where the record ends, which is possible if another one takes its place in a batch.
    """
    s, whole, draws = one.sampling.rate, one.sensitivity / math.sqrt(one.coordinates * spread), 40_000
    a, b = (whole, 0.0) if end else (whole / 2, -whole / 2)
    total = np.zeros(draws)
    for _ in range(count):
        x = rng.laplace(size=(draws, spread)) + a * (rng.random(draws) < s)[:, None]
        still = np.abs(x).sum(axis=1)
        with_one = np.exp(still - np.abs(x - a).sum(axis=1))
        with_other = np.exp(still - np.abs(x - b).sum(axis=1))
        total += np.log1p(s * (with_one - 1)) - np.log1p(s * (with_other - 1))
    return total


SETTINGS = [(0.5, 16, 0.1, 20), (0.2, 64, 0.3, 10), (1.5, 16, 0.05, 10)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shift", "k", "rate", "count"), SETTINGS)
def test_no_shift_pattern_shows_more_than_is_certified(kind, shift, k, rate, count):
    """All in one coordinate, over four of them, and over all: delta at the certified epsilon, by Monte Carlo."""
    one, delta = event(shift, k, rate, kind), 1e-3
    certified = certified_epsilon({one: count}, delta)
    shown = 0.0
    for spread, end in itertools.product((1, 4, k), (False, True) if kind == "fixed" else (False,)):
        losses = drawn_losses(one, count, spread, end, np.random.default_rng(7))
        grid = certified * np.linspace(0.2, 1.0, 33)
        parts = np.maximum(-np.expm1(np.minimum(grid[:, None] - losses, 0.0)), 0.0)
        found, error = parts.mean(axis=1), parts.std(axis=1) / math.sqrt(len(losses))
        assert found[-1] - 4 * error[-1] <= delta
        shown = max(shown, *grid[found - 4 * error > delta], 0.0)
    assert shown >= 0.3 * certified  # not loose either
    assert certified_epsilon({without_l2(one): count}, delta) > 1.9 * certified  # what it was without the L2 bound


# --- what it gains, and never loses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_never_above_what_the_l1_bound_alone_gives(kind):
    rng = np.random.default_rng(3)
    for _ in range(25):
        shift, k = float(10 ** rng.uniform(-2, 0.5)), int(rng.integers(2, 200))
        one, count = event(shift, k, float(rng.uniform(0.01, 0.9)), kind), int(rng.integers(1, 300))
        for delta in (1e-3, 1e-6):
            assert certified_epsilon({one: count}, delta) <= certified_epsilon({without_l2(one): count}, delta)
            assert rdp_epsilon({one: count}, delta) <= rdp_epsilon({without_l2(one): count}, delta)


def test_the_gain_of_a_hundred_sampled_vectors():
    """104 coordinates, rate 1%, an L2 shift of a fifth of the scale, 100 releases at 1e-5: measured, both kinds."""
    for kind, most in (("poisson", 0.078), ("fixed", 0.086)):
        one = event(0.2, 104, 0.01, kind)
        assert certified_epsilon({without_l2(one): 100}, 1e-5) == pytest.approx(0.9985, rel=1e-3)
        assert certified_epsilon({one: 100}, 1e-5) < most


@pytest.mark.parametrize("kind", KINDS)
def test_all_records_are_the_limit_of_large_batches(kind):
    assert certified_epsilon({event(0.2, 30, 1.0, kind): 10}, 1e-5) == certified_epsilon(
        {ReleaseEvent("laplace", 1.0, 0.2 * math.sqrt(30), Sampling("full", 1000.0, 1000), 30): 10}, 1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_more_noise_fewer_releases_and_smaller_batches_cost_less(kind):
    def cost(shift=0.3, rate=0.05, count=60):
        return certified_epsilon({event(shift, 50, rate, kind): count}, 1e-5)

    assert cost(shift=0.2) < cost() < cost(shift=0.5)
    assert cost(rate=0.02) < cost() < cost(rate=0.2)
    assert cost(count=30) < cost() < cost(count=200)


def test_mixtures_with_other_noise():
    vector, gaussian = event(0.2, 40, 0.05, "poisson"), ReleaseEvent("gaussian", 20.0, 1.0, Sampling("full", 10, 10))
    both = certified_epsilon({vector: 50, gaussian: 3}, 1e-5)
    parts = [certified_epsilon({vector: 50}, 1e-5), certified_epsilon({gaussian: 3}, 1e-5)]
    assert max(parts) < both < certified_epsilon({without_l2(vector): 50, gaussian: 3}, 1e-5)
    many = {event(0.2 * (1 + j / 300), 40, 0.05, "poisson"): 1 for j in range(200)}
    least, most = (certified_epsilon({event(shift, 40, 0.05, "poisson"): 200}, 1e-5) for shift in (0.2, 0.34))
    assert least < certified_epsilon(many, 1e-5) < most


def test_a_filter_uses_the_l2_bound_at_integer_orders():
    one = event(0.2, 104, 0.01, "poisson")
    order = best_order({one: 100}, 1.0, 1e-5)
    assert RdpFilter(1.0, 1e-5, order).cost(one) < 0.05 * RdpFilter(1.0, 1e-5, order).cost(without_l2(one))
    assert RdpFilter(1.0, 1e-5, 7.5).cost(one) == RdpFilter(1.0, 1e-5, 7.5).cost(without_l2(one))


# --- verify ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shift", "k", "rate", "count"), [*SETTINGS, (0.2, 104, 0.01, 100), (1.0, 104, 0.1, 100)])
def test_the_replay_prices_it_by_its_own_code(kind, shift, k, rate, count):
    one = event(shift, k, rate, kind)
    found, certified = replay({one: count}, 1e-5), certified_epsilon({one: count}, 1e-5)
    assert found.lower <= certified <= 1.1 * found.upper
    assert found.upper <= 1.5 * certified  # Poisson batches are drawn without replacement there
    assert found.upper < 0.6 * replay({without_l2(one): count}, 1e-5).upper


@pytest.mark.parametrize("kind", KINDS)
def test_a_price_for_less_noise_falls_below_the_replays_lower_bound(kind):
    made, cheap = event(0.2, 104, 0.1, kind), event(0.1, 104, 0.1, kind)
    assert certified_epsilon({cheap: 100}, 1e-5) < replay({made: 100}, 1e-5).lower
