"""ADMM with noise inside the objective: dense reference, contracts, the theorem behind its cost, convergence."""

import math
from dataclasses import replace

import numpy as np
import pytest
from admm_problems import TERMS, OutOfBudget, adjacency, exact_step, gap, gradient, labelled_shards

from dpmpi.algorithms.dvp_admm import DvpAdmm
from dpmpi.algorithms.r_admm import RAdmm
from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.privacy.calibration import calibrate
from dpmpi.privacy.mechanisms import pricing
from dpmpi.privacy.releases import tally
from dpmpi.privacy.samplers import grid
from dpmpi.problem.batches import Batch
from dpmpi.problem.local_problem import LocalProblem
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.rng import PrivateStream, insecure_key
from dpmpi.testing import check_exchanges, check_releases, check_resume, check_work, models, noisy, simulate

METHODS = [DvpAdmm, RAdmm]
GRAPH = "erdos-renyi:p=0.5"


def dense_reference(shards, graph, rho, eta, l2, rounds, recycle):
    """All agents at once, in the letters of the originals (lambda = -gamma); logistic, no noise."""
    n, m = len(shards), shards[0][0].dimension
    A = adjacency(graph, n)
    d, W, lam, G = A.sum(axis=1)[:, None], np.zeros((n, m)), np.zeros((n, m)), None
    for t in range(1, rounds + 1):
        if recycle and t % 2 == 0:
            W = W - (G + 2 * lam + rho * (d * W - A @ W)) / (2 * rho * d + eta)
        else:
            linear = 2 * lam - rho * (d * W + A @ W)
            new = np.array([exact_step(shards[i], linear[i], l2 + 2 * rho * d[i, 0]) for i in range(n)])
            G = -2 * lam - rho * (2 * d * new - d * W - A @ W)
            W = new
        lam = lam + rho / 2 * (d * W - A @ W)
    return W


@pytest.mark.parametrize("rounds", [24, 25])
@pytest.mark.parametrize("make", METHODS)
def test_it_is_the_dense_reference(make, rounds):
    shards = labelled_shards()
    options = {"eta": 0.2} if make is RAdmm else {}
    algorithm = make(average="last", rho=0.02, tolerance=1e-14, **options)
    engine = simulate(algorithm, shards, rounds, graph=GRAPH, loss="logistic", penalty=Regulariser(l2=0.05))
    expected = dense_reference(shards, GRAPH, 0.02, 0.2, 0.05, rounds, make is RAdmm)
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 1e-2


def test_half_of_the_recycled_rounds_are_free():
    terms = facts(rounds=9, active_rounds=9)
    assert len(list(DvpAdmm().releases(terms))) == 18
    assert len(list(RAdmm().releases(terms))) == 10


def facts(**changes):
    return replace(TERMS, **{"sampling": Sampling("full", 6.0, 6)} | changes)


def log_density(X, y, loss, L, x, pull, quadratic, b):
    """Log of the density of the minimiser at x, up to a constant, by a change of variables with finite differences."""
    problem = LocalProblem(Dense(X), y, LOSSES[loss], Batch("full"), L, PrivateStream(insecure_key(0, 0), "batch"))
    step = 1e-5

    def noise(at):
        return pull - quadratic * at - problem.subgradient(at).value

    J = np.array([noise(x + step * e) - noise(x - step * e) for e in np.eye(len(x))]) / (2 * step)
    return -np.linalg.norm(noise(x)) / b + np.linalg.slogdet(J)[1]


