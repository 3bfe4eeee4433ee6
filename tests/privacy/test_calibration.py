"""Calibration: the certified epsilon of the noise found lies just below the target.

DPMPI_EXAMPLES sets how many random settings are tried (default 6).
"""

import math
import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spender import Spender

from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.privacy import calibration
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.calibration import auto_batch, check_delta
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.filters import GaussianFilter
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.privacy.releases import live_epsilon, spent_epsilon
from dpmpi.privacy.replay import replay

EXAMPLES = int(os.environ.get("DPMPI_EXAMPLES", "6"))


def calibrate(kind, sensitivity, sampling, releases, epsilon, delta):
    """The noise scale of so many equal releases."""
    return calibration.calibrate(
        lambda scale: {ReleaseEvent(kind, scale, sensitivity, sampling): releases}, epsilon, delta
    )


def reached(kind, sensitivity, sampling, releases, epsilon, delta):
    scale = calibrate(kind, sensitivity, sampling, releases, epsilon, delta)
    return certified_epsilon({ReleaseEvent(kind, scale, sensitivity, sampling): releases}, delta) / epsilon


cases = st.sampled_from(
    [("gaussian", "poisson"), ("gaussian", "fixed"), ("laplace", "full"), ("laplace", "poisson"),
     ("spherical-laplace", "full"), ("spherical-laplace", "fixed"), ("discrete-gaussian", "full"),
     ("discrete-gaussian", "poisson"), ("discrete-gaussian", "fixed")]
)  # fmt: skip


