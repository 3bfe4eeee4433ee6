"""Gaussian noise inside an objective: the proof's steps, and true divergences of neighbours by integration."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import erfcx

from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.privacy.accountants import certified_epsilon, rdp_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.gdp import gdp_delta, gdp_epsilon
from dpmpi.privacy.objective_noise import LEAST, chord, knee, objective_divergences
from dpmpi.privacy.pld import _profile
from dpmpi.privacy.replay import replay
from dpmpi.privacy.spending import release_group

FULL = Sampling("full", 100.0, 100)
SIZES = [(0.02, 0.0), (0.05, 0.01), (0.3, 0.02), (0.3, 0.4), (1.0, 0.1), (3.0, 0.2)]


def event(mu, extra, sampling=FULL):
    return ReleaseEvent("objective", 1 / mu, 1.0, sampling, extra=extra)


def profile(mu, extra, eps):
    return _profile(release_group(event(mu, extra)), np.asarray(eps, float))


# --- the steps of the proof ------------------------------------------------------------------------------------------


def mills(t):
    return math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))


def test_two_directions_cost_no_more_than_one():
    """(4): delta_w + delta_v <= delta_mu for w^2 + v^2 = mu^2, as t R(t) is above 1/2 from `LEAST` on."""
    t = np.linspace(LEAST, 20, 4000)
    assert np.all(t * mills(t) >= 0.5)
    assert 0.612 * mills(0.612) < 0.5
    for mu, r, t in itertools.product((0.01, 0.3, 2.0), np.linspace(0.01, math.pi / 4, 12), (LEAST, 0.7, 1.5, 4.0)):
        eps = mu * mu / 2 + mu * t
        parts = gdp_delta(mu * math.cos(r), eps) + gdp_delta(mu * math.sin(r), eps)
        assert parts <= gdp_delta(mu, eps) * (1 + 1e-9)


@pytest.mark.parametrize(("mu", "extra"), SIZES)
def test_the_profile_is_convex_and_its_own_mirror_image(mu, extra):
    """Convex in e^eps, with a slope at 0 that leaves room for the mirror image; the atom has what mass is left."""
    at = knee(mu, extra)
    eps = np.linspace(0.0, 3 * at.eps, 3001)
    delta, y = profile(mu, extra, eps), np.exp(eps)
    slopes = np.diff(delta) / np.diff(y)
    assert np.all(np.diff(slopes) >= -1e-7 * np.abs(slopes[0]))
    assert slopes[0] >= -(1 - delta[0]) / 2 * (1 + 1e-9)
    total = (2 * stats.norm.sf(at.t) + at.atom) + math.exp(-extra) * 2 * stats.norm.sf(at.t + mu)
    assert total + at.atom * math.exp(-at.eps) == pytest.approx(1.0)
    assert float(chord(at, np.array([at.eps]))[0]) == pytest.approx(at.delta)
    assert np.all(delta >= [gdp_delta(mu, float(e)) - 1e-12 for e in eps])


@pytest.mark.parametrize(("mu", "extra"), SIZES)
def test_the_renyi_divergence_is_that_of_the_pair(mu, extra):
    """(7) against a sum over the losses of the pair."""
    at = knee(mu, extra)
    z = at.t + (np.arange(400_000) + 0.5) * 1e-4
    losses = np.append(extra + mu * mu / 2 + mu * z, at.eps)
    masses = np.append(stats.norm.logpdf(z) + math.log(2e-4), math.log(max(at.atom, 1e-300)))
    for order in (1.5, 2.0, 7.0, 12.0):
        power = np.logaddexp.reduce(np.append(masses + (order - 1) * losses, masses - order * losses))
        found = float(objective_divergences(mu, extra, np.array([order]))[0])
        assert found == pytest.approx(float(power) / (order - 1), rel=1e-5, abs=1e-8)


def test_the_noise_is_a_third_more_than_that_of_a_gaussian_mechanism():
    """The second moment of small losses: 4 (q phi(q) + 1/4), q the upper quartile, is 1.857 mu^2."""
    q = stats.norm.ppf(0.75)
    assert 4 * (q * stats.norm.pdf(q) + 0.25) == pytest.approx(1.857, abs=1e-3)
    mu, T = 1e-3, 100_000
    found = certified_epsilon({event(mu, 0.0): T}, 1e-5)
    assert found == pytest.approx(gdp_epsilon(mu * math.sqrt(1.857 * T), 1e-5), rel=0.01)


# --- neighbours, by integration --------------------------------------------------------------------------------------

M, L, SIGMA = 4, 0.5, 0.5
"""Records, their gradients' bound, the noise: mu = 2 L/(M SIGMA) = 0.5."""
X = np.linspace(-60, 60, 240_001)


