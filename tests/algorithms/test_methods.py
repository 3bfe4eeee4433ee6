"""What methods are built from: terms, releases in parts and inside an objective, minimisation, the mean problem."""

import dataclasses

import numpy as np
import pytest
import scipy.optimize
from plans import plan_of

from dpmpi.core import Agent, Exchanges, Query, Sampling
from dpmpi.errors import BudgetExceeded, ConfigError, DataError
from dpmpi.privacy.mechanisms import DeafMechanism, make_mechanism, pricing
from dpmpi.problem.batches import Batch
from dpmpi.problem.local_problem import LocalProblem, MeanProblem
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.optimum import find_mean
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Csr, Dense
from dpmpi.rng import PrivateStream, insecure_key
from dpmpi.runtime.config import Config
from dpmpi.runtime.settings import Settings
from dpmpi.testing import Recorder, random_shards

FULL = Sampling("full", 20.0, 20)


def stream(label="batch"):
    return PrivateStream(insecure_key(0, 0), label)


def terms(graph="star", rank=0, loss="logistic", normalized=True):
    data = "mean" if loss == "mean" else "synthetic"
    config = Config(
        algorithm="dp-dda", graph=graph, rounds=10, lipschitz=2.0, loss=loss, normalize=normalized, data=data
    )
    settings = dataclasses.replace(Settings.of(config), regulariser=Regulariser(l2=0.1, l1=0.2))
    return plan_of(settings, [20] * 5, 3).terms(rank)


def test_terms_are_what_everybody_may_know():
    hub, leaf = terms(), terms(rank=1)
    assert (hub.degree, leaf.degree, hub.max_degree, hub.size) == (4, 1, 4, 5)
    assert (hub.smoothness, hub.strong_convexity, hub.l1, hub.curvature_floor) == (0.25, 0.1, 0.2, 0.0)
    assert hub.gradient_sensitivity == 2 * 2.0 / 20
    assert terms(loss="hinge").smoothness is terms(normalized=False).smoothness is None
    assert terms(loss="mean").curvature_floor == terms(loss="mean").smoothness == 1.0


class Budget(Recorder):
    def charge(self, event, round_):
        if len(self.charged) == 2:
            raise BudgetExceeded("spent")
        super().charge(event, round_)


def agent(mechanism, charges):
    return Agent(0, 1.0, terms(), None, None, mechanism, charges, stream("weights"))


def test_parts_of_a_vector_are_charged_once_and_stop_together():
    charges = Budget()
    one = agent(make_mechanism("gaussian", 1.0, insecure_key(0, 0), 1), charges)
    found = []
    for round_ in range(1, 10):
        one.round = round_
        found.append(one.release(Query(np.full(1, 1e6), 1.0, FULL), part=(round_ - 1) % 3).value[0])
    assert [round_ for round_, _ in charges.charged] == [1, 4]
    assert all(value > 1e5 for value in found[:6])
    assert found[6:] == [0.0, 0.0, 0.0]
    assert one.stopped == 7


def test_noise_inside_an_objective():
    """The minimiser of <b, w> + |w|^2 / 2 is minus the noise: what leaves is what the solver made of it."""
    charges = Recorder()
    seen = []

    def solve(value):
        seen.append(value.copy())
        value *= -1.0

    one = agent(make_mechanism("spherical-laplace", 1.0, insecure_key(0, 0), 3), charges)
    query = Query(np.full(3, 7.0), 0.5, FULL, extra=0.25)
    released = one.release_inside(query, solve).value
    np.testing.assert_array_equal(released, -seen[0])
    assert 0 < np.abs(seen[0]).max() < 7.0
    [(_, event)] = charges.charged
    assert event.sensitivity / event.scale == pytest.approx(0.5 / event.scale + 0.25)


def test_a_deaf_mechanism_does_not_ask_the_solver():
    one = agent(DeafMechanism(1.0, stream("noise"), 3), Recorder())
    one.release_inside(Query(np.zeros(3), 0.5, FULL), pytest.fail)


def test_a_shift_of_so_many_scales_is_a_larger_sensitivity():
    assert pricing("gaussian", 2.0, 3).event(1.0, FULL, extra=0.1).sensitivity >= 1.2


