"""Geometric steps and Laplace noise: dense reference, contracts, the closed form of its epsilon, convergence."""

import math
from collections import Counter

import numpy as np
import pytest

from dpmpi.algorithms.dgd import DpDgd
from dpmpi.algorithms.hmv_dgd import HmvDgd
from dpmpi.errors import ConfigError
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.privacy.mechanisms import pricing
from dpmpi.problem.penalties import Regulariser
from dpmpi.testing import models, noisy, random_shards, simulate

BOX = Regulariser(box=0.2)


def dense_reference(shards, W, c, q, rounds, penalty):
    """All agents at once: logistic, full batch, no noise."""
    z = np.zeros((len(shards), shards[0][0].dimension))
    for t in range(rounds):
        g = np.zeros_like(z)
        for i, (rows, labels) in enumerate(shards):
            s = labels * (rows.matrix @ z[i])
            g[i] = -(rows.matrix * (labels / (1 + np.exp(s)))[:, None]).mean(axis=0)
        x = np.clip(z - c * q**t * (g + penalty.l2 * z), -penalty.box, penalty.box)
        z = np.clip(W @ x, -penalty.box, penalty.box)
    return z


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_is_the_dense_reference(graph):
    shards, penalty = random_shards(6, 20, 9, seed=4), Regulariser(l2=0.1, box=0.15)
    algorithm = HmvDgd(step=1.5, step_ratio=0.9, noise_ratio=0.95)
    engine = simulate(algorithm, shards, 30, graph=graph, loss="logistic", penalty=penalty)
    W = mixing_matrix(make_graph(graph, 6, 0), "metropolis")
    expected = dense_reference(shards, W, 1.5, 0.9, 30, penalty)
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 1e-2


def planned(algorithm, rounds, m=7):
    engine = simulate(algorithm, random_shards(2, 10, m, 0), rounds, loss="mean", penalty=BOX)
    terms = engine.seats[0].agent.terms
    return algorithm.releases(terms), terms


def test_any_number_of_rounds_has_the_epsilon_of_the_geometric_series():
    """sum_t (2 L sqrt(m) c q^(t-1) / b) / (s p^(t-1)) = 2 L sqrt(m) c p / (b s (p - q)) for Laplace scale s."""
    m, q, p, s = 7, 0.9, 0.95, 0.4
    price = pricing("laplace", math.sqrt(2.0) * s, m)
    for rounds in (1, 20, 5000):
        releases, terms = planned(HmvDgd(step=0.5, step_ratio=q, noise_ratio=p), rounds, m)
        events = Counter()
        for r in releases:
            events[price.event(r.sensitivity, terms.sampling, r.scale)] += r.count
        whole = 2 * terms.lipschitz * math.sqrt(m) * 0.5 * p / (terms.sampling.expected * s * (p - q))
        assert certified_epsilon(events, 0.0) == pytest.approx(whole * (1 - (q / p) ** events.total()), rel=2e-5)
    assert events.total() == 1 + int(math.log(1e-6) / math.log(q))  # smaller steps are not worth a release


def test_noise_and_steps_are_geometric():
    releases, terms = planned(HmvDgd(step=0.5, step_ratio=0.5, noise_ratio=0.75), 12)
    assert [r.count for r in releases] == [1] * 12
    np.testing.assert_allclose([r.scale for r in releases], 0.75 ** np.arange(12))
    bound = terms.gradient_sensitivity * 0.5 * 0.5 ** np.arange(12)
    sensitivity = np.array([r.sensitivity for r in releases])
    assert np.all((bound < sensitivity) & (sensitivity < bound * 1.0001))


def test_reaches_the_mean():
    shards = random_shards(5, 20, 6, seed=3)
    engine = simulate(HmvDgd(), shards, 200, loss="mean", penalty=Regulariser(box=1.0))
    mean = np.mean([rows.matrix.mean(axis=0) for rows, _ in shards], axis=0)
    np.testing.assert_allclose(models(engine).mean(axis=0), mean, atol=1e-10)
    np.testing.assert_allclose(models(engine), np.tile(mean, (5, 1)), atol=1e-3)


def test_steps_that_sum_to_little_stop_short():
    """The steps have a finite sum, so that a start far away is never left behind: the price of the finite epsilon."""
    shards = random_shards(5, 20, 6, seed=3)
    mean = np.mean([rows.matrix.mean(axis=0) for rows, _ in shards], axis=0)
    engine = simulate(
        HmvDgd(step=0.1, step_ratio=0.5), shards, 500, graph="complete", loss="mean", penalty=Regulariser()
    )
    left = np.prod(1 - 0.1 * 0.5 ** np.arange(60))
    np.testing.assert_allclose(models(engine)[0], mean * (1 - left), rtol=1e-6)


def test_wrong_ratios_are_refused():
    for q, p in ((0.9, 0.9), (0.95, 0.9), (0.9, 1.0), (0.0, 0.5)):
        with pytest.raises(ConfigError, match="0 < q < p < 1"):
            planned(HmvDgd(step_ratio=q, noise_ratio=p), 5)


def test_two_stages_with_gaussian_noise_beat_it():
    """[SKD] section I: a delta buys accuracy. The same epsilon = 1, delta = 0 here and 1e-5 there."""
    n, m, records, rounds, runs = 6, 20, 100, 60, 5
    shards = random_shards(n, records, m, seed=3)
    mean = np.mean([rows.matrix.mean(axis=0) for rows, _ in shards], axis=0)
    errors = {}
    for algorithm, kind in ((HmvDgd(), "laplace"), (DpDgd(), "gaussian")):
        settings = {"graph": "complete", "loss": "mean", "penalty": Regulariser(box=1.0)}
        terms = simulate(algorithm, shards, rounds, **settings).seats[0].agent.terms
        ratios = np.array([r.sensitivity / r.scale for r in algorithm.releases(terms) for _ in range(r.count)])
        gaussian = math.sqrt(np.sum(ratios**2)) / gdp_mu(1.0, 1e-5)
        sigma = gaussian if kind == "gaussian" else math.sqrt(2.0 * m) * np.sum(ratios)
        noises = [noisy(kind, sigma, k) for k in range(runs)]
        found = [models(simulate(algorithm, shards, rounds, mechanism=noise, **settings)) for noise in noises]
        errors[kind] = np.mean([np.sum((x.mean(axis=0) - mean) ** 2) for x in found])
    assert errors["gaussian"] < errors["laplace"]