@pytest.mark.parametrize(("loss", "smoothness"), [("logistic", 0.25), ("squared", 1.0)])
def test_replacing_a_record_changes_the_density_by_no_more_than_is_charged(loss, smoothness):
    """Few records and little penalty, so that the Jacobian is a large part of the cost."""
    draw, b, L, m = np.random.default_rng(5), 0.7, 0.5, 6
    algorithm = DvpAdmm(rho=0.003)
    terms = facts(smoothness=smoothness, dimension=3)
    quadratic = algorithm.quadratic(terms)
    bound = terms.gradient_sensitivity / b + algorithm.jacobian(terms)
    losses = []
    for _ in range(200):
        X = draw.standard_normal((m, 3)) * (draw.random((m, 1)) < 0.5)  # zero rows leave the replaced record alone
        X /= np.maximum(1e-9, np.linalg.norm(X, axis=1, keepdims=True))
        y = draw.choice([-1.0, 1.0], m)
        other, label = X.copy(), y.copy()
        other[0] = draw.choice([-1.0, 0.0, 1.0]) * (X[0] if draw.random() < 0.5 else X[1])
        label[0] *= draw.choice([-1.0, 1.0])
        x, pull = draw.standard_normal(3), 3 * draw.standard_normal(3)
        densities = [log_density(A, z, loss, L, x, pull, quadratic, b) for A, z in ((X, y), (other, label))]
        losses.append(abs(densities[0] - densities[1]))
    assert max(losses) <= bound + 1e-6
    assert max(losses) > 0.3 * bound


def test_the_jacobian_is_needed():
    """One record at the edge of the clipping, curvature 1, against one beyond it, curvature 0: the bound is reached."""
    L, m, b, algorithm = 0.5, 6, 0.7, DvpAdmm(rho=0.003)
    terms = facts(smoothness=1.0, dimension=1)
    X, x, pull = np.zeros((m, 1)), np.zeros(1), np.full(1, 2.0)
    X[0] = 1.0
    densities = [
        log_density(X, np.array([label, *np.zeros(m - 1)]), "squared", L, x, pull, algorithm.quadratic(terms), b)
        for label in (-L + 1e-3, 10.0)
    ]
    noise_alone = terms.gradient_sensitivity / b
    bound = noise_alone + algorithm.jacobian(terms)
    assert noise_alone + 0.5 < abs(densities[0] - densities[1]) <= bound
    assert abs(densities[0] - densities[1]) > 0.99 * bound


def test_the_noise_goes_into_the_objective():
    """From what was said, the noise of round 1 is minus the gradient of the objective; its length is Gamma(m, b)."""
    n, m, sigma, l2 = 30, 40, 0.05, 0.05
    shards = labelled_shards(n, 50, m)
    algorithm = DvpAdmm(average="last", rho=0.02)
    noise = noisy("spherical-laplace", sigma, 1)
    engine = simulate(algorithm, shards, 1, loss="logistic", penalty=Regulariser(l2=l2), mechanism=noise)
    quadratic = l2 + 2 * 0.02 * 2
    # what goes on top of the minimiser has a 64th of that length, times up to the condition number of the objective
    noise = [-(gradient(s, x) + quadratic * x) for s, x in zip(shards, models(engine), strict=True)]
    lengths = np.linalg.norm(noise, axis=1) / (sigma / math.sqrt(m + 1))
    assert abs(lengths.mean() / m - 1) < 5 / math.sqrt(m * n) + 0.01
    assert 0.5 < lengths.std() / math.sqrt(m) < 1.5


def test_what_a_computed_minimum_adds_to_the_cost():
    """Noise from a grid and an inexact minimum move x by a small part of the noise on x, whatever the shard's size."""
    b, m = 0.01, 20
    for records in (100, 10_000, 1_000_000):
        terms = facts(sampling=Sampling("full", float(records), records), dimension=m)
        algorithm = DvpAdmm()
        inside, outside = list(algorithm.releases(terms))[:2]
        off_grid = math.sqrt(m) * grid(b) / 2
        moved = (off_grid + 2 * algorithm.accuracy(terms)) / algorithm.modulus(terms)
        charged = outside.sensitivity / (b * outside.scale) + outside.extra
        assert 2 * moved / (b * outside.scale) <= charged
        assert charged < 0.02 * inside.sensitivity / b + 6e-4
        exact = next(r for r in replace(algorithm, tolerance=1e-300).releases(terms) if r.scale == outside.scale)
        assert outside.sensitivity - exact.sensitivity <= 1e-3 * inside.sensitivity * outside.scale


def test_a_minimiser_moves_by_no_more_than_its_gradient_over_the_strong_convexity():
    shard, quadratic = labelled_shards()[0], 0.02
    linear = np.linspace(-1, 1, 8)
    for change in 1e-4 * np.eye(8):
        moved = exact_step(shard, linear + change, quadratic) - exact_step(shard, linear, quadratic)
        assert np.linalg.norm(moved) <= 1e-4 / quadratic


