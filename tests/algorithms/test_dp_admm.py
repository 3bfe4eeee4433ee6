"""DP-ADMM: dense reference, contracts, convergence."""

import numpy as np
import pytest
from admm_problems import TERMS, gap, gradient, labelled_shards

from dpmpi.algorithms.dp_admm import DpAdmm
from dpmpi.errors import ConfigError
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.optimum import find_optimum
from dpmpi.problem.penalties import Regulariser
from dpmpi.testing import models, simulate

PENALTIES = [Regulariser(l2=0.05), Regulariser(l1=0.02, l2=0.05), Regulariser(l2=0.05, ball=0.3), Regulariser(box=0.2)]


def dense_reference(shards, rho, eta, growth, penalty, rounds):
    """All agents at once: the w_i, and the centres of all rounds; logistic, full batch, no noise."""
    n, m = len(shards), shards[0][0].dimension
    W, gamma, z, centres = np.zeros((n, m)), np.zeros((n, m)), np.zeros(m), []
    for t in range(1, rounds + 1):
        e = eta * np.sqrt(t) if growth == "sqrt" else eta
        G = np.array([gradient(shard, w) for shard, w in zip(shards, W, strict=True)])
        V = (gamma + rho * z + e * W - G) / (rho + e)
        for i in range(n):
            penalty.prox(V[i], 1 / (rho + e), W[i])
        z = W.mean(axis=0) - gamma.mean(axis=0) / rho
        gamma = gamma - rho * (W - z)
        centres.append(z)
    return np.array(centres)


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
@pytest.mark.parametrize("growth", ["constant", "sqrt"])
def test_it_is_the_dense_reference(growth, penalty):
    shards, rounds = labelled_shards(), 31
    centres = dense_reference(shards, 0.02, 0.3, growth, penalty, rounds)
    for average, expected in (
        ("last", centres[-1]),
        ("tail", centres[15:].mean(axis=0)),
        ("mean", centres.mean(axis=0)),
    ):
        algorithm = DpAdmm(average, 0.02, 0.3, growth)
        engine = simulate(algorithm, shards, rounds, graph="complete", loss="logistic", penalty=penalty)
        np.testing.assert_allclose(models(engine), np.tile(expected, (len(shards), 1)), rtol=0, atol=1e-10)
    assert np.abs(centres[-1]).max() > 1e-2


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_it_converges(graph):
    shards, l2 = labelled_shards(), 0.01
    engine = simulate(DpAdmm(), shards, 300, graph=graph, loss="logistic", penalty=Regulariser(l2=l2))
    found = models(engine)
    assert gap(shards, l2, found[0]) < 1e-5
    np.testing.assert_array_equal(found, np.tile(found[0], (len(shards), 1)))


def test_it_learns_a_loss_without_curvature():
    shards, penalty, loss = labelled_shards(), Regulariser(l2=0.01), LOSSES["hinge"]
    best = find_optimum(shards, len(shards), loss, penalty, 8, lambda buffer: None).value
    x = models(simulate(DpAdmm(), shards, 1000, loss="hinge", penalty=penalty))[0]
    value = float(np.mean([loss.value(r.scores(x), y).mean() for r, y in shards])) + penalty.value(x)
    assert value - best < 0.01 * (1.0 - best)


def test_what_it_refuses():
    for algorithm, message in ((DpAdmm(rho=0.0), "--rho above 0"), (DpAdmm(eta=0.0), "--eta above 0")):
        with pytest.raises(ConfigError, match=message):
            algorithm.check(TERMS)
    DpAdmm().check(TERMS)
