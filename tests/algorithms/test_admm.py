"""ADMM with exact minimisation, plain and with noise on the iterate: dense reference, contracts, convergence."""

from dataclasses import replace

import numpy as np
import pytest
from admm_problems import TERMS, OutOfBudget, adjacency, exact_step, gap, labelled_shards

from dpmpi.algorithms.admm import Admm, PvpAdmm
from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.testing import check_sensitivity, models, noisy, random_shards, simulate

METHODS = [Admm, PvpAdmm]
GRAPH = "erdos-renyi:p=0.5"


def dense_reference(shards, graph, rho, l2, rounds):
    """All agents at once, with the multipliers lambda = -gamma of the original; logistic, no noise."""
    n, m = len(shards), shards[0][0].dimension
    A = adjacency(graph, n)
    d, W, lam = A.sum(axis=1), np.zeros((n, m)), np.zeros((n, m))
    for _ in range(rounds):
        linear = 2 * lam - rho * (d[:, None] * W + A @ W)
        W = np.array([exact_step(shards[i], linear[i], l2 + 2 * rho * d[i]) for i in range(n)])
        lam = lam + rho / 2 * (d[:, None] * W - A @ W)
    return W


@pytest.mark.parametrize("make", METHODS)
def test_it_is_the_dense_reference(make):
    shards = labelled_shards()
    algorithm = make(average="last", rho=0.02, tolerance=1e-14)
    engine = simulate(algorithm, shards, 25, graph=GRAPH, loss="logistic", penalty=Regulariser(l2=0.05))
    expected = dense_reference(shards, GRAPH, 0.02, 0.05, 25)
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 1e-2


def test_the_sensitivity_is_reached():
    """Records without features leave the two shards' gradients at +-L/m, and the curvature at that of the penalties."""
    m = 400

    def moved(label):
        shards = random_shards(3, m, 4, seed=1)
        X, y = np.zeros((m, 4)), np.ones(m)
        X[0, 0], y[0] = 1.0, label
        shards[1] = (Dense(X), y)
        engine = simulate(Admm(average="last"), shards, 1, loss="logistic", lipschitz=0.5)
        return models(engine)[1], engine.seats[1].agent.terms

    (one, terms), (other, _) = moved(1.0), moved(-1.0)
    bound = Admm().sensitivity(terms)
    assert 0.95 * bound < np.linalg.norm(one - other) <= bound


def test_an_inexact_minimum_is_part_of_the_sensitivity():
    """The default adds a thousandth; with a tolerance so wide that a few steps meet it, the bound knows."""
    terms = replace(TERMS, lipschitz=1.0, strong_convexity=0.0)
    for tolerance, share in ((1e-12, 0.0), (None, 0.001), (0.1, 8.0)):
        found = Admm(rho=0.5, tolerance=tolerance).sensitivity(terms)
        assert found == pytest.approx(2 / 40 / 2 * (1 + share), rel=1e-8)
    for tolerance in (0.05, 0.5, 2.0):
        check_sensitivity(lambda tau=tolerance: Admm(tolerance=tau), loss="logistic", rounds=3, normalized=True)


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_it_converges(graph):
    shards, l2 = labelled_shards(), 0.01
    engine = simulate(Admm(), shards, 120, graph=graph, loss="logistic", penalty=Regulariser(l2=l2))
    assert max(gap(shards, l2, x) for x in models(engine)) < 1e-5


def test_the_noise_of_the_iterate_stays_in_the_own_term():
    """What rank i says next is a function of what it said before: the argmin around its NOISY iterate."""
    shards, l2, rho, n = labelled_shards(), 0.05, 0.02, 6
    said = []
    for rounds in (1, 2):
        settings = {"loss": "logistic", "penalty": Regulariser(l2=l2)}
        noise = noisy("spherical-laplace", 0.01, 3)
        engine = simulate(PvpAdmm(average="last", rho=rho), shards, rounds, mechanism=noise, **settings)
        said.append(models(engine))
    A = adjacency("ring", n)
    first, d = said[0], A.sum(axis=1)[:, None]
    linear = rho * (d * first - A @ first) - rho * (d * first + A @ first)
    clean = np.array([exact_step(shards[i], linear[i], l2 + 2 * rho * d[i, 0]) for i in range(n)])
    noise = np.linalg.norm(said[1] - clean, axis=1)
    b = 0.01 / 3  # deviation 0.01 = b sqrt(m + 1) in m = 8 dimensions; |noise| is Gamma(8, b)
    assert np.all((noise > 1.5 * b) & (noise < 25 * b))


def test_a_rank_without_budget_goes_on_mixing():
    shards = labelled_shards()
    early, late = (
        models(simulate(Admm(average="last"), shards, t, loss="logistic", make_agent=OutOfBudget)) for t in (3, 20)
    )
    np.testing.assert_array_equal(early[1], late[1])
    assert np.all(np.linalg.norm(late - early, axis=1)[[0, 2, 3, 4, 5]] > 1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"smoothness": None}, "smooth loss"),
        ({"sampling": Sampling("fixed", 5.0, 40)}, "--batch full"),
        ({"l1": 0.1}, "l1 term"),
        ({"bounded": True}, "a domain"),
        ({"degree": 0, "max_degree": 0, "size": 1}, "a neighbour or an l2 penalty"),
    ],
)
def test_what_it_refuses(changes, message):
    terms = replace(TERMS, lipschitz=1.0, strong_convexity=0.0)
    with pytest.raises(ConfigError, match=message):
        Admm().check(replace(terms, **changes))
    Admm().check(terms)
    for wrong in (Admm(rho=0.0), Admm(tolerance=0.0)):
        with pytest.raises(ConfigError, match="above 0"):
            wrong.check(terms)
    with pytest.raises(ConfigError, match=r"expected --tolerance of at least 3\.6e-15, .* found 1e-15"):
        Admm(tolerance=1e-15).check(terms)
