"""Laplace noise on vectors, and random weights, against quadrature, exact spreads and simulation."""

import math
import time
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from mixture_filter import MixtureFilter, mixture_curvature, mixture_divergence
from scipy.integrate import quad
from spender import Spender

from dpmpi.core import Query, Sampling
from dpmpi.errors import ConfigError, LedgerError
from dpmpi.privacy.accountants import certified_epsilon, equal_split_pld_epsilon, rdp_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.filters import RdpFilter, best_order
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.mechanisms import make_mechanism, pricing
from dpmpi.privacy.pld import pld_epsilon
from dpmpi.privacy.random_weights import gamma_reduction, laplace_figures, realised_loss
from dpmpi.privacy.renyi import divergences, laplace_divergence
from dpmpi.privacy.spending import release_group
from dpmpi.privacy.theorems import local_gamma
from dpmpi.rng import insecure_key

FULL = Sampling("full", 100, 100)
FACTORS = [(0.5, 0.85), (1.0, 0.73), (2.0, 0.54), (4.0, 0.33)]


def vector(scale, l2, d, sampling=FULL):
    return ReleaseEvent("laplace", scale, math.sqrt(d) * l2, sampling, d)


def growing(rounds, d=14, l2=0.002):
    """Steps of 1/10 on gradients of 100 records of norm 1, noise of rate 1.02^k."""
    return {vector(1.02**-k, l2, d): 1 for k in range(1, rounds + 1)}


# --- Laplace noise on a vector ---------------------------------------------------------------------------------------


def integrated_laplace(order, t):
    """The divergence by quadrature, with nothing taken from the closed form."""

    def density(x):
        return math.exp(-order * abs(x - t) + (order - 1) * abs(x))

    total = sum(quad(density, a, b, epsabs=0, epsrel=1e-13)[0] for a, b in ((-40, 0), (0, t), (t, t + 40))) / 2
    return math.log(total) / (order - 1)


@pytest.mark.parametrize(("order", "t"), [(1.5, 0.3), (2.0, 1.0), (10.0, 0.1), (30.0, 0.7), (8.0, 4.0), (60.0, 1.5)])
def test_laplace_divergence_is_its_integral(order, t):
    assert float(laplace_divergence(order, t)) == pytest.approx(integrated_laplace(order, t), rel=1e-9)


def test_laplace_divergence_keeps_its_precision_at_tiny_shifts():
    for order in (1.02, 2.0, 67.0, 2e4):
        t = 1e-9 / order
        assert float(laplace_divergence(order, t)) == pytest.approx(order * t * t / 2, rel=1e-8)
    below, above = laplace_divergence(5.0, np.array([6 * (1 - 1e-12), 6 * (1 + 1e-12)]))  # where the two forms meet
    assert below == pytest.approx(above, rel=1e-11)


def test_laplace_divergence_is_concave_in_the_squared_shift():
    s = np.linspace(0, 1, 401)[:, None] ** 2 * np.array([1e-2, 1.0, 30.0, 1000.0])
    for order in (1.02, 1.1, 1.5, 2.0, 3.0, 10.0, 67.0, 1000.0):
        D = laplace_divergence(order, np.sqrt(s))
        slopes = np.diff(D, axis=0) / np.diff(s, axis=0)
        assert np.all(np.diff(slopes, axis=0) <= 1e-9 * slopes[:-1])
        assert np.all(order * s / 2 * (1 + 1e-12) >= D)  # zCDP


@given(
    shift=st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda t: sum(t) > 0.01),
    size=st.floats(-3, 1.5).map(lambda x: 10**x),
    order=st.floats(-1.5, 3).map(lambda x: 1 + 10**x),
)
@settings(max_examples=200, deadline=None)
def test_no_spread_costs_more_than_the_equal_one(shift, size, order):
    """(7) of renyi.py, for the k that L1 and L2 norm of the shift give; it need not be whole, nor the dimension."""
    t = size * np.array(shift)
    k = np.sum(t) ** 2 / np.sum(t**2)
    bound = k * laplace_divergence(order, np.sum(t) / k)
    assert np.sum(laplace_divergence(order, t)) <= bound * (1 + 1e-9)
    event = ReleaseEvent("laplace", 1.0, math.sqrt(len(t) * np.sum(t**2)), FULL, len(t))  # only L2 is known
    assert bound <= divergences(release_group(event), np.array([order]))[0] * (1 + 1e-9)