def sparse(X):
    n, m = X.shape
    return Csr(np.arange(0, n * m + 1, m), np.tile(np.arange(m), n), X.ravel().copy(), m)


@pytest.mark.parametrize("make", [Dense, sparse])
@pytest.mark.parametrize(
    ("loss", "quadratic", "lipschitz"),
    [("logistic", 1e-3, 1.0), ("logistic", 10.0, 1.0), ("squared", 0.1, 100.0), ("squared", 0.1, 0.3)],
)
def test_local_minimisation_finds_the_stationary_point(make, loss, quadratic, lipschitz):
    [(rows, labels)] = random_shards(1, 60, 9, 4)
    problem = LocalProblem(make(rows.matrix), labels, LOSSES[loss], Batch.parse("full"), lipschitz, stream())
    linear, x = np.linspace(-0.2, 0.2, 9), np.zeros(9)
    smoothness = LOSSES[loss].curvature
    problem.minimise(linear, quadratic, smoothness, x, 1e-11)
    gradient = problem.subgradient(x).value + linear + quadratic * x
    assert np.linalg.norm(gradient) <= 1e-11 * (quadratic + smoothness) / quadratic
    if lipschitz >= 1.0:

        def objective(w):
            return problem.value(w) + linear @ w + quadratic / 2 * w @ w

        best = scipy.optimize.minimize(objective, np.zeros(9), tol=1e-12)
        assert best.fun - 1e-6 < objective(x) <= best.fun + 1e-12


@pytest.mark.parametrize("batch", ["full", "8", "fixed:5"])
def test_the_mean_problem(batch):
    draw = np.random.default_rng(0)
    X = np.clip(draw.normal(0.7, 0.5, (20, 4)), -1, 1)
    problem = MeanProblem(Dense(X), Batch.parse(batch), 1.0, stream())
    x = draw.normal(size=4)
    assert problem.value(x) == pytest.approx(0.5 * np.mean(np.sum((x - X) ** 2, axis=1)))
    average = np.mean([problem.subgradient(x).value.copy() for _ in range(4000 if batch != "full" else 1)], axis=0)
    np.testing.assert_allclose(average, x - X.mean(axis=0), atol=1e-12 if batch == "full" else 0.02)
    assert problem.subgradient(x).sensitivity == pytest.approx(2 * 2 / problem.batch.sampling(20).expected)
    w = np.zeros(4)
    problem.minimise(np.ones(4), 0.5, 1.0, w, 0.0)
    np.testing.assert_allclose(w - X.mean(axis=0) + 1 + 0.5 * w, 0.0, atol=1e-12)


def test_records_outside_of_the_cube_are_moved_to_its_face():
    problem = MeanProblem(Dense(np.array([[5.0, -9.0]])), Batch.parse("full"), 2.0, stream())
    np.testing.assert_array_equal(problem.subgradient(np.zeros(2)).value, [-2.0, 2.0])
    with pytest.raises(DataError, match="no"):
        MeanProblem(Dense(np.zeros((0, 2))), Batch.parse("full"), 2.0, stream())


def test_the_optimum_of_the_mean_problem():
    draw = np.random.default_rng(1)
    shards = [np.clip(draw.normal(0.7, 0.5, (k, 3)), -1, 1) for k in (3, 9)]
    problems = [MeanProblem(Dense(X), Batch.parse("full"), 1.0, stream()) for X in shards]
    penalty = Regulariser(l2=0.5, l1=0.1)
    best = find_mean(problems, 2, penalty, 3, lambda buffer: None)

    def objective(x):
        return sum(problem.value(x) for problem in problems) / 2 + penalty.value(x)

    assert best.value == pytest.approx(objective(best.x))
    assert all(objective(best.x + 1e-3 * e) > best.value for e in [*np.eye(3), *-np.eye(3)])


def test_messages_go_to_the_neighbours_or_to_everyone():
    with pytest.raises(ConfigError, match="expected the audience neighbours or everyone, found 'neighbors'"):
        Exchanges("neighbors", 3, 1)
