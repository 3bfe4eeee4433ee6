"""The statistics of the audit against oracles, and how often they are right."""

import math

import numpy as np
import pytest
from scipy import stats

from dpmpi.commands.audit.statistics import (
    Counts,
    GaussianClaim,
    PairsClaim,
    Rule,
    Scores,
    against,
    at_delta,
    certified_claim,
    choose_rule,
    clopper_pearson,
    epsilon_bound,
    epsilon_from_rates,
    mu_bound,
    one_run_bound,
    one_run_p_value,
    refutes,
)
from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.gdp import gdp_delta, gdp_epsilon, gdp_mu

ALARMS = np.linspace(0.001, 0.999, 97)


# --- curves ------------------------------------------------------------------------------------------------------


def test_the_gaussian_curve_is_the_trade_off_of_two_normal_distributions():
    """Neyman and Pearson: the best test of N(0, 1) against N(mu, 1) is a threshold."""
    cuts = np.linspace(-4, 5, 50)
    curve = GaussianClaim(1.3).least_misses(stats.norm.sf(cuts))
    np.testing.assert_allclose(curve, stats.norm.cdf(cuts - 1.3), atol=1e-12)


def test_the_curve_of_all_pairs_of_a_gaussian_is_its_own_and_of_some_lies_below():
    """Gaussian DP is the same as all of its (epsilon, delta), Dong, Roth and Su, Proposition 2.12."""
    mu = 0.8
    every = [(eps, gdp_delta(mu, eps)) for eps in np.linspace(0, 8, 3000)]
    exact = GaussianClaim(mu).least_misses(ALARMS)
    np.testing.assert_allclose(PairsClaim(tuple(every)).least_misses(ALARMS), exact, atol=1e-4)
    some = PairsClaim(tuple(every[::500])).least_misses(ALARMS)
    assert np.all(some <= exact + 1e-12)
    assert np.max(exact - some) > 0.01


def test_randomised_response_lies_on_the_curve_of_its_pair():
    truth = math.exp(1.2) / (1 + math.exp(1.2))
    curve = PairsClaim(((1.2, 0.0),)).least_misses(np.array([1 - truth]))
    assert curve == pytest.approx(1 - truth)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (ReleaseEvent("gaussian", 4.0, 1.0, Sampling("full", 100.0, 100)), GaussianClaim),
        (ReleaseEvent("laplace", 4.0, 1.0, Sampling("full", 100.0, 100)), PairsClaim),
        (ReleaseEvent("gaussian", 1.0, 1.0, Sampling("poisson", 10.0, 100)), PairsClaim),
    ],
)
def test_the_certified_curve_is_a_trade_off_curve(event, kind):
    """Convex, falling, and below the line of guesses: Dong, Roth and Su, Proposition 2.2."""
    claim = certified_claim({event: 4}, 1e-5)
    assert isinstance(claim, kind)
    curve = claim.least_misses(ALARMS)
    assert np.all(np.diff(curve) <= 1e-12)
    assert np.all(np.diff(curve, 2) >= -1e-9)
    assert np.all(curve <= 1 - ALARMS + 1e-12)
    assert curve[48] > 0.15


def test_four_gaussian_releases_compose_to_twice_the_mu():
    claim = certified_claim({ReleaseEvent("gaussian", 4.0, 1.0, Sampling("full", 100.0, 100)): 4}, 1e-5)
    assert claim == GaussianClaim(pytest.approx(0.5))


# --- rates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.9, 0.975])
@pytest.mark.parametrize(("k", "n"), [(0, 150), (1, 20), (7, 30), (149, 150), (150, 150)])
def test_clopper_pearson_inverts_the_binomial_tails(k, n, confidence):
    lower, upper = clopper_pearson(k, n, confidence)
    assert lower == pytest.approx(0) if k == 0 else stats.binom.sf(k - 1, n, lower) == pytest.approx(1 - confidence)
    assert upper == pytest.approx(1) if k == n else stats.binom.cdf(k, n, upper) == pytest.approx(1 - confidence)
    two_sided = stats.binomtest(k, n).proportion_ci(2 * confidence - 1, method="exact")
    assert (lower, upper) == pytest.approx((two_sided.low, two_sided.high))


def test_no_false_alarm_gives_the_rule_of_three():
    assert clopper_pearson(0, 1000, 0.95)[1] == pytest.approx(3 / 1000, rel=0.005)


def test_epsilon_from_exact_rates_reaches_the_epsilon_of_gaussian_dp():
    """With the true rates, the best threshold of the best test gives epsilon(delta) itself."""
    mu, delta = 1.3, 0.01
    cuts = np.linspace(-3, 6, 4000)
    found = epsilon_from_rates(stats.norm.sf(cuts - mu), stats.norm.sf(cuts), delta)
    assert found.max() == pytest.approx(gdp_epsilon(mu, delta), abs=1e-5)
    assert epsilon_from_rates(0.009, 1e-9, delta) == 0.0


def test_a_claim_is_refuted_exactly_where_the_bound_of_mu_exceeds_it():
    for misses in range(0, 200, 7):
        for alarms in range(0, 200, 7):
            counts = Counts(misses, alarms, 200)
            bound = mu_bound(counts, 0.95)
            assert bound == 0 or refutes(counts, GaussianClaim(0.999 * bound), 0.95)
            assert not refutes(counts, GaussianClaim(1.001 * bound + 1e-9), 0.95)