@pytest.mark.parametrize("graph", ["ring", "complete"])
@pytest.mark.parametrize("make", METHODS)
def test_it_converges(make, graph):
    shards, l2 = labelled_shards(), 0.01
    engine = simulate(make(), shards, 160, graph=graph, loss="logistic", penalty=Regulariser(l2=l2))
    assert max(gap(shards, l2, x) for x in models(engine)) < 1e-5


def test_a_rank_without_budget_goes_on_mixing():
    shards = labelled_shards()
    early, late = (
        models(simulate(DvpAdmm(average="last"), shards, t, loss="logistic", make_agent=OutOfBudget)) for t in (3, 20)
    )
    np.testing.assert_array_equal(early[1], late[1])
    assert np.all(np.linalg.norm(late - early, axis=1)[[0, 2, 3, 4, 5]] > 1e-3)


@pytest.mark.parametrize("make", METHODS)
def test_gaussian_noise_keeps_the_contracts(make):
    """Those of all kinds of noise are in `check_releases` and, with a deaf mechanism, in test_contracts.py."""
    for check in (check_work, check_exchanges, check_resume):
        check(make, loss="logistic", mechanism=noisy("gaussian"))
    check_releases(make, loss="logistic")


def test_gaussian_noise_goes_into_the_objective_and_is_charged_so():
    n, m, sigma, l2 = 30, 40, 0.05, 0.05
    shards, algorithm = labelled_shards(n, 50, m), DvpAdmm(average="last", rho=0.02)
    noise = noisy("gaussian", sigma, 1)
    engine = simulate(algorithm, shards, 1, loss="logistic", penalty=Regulariser(l2=l2), mechanism=noise)
    quadratic = l2 + 2 * 0.02 * 2
    drawn = np.array([-(gradient(s, x) + quadratic * x) for s, x in zip(shards, models(engine), strict=True)])
    assert abs(drawn.std() / sigma - 1) < 4 / math.sqrt(2 * n * m) + 0.01
    agent = engine.seats[0].agent
    inside, outside = (event for _, event in agent.charges.charged)
    assert (inside.noise, inside.scale, inside.extra) == ("objective", sigma, algorithm.jacobian(agent.terms))
    assert inside.sensitivity == agent.terms.gradient_sensitivity
    assert (outside.noise, outside.extra) == ("gaussian", 0.0)
    off_grid = math.sqrt(m) * grid(sigma) / 2
    moved = 2 * (off_grid + 2 * algorithm.accuracy(agent.terms)) / algorithm.modulus(agent.terms)
    assert moved <= outside.sensitivity < 0.02 * outside.scale


def test_gaussian_noise_is_less_noise():
    """(1, 1e-5), 1000 records, 30 rounds: deviation per coordinate against that of spherical Laplace noise."""
    for m, ratio in ((3, 0.75), (12, 0.45), (104, 0.2)):
        terms = facts(sampling=Sampling("full", 1000.0, 1000), dimension=m, rounds=30, active_rounds=30)
        planned = list(DvpAdmm().releases(terms))

        def events(sigma, kind, m=m, planned=planned, terms=terms):
            price = pricing(kind, sigma, m)
            return tally(
                (price.event(r.sensitivity, terms.sampling, r.scale, r.extra, inside=r.inside), r.count)
                for r in planned
            )

        levels = [calibrate(lambda s, k=k: events(s, k), 1.0, 1e-5) for k in ("gaussian", "spherical-laplace")]
        assert levels[0] < ratio * levels[1]


@pytest.mark.parametrize("make", METHODS)
def test_what_it_refuses(make):
    for changes, message in (({"smoothness": None}, "smooth loss"), ({"l1": 0.1}, "l1 term")):
        with pytest.raises(ConfigError, match=message):
            make().check(facts(**changes))
    make().check(facts())


def test_recycling_needs_a_proximal_weight():
    with pytest.raises(ConfigError, match="--eta above 0"):
        RAdmm(eta=0.0).check(facts())