def squared(a, y):
    """Return slope and curvature, times a and a^2, of a clipped squared loss at all of X."""
    slope = a * X - y
    return np.clip(a * slope, -L, L), a * a * (np.abs(a * slope) < L)


def logistic(a, y):
    p = 1 / (1 + np.exp(np.clip(y * a * X, -300, 300)))
    inside = np.abs(a * p) < L
    return np.clip(-y * a * p, -L, L), a * a * p * (1 - p) * inside


def density(record, others, pull, q):
    """Return the density of the minimiser: that of nu(x) times |d nu/dx|."""
    g, c = (sum(part) / M for part in zip(record, *others, strict=True))
    nu = pull - q * X - g
    return stats.norm.pdf(nu, scale=SIGMA) * (q + c)


def neighbours(count, q, seed):
    """Return pairs of densities: random shards, and those in which one record changes side where the noise does."""
    rng, kinds = np.random.default_rng(seed), (squared, logistic)
    for _ in range(count):
        one, other = (kinds[rng.integers(2)](rng.choice([-1.0, 1.0, 0.5]), rng.choice([-1.0, 1.0])) for _ in range(2))
        others = [kinds[rng.integers(2)](rng.choice([0.0, 1.0]), rng.choice([-1.0, 1.0])) for _ in range(M - 1)]
        pull = rng.normal(scale=0.5)
        yield density(one, others, pull, q), density(other, others, pull, q)
    still = (np.zeros_like(X), np.zeros_like(X))
    for sign, y in itertools.product((-1.0, 1.0), (0.0, 0.3, 2.0)):
        yield density(squared(1.0, sign * y), [still] * (M - 1), 0.0, q), density(still, [still] * (M - 1), 0.0, q)
        far = (np.full_like(X, sign * L), np.zeros_like(X))
        yield density(squared(1.0, sign * y), [still] * (M - 1), 0.0, q), density(far, [still] * (M - 1), 0.0, q)


@pytest.mark.parametrize(("q", "least"), [(0.05, 0.2), (0.5, 0.3), (5.0, 0.5)])
def test_no_neighbours_are_above_the_profile(q, least):
    """The larger q, the less its determinant matters, and the nearer they come."""
    mu, extra, h = 2 * L / (M * SIGMA), math.log1p(1.0 / (M * q)), X[1] - X[0]
    eps = np.linspace(0.0, extra + 4 * mu, 60)
    bound, worst = profile(mu, extra, eps), 0.0
    for p, r in neighbours(60, q, 1):
        assert p.sum() * h == pytest.approx(1.0, abs=1e-3)
        for a, b in ((p, r), (r, p)):
            found = np.array([np.sum(np.maximum(a - math.exp(e) * b, 0.0)) * h for e in eps])
            assert np.all(found <= bound + 1e-4)
            worst = max(worst, *(found[:20] / bound[:20]))
    assert worst > least


def test_the_closed_form_of_a_gaussian_mechanism_is_not_valid():
    """A record whose slope follows the score, against one without: more is seen than a Gaussian shift would show."""
    q, h = 0.05, X[1] - X[0]
    mu = 2 * L / (M * SIGMA)
    excess = max(
        np.sum(np.maximum(a - math.exp(e) * b, 0.0)) * h - gdp_delta(mu, e)
        for p, r in neighbours(60, q, 1)
        for a, b in ((p, r), (r, p))
        for e in (0.0, 0.3, 0.6)
    )
    assert excess > 0.05