def test_the_bound_at_delta_is_the_same_both_ways_round():
    assert epsilon_bound(Counts(3, 40, 200), 0.01, 0.95) == epsilon_bound(Counts(40, 3, 200), 0.01, 0.95) > 0


# --- rules -------------------------------------------------------------------------------------------------------


def test_the_rule_takes_the_score_that_sees_and_cuts_inside_of_the_gap():
    rng = np.random.default_rng(1)
    blind, near = rng.normal(size=(2, 60)), rng.normal(size=(2, 60))
    plus, minus = {"blind": blind[0], "sees": near[0] + 50}, {"blind": blind[1], "sees": near[1]}
    rule = choose_rule(plus, minus, at_delta(0.01), 60, 0.95)
    assert (rule.score, rule.sign) == ("sees", 1)
    assert rule.count(plus, minus) == Counts(0, 0, 60)


def test_the_rule_takes_the_direction_in_which_the_worlds_differ():
    rng = np.random.default_rng(2)
    plus, minus = {"s": rng.normal(size=400) - 3}, {"s": rng.normal(size=400)}
    rule = choose_rule(plus, minus, against(GaussianClaim(0.3)), 400, 0.95)
    assert rule.sign == -1
    assert 1 < rule.threshold < 2
    assert Rule("s", -1, 1.5).count(plus, minus).misses < 50


def simulated(rng, mu, runs=300, learn=100):
    """The scores of an audit of a mechanism that is exactly mu-Gaussian DP."""
    plus, minus = rng.normal(mu, 1, runs), rng.normal(0, 1, runs)
    return Scores(({"s": plus[:learn]}, {"s": minus[:learn]}), ({"s": plus[learn:]}, {"s": minus[learn:]}))


def audits(mu, claim, times, confidence=0.95, delta=1e-5):
    """In which share of audits the curve, and the epsilon at delta, is refuted."""
    rng, epsilon = np.random.default_rng(0), gdp_epsilon(claim.mu, delta)
    curve = at_one = 0
    for _ in range(times):
        scores = simulated(rng, mu)
        curve += refutes(scores.test(against(claim), confidence)[1], claim, confidence)
        at_one += epsilon_bound(scores.test(at_delta(delta), confidence)[1], delta, confidence) > epsilon
    return curve / times, at_one / times


def test_noise_three_times_too_small_is_refuted_by_the_curve_and_not_by_one_epsilon():
    """2 x 300 runs at (1, 1e-5)."""
    mu = gdp_mu(1.0, 1e-5)
    curve, at_one = audits(3 * mu, GaussianClaim(mu), 100)
    assert curve >= 0.6
    assert at_one <= 0.2


def test_noise_four_times_too_small_is_refuted_almost_always():
    mu = gdp_mu(1.0, 1e-5)
    assert audits(4 * mu, GaussianClaim(mu), 100)[0] >= 0.95


@pytest.mark.parametrize("mu", [0.2681, 1.5])
def test_right_noise_is_refuted_at_most_as_often_as_is_permitted(mu):
    """At a permitted error of 0.2; the rectangle is wider than need be, so the true one is far below."""
    curve, at_one = audits(mu, GaussianClaim(mu), 300, confidence=0.8, delta=0.01)
    assert curve <= 0.2
    assert at_one <= 0.2


def test_the_bound_comes_near_the_truth():
    found = simulated(np.random.default_rng(3), 1.5, runs=3000, learn=1000)
    assert 1.3 < mu_bound(found.test(against(GaussianClaim(1.5)), 0.95)[1], 0.95) < 1.5


# --- one run -----------------------------------------------------------------------------------------------------


def test_one_run_without_delta_is_a_binomial_test():
    accuracy = 1 / (1 + math.exp(-1.2))
    assert one_run_p_value(100, 60, 50, 1.2, 0.0) == pytest.approx(stats.binom.sf(49, 60, accuracy))
    assert one_run_bound(100, 100, 100, 0.0, 0.95) == pytest.approx(-math.log(0.05 ** (-1 / 100) - 1), abs=1e-6)
    assert one_run_bound(100, 100, 50, 0.0, 0.95) == 0.0


def test_one_run_with_delta_is_the_published_formula():
    """The loop of the paper's appendix, with scipy's binomial."""
    m, r, v, epsilon, delta = 300, 120, 110, 0.7, 1e-4
    accuracy = 1 / (1 + math.exp(-epsilon))
    alpha = total = 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, accuracy)
        alpha = max(alpha, total / i)
    expected = stats.binom.sf(v - 1, r, accuracy) + alpha * delta * 2 * m
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-9)
    assert one_run_bound(m, r, v, delta, 0.95) < one_run_bound(m, r, v, 0.0, 0.95)


def test_one_run_bound_holds_for_randomised_response():
    """Randomised response is the epsilon-DP mechanism that the theorem is tight for."""
    epsilon, m, rng = 1.0, 200, np.random.default_rng(3)
    right = rng.binomial(m, 1 / (1 + math.exp(-epsilon)), 300)
    bounds = [one_run_bound(m, m, int(v), 0.0, 0.9) for v in set(right.tolist())]
    exceeded = np.mean([one_run_bound(m, m, int(v), 0.0, 0.9) > epsilon for v in right])
    assert 0.02 < exceeded < 0.14
    assert max(bounds) > 0.8


def test_more_right_guesses_than_guesses_are_refused():
    with pytest.raises(ConfigError, match="expected right <= guesses <= canaries"):
        one_run_p_value(10, 5, 6, 1.0, 0.0)