@given(
    case=cases,
    releases=st.integers(1, 1000),
    rate=st.floats(-2.5, -0.5).map(lambda x: 10**x),
    epsilon=st.floats(-0.7, 0.7).map(lambda x: 10**x),
    sensitivity=st.floats(-4, 4).map(lambda x: 10**x),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_target_is_met_and_hardly_undercut(case, releases, rate, epsilon, sensitivity):
    noise, kind = case
    sampling = Sampling(kind, 10000 if kind == "full" else rate * 10000, 10000)
    assert 0.98 < reached(noise, sensitivity, sampling, releases, epsilon, 1e-5) <= 1


@given(
    releases=st.integers(1, 10**6),
    epsilon=st.floats(-2, 1.5).map(lambda x: 10**x),
    delta=st.floats(-12, -1).map(lambda x: 10**x),
    sensitivity=st.floats(-6, 6).map(lambda x: 10**x),
)
@settings(max_examples=30, deadline=None)
def test_all_records_have_a_closed_form(releases, epsilon, delta, sensitivity):
    sampling = Sampling("full", 10, 10)
    sigma = calibrate("gaussian", sensitivity, sampling, releases, epsilon, delta)
    assert sigma == pytest.approx(sensitivity * math.sqrt(releases) / gdp_mu(epsilon, delta), rel=2e-5)
    assert 0.999 < reached("gaussian", sensitivity, sampling, releases, epsilon, delta) <= 1
    assert float(f"{sigma:.5e}") == sigma  # six digits, for people


@given(
    kind=st.sampled_from(["full", "poisson"]),
    releases=st.integers(1, 5000),
    rate=st.floats(0.002, 0.2),
    epsilon=st.floats(-0.7, 0.9).map(lambda x: 10**x),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_figure_of_a_run_is_that_of_the_replay(kind, releases, rate, epsilon):
    """What run and summary report (closed form, or the library's composition) against what verify finds by its own."""
    sampling = Sampling(kind, 10000 if kind == "full" else rate * 10000, 10000)
    sigma = calibrate("gaussian", 0.01, sampling, releases, epsilon, 1e-5)
    spending = Counter({ReleaseEvent("gaussian", sigma, 0.01, sampling): releases})
    live, found = spent_epsilon(spending, 1e-5, cached=False), replay(spending, 1e-5)
    assert found.lower <= live <= found.upper * 1.005
    if kind == "full":
        assert live_epsilon(spending, 1e-5) == live


def test_releases_charged_one_by_one_fit_the_filter():
    sampling = Sampling("full", 10, 10)
    sigma = calibrate("gaussian", 0.3, sampling, 20000, 1.0, 1e-5)
    spender = Spender(GaussianFilter(1.0, 1e-5), 1e-5)
    assert all(spender.charge(ReleaseEvent("gaussian", sigma, 0.3, sampling)) for _ in range(20000))
    assert 0.999 < spender.epsilon() <= 1


@pytest.mark.parametrize(
    ("q", "T", "b", "kind", "sigma"),
    [(20000, 10000, 1, "fixed", 0.942), (20000, 1000, 32, "fixed", 0.0438), (20000, 10000, 256, "poisson", 0.03735),
     (20000, 1000, 32, "poisson", 0.0221)],
)  # fmt: skip
def test_known_noise(q, T, b, kind, sigma):
    assert calibrate("gaussian", 2 / b, Sampling(kind, b, q), T, 1.0, 1e-5) == pytest.approx(sigma, rel=0.012)


def test_laplace_without_delta_is_the_pure_sum():
    assert calibrate("laplace", 2.0, Sampling("full", 5, 5), 30, 0.5, 0.0) == pytest.approx(120.0, rel=0.006)


def test_a_delta_that_certifies_no_noise_is_refused():
    drawn = 1 - (1 - 1 / 20000) ** 100
    with pytest.raises(ConfigError, match="the chance that a record takes part"):
        calibrate("gaussian", 2.0, Sampling("fixed", 1, 20000), 100, 1.0, 0.01)
    with pytest.raises(ConfigError, match="the chance that a record takes part"):
        calibrate("laplace", 2.0, Sampling("poisson", 1, 20000), 100, 1.0, drawn * 1.001)
    assert calibrate("gaussian", 2.0, Sampling("fixed", 1, 20000), 100, 1.0, drawn * 0.9) > 0


@pytest.mark.parametrize(
    ("kind", "sensitivity", "releases", "epsilon", "delta"),
    [("none", 1.0, 10, 1.0, 1e-5), ("gaussian", 0.0, 10, 1.0, 1e-5), ("gaussian", 1.0, 0, 1.0, 1e-5),
     ("gaussian", 1.0, 10, -1.0, 1e-5), ("gaussian", 1.0, 10, math.inf, 1e-5), ("gaussian", 1.0, 10, 1.0, 1.0),
     ("gaussian", 1.0, 10, 1.0, 0.0), ("discrete-gaussian", 1.0, 10, 1.0, 0.0)],
)  # fmt: skip
def test_impossible_targets_are_refused(kind, sensitivity, releases, epsilon, delta):
    with pytest.raises(ConfigError) as caught:
        calibrate(kind, sensitivity, Sampling("full", 10, 10), releases, epsilon, delta)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sampling", "releases", "epsilon", "delta"),
    [(Sampling("fixed", 10, 1000), 100, 1e-3, 1e-30), (Sampling("poisson", 10, 100000), 10**6, 1e-6, 1e-12)],
)
def test_targets_below_what_accountants_resolve_are_refused(sampling, releases, epsilon, delta):
    with pytest.raises(ConfigError, match="expected noise that reaches epsilon"):
        calibrate("gaussian", 0.2, sampling, releases, epsilon, delta)


@pytest.mark.parametrize(("q", "T"), [(20000, 1000), (20000, 20000), (1012, 3000)])
def test_the_automatic_batch_costs_a_hundredth_more_noise_than_all_records(q, T):
    b = auto_batch(q, T, 1.0, 1e-5)
    assert b == math.ceil(1.5 * q * gdp_mu(1.0, 1e-5) / math.sqrt(T)) < q
    batch = calibrate("gaussian", 2 / b, Sampling("poisson", b, q), T, 1.0, 1e-5)
    whole = calibrate("gaussian", 2 / q, Sampling("full", q, q), T, 1.0, 1e-5)
    assert 0.995 * whole < batch < 1.015 * whole


def test_the_automatic_batch_stays_within_the_records():
    assert auto_batch(100, 1, 5.0, 1e-3) == 100
    assert auto_batch(100, 10**9, 0.1, 1e-6) == 1
    with pytest.raises(ConfigError):
        auto_batch(0, 10, 1.0, 1e-5)
    with pytest.raises(ConfigError):
        auto_batch(10, 10, 0.0, 1e-5)


def test_large_deltas_must_be_allowed():
    check_delta(0.99e-3, 1000)
    check_delta(0.5, 1000, allow_large=True)
    for delta in (1e-3, 0.5):
        with pytest.raises(ConfigError, match="1/records"):
            check_delta(delta, 1000)