def test_two_records_of_different_directions():
    """A plane: one record has a slope along the first axis, its replacement along the second. q small, J large."""
    q, h = 0.1, 0.05
    x = (np.arange(-500, 500) + 0.5) * h
    mu, extra = 2 * L / (M * SIGMA), math.log1p(1.0 / (M * q))
    slope, curvature = np.clip(x, -L, L) / M, (np.abs(x) < L) / M
    bent, straight = (
        stats.norm.pdf(-q * x - slope, scale=SIGMA) * (q + curvature),
        stats.norm.pdf(q * x, scale=SIGMA) * q,
    )
    p, r = np.multiply.outer(bent, straight), np.multiply.outer(straight, bent)
    assert p.sum() * h * h == pytest.approx(1.0, abs=1e-3)
    for eps in np.linspace(0.0, extra + 3 * mu, 25):
        found = np.sum(np.maximum(p - math.exp(eps) * r, 0.0)) * h * h
        assert found <= float(profile(mu, extra, eps)) + 1e-3


def test_two_rounds_of_neighbours_are_within_the_composed_price():
    """The losses of two releases, convolved: delta at the certified epsilon."""
    q, h, delta = 0.5, X[1] - X[0], 1e-2
    mu, extra = 2 * L / (M * SIGMA), math.log1p(1.0 / (M * q))
    certified = certified_epsilon({event(mu, extra): 2}, delta)
    assert certified <= rdp_epsilon({event(mu, extra): 2}, delta)
    step, shown = 1e-3, 0.0
    for p, r in neighbours(20, q, 2):
        seen = (p > 1e-12) & (r > 1e-12)
        losses, masses = np.log(p[seen] / r[seen]), p[seen] * h
        cells = np.bincount(np.floor((losses + 40) / step).astype(int), masses, round(80 / step))
        both = np.fft.irfft(np.fft.rfft(cells, 2 * len(cells)) ** 2)
        values = np.arange(len(both)) * step - 80
        found = np.sum(both * np.maximum(-np.expm1(np.minimum(certified - values, 0.0)), 0.0))
        assert found <= delta
        shown = max(shown, found)
    assert shown > 0.0


@pytest.mark.parametrize("order", [2, 5])
def test_renyi_divergences_of_neighbours(order):
    q, h = 0.5, X[1] - X[0]
    mu, extra = 2 * L / (M * SIGMA), math.log1p(1.0 / (M * q))
    bound = float(objective_divergences(mu, extra, np.array([float(order)]))[0])
    for p, r in neighbours(40, q, 3):
        seen = (p > 1e-250) & (r > 1e-250)
        power = np.sum(r[seen] * (p[seen] / r[seen]) ** order) * h
        assert math.log(power) / (order - 1) <= bound


# --- accountants -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "extra", "T"), [(0.05, 0.001, 30), (0.02, 0.008, 100), (0.3, 0.05, 5), (1.0, 0.1, 1)])
def test_certified_between_the_replays_bounds(mu, extra, T):
    spending = {event(mu, extra): T, ReleaseEvent("gaussian", 400.0, 1.0, FULL): T}
    found, certified = replay(spending, 1e-5), certified_epsilon(spending, 1e-5)
    assert found.lower <= certified <= found.upper * 1.001
    assert found.upper <= 1.01 * certified <= 1.01 * rdp_epsilon(spending, 1e-5)
    assert gdp_epsilon(mu * math.sqrt(T), 1e-5) < certified
    assert certified_epsilon({event(mu / 3, extra / 3): T}, 1e-5) < found.lower  # a price for less is found out


def test_it_is_monotone_and_has_no_pure_price():
    def cost(mu=0.1, extra=0.01, T=20, delta=1e-5):
        return certified_epsilon({event(mu, extra): T}, delta)

    assert cost(mu=0.05) < cost() < cost(mu=0.2)
    assert cost(extra=0.001) < cost() < cost(extra=0.05)
    assert cost(T=10) < cost() < cost(T=40)
    assert cost(delta=1e-3) < cost() < cost(delta=0.0) == math.inf


def test_events_survive_the_ledger_and_samples_are_refused():
    one = event(0.3, 0.02)
    assert ReleaseEvent.from_dict(one.to_dict()) == one
    with pytest.raises(ConfigError, match="objective of all records"):
        certified_epsilon({event(0.3, 0.02, Sampling("poisson", 10.0, 100)): 1}, 1e-5)
