"""Multi-step ADMM: dense reference, contracts, one noise per round, convergence."""

from dataclasses import replace

import numpy as np
import pytest
from admm_problems import TERMS, OutOfBudget, adjacency, gap, gradient, labelled_shards

from dpmpi.algorithms.ip_admm import IpAdmm
from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.optimum import find_optimum
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.testing import models, random_shards, simulate

GRAPH = "erdos-renyi:p=0.5"
PENALTIES = [Regulariser(l2=0.05), Regulariser(l1=0.02, l2=0.05), Regulariser(l2=0.05, ball=0.3), Regulariser(box=0.2)]


def dense_reference(algorithm, shards, graph, rho, eta, penalty, rounds, sign=1.0):
    """All agents at once; logistic, full batch, no noise. sign = -1 takes Eqs. (11), (12) of the paper as printed."""
    n, m, steps = len(shards), shards[0][0].dimension, algorithm.inner_steps
    A = adjacency(graph, n)
    d, V, W, gamma, c = A.sum(axis=1), np.zeros((n, m)), np.zeros((n, m)), np.zeros((n, m)), 0
    for _ in range(rounds):
        P, mean = 2 * gamma + rho * (A @ W + d[:, None] * W), np.zeros((n, m))
        V = W.copy() if algorithm.inner_noise == "once" else V
        for _ in range(steps):
            c += 1
            e = eta * np.sqrt(c) if algorithm.eta_growth == "sqrt" else eta
            for i in range(n):
                D, g = 2 * rho * d[i] + e, sign * gradient(shards[i], V[i])
                if algorithm.regulariser == "linearised":
                    V[i] = (P[i] + e * V[i] - g - penalty.l2 * V[i] - penalty.l1 * np.sign(V[i])) / D
                else:
                    penalty.prox((P[i] + e * V[i] - g) / D, 1 / D, V[i])
            mean += V / steps
        W = mean
        gamma = gamma - rho / 2 * (d[:, None] * W - A @ W)
    return W


def agrees(algorithm, penalty):
    shards = labelled_shards()
    engine = simulate(algorithm, shards, 25, graph=GRAPH, loss="logistic", penalty=penalty)
    expected = dense_reference(algorithm, shards, GRAPH, algorithm.rho, algorithm.eta, penalty, 25)
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 1e-2


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
@pytest.mark.parametrize("noise", ["each", "once"])
def test_it_is_the_dense_reference(noise, penalty):
    agrees(IpAdmm(average="last", rho=0.02, eta=0.3, inner_steps=3, inner_noise=noise), penalty)


@pytest.mark.parametrize("penalty", PENALTIES[:2], ids=lambda p: p.describe())
@pytest.mark.parametrize("growth", ["constant", "sqrt"])
def test_linearised_it_is_the_dense_reference(growth, penalty):
    agrees(
        IpAdmm(average="last", rho=0.02, eta=0.3, eta_growth=growth, regulariser="linearised", inner_steps=3), penalty
    )