@pytest.mark.parametrize("spread", [(1.0, 0.0, 0.0), (0.8, 0.6, 0.0), (0.9, 0.3, math.sqrt(0.1)), (3**-0.5,) * 3])
def test_the_certified_epsilon_covers_every_spread(spread):
    b, d, rounds, delta = 10.0, 3, 40, 1e-5
    whole = privacy_loss_distribution.identity(value_discretization_interval=1e-4)
    for part in spread:
        if part:
            one = privacy_loss_distribution.from_laplace_mechanism(b / part, value_discretization_interval=1e-4)
            whole = whole.compose(one.self_compose(rounds))
    exact = whole.get_epsilon_for_delta(delta)
    certified = certified_epsilon({vector(b, 1.0, d): rounds}, delta)
    assert exact <= certified <= 1.25 * exact


def test_published_figures():
    figures = laplace_figures(growing(100), 1e-5)
    for name, value in {"worst_case": 8.92, "l1": 2.38, "zcdp": 0.267, "pld": 0.24}.items():
        assert figures[name] == pytest.approx(value, rel=0.01), name
    assert figures["pld"] < figures["rdp"] < figures["zcdp"]
    same_variance = math.sqrt(sum((0.002 * 1.02**k) ** 2 / 2 for k in range(1, 101)))
    assert gdp_epsilon(same_variance, 1e-5) == pytest.approx(0.165, rel=0.01)
    assert certified_epsilon(growing(100), 1e-5) == figures["rdp"] == rdp_epsilon(growing(100), 1e-5)
    assert certified_epsilon(growing(100), 0.0) == pytest.approx(figures["l1"])
    with pytest.raises(ConfigError):
        laplace_figures({ReleaseEvent("gaussian", 1.0, 1.0, FULL): 1}, 1e-5)


@pytest.mark.parametrize("scale", [1e160, 1e200, 1e307])
def test_noise_beyond_what_can_be_squared_costs_next_to_nothing(scale):
    figures = laplace_figures({vector(scale, 1.0, 5): 100}, 1e-5)
    assert all(0 <= value < 1e-4 for value in figures.values())
    assert best_order({vector(scale, 1.0, 5): 100}, 1.0, 1e-5) > 1  # and no warning


def test_ranks_that_spent_the_same_are_priced_once():
    first = laplace_figures(growing(20), 1e-5)
    misses = pld_epsilon.cache_info().misses
    assert laplace_figures(growing(20), 1e-5) == first
    assert pld_epsilon.cache_info().misses == misses


def test_hundreds_of_distinct_releases_are_priced_exactly_and_at_once():
    spending = growing(400, l2=2e-6)
    started = time.perf_counter()
    found = certified_epsilon(spending, 1e-5)
    assert time.perf_counter() - started < 3
    rho = sum((2e-6 * 1.02**k) ** 2 / 2 for k in range(1, 401))
    orders = 1 + np.geomspace(1e-2, 1e4, 200000)
    zcdp = np.min(rho * orders + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1))
    assert 0.98 * zcdp < found < zcdp * 1.0001


def test_the_equal_split_is_the_library_and_can_be_exceeded():
    t, d = 0.5, 2
    spread = privacy_loss_distribution.from_laplace_mechanism(1 / t, value_discretization_interval=1e-4)
    both = spread.self_compose(2)
    for delta in (0.01, 0.2):
        found = equal_split_pld_epsilon({vector(1.0, t * math.sqrt(2), d): 1}, delta)
        assert found == pytest.approx(both.get_epsilon_for_delta(delta), rel=0.005)
    alone = privacy_loss_distribution.from_laplace_mechanism(1 / (t * math.sqrt(2)), value_discretization_interval=1e-4)
    worse = alone.get_epsilon_for_delta(0.2)  # one coordinate takes the whole L2 shift
    assert found < 0.9 * worse
    assert worse <= certified_epsilon({vector(1.0, t * math.sqrt(2), d): 1}, 0.2)


