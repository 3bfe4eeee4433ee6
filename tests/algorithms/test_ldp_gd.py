"""Gradient descent with random weights: dense references, contracts, what it reaches and what it cannot."""

import math

import numpy as np
import pytest
from admm_problems import Witnessed, newton, shards_of_unlike_ranks

from dpmpi.algorithms.ldp_gd import LdpGd
from dpmpi.algorithms.ldp_gd_minmax import LdpGdMinmax
from dpmpi.errors import ConfigError
from dpmpi.network.graph import make_graph
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.rng import PrivateStream, insecure_key
from dpmpi.testing import models, noisy, random_shards, simulate

PENALTIES = [Regulariser(l2=0.05), Regulariser(l1=0.01, l2=0.05), Regulariser(l2=0.05, ball=0.3), Regulariser(box=0.2)]
METHODS = [LdpGd, LdpGdMinmax]


def gradients(shards, x):
    """The logistic gradients of all ranks, each at its own row of x."""
    pairs = zip(shards, x, strict=True)
    return np.array([r.matrix.T @ LOSSES["logistic"].slope(r.matrix @ v, y) / len(y) for (r, y), v in pairs])


def dense_descent(shards, eta, penalty, rounds):
    """Algorithm 2 as Eq. (7) prints it, h by a proximal step of the mean; returns the models after all rounds."""
    n, m = len(shards), shards[0][0].dimension
    y, x = np.zeros((n, m)), np.zeros(m)
    streams, points = [PrivateStream(insecure_key(0, i), "weights") for i in range(n)], []
    for t in range(1, rounds + 1):
        points.append(x.copy())
        pairs = [(i, j) for j in range(n) for i in range(j)]
        a, b = max(pairs, key=lambda pair: np.abs(y[pair[0]] - y[pair[1]]).sum())
        rest = sum(y[j] for j in range(n) if j not in (a, b))
        shift = x - y.mean(axis=0)  # what the proximal step did
        w = np.array([stream.uniforms(m) for stream in streams])
        step = eta(t) * gradients(shards, np.tile(x, (n, 1)))
        y = 2 * w / n * y[a] + 2 * (1 - w) / n * y[b] + rest / n + shift - step
        penalty.prox(y.mean(axis=0), eta(t), x)
    return x, np.mean(points, axis=0)


def dense_minmax(shards, graph, eta, penalty, rounds):
    """Algorithm 2*, Eq. (28), over closed neighbourhoods."""
    n, m = len(shards), shards[0][0].dimension
    near = [[i] + [j for edge in graph.edges if i in edge for j in edge if j != i] for i in range(n)]
    x = np.zeros((n, m))
    streams = [PrivateStream(insecure_key(0, i), "weights") for i in range(n)]
    for t in range(1, rounds + 1):
        low, high = np.array([x[N].min(axis=0) for N in near]), np.array([x[N].max(axis=0) for N in near])
        w = 1.0 - np.array([stream.uniforms(m) for stream in streams])
        v = w * low + (1 - w) * high - eta(t) * gradients(shards, x)
        for i in range(n):
            penalty.prox(v[i], eta(t), x[i])
    return x


SCHEDULES = {"harmonic": lambda t: 0.8 / t, "sqrt": lambda t: 0.8 / math.sqrt(t), "geometric": lambda t: 0.8 * 0.9**t}


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
@pytest.mark.parametrize("rule", SCHEDULES)
def test_descent_is_the_dense_reference(rule, penalty):
    shards, eta = shards_of_unlike_ranks(5), SCHEDULES[rule]
    last, mean = dense_descent(shards, eta, penalty, 12)
    for average, expected in (("last", last), ("mean", mean)):
        method = LdpGd(step=0.8, step_schedule=rule, step_ratio=0.9, average=average)
        x = models(simulate(method, shards, 12, graph="complete", loss="logistic", penalty=penalty))
        np.testing.assert_allclose(x, np.tile(expected, (5, 1)), rtol=0, atol=1e-10)
        assert np.all(x == x[0])


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
@pytest.mark.parametrize("spec", ["ring", "complete", "star"])
def test_minmax_is_the_dense_reference(spec, penalty):
    shards = shards_of_unlike_ranks(5)
    method = LdpGdMinmax(step=0.8)
    x = models(simulate(method, shards, 12, graph=spec, loss="logistic", penalty=penalty))
    expected = dense_minmax(shards, make_graph(spec, 5, 0), SCHEDULES["sqrt"], penalty, 12)
    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-10)
    assert np.abs(x - x.mean(axis=0)).max() > 1e-3


def errors(method, shards, l2, checkpoints, graph="complete"):
    """Return the largest relative distance of a rank's model from the optimum after each checkpoint."""
    best = newton(shards, l2)
    engine = simulate(method, shards, checkpoints[0], graph=graph, loss="logistic", penalty=Regulariser(l2=l2))
    found = []
    for t in checkpoints:
        engine.advance(t)
        found.append(float(np.linalg.norm(models(engine) - best, axis=1).max() / np.linalg.norm(best)))
    return found


def test_harmonic_steps_reach_the_optimum():
    """The random weights act like the noise of stochastic gradients: the mean squared error is of the order of 1/t."""
    runs = [errors(LdpGd(), shards_of_unlike_ranks(4, seed=seed), 1.0, [100, 1600]) for seed in range(5)]
    early, late = np.mean(np.square(runs), axis=0)
    assert late < early / 5  # 16 times the rounds
    assert late < 0.005**2