def test_averages_are_those_of_the_iterates():
    shards, rounds = labelled_shards(), 9
    last = {t: models(simulate(IpAdmm(average="last"), shards, t, loss="logistic")) for t in range(1, rounds + 1)}
    for average, first in (("tail", rounds // 2 + 1), ("mean", 1)):
        expected = np.mean([last[t] for t in range(first, rounds + 1)], axis=0)
        found = models(simulate(IpAdmm(average=average), shards, rounds, loss="logistic"))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def terms(**changes):
    return replace(TERMS, **changes)


@pytest.mark.parametrize(("regulariser", "l2"), [("exact", 0.05), ("linearised", 0.0)])
def test_the_sensitivity_of_a_round_has_a_closed_form(regulariser, l2):
    rho, eta, steps = 0.01, 0.3, 6
    algorithm = IpAdmm(rho=rho, eta=eta, inner_steps=steps, inner_noise="once", regulariser=regulariser)
    E = 2 * rho * 2 + eta + l2
    c = eta / E
    expected = 2 * 0.5 / 40 / E * sum((1 - c**j) / (steps * (1 - c)) for j in range(1, steps + 1))
    (found, scale), *others = (algorithm.mean_sensitivity(terms(strong_convexity=l2), t) for t in (1, 5))
    assert found == pytest.approx(expected, rel=2e-9)
    assert found >= expected
    assert scale == pytest.approx(1 / E)
    assert others == [(found, scale)]


def test_the_sensitivity_of_a_round_is_reached():
    """Records without features leave the two shards' gradients at +-L/m, whatever the inner iterate does."""
    m, L = 400, 0.5
    algorithm = IpAdmm(inner_steps=5, inner_noise="once", average="last")

    def moved(label):
        shards = random_shards(3, m, 4, seed=1)
        X, y = np.zeros((m, 4)), np.ones(m)
        X[0, 0], y[0] = 1.0, label
        shards[1] = (Dense(X), y)
        engine = simulate(algorithm, shards, 1, loss="logistic", lipschitz=L)
        return models(engine)[1], engine.seats[1].agent.terms

    (one, facts), (other, _) = moved(1.0), moved(-1.0)
    bound, _ = algorithm.mean_sensitivity(facts, 1)
    assert 0.98 * bound < np.linalg.norm(one - other) <= bound


def test_for_one_inner_step_both_noises_are_one():
    """The same sensitivity in units of the noise, and the same deviation on the iterate."""
    once = IpAdmm(inner_steps=1, inner_noise="once")
    sensitivity, scale = once.mean_sensitivity(terms(), 1)
    assert sensitivity / scale == pytest.approx(terms().gradient_sensitivity, rel=2e-9)


@pytest.mark.parametrize("graph", ["ring", "complete"])
@pytest.mark.parametrize("noise", ["each", "once"])
def test_it_converges(graph, noise):
    shards, l2 = labelled_shards(), 0.01
    algorithm = IpAdmm(inner_noise=noise)
    engine = simulate(algorithm, shards, 120, graph=graph, loss="logistic", penalty=Regulariser(l2=l2))
    assert max(gap(shards, l2, x) for x in models(engine)) < 1e-5


@pytest.mark.parametrize("penalty", [Regulariser(l1=0.01), Regulariser(l2=0.001, ball=1.0)], ids=["l1", "ball"])
def test_it_converges_with_a_prox(penalty):
    shards = labelled_shards()
    loss = LOSSES["logistic"]
    best = find_optimum(shards, len(shards), loss, penalty, 8, lambda buffer: None).value

    def value(x):
        return float(np.mean([loss.value(r.scores(x), y).mean() for r, y in shards])) + penalty.value(x)

    engine = simulate(IpAdmm(), shards, 150, loss="logistic", penalty=penalty)
    x = models(engine).mean(axis=0)
    assert value(x) - best < 1e-5 * (value(np.zeros(8)) - best)


def test_it_learns_a_loss_without_curvature():
    shards, penalty = labelled_shards(), Regulariser(l2=0.01)
    loss = LOSSES["hinge"]
    best = find_optimum(shards, len(shards), loss, penalty, 8, lambda buffer: None).value

    def error(rounds):
        x = models(simulate(IpAdmm(), shards, rounds, loss="hinge", penalty=penalty)).mean(axis=0)
        return float(np.mean([loss.value(r.scores(x), y).mean() for r, y in shards])) + penalty.value(x) - best

    assert error(150) < 0.01 * (1.0 - best)


def test_the_printed_gradient_step_climbs():
    shards, l2 = labelled_shards(), 0.01
    algorithm = IpAdmm(inner_steps=5)
    good, printed = (
        dense_reference(algorithm, shards, "ring", 0.01, 0.26, Regulariser(l2=l2), 150, sign).mean(axis=0)
        for sign in (1.0, -1.0)
    )
    assert gap(shards, l2, good) < 1e-5
    assert gap(shards, l2, printed) > 1.0  # worse than the start


def test_a_rank_without_budget_goes_on_mixing():
    shards = labelled_shards()
    algorithm = IpAdmm(inner_noise="once", inner_steps=2, average="last")
    early, late = (models(simulate(algorithm, shards, t, loss="logistic", make_agent=OutOfBudget)) for t in (3, 30))
    np.testing.assert_array_equal(early[1], late[1])
    assert np.all(np.linalg.norm(late - early, axis=1)[[0, 2, 3, 4, 5]] > 1e-3)


@pytest.mark.parametrize(
    ("algorithm", "changes", "message"),
    [
        (IpAdmm(rho=0.0), {}, "--rho above 0"),
        (IpAdmm(eta=0.0), {}, "--eta above 0"),
        (IpAdmm(regulariser="linearised"), {"bounded": True}, "--domain"),
        (IpAdmm(inner_noise="once"), {"smoothness": None}, "smooth loss"),
        (IpAdmm(inner_noise="once"), {"sampling": Sampling("poisson", 5.0, 40)}, "--batch full"),
        (IpAdmm(inner_noise="once", eta=0.12), {}, "at least 0.125"),
        (IpAdmm(inner_noise="once", eta=0.14, regulariser="linearised"), {}, "at least 0.15"),
        (IpAdmm(inner_noise="once", regulariser="linearised"), {"l1": 0.1}, "l1"),
    ],
)
def test_what_it_refuses(algorithm, changes, message):
    with pytest.raises(ConfigError, match=message):
        algorithm.check(terms(**changes))
    IpAdmm(inner_noise="once").check(terms())