def test_coordinates_help_only_where_they_may():
    one = {ReleaseEvent("laplace", 20.0, 1.0, FULL): 50}
    assert certified_epsilon({vector(20.0, 0.25, 16): 50}, 1e-5) < certified_epsilon(one, 1e-5)
    batch = Sampling("poisson", 10, 100)
    sampled = {vector(20.0, 0.25, 16, batch): 50}
    assert certified_epsilon(sampled, 1e-5) < certified_epsilon({ReleaseEvent("laplace", 20.0, 1.0, batch): 50}, 1e-5)
    mixed = {vector(20.0, 0.25, 16): 50, ReleaseEvent("gaussian", 20.0, 1.0, FULL): 1}
    assert certified_epsilon({vector(20.0, 0.25, 16): 50}, 1e-5) < certified_epsilon(mixed, 1e-5)
    assert certified_epsilon(mixed, 1e-5) <= rdp_epsilon(mixed, 1e-5)
    with pytest.raises(ConfigError, match="at least 1 coordinate"):
        certified_epsilon({ReleaseEvent("laplace", 1.0, 1.0, FULL, 0): 1}, 1e-5)


def test_the_mechanism_says_how_many_coordinates():
    query = Query(np.zeros(14), 0.25, FULL)
    event = make_mechanism("laplace", 1.0, insecure_key(1, 0), 14).event(query)
    assert event.coordinates == 14
    assert event.sensitivity / math.sqrt(event.coordinates) == pytest.approx(query.sensitivity)
    assert make_mechanism("gaussian", 1.0, insecure_key(1, 0), 14).event(query).coordinates == 1
    for ratio, k in ((math.sqrt(3), 3), (1.0, 1), (2.5, 6)):
        sparse = make_mechanism("laplace", 1.0, insecure_key(1, 0), 14, price=pricing("laplace", 1.0, 14, ratio))
        assert sparse.event(query).coordinates == k
        assert sparse.event(query).sensitivity / math.sqrt(k) >= query.sensitivity * (1 - 1e-12)


def test_coordinates_survive_the_ledger_and_are_checked():
    event = vector(1.0, 0.1, 14)
    assert event.to_dict()["coordinates"] == 14
    assert ReleaseEvent.from_dict(event.to_dict()) == event
    assert "coordinates" not in ReleaseEvent("laplace", 1.0, 0.1, FULL).to_dict()
    for wrong in (0, -3, "many", math.inf):
        with pytest.raises(LedgerError):
            ReleaseEvent.from_dict({**event.to_dict(), "coordinates": wrong})


# --- uniform plus Laplace --------------------------------------------------------------------------------------------


def smeared(x, low, high, beta):
    """The density of a uniform draw from [low, high] plus Laplace noise of rate beta, by quadrature."""
    if high == low:
        return beta / 2 * math.exp(-beta * abs(x - low))
    cuts = sorted({low, min(max(x, low), high), high})
    pieces = (quad(lambda y: math.exp(-beta * abs(x - y)), a, b, epsabs=0, epsrel=1e-13)[0] for a, b in pairwise(cuts))
    return beta / 2 * sum(pieces) / (high - low)


@pytest.mark.parametrize("beta", [0.3, 2.0, 20.0])
@pytest.mark.parametrize("omega", [0.0, 1e-12, 1e-3, 0.4, 1.5])
@pytest.mark.parametrize("shift", [0.01, 0.5])
def test_realised_loss_is_the_supremum_by_quadrature(beta, omega, shift):
    low = 0.7
    outputs = low + omega / 2 + np.array([-1.0, -omega / 2, -omega / 3, 0.0, omega / 5, omega / 2 + 0.02, 0.9])
    found = realised_loss(np.full(7, low), np.full(7, low + omega), outputs, beta, shift)
    for x, loss in zip(outputs, found, strict=True):
        own = math.log(smeared(x, low, low + omega, beta))
        losses = [
            abs(own - math.log(smeared(x, low + t, low + omega + t, beta))) for t in np.linspace(-shift, shift, 9)
        ]
        assert loss == pytest.approx(max(losses), abs=1e-10)
    assert np.all(found <= beta * shift * (1 + 1e-12))


