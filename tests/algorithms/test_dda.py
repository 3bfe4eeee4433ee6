"""Dual averaging: dense reference, contracts, convergence."""

import numpy as np
import pytest

from dpmpi.algorithms.dda import Dda, DpDda, SampledDda
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.network.schedule import make_schedule
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.optimum import find_optimum
from dpmpi.problem.penalties import Regulariser
from dpmpi.testing import models, random_shards, simulate

PENALTIES = [Regulariser(l2=0.05), Regulariser(l1=0.02, l2=0.05), Regulariser(l2=0.05, ball=0.3), Regulariser(box=0.2)]


def dense_reference(algorithm, shards, weights, active, iota, penalty, rounds):
    """All agents at once: z, x, sum are n by m; W(t) a matrix; hinge, full batch, no noise."""
    n, m = len(shards), shards[0][0].dimension
    z, total, A = np.zeros((n, m)), np.zeros((n, m)), 0.0
    for t in range(1, rounds + 1):
        a = float(t) if algorithm.weighting == "linear" else 1.0
        A += a
        gamma = algorithm.gamma * (np.sqrt(t) if algorithm.gamma_growth == "sqrt" else 1.0)
        x = np.zeros((n, m))
        for i in range(n):
            penalty.dual_step(z[i], iota * A, gamma, x[i])
        total += a * x
        g = np.zeros((n, m))
        for i in active(t):
            X, y = shards[i][0].matrix, shards[i][1]
            g[i] = -(X * y[:, None])[y * (X @ x[i]) < 1].sum(axis=0) / len(y)
        z = weights(t) @ (z + a * g)
    return total / A


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
@pytest.mark.parametrize("make", [DpDda, Dda])
def test_static_schedule_is_the_dense_reference(make, penalty):
    shards = random_shards(6, 20, 9, seed=4)
    graph = make_graph("erdos-renyi:p=0.5", 6, 1)
    algorithm = make(gamma=2.0)
    engine = simulate(algorithm, shards, 40, schedule=make_schedule(graph, "metropolis", None, 0), penalty=penalty)
    W = mixing_matrix(graph, "metropolis")
    expected = dense_reference(algorithm, shards, lambda t: W, lambda t: range(6), 1.0, penalty, 40)
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
def test_sampled_schedule_is_the_dense_reference(penalty):
    n, rounds = 6, 60
    shards = random_shards(n, 20, 9, seed=4)
    schedule = make_schedule(make_graph("complete", n, 0), "metropolis", 1, 3)
    partner = {t: {} for t in range(1, rounds + 1)}
    for i in range(n):
        for t, near in schedule.rounds(i, 1, rounds + 1):
            partner[t][i] = near.peers[0]

    def weights(t):
        W = np.eye(n)
        for i, j in partner[t].items():
            W[i, i] = W[i, j] = 0.5
        return W

    algorithm = SampledDda(gamma=2.0)
    engine = simulate(algorithm, shards, rounds, schedule=schedule, penalty=penalty)
    expected = dense_reference(algorithm, shards, weights, lambda t: partner[t], 2 / n, penalty, rounds)
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)


def suboptimality(algorithm, shards, penalty, checkpoints):
    optimum = find_optimum(shards, len(shards), LOSSES["hinge"], penalty, shards[0][0].dimension, lambda buffer: None)
    schedule = make_schedule(make_graph("ring", len(shards), 0), "metropolis", None, 0)

    def value(x):
        losses = [np.mean(LOSSES["hinge"].value(rows.scores(x), labels)) for rows, labels in shards]
        return float(np.mean(losses)) + penalty.value(x)

    engine = simulate(algorithm, shards, checkpoints[0], schedule=schedule, penalty=penalty)
    errors = []
    for t in checkpoints:
        engine.advance(t)
        errors.append(value(models(engine).mean(axis=0)) - optimum.value)
    return np.array(errors), value(np.zeros(shards[0][0].dimension)) - optimum.value


def separable_shards(n=5, records=60, m=10, seed=0):
    draw = np.random.default_rng(seed)
    w = draw.standard_normal(m)
    shards = random_shards(n, records, m, seed)
    return [(rows, np.where(draw.random(records) < 0.05, -1, 1) * np.sign(rows.matrix @ w)) for rows, _ in shards]


def test_linear_weights_reach_the_optimum_and_beat_constant_ones():
    shards, penalty = separable_shards(), Regulariser(l2=0.01)
    checkpoints = [int(t) for t in np.geomspace(50, 4000, 25)]
    linear, start = suboptimality(DpDda(gamma=1.0), shards, penalty, checkpoints)
    constant, _ = suboptimality(Dda(gamma=1.0), shards, penalty, checkpoints)
    assert linear[-1] < 1e-3 * start
    late = np.array(checkpoints) > 400
    assert np.all(linear[late] < constant[late])
    half = np.array(checkpoints) >= 2000
    slope = np.polyfit(np.log(np.array(checkpoints)[half]), np.log(linear[half]), 1)[0]
    assert slope <= -0.9
