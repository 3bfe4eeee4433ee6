"""The accountants against closed forms, direct integration, the library's own figures and each other."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from spender import Spender

from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.privacy import accountants, renyi
from dpmpi.privacy.accountants import certified_epsilon, rdp_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.filters import GaussianFilter, RdpFilter, best_order
from dpmpi.privacy.gdp import ROUNDING, gdp_delta, gdp_epsilon, gdp_mu
from dpmpi.privacy.spending import release_group, release_groups
from dpmpi.privacy.theorems import (
    liu2022_epsilon,
    liu2022_sigma,
    node_sampling_epsilon,
    node_sampling_sigma,
)  # fmt: skip

REPLACE_ONE = NeighboringRelation.REPLACE_ONE


def gradient(sigma, batch, records, kind, noise="gaussian"):
    """The mean of `batch` of `records` gradients of norm at most 1, plus noise."""
    return ReleaseEvent(noise, sigma, 2 / batch, Sampling(kind, batch, records))


def full(z, noise="gaussian"):
    return ReleaseEvent(noise, z, 1.0, Sampling("full", 10, 10))


def sampled(z, rate, kind, noise="gaussian"):
    return ReleaseEvent(noise, z, 1.0, Sampling(kind, rate * 10**6, 10**6))


# --- the closed form -------------------------------------------------------------------------------------------------


def precise_delta(mu, eps):
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(mu), mpmath.mpf(eps)
        return mpmath.ncdf(-eps / mu + mu / 2) - mpmath.exp(eps) * mpmath.ncdf(-eps / mu - mu / 2)


@given(mu=st.floats(-7, 2.5).map(lambda x: 10**x), t=st.floats(0, 14))
@settings(max_examples=60, deadline=None)
def test_gdp_delta_to_ten_digits(mu, t):
    eps = mu * t + mu * mu / 2
    exact = float(precise_delta(mu, eps))
    assert ROUNDING * gdp_delta(mu, eps) >= exact
    assert gdp_delta(mu, eps) == pytest.approx(exact, rel=1e-9 * max(1, eps), abs=1e-300)
    assert gdp_delta(mu, 0.0) == pytest.approx(float(precise_delta(mu, 0)), rel=1e-9)


@given(mu=st.floats(-3, 1.5).map(lambda x: 10**x), delta=st.floats(-12, -1).map(lambda x: 10**x))
@settings(max_examples=40, deadline=None)
def test_gdp_inverses(mu, delta):
    eps = gdp_epsilon(mu, delta)
    assert gdp_delta(mu, eps) <= delta
    if eps > 0:
        assert float(precise_delta(mu, eps)) == pytest.approx(delta, rel=1e-6)
        assert gdp_mu(eps, delta) == pytest.approx(mu, rel=1e-7)
        assert gdp_delta(gdp_mu(eps, delta), eps) <= delta
    else:
        assert float(precise_delta(mu, 0)) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(("eps", "delta", "mu"), [(1, 1e-5, 0.2681), (1, 0.01, 0.5325), (0.5, 1e-5, 0.1422)])
def test_known_mu(eps, delta, mu):
    assert gdp_mu(eps, delta) == pytest.approx(mu, abs=6e-5)


def test_gdp_ends():
    assert gdp_epsilon(0.0, 1e-5) == 0
    assert gdp_epsilon(1.0, 0.0) == math.inf
    assert gdp_mu(1.0, 0.0) == 0
    assert gdp_mu(math.inf, 0.1) == math.inf


# --- Gaussian noise on all records -----------------------------------------------------------------------------------


@given(
    parts=st.lists(st.tuples(st.floats(2, 50), st.integers(1, 40)), min_size=1, max_size=4),
    delta=st.floats(-8, -2).map(lambda x: 10**x),
)
@settings(max_examples=8, deadline=None)
def test_closed_form_is_the_library_and_counts_the_sensitivity_once(parts, delta):
    judge = PLDAccountant(REPLACE_ONE, value_discretization_interval=1e-3)
    for z, count in parts:  # the library wants the multiplier of one record's norm: the trap
        judge.compose(dp_event.GaussianDpEvent(2 * z), count)
    spending = {}
    for z, count in parts:
        spending[full(z)] = spending.get(full(z), 0) + count
    assert certified_epsilon(spending, delta) == pytest.approx(judge.get_epsilon(delta), rel=0.005, abs=1e-3)


def test_the_factor_two_of_replace_one():
    hundred = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(10), 100)
    doubled = PLDAccountant(REPLACE_ONE).compose(hundred).get_epsilon(1e-5)
    not_doubled = RdpAccountant(neighboring_relation=REPLACE_ONE).compose(hundred).get_epsilon(1e-5)
    assert doubled == pytest.approx(9.997, rel=0.001)
    assert not_doubled == pytest.approx(4.73, rel=0.001)
    assert certified_epsilon({full(5.0): 100}, 1e-5) == pytest.approx(doubled, rel=0.001)
    assert rdp_epsilon({full(10.0): 100}, 1e-5) == pytest.approx(not_doubled, rel=0.005)


def test_thousands_of_distinct_releases_are_a_sum_of_squares():
    zs = np.random.default_rng(1).uniform(20, 200, 20000)
    exact = gdp_epsilon(math.sqrt(np.sum(zs**-2.0)), 1e-5)
    assert certified_epsilon({full(z): 1 for z in zs}, 1e-5) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
@pytest.mark.parametrize("noise", ["gaussian", "laplace", "discrete-gaussian"])
def test_rate_one_is_the_full_batch(kind, noise):
    whole = Sampling(kind, 7, 7)
    assert certified_epsilon({replace(full(30, noise), sampling=whole): 50}, 1e-5) == certified_epsilon(
        {full(30, noise): 50}, 1e-5
    )
    almost = {sampled(30, 0.9999, kind, noise): 50}
    ratio = certified_epsilon(almost, 1e-5) / certified_epsilon({full(30, noise): 50}, 1e-5)
    assert 0.99 < ratio < 1.02


# --- published and derived tables ------------------------------------------------------------------------------------

PRINTED = [  # q, T, epsilon claimed, certified epsilon at delta = 0.01, half of the last printed digit
    (20000, 60000, 0.2, 21.1, 0.05),
    (20000, 60000, 0.4, 229, 0.5),
    (20000, 60000, 1.0, 1806, 0.5),
    (1012, 3036, 0.2, 0.08, 0.005),
    (1012, 3036, 0.4, 0.95, 0.005),
    (1012, 3036, 1.0, 52.2, 0.05),
    (1012, 60000, 1.0, 0.92, 0.005),
]


@pytest.mark.parametrize(("q", "T", "claimed", "certified", "half"), PRINTED)
def test_what_dual_averaging_at_the_theorems_noise_costs(q, T, claimed, certified, half):
    sigma = liu2022_sigma(1.0, T, q, claimed, 0.01)
    found = certified_epsilon({gradient(sigma, 1, q, "fixed"): T}, 0.01)
    assert abs(found - certified) <= max(half, 0.005 * certified)
    whole = {0.2: 0.030, 0.4: 0.104, 1.0: 0.398}[claimed]
    assert certified_epsilon({gradient(sigma, q, q, "full"): T}, 0.01) == pytest.approx(whole, abs=5e-4)


@pytest.mark.parametrize(
    ("q", "iota", "T", "sigma", "certified"),
    [(1012, 0.1, 60000, 0.315, 173), (1012, 0.2, 200000, 1.15, 2.86), (20000, 0.1, 60000, 0.0159, 15863),
     (20000, 0.2, 200000, 0.0582, 3489)],
)  # fmt: skip
def test_what_node_sampling_at_the_theorems_noise_costs(q, iota, T, sigma, certified):
    prescribed = node_sampling_sigma(1.0, T, q, iota, 1.0, 0.01)
    assert prescribed == pytest.approx(sigma, rel=0.005)
    found = certified_epsilon({gradient(prescribed, 1, q, "fixed"): round(iota * T)}, 0.01)
    assert found == pytest.approx(certified, rel=0.005)


@pytest.mark.parametrize(
    ("kind", "q", "T", "b", "sigma"),
    [("fixed", 20000, 1000, 1, 0.853), ("fixed", 20000, 1000, 32, 0.0438), ("fixed", 20000, 1000, 256, 0.0150),
     ("fixed", 20000, 10000, 1, 0.942), ("fixed", 20000, 10000, 32, 0.0633), ("fixed", 20000, 10000, 256, 0.0405),
     ("fixed", 20000, 60000, 32, 0.1168), ("fixed", 20000, 60000, 256, 0.0946), ("fixed", 1012, 1000, 32, 0.258),
     ("fixed", 1012, 1000, 256, 0.236), ("fixed", 1012, 10000, 32, 0.762), ("fixed", 1012, 10000, 256, 0.741),
     ("poisson", 20000, 1000, 32, 0.0221), ("poisson", 20000, 1000, 256, 0.01183),
     ("poisson", 20000, 10000, 256, 0.03735), ("poisson", 20000, 60000, 32, 0.09164)],
)  # fmt: skip
def test_noise_that_was_found_to_give_epsilon_one(kind, q, T, b, sigma):
    assert certified_epsilon({gradient(sigma, b, q, kind): T}, 1e-5) == pytest.approx(1.0, rel=0.02)


# --- independent oracles ---------------------------------------------------------------------------------------------


def normal(mean, z, x):
    return np.exp(-(((x - mean) / z) ** 2) / 2) / (z * math.sqrt(2 * math.pi))


def hockey_stick(p, q, eps, cell):
    return float(np.maximum(p - math.exp(eps) * q, 0).sum() * cell)


def attainable_pair(kind, z, rate, x):
    """All other records are alike, and the one in question is as far from them as it can be."""
    r = normal(0, z, x)
    if kind == "fixed":
        return (1 - rate) * r + rate * normal(1, z, x), r
    return (1 - rate) * r + rate * normal(0.5, z, x), (1 - rate) * r + rate * normal(-0.5, z, x)


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
@pytest.mark.parametrize(("z", "rate", "delta"), [(0.3, 0.1, 1e-3), (1.0, 0.1, 1e-4), (2.0, 0.5, 1e-5)])
def test_one_sampled_release_costs_what_a_direct_integral_says(kind, z, rate, delta):
    x = np.arange(-14 * z - 1, 14 * z + 2, z / 2000)
    p, q = attainable_pair(kind, z, rate, x)
    eps = certified_epsilon({sampled(z, rate, kind): 1}, delta)
    assert hockey_stick(p, q, eps, z / 2000) <= delta * (1 + 1e-6)
    assert hockey_stick(p, q, 0.99 * eps, z / 2000) > delta


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
def test_two_sampled_releases_cost_no_less_than_an_attainable_pair(kind):
    z, rate, delta = 1.0, 0.2, 1e-3
    x = np.arange(-8, 9, 0.02)
    p, q = attainable_pair(kind, z, rate, x)
    eps = certified_epsilon({sampled(z, rate, kind): 2}, delta)
    assert hockey_stick(np.outer(p, p), np.outer(q, q), eps, 4e-4) <= delta * (1 + 1e-6)
    assert hockey_stick(np.outer(p, p), np.outer(q, q), 0.95 * eps, 4e-4) > delta  # and not much more


@given(
    z=st.floats(-0.5, 1).map(lambda x: 10**x), rate=st.floats(-3, -0.5).map(lambda x: 10**x), T=st.integers(1, 2000)
)  # fmt: skip
@settings(max_examples=6, deadline=None)
def test_fixed_costs_no_less_than_poisson_and_renyi_no_less_than_either(z, rate, T):
    poisson, fixed = ({sampled(z, rate, kind): T} for kind in ("poisson", "fixed"))
    least, most = certified_epsilon(poisson, 1e-5), certified_epsilon(fixed, 1e-5)
    assert least <= most * 1.005
    assert most <= certified_epsilon({full(z): T}, 1e-5) * 1.005
    assert least <= rdp_epsilon(poisson, 1e-5) * 1.001
    assert most <= rdp_epsilon(fixed, 1e-5) * 1.001


def log_discrete_gaussian(shift, sigma, x):
    logs = -((x - shift) ** 2) / (2 * sigma**2)
    return logs - np.logaddexp.reduce(logs)


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
@pytest.mark.parametrize(("sigma", "rate", "order"), [(4.0, 0.1, 2), (4.0, 0.1, 7), (12.0, 0.01, 16), (2.5, 0.3, 5)])
def test_renyi_bound_of_sampled_gaussians(kind, sigma, rate, order):
    """Against sums over a lattice, which has the same moments: an integer shift moves it onto itself."""
    shift = 3  # of one record, to either side; replacing one moves by twice as much
    x = np.arange(-400, 401)
    far = 2 * shift if kind == "fixed" else shift
    r = log_discrete_gaussian(0, sigma, x)
    p = np.logaddexp(math.log1p(-rate) + r, math.log(rate) + log_discrete_gaussian(far, sigma, x))
    q = np.logaddexp(math.log1p(-rate) + r, math.log(rate) + log_discrete_gaussian(-far, sigma, x))
    if kind == "fixed":
        q = r
    exact = max(np.logaddexp.reduce(order * a + (1 - order) * b) / (order - 1) for a, b in ((p, q), (q, p)))
    event = ReleaseEvent("gaussian", sigma, 2.0 * shift, Sampling(kind, rate * 1000, 1000))
    bound = renyi.divergences(release_group(event), np.array([float(order)]))[0]
    assert exact <= bound * (1 + 1e-9)
    assert bound <= (1.8 if kind == "poisson" else 6.0) * exact


def test_laplace_is_the_library_and_never_above_the_pure_sum():
    for z, T in [(20.0, 100), (2.0, 3), (0.5, 1)]:
        judge = PLDAccountant().compose(dp_event.LaplaceDpEvent(z), T).get_epsilon(1e-5)
        found = certified_epsilon({full(z, "laplace"): T}, 1e-5)
        assert found == pytest.approx(min(judge, T / z), rel=0.005)
        assert found <= T / z
        assert certified_epsilon({full(z, "laplace"): T}, 0.0) == pytest.approx(T / z)
        assert found <= certified_epsilon({full(z, "spherical-laplace"): T}, 1e-5) * 1.001 <= T / z * 1.001


@pytest.mark.parametrize("parts", [(0.5, 0.5), (0.9, 0.1), (0.1,) * 10])
def test_an_l1_shift_of_laplace_noise_is_worst_in_one_coordinate(parts):
    eps, h = 2.0, 2.0 / 2000
    whole = privacy_loss_distribution.from_laplace_mechanism(1 / eps, value_discretization_interval=h)
    split = privacy_loss_distribution.identity(value_discretization_interval=h)
    for part in parts:
        one = privacy_loss_distribution.from_laplace_mechanism(1 / (eps * part), value_discretization_interval=h)
        split = split.compose(one)
    grid = list(np.linspace(0, eps, 40))
    assert np.all(split.get_delta_for_epsilon(grid) <= whole.get_delta_for_epsilon(grid) + 1e-12)


def test_pure_releases_compose_as_randomised_response():
    z, T, delta = 10.0, 12, 1e-4
    k = np.arange(T + 1)
    p = 1 / (1 + math.exp(-1 / z))
    masses = np.array([math.comb(T, int(i)) * p**i * (1 - p) ** (T - i) for i in k])
    losses = (2 * k - T) / z

    def delta_at(eps):
        return float(np.sum(masses * np.maximum(-np.expm1(eps - losses), 0)))

    eps = certified_epsilon({full(z, "spherical-laplace"): T}, delta)
    assert delta_at(eps) <= delta < delta_at(0.99 * eps)


def test_sampling_amplifies_pure_releases():
    eps0, rate = 1.0, 0.01
    amplified = math.log1p(rate * math.expm1(eps0))
    for noise in ("laplace", "spherical-laplace"):
        for kind in ("poisson", "fixed"):
            assert certified_epsilon({sampled(1 / eps0, rate, kind, noise): 5}, 0.0) == pytest.approx(5 * amplified)
            found = certified_epsilon({sampled(1 / eps0, rate, kind, noise): 500}, 1e-5)
            assert 0 < found < 500 * amplified
            assert found <= rdp_epsilon({sampled(1 / eps0, rate, kind, noise): 500}, 1e-5) * 1.001


# --- composition -----------------------------------------------------------------------------------------------------


def test_mixtures_cost_more_than_parts_and_less_than_their_sum():
    parts = [
        {full(8.0): 5}, {sampled(1.0, 0.01, "poisson"): 300}, {sampled(1.5, 0.01, "fixed"): 200},
        {full(30.0, "laplace"): 10}, {full(60.0, "spherical-laplace"): 4},
    ]  # fmt: skip
    mixture = {event: count for part in parts for event, count in part.items()}
    costs = [certified_epsilon(part, 2e-6) for part in parts]
    assert max(costs) < certified_epsilon(mixture, 1e-5) <= sum(costs)  # basic composition adds up the deltas
    assert certified_epsilon(mixture, 1e-5) <= rdp_epsilon(mixture, 1e-5)
    with_lattice = {**mixture, full(50.0, "discrete-gaussian"): 1}
    assert certified_epsilon(mixture, 1e-5) < certified_epsilon(with_lattice, 1e-5) < math.inf


def test_a_mixture_of_gaussian_kinds_is_composed_exactly():
    one = certified_epsilon({sampled(2.0, 0.05, "poisson"): 400}, 1e-5)
    almost = {sampled(2.0, 0.05, "poisson"): 200, sampled(2.0 + 1e-9, 0.05, "poisson"): 200}
    assert certified_epsilon(almost, 1e-5) == pytest.approx(one, rel=0.003)
    whole = {full(20.0): 100, sampled(20.0, 0.999999, "fixed"): 100}
    assert certified_epsilon(whole, 1e-5) == pytest.approx(certified_epsilon({full(20.0): 200}, 1e-5), rel=0.005)


def test_many_kinds_of_sampled_releases_are_merged_upwards(monkeypatch):
    one_rate = {sampled(z, 0.05, "fixed"): 9 for z in np.geomspace(2.0, 4.0, 18)}
    two_rates = {sampled(z, rate, "fixed"): 9 for z in np.geomspace(3.0, 4.0, 6) for rate in (0.048, 0.05)}
    exact = [certified_epsilon(spending, 1e-5) for spending in (one_rate, two_rates)]
    monkeypatch.setattr("dpmpi.privacy.spending._MOST_GROUPS", 9)
    for spending, least in zip((one_rate, two_rates), exact, strict=True):
        assert len(release_groups(spending)) <= 16
        assert least < certified_epsilon(spending, 1e-5) < 1.12 * least


@pytest.mark.parametrize(
    ("noise", "kind"),
    [("gaussian", "full"), ("gaussian", "poisson"), ("gaussian", "fixed"), ("laplace", "fixed"),
     ("discrete-gaussian", "full"), ("discrete-gaussian", "poisson")],
)  # fmt: skip
def test_monotone_in_releases_delta_and_scale(noise, kind):
    def cost(z=2.0, T=100, delta=1e-5):
        return certified_epsilon(
            {replace(sampled(z, 0.02, "fixed", noise), sampling=Sampling(kind, 20, 1000)): T}, delta
        )

    assert 0 < cost() < cost(T=200) < cost(T=400)
    assert cost(delta=1e-4) < cost() < cost(delta=1e-7)
    assert cost(z=4.0) < cost() < cost(z=1.0)


def test_free_releases_and_priceless_ones():
    assert certified_epsilon({}, 1e-5) == rdp_epsilon({}, 1e-5) == 0
    assert certified_epsilon({full(1.0): 0}, 1e-5) == 0
    assert certified_epsilon({ReleaseEvent("gaussian", 1.0, 0.0, Sampling("full", 1, 1)): 9}, 1e-5) == 0
    nothing = ReleaseEvent("none", 0.0, 1.0, Sampling("full", 1, 1))
    assert certified_epsilon({nothing: 1, full(5.0): 1}, 0.1) == rdp_epsilon({nothing: 1}, 0.1) == math.inf
    unbounded = ReleaseEvent("gaussian", 1.0, math.inf, Sampling("full", 1, 1))
    assert certified_epsilon({full(5.0): 1}, 0.0) == certified_epsilon({unbounded: 1}, 0.1) == math.inf


@pytest.mark.parametrize(
    ("event", "count", "delta"),
    [(replace(full(1.0), noise="cauchy"), 1, 1e-5), (replace(full(1.0), sampling=Sampling("shuffled", 1, 2)), 1, 1e-5),
     (replace(full(1.0), sampling=Sampling("poisson", 3, 2)), 1, 1e-5), (full(1.0), -1, 1e-5), (full(1.0), 1, 1.0),
     (full(math.nan), 1, 1e-5)],
)  # fmt: skip
def test_what_is_not_understood_is_refused(event, count, delta):
    with pytest.raises(ConfigError) as caught:
        certified_epsilon({event: count}, delta)
    assert "\n" not in str(caught.value)


def test_tiny_deltas_fall_back_on_renyi_divergence():
    spending = {sampled(2.0, 0.01, "poisson"): 60000}
    assert certified_epsilon(spending, 1e-12) == rdp_epsilon(spending, 1e-12) < math.inf
    assert certified_epsilon(spending, 1e-12) > certified_epsilon(spending, 1e-9)


# --- cache and imports -----------------------------------------------------------------------------------------------


def test_the_cache_file_is_read_and_survives_damage(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "cache.json"
    spending = {sampled(3.0, 0.1, "fixed"): 7}
    found = certified_epsilon(spending, 1e-5, path)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["cache.json", "cache.key"]
    assert {entry.stat().st_mode & 0o777 for entry in path.parent.iterdir()} == {0o600}
    with monkeypatch.context() as patch:
        patch.setattr(accountants, "_composed", lambda groups, delta: pytest.fail("the cache was not used"))
        assert certified_epsilon(spending, 1e-5, path) == found
    monkeypatch.setattr(accountants, "_composed", lambda groups, delta: 42.0)
    before = {*json.loads(path.read_text())}
    assert certified_epsilon(spending, 2e-5, path) == 42.0  # another delta is another figure
    [key] = {*json.loads(path.read_text())} - before
    for damaged in ("0.0", "-5.0", "NaN", "true", "null", "1e999", "[]", "[1e-9]", '[1e-9, "ab"]', "[1e-9, 5]"):
        path.write_text(f'{{"{key}": {damaged}}}')
        assert certified_epsilon(spending, 2e-5, path) == 42.0
    [(key, (value, mac))] = json.loads(path.read_text()).items()
    other = certified_epsilon(spending, 3e-5, path)
    [theirs] = [one for name, (_, one) in json.loads(path.read_text()).items() if name != key]
    for poisoned in ([1e-9, mac], [value, theirs], [1e-9, theirs], [value, "00" * 32]):  # under no key of this user
        path.write_text(json.dumps({key: poisoned}))
        monkeypatch.setattr(accountants, "_composed", lambda groups, delta: 43.0)
        assert certified_epsilon(spending, 2e-5, path) == 43.0
    assert other == 42.0
    path.write_text("{ not json")
    assert certified_epsilon(spending, 1e-5, path) == 43.0
    path.with_suffix(".key").write_text("11" * 32)  # lost and made anew: nothing of before is believed
    monkeypatch.setattr(accountants, "_composed", lambda groups, delta: 44.0)
    assert certified_epsilon(spending, 1e-5, path) == 44.0


def test_the_cache_file_stays_short(tmp_path, monkeypatch):
    path, many = tmp_path / "cache.json", 40
    monkeypatch.setattr("dpmpi.privacy.figure_cache.MOST_FIGURES", many)
    monkeypatch.setattr(accountants, "_composed", lambda groups, delta: delta)
    spending = {sampled(3.0 + 0.001 * k, 0.1, "fixed"): 1 for k in range(500)}  # a round each
    for k in range(1, 2 * many):
        assert certified_epsilon(spending, k * 1e-5, path) == k * 1e-5
    assert len(json.loads(path.read_text())) == many
    assert path.stat().st_size < 160 * many
    monkeypatch.setattr(accountants, "_composed", lambda groups, delta: 42.0)
    assert certified_epsilon(spending, (2 * many - 1) * 1e-5, path) == (2 * many - 1) * 1e-5  # the last ones are there
    assert certified_epsilon(spending, 1e-5, path) == 42.0


def test_the_live_odometer_imports_neither_scipy_nor_the_library():
    code = (
        "import sys\n"
        "from dpmpi.core import Sampling\n"
        "from dpmpi.privacy import accountants, calibration, theorems, events\n"
        "event = events.ReleaseEvent('gaussian', 5.0, 1.0, Sampling('full', 10, 10))\n"
        "assert accountants.certified_epsilon({event: 20}, 1e-5) > 0\n"
        "under = lambda sigma: {events.ReleaseEvent('gaussian', sigma, 1.0, event.sampling): 20}\n"
        "assert calibration.calibrate(under, 1.0, 1e-5) > 0\n"
        "print([m for m in ('scipy', 'dp_accounting') if m in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- filters ---------------------------------------------------------------------------------------------------------

charges = st.lists(st.tuples(st.floats(0.5, 60), st.integers(1, 50)), min_size=1, max_size=30)


@given(charges=charges, eps=st.floats(0.1, 8), delta=st.sampled_from([1e-3, 1e-5, 1e-9]))
@settings(max_examples=40, deadline=None)
def test_gaussian_filter_never_admits_above_the_budget(charges, eps, delta):
    spender, spending = Spender(GaussianFilter(eps, delta), delta), {}
    for z, count in charges:
        event = full(z)
        trial = {**spending, event: spending.get(event, 0) + count}
        if spender.charge(event, count):
            spending = trial
        else:  # what it refuses does not fit
            assert certified_epsilon(trial, delta) > eps * (1 - 1e-9)
        assert certified_epsilon(spending, delta) <= eps * (1 + 1e-9)
        assert spender.epsilon() == pytest.approx(certified_epsilon(spending, delta), rel=1e-7, abs=1e-9)


kinds = st.sampled_from([("gaussian", "full"), ("gaussian", "poisson"), ("discrete-gaussian", "poisson"),
                         ("laplace", "full"), ("spherical-laplace", "fixed"), ("gaussian", "fixed")])  # fmt: skip


@given(sequence=st.lists(st.tuples(kinds, st.sampled_from([1.0, 5.0]), st.integers(1, 60)), min_size=1, max_size=12))
@settings(max_examples=12, deadline=None)
def test_renyi_filter_never_admits_above_the_budget(sequence):
    eps, delta, order = 2.0, 1e-5, 12
    spender, spending = Spender(RdpFilter(eps, delta, order), delta), {}
    for (noise, kind), z, count in sequence:
        event = ReleaseEvent(noise, z, 1.0, Sampling(kind, 1000 if kind == "full" else 10, 1000))
        if spender.charge(event, count):
            spending[event] = spending.get(event, 0) + count
    assert spender.epsilon() <= eps
    assert rdp_epsilon(spending, delta) <= spender.epsilon() * (1 + 1e-9)


def test_filters_spend_the_whole_budget():
    mu = gdp_mu(1.0, 1e-5)
    exact = GaussianFilter(1.0, 1e-5)
    spender = Spender(exact, 1e-5)
    assert spender.charge(full(math.sqrt(1000) / mu * (1 + 1e-9)), 1000)
    assert spender.epsilon() == pytest.approx(1.0, rel=1e-6)
    assert not spender.charge(full(1000.0))
    assert exact.cost(ReleaseEvent("none", 0.0, 1.0, Sampling("full", 1, 1))) == math.inf
    with pytest.raises(ConfigError):
        exact.cost(sampled(5.0, 0.1, "poisson"))
    with pytest.raises(ConfigError):
        RdpFilter(1.0, 1e-5, 2.5).cost(sampled(5.0, 0.1, "poisson"))


def test_the_order_from_public_parameters_is_the_best():
    event = sampled(2.0, 0.01, "poisson")
    order = best_order({event: 100}, 1.0, 1e-5)
    assert order == int(order)

    def admitted(order):
        budget = RdpFilter(1.0, 1e-5, order)
        return budget.budget / budget.cost(event)

    assert all(admitted(order) >= admitted(other) for other in (2, 5, 10, 20, 40, 80, 160) if other != order)
    releases = math.floor(admitted(order))
    assert 0.7 < certified_epsilon({event: releases}, 1e-5) <= 1.0
    assert rdp_epsilon({event: releases}, 1e-5) <= 1.0
    with pytest.raises(ConfigError):
        best_order({}, 1.0, 1e-5)


# --- theorems --------------------------------------------------------------------------------------------------------


def test_theorems_invert_and_refuse_what_they_do_not_cover():
    sigma = liu2022_sigma(2.0, 500, 1000, 0.3, 1e-3)
    assert sigma**2 == pytest.approx(12 * 2.0**2 * 500 * math.log(1e3) / (1000**2 * 0.3**2))
    assert liu2022_epsilon(sigma, 2.0, 500, 1000, 1e-3) == pytest.approx(0.3)
    assert liu2022_epsilon(sigma / 10, 2.0, 500, 1000, 1e-3) is None
    sigma = node_sampling_sigma(2.0, 500, 1000, 0.1, 0.3, 1e-3)
    assert sigma**2 == pytest.approx(32 * 0.1**2 * 2.0**2 * 500 * math.log(2e3) / (1000**2 * 0.3**2))
    assert node_sampling_epsilon(sigma, 2.0, 500, 1000, 0.1, 1e-3) == pytest.approx(0.3)
    assert node_sampling_epsilon(sigma, 2.0, 5, 10, 0.1, 1e-3) is None
    for eps, delta in [(1.1, 0.01), (0.0, 0.01), (0.5, 0.4), (0.5, 0.0)]:
        with pytest.raises(ConfigError):
            liu2022_sigma(1.0, 10, 10, eps, delta)
    for T, iota, eps in [(10, 0.1, 1.0), (1000, 0.0, 1.0), (1000, 0.5, 1.5)]:
        with pytest.raises(ConfigError):
            node_sampling_sigma(1.0, T, 10, iota, eps, 0.01)


def test_the_theorem_holds_for_very_many_epochs_only():
    def certified(q, T, eps):
        return certified_epsilon({gradient(liu2022_sigma(1.0, T, q, eps, 0.01), 1, q, "fixed"): T}, 0.01)

    assert certified(1012, 3036, 0.2) < 0.2
    assert certified(1012, 60000, 1.0) < 1.0
    assert certified(1012, 3036, 1.0) > 50