def test_realised_loss_neither_overflows_nor_mixes_up_coordinates():
    low, high = np.array([0.0, 0.0, -5.0, 1.0]), np.array([0.0, 3.0, 5.0, 1.0])
    output = np.array([1e6, 2.0, 0.0, 1.0])
    with np.errstate(all="raise", under="ignore"):
        found = realised_loss(low, high, output, 1e4, 0.1)
    assert found[0] == found[3] == pytest.approx(1000.0)
    assert found[1] == found[2] == 0.0  # deep inside, e^-9000 is left
    alone = [realised_loss(*(v[i : i + 1] for v in (low, high, output)), 3.0, 0.1)[0] for i in range(4)]
    assert realised_loss(low, high, output, 3.0, 0.1).tolist() == alone
    with pytest.raises(ConfigError):
        realised_loss(high, low, output, 1.0, 0.1)


def integrated_divergence(order, w, t):
    """The divergence for beta = 1 by adaptive quadrature of the definition."""
    h = w / 2

    def log_p(x):
        x = abs(x)
        if x >= h:
            return h - x + math.log(-math.expm1(-w) / (2 * w))
        return math.log((2 - math.exp(-h - x) - math.exp(x - h)) / (2 * w))

    cuts = sorted({-h - 45.0, -h, t - h, h, t + h, t + h + 45.0})

    def density(x):
        return math.exp(order * log_p(x - t) + (1 - order) * log_p(x))

    total = sum(quad(density, a, b, epsabs=0, epsrel=1e-13, limit=200)[0] for a, b in pairwise(cuts))
    return math.log(total) / (order - 1)


@pytest.mark.parametrize(
    ("order", "w", "t"),
    [(2.0, 1.0, 0.3), (20.0, 0.5, 0.2), (10.0, 0.1, 3.0), (10.0, 5.0, 0.3), (30.0, 20.0, 2.0), (3.0, 100.0, 1.0),
     (1.2, 3.0, 0.5), (50.0, 2.0, 2.5)],
)  # fmt: skip
def test_mixture_divergence_is_its_integral_from_above(order, w, t):
    exact = integrated_divergence(order, w, t)
    found = float(mixture_divergence(order, 1.0, w, t))
    assert found == pytest.approx(exact, rel=3e-9)
    assert found >= exact * (1 - 1e-11)
    assert float(mixture_divergence(order, 8.0, w / 8, -t / 8)) == pytest.approx(found, rel=1e-12)  # units, symmetry


@pytest.mark.parametrize(("width", "factor"), FACTORS)
def test_published_factors(width, factor):
    ratio = mixture_divergence(2.0, 1.0, width, 1e-4) / laplace_divergence(2.0, 1e-4)
    assert float(ratio) == pytest.approx(factor, abs=0.0051)
    assert mixture_curvature(2.0, 3.0, np.array([width / 3]), 1e-4)[0] == pytest.approx(9 * ratio, rel=0.01)


def test_mixture_divergence_at_its_ends():
    t = np.array([0.0, 1e-7, 0.01, 1.0, 40.0])
    np.testing.assert_array_equal(mixture_divergence(9.0, 1.0, 0.0, t), laplace_divergence(9.0, t))
    np.testing.assert_allclose(mixture_divergence(9.0, 1.0, 1e-9, t), laplace_divergence(9.0, t), rtol=1e-8)
    D = mixture_divergence(9.0, 1.0, np.array([0.1, 1.0, 1e3, 1e7])[:, None], t)
    assert D.shape == (4, 5)
    assert np.all(D[:, 0] == 0)
    assert np.all(laplace_divergence(9.0, t) >= D)
    assert np.all(D[:, 1:] > 0)
    assert np.all(np.diff(D[:, 1:4], axis=0) < 0)
    with pytest.raises(ConfigError):
        mixture_divergence(1.0, 1.0, 1.0, 1.0)
    with pytest.raises(ConfigError):
        mixture_divergence(2.0, 1.0, -1.0, 1.0)