def test_the_default_step_suits_a_weak_penalty():
    early, late = errors(LdpGd(), shards_of_unlike_ranks(5), 0.02, [200, 1600])
    assert late < early < 0.02
    assert late < 0.004


def test_geometric_steps_stop_short_of_the_optimum():
    shards, l2 = shards_of_unlike_ranks(5), 1.0
    method = LdpGd(step=1.0, step_schedule="geometric")
    best, penalty = newton(shards, l2), Regulariser(l2=l2)
    engine = simulate(method, shards, 400, graph="complete", loss="logistic", penalty=penalty)
    stopped = models(engine)[0]
    engine.advance(1200)
    later = models(engine)[0]
    assert np.linalg.norm(later - stopped) < 1e-7 * np.linalg.norm(best)
    assert np.linalg.norm(later - best) > 5e-4 * np.linalg.norm(best)


def test_minmax_reaches_the_optimum_of_two_agents():
    """The middle of two values is their mean, so that (7) is unbiased for two ranks."""
    shards = shards_of_unlike_ranks(2, 100)
    early, late = errors(LdpGdMinmax(step_schedule="harmonic"), shards, 0.5, [200, 4000])
    assert late < 0.01
    assert late < early


def test_minmax_goes_to_the_middle_and_not_to_the_mean():
    """f_i = (x - c_i)^2 / 2 with c = 0, 0, 0, 0, 1: the optimum is 1/5, and the middle of the extremes 1/2."""
    shards = [(Dense(np.ones((1, 1))), np.array([c])) for c in (0.0, 0.0, 0.0, 0.0, 1.0)]
    settings = {"graph": "complete", "loss": "squared", "penalty": Regulariser(), "lipschitz": 10.0}
    biased = LdpGdMinmax(step=0.5, average="mean")
    x = models(simulate(biased, shards, 1000, **settings)).mean()
    assert 0.25 < x < 0.5
    fair = LdpGd(step=0.5, step_schedule="sqrt", average="mean")
    assert models(simulate(fair, shards, 1000, **settings)).mean() == pytest.approx(0.2, abs=0.01)


def test_minmax_keeps_an_error_on_unlike_ranks():
    found = errors(LdpGdMinmax(step=0.5), shards_of_unlike_ranks(10, 100, 14), 1.0, [400, 800], "random:edges=40")
    assert min(found) > 0.03


@pytest.mark.parametrize("make", METHODS)
def test_the_witness_is_told_the_interval_and_the_noise(make):
    shards, rounds = random_shards(4, 10, 5, 3), 9
    method = make(step=0.7, step_schedule="sqrt", noise_growth=1.02)
    for sigma in (0.0, 0.3):
        noise = noisy("laplace" if sigma else "none", sigma, 5)
        settings = {"graph": "complete", "loss": "logistic", "mechanism": noise}
        engine = simulate(method, shards, rounds, make_agent=Witnessed, **settings)
        np.testing.assert_array_equal(models(engine), models(simulate(method, shards, rounds, **settings)))
        for seat in engine.seats:
            told, charged = seat.agent.witness.told, seat.agent.charges.charged
            stream = PrivateStream(insecure_key(0, seat.agent.rank), "weights")
            for t, ((output, low, high, scale, reach), (_, event)) in enumerate(zip(told, charged, strict=True), 1):
                u, eta, width = stream.uniforms(5), 0.7 / math.sqrt(t), high - low
                assert np.all(width >= 0)
                assert t == 1 or width.max() > 1e-6
                assert scale == pytest.approx(event.scale * eta)
                assert reach == pytest.approx(2.0 / 10 * eta)
                if sigma == 0.0:
                    ends = u * width, (1 - u) * width  # the pair's order is free, so that u counts from either end
                    assert np.all(np.min(np.abs(output - low - ends), axis=0) < 1e-12)


def test_steps_are_never_longer_than_the_curvature_allows():
    """All rows are the same unit vector, curvature 1: steps of 100/t would diverge before they are short enough."""
    shards = [(Dense(np.ones((1, 1))), np.array([c])) for c in (0.0, 1.0, 5.0)]
    settings = {"graph": "complete", "loss": "squared", "penalty": Regulariser(), "lipschitz": 1e9}
    x = models(simulate(LdpGd(step=100.0), shards, 1500, **settings))
    np.testing.assert_allclose(x, 2.0, rtol=0.05)


@pytest.mark.parametrize(
    ("make", "options", "graph", "message"),
    [
        (LdpGd, {}, "ring", "--graph complete"),
        (LdpGd, {"step": 0.0}, "complete", "expected --step > 0"),
        (LdpGdMinmax, {"step": 0.0}, "ring", "expected --step > 0"),
        (LdpGd, {"step_ratio": 1.5}, "complete", "--step-ratio"),
        (LdpGdMinmax, {"step_schedule": "geometric", "step_ratio": 0.001}, "ring", "closer to 1"),
        (LdpGdMinmax, {"noise_growth": 0.0}, "ring", "expected --noise-growth > 0"),
        (LdpGd, {"noise_growth": 0.5}, "complete", "closer to 1"),
    ],
)
def test_what_they_cannot_do_is_refused_in_one_line(make, options, graph, message):
    with pytest.raises(ConfigError, match=message) as caught:
        simulate(make(**options), random_shards(5, 5, 3, 0), 50, graph=graph, loss="logistic")
    assert "\n" not in str(caught.value)


def test_one_rank_alone_descends():
    shards = shards_of_unlike_ranks(1)
    assert errors(LdpGd(), shards, 1.0, [300])[0] < 0.01