@pytest.mark.parametrize("order", [1.5, 8.0, 67.0])
def test_mixture_divergence_is_convex_but_not_concave_in_the_square(order):
    t = np.linspace(0.001, 2.0, 400)
    for w in (0.1, 1.0, 5.0, 100.0):
        D = mixture_divergence(order, 1.0, w, t)
        assert np.all(np.diff(D, 2) >= -1e-9 * D[2:])  # (5)
    if order > 2:
        assert np.max(D / t**2) > 1.5 * D[0] / t[0] ** 2


@given(
    order=st.floats(-0.5, 2).map(lambda x: 1 + 10**x),
    w=st.floats(-2, 2.5).map(lambda x: 10**x),
    reach=st.floats(-4, 1).map(lambda x: 10**x),
)
@settings(max_examples=25, deadline=None)
def test_curvature_covers_all_shifts_and_not_much_more(order, w, reach):
    c = mixture_curvature(order, 1.0, np.array([w]), reach)[0]
    t = np.geomspace(1e-6 / order, reach, 300) if reach > 1e-6 / order else np.array([reach])
    ratio = mixture_divergence(order, 1.0, w, t) / t**2
    assert np.all(ratio <= c * (1 + 1e-8))
    assert c <= 1.02 * np.max(ratio)


# --- gamma -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beta", "omega", "shift"), [(1.0, 1.0, 0.5), (10.0, 0.3, 0.001), (3.0, 0.2, 0.7), (2.0, 9.0, 1.0)]
)
def test_gamma_is_the_mean_realised_loss(beta, omega, shift):
    rng = np.random.default_rng(5)
    x = omega * rng.random(400_000) + rng.laplace(0, 1 / beta, 400_000)
    losses = realised_loss(np.zeros_like(x), np.full_like(x, omega), x, beta, shift) / (beta * shift)
    assert abs(losses.mean() - gamma_reduction(beta, omega, shift)) < 4.5 * losses.std() / math.sqrt(len(x))

    def weighted(x):
        loss = realised_loss(np.zeros(1), np.array([omega]), np.array([x]), beta, shift)[0]
        return smeared(x, 0.0, omega, beta) * loss / (beta * shift)

    half = omega / 2
    cuts = sorted({0.0, max(half - shift, 0.0), half, half + 40 / beta})
    integral = 2 * sum(quad(lambda u: weighted(half + u), a, b)[0] for a, b in pairwise(cuts))
    assert gamma_reduction(beta, omega, shift) == pytest.approx(integral, rel=1e-7)


def test_gamma_of_the_papers_figure():
    """It falls with the width and with the rate, at a shift of 0.001; and is 1 without weights."""
    gammas = np.array([[gamma_reduction(b, w, 0.001) for w in np.linspace(0.1, 1, 7)] for b in np.linspace(2, 10, 5)])
    assert np.all(np.diff(gammas, axis=0) < 0)
    assert np.all(np.diff(gammas, axis=1) < 0)
    assert gamma_reduction(5.0, 0.0, 0.1) == 1.0
    assert gamma_reduction(5.0, 1e-10, 0.1) == pytest.approx(1.0, abs=1e-9)


def test_the_papers_bound_on_gamma_is_none():
    assert local_gamma(1.0, 1.0, 0.5) == pytest.approx(0.883, abs=5e-4)
    assert gamma_reduction(1.0, 1.0, 0.5) == pytest.approx(0.923, abs=5e-4)
    assert local_gamma(50.0, 10.0, 0.01) > gamma_reduction(50.0, 10.0, 0.01)  # but it holds for wide intervals
    assert local_gamma(2.0, 1.0, 1e-6) == pytest.approx(gamma_reduction(2.0, 1.0, 1e-6), rel=1e-5)  # and as shift -> 0


# --- the filter ------------------------------------------------------------------------------------------------------


def shifts(rng, d, l2, bounds):
    """Shift vectors within the bounds, of L2 norm at most l2: random ones, and all of it in few coordinates."""
    for k in (1, 1, 2, d // 2, d):
        t = np.zeros(d)
        t[rng.permutation(d)[:k]] = rng.random(k) + 0.01
        yield np.minimum(t * (l2 / np.linalg.norm(t)), bounds)


@pytest.mark.parametrize("clipped", [False, True])
def test_the_filter_charges_no_less_than_any_shift_costs(clipped):
    rng = np.random.default_rng(3)
    d, order = 8, 24.0
    for beta, l2 in ((1.0, 0.005), (1.0, 0.05), (6.0, 0.05)):
        widths = rng.random(d) * 2 / beta
        bounds = l2 * (0.4 * rng.random(d) + 0.2) if clipped else np.full(d, l2)
        spender = MixtureFilter(1.0, 1e-5, order)
        cost = spender.cost(vector(1 / beta, l2, d), 1, widths, bounds if clipped else None)
        exact = [np.sum(mixture_divergence(order, beta, widths, t)) for t in shifts(rng, d, l2, bounds)]
        narrow = np.zeros(d)
        narrow[np.argmin(widths)] = min(l2, bounds[np.argmin(widths)])
        exact.append(np.sum(mixture_divergence(order, beta, widths, narrow)))
        assert max(exact) <= cost <= spender.cost(vector(1 / beta, l2, d))
        if order * beta * l2 < 0.2 and not clipped:  # small shifts cost as their squares, and the bound is attained
            assert cost <= 1.02 * max(exact)


@pytest.mark.parametrize(("width", "factor"), FACTORS)
def test_equal_widths_earn_their_factor(width, factor):
    event, order = vector(2.0, 1e-3, 14), 20.0
    plain = RdpFilter(1.0, 1e-5, order)
    counting = MixtureFilter(1.0, 1e-5, order)
    assert counting.budget == plain.budget
    assert counting.cost(event) == plain.cost(event)
    ratio = counting.cost(event, 3, np.full(14, 2 * width)) / plain.cost(event, 3)
    assert ratio == pytest.approx(factor, abs=0.01)
    assert counting.cost(event, 1, np.append(np.full(13, 2 * width), 0.0)) == plain.cost(
        event
    )  # a narrow one spoils it


def test_the_filter_admits_until_its_budget_is_spent():
    event = vector(1.0, 0.02, 5)
    order = best_order({event: 100}, 1.0, 1e-5)
    counting, made = MixtureFilter(1.0, 1e-5, order), 0
    spender, widths = Spender(counting, 1e-5), np.linspace(1.0, 3.0, 5)
    while spender.charge(event, 100, widths):
        made += 100
    assert spender.spent <= counting.budget < spender.spent + counting.cost(event, 100, widths)
    assert spender.epsilon() <= 1.0
    alone = RdpFilter(1.0, 1e-5, order)
    assert made > 1.2 * alone.budget / alone.cost(event)
    assert not spender.charge(ReleaseEvent("none", 0.0, 1.0, FULL), 1, widths)
    assert counting.cost(event, 0, widths) == 0


@pytest.mark.parametrize(
    ("event", "widths", "bounds"),
    [(vector(1.0, 0.1, 5), np.full(5, -1.0), None), (vector(1.0, 0.1, 5), np.full(4, 1.0), None),
     (vector(1.0, 0.1, 5), np.full(5, math.inf), None), (vector(1.0, 0.1, 5), np.full(5, 1.0), -1.0),
     (ReleaseEvent("gaussian", 1.0, 1.0, FULL), np.full(5, 1.0), None)],
)  # fmt: skip
def test_what_the_filter_does_not_understand_is_refused(event, widths, bounds):
    with pytest.raises(ConfigError) as caught:
        MixtureFilter(1.0, 1e-5, 10.0).cost(event, 1, widths, bounds)
    assert "\n" not in str(caught.value)
