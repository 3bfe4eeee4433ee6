"""Consensus gradient descent: dense reference, contracts, the leak of the paper, schedules, convergence, its claims."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import minimize

from dpmpi.algorithms.bases.consensus_descent import State
from dpmpi.algorithms.dgd import Dgd, DpDgd
from dpmpi.core import Agent, Mix, Steps, public
from dpmpi.errors import BudgetExceeded, ConfigError
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.network.schedule import make_schedule
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.privacy.mechanisms import NoNoise
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.testing import Tap, check_no_leak, models, noisy, random_shards, simulate

PENALTIES = [Regulariser(l2=0.05), Regulariser(l1=0.02, l2=0.05), Regulariser(l2=0.05, ball=0.3), Regulariser(box=0.2)]


def gradient(shard, loss, x):
    X, y = shard[0].matrix, shard[1]
    return x - X.mean(axis=0) if loss == "mean" else X.T @ LOSSES[loss].slope(X @ x, y) / len(y)


def project(penalty, x):
    if penalty.box is not None:
        return np.clip(x, -penalty.box, penalty.box)
    return x if penalty.ball is None else x * min(1.0, penalty.ball / max(np.linalg.norm(x), 1e-300))


def prox(penalty, x, step):
    """That of l1 and the domain: soft thresholding, then projection onto the box or ball."""
    return project(penalty, np.sign(x) * np.maximum(np.abs(x) - step * penalty.l1, 0))


def dense_reference(shards, W, loss, penalty, steps, consensus, noise=None):
    """All agents at once: z, v are n by m; full batch; noise(t) an n by m matrix."""
    z = np.zeros((len(shards), shards[0][0].dimension))
    for t, eta in enumerate(steps):
        g = np.array([gradient(shard, loss, row) for shard, row in zip(shards, z, strict=True)])
        y = np.array([project(penalty, row) for row in z - eta * (g + penalty.l2 * z)])
        v = W @ (y if noise is None else y + noise(t + 1))
        z = np.array([prox(penalty, row, eta) for row in v])
    v = np.linalg.matrix_power(W, consensus) @ v
    return np.array([prox(penalty, row, steps[-1]) for row in v])


@pytest.mark.parametrize("penalty", PENALTIES, ids=lambda p: p.describe() + str(p.domain))
@pytest.mark.parametrize("loss", ["mean", "logistic", "squared"])
@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_is_the_dense_reference(graph, loss, penalty):
    shards = random_shards(6, 20, 9, seed=4)
    algorithm = DpDgd(consensus_rounds=7, step_decay="sqrt", step=0.7)
    engine = simulate(algorithm, shards, 40, graph=graph, loss=loss, penalty=penalty, lipschitz=10.0)
    W = mixing_matrix(make_graph(graph, 6, 0), "metropolis")
    expected = dense_reference(shards, W, loss, penalty, 0.7 / np.sqrt(np.arange(1, 34)), 7)
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)
    assert np.abs(expected).max() > 1e-3


def test_noise_enters_where_the_reference_adds_it():
    shards, penalty, T = random_shards(5, 20, 6, seed=4), Regulariser(l2=0.05, ball=0.3), 9
    algorithm = DpDgd(consensus_rounds=4)
    engine = simulate(algorithm, shards, T + 4, loss="logistic", penalty=penalty, mechanism=lambda i, m: Impulse(i, 3))
    noise = {3: np.diag(np.arange(1.0, 6.0)) @ np.ones((5, 6))}
    W = mixing_matrix(make_graph("ring", 5, 0), "metropolis")
    steps, scales = algorithm.plan(engine.seats[0].agent.terms)
    expected = dense_reference(
        shards, W, "logistic", penalty, steps, 4, lambda t: noise.get(t, np.zeros((5, 6))) * scales[t - 1]
    )
    np.testing.assert_allclose(models(engine), expected, rtol=0, atol=1e-10)


class Impulse(NoNoise):
    """Adds rank + 1 in one call and nothing in the others."""

    def __init__(self, rank, call):
        super().__init__()
        self.height, self.left = rank + 1.0, call

    def perturb(self, value, scale=1.0):
        self.left -= 1
        if self.left == 0:
            value += self.height * scale


# --- contracts -------------------------------------------------------------------------------------------------------


def test_sensitivity_is_attained():
    """Two opposite records move the mean's first step by the declared bound, so that no smaller one would do."""
    m, q = 4, 10
    moves = []
    for sign in (1.0, -1.0):
        X = np.zeros((q, m))
        X[0] = sign
        engine = simulate(DpDgd(), [(Dense(X), np.zeros(q))], 2, loss="mean", graph="complete")
        moves.append(engine.seats[0].state.message[:m].copy())
    declared = engine.seats[0].agent.charges.charged[0][1].sensitivity
    assert declared * (1 - 2e-5) < np.linalg.norm(moves[0] - moves[1]) < declared


def clean_step(agent, state, t):
    g = agent.problem.subgradient(state.z).value + agent.penalty.l2 * state.z
    return project(agent.penalty, state.z - state.steps[t - 1] * g)


@dataclass(frozen=True)
class CleanHandOver(DpDgd):
    """Line 8 of the paper's listing: the last iterate of stage I is sent as it is."""

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        if t != len(state.steps):
            yield from super().round(agent, state, t)
            return
        v = state.message[:-1]
        state.z[:] = prox(agent.penalty, v, state.steps[t - 2])
        v[:] = clean_step(agent, state, t)
        yield Mix(public(v, because="stage II needs no noise, says the paper"), out=v)


@dataclass(frozen=True)
class CleanSelfTerm(DpDgd):
    """Sends y_i, but uses x_i in its own weighted sum."""

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        steps = super().round(agent, state, t)
        mixing = next(steps)
        if t <= len(state.steps):
            difference = clean_step(agent, state, t) - state.message[:-1]
            yield mixing
            state.message[:-1] += difference / 3.0
        else:
            yield mixing


def test_the_leaks_of_the_paper_are_found():
    for leaky in (CleanHandOver, CleanSelfTerm):
        with pytest.raises(AssertionError, match="unreleased data"):
            check_no_leak(leaky, loss="logistic", penalty=Regulariser(l2=0.01, box=0.5))


@pytest.mark.parametrize(("make", "leaks"), [(CleanHandOver, True), (DpDgd, False)])
def test_the_wire_tells_the_gradient_after_a_clean_hand_over(make, leaks):
    shards, penalty, n, m, T = random_shards(5, 30, 7, seed=1), Regulariser(l2=0.05), 5, 7, 8
    tap = Tap(LoopbackTransport(n))
    settings = {"loss": "logistic", "penalty": penalty, "mechanism": noisy("gaussian", 0.5, 1)}
    engine = simulate(make(consensus_rounds=4), shards, T + 4, transport=tap, **settings)
    sent = {(rank, t): np.frombuffer(message[: 8 * m]) for rank, t, _, message in tap.heard}
    W = mixing_matrix(make_graph("ring", n, 0), "metropolis")
    steps = engine.seats[0].state.steps
    for i in range(n):
        z = prox(penalty, W[i] @ np.array([sent[j, T - 1] for j in range(n)]), steps[T - 2])
        g = gradient(shards[i], "logistic", z)
        error = np.linalg.norm((z - sent[i, T]) / steps[T - 1] - penalty.l2 * z - g) / np.linalg.norm(g)
        assert error < 1e-10 if leaks else error > 0.1


def test_a_spent_budget_leaves_the_rank_where_it_is():
    shards = random_shards(2, 30, 7, seed=1)
    engine = simulate(DpDgd(), shards, 30, loss="mean")

    def refuse(event, round_):
        raise BudgetExceeded("spent")

    agent, state = engine.seats[0].agent, engine.seats[0].state
    agent.charges.charge = refuse
    state.z[:] = np.arange(7.0)
    engine.algorithm._descend(agent, state, 0.5, 1.0)
    np.testing.assert_allclose(state.message[:-1], np.arange(7.0) * (1 - 0.5 * 0.01))  # the step of the penalty


def test_steps_lost_in_rounding_are_not_taken():
    """After noise of size 1 the iterate is far larger than a step of 1e-14, which rounding could not tell apart."""
    penalty = Regulariser(box=1.0)
    for step, same in ((1e-3, False), (1e-14, True)):
        algorithm, ends = DpDgd(step=step, step_decay="constant"), []
        for seed in (1, 2):
            settings = {"loss": "logistic", "penalty": penalty, "mechanism": noisy("gaussian", 1.0)}
            engine = simulate(algorithm, random_shards(3, 30, 7, seed), 30, **settings)
            assert len(engine.seats[0].agent.charges.charged) == 20
            ends.append(models(engine))
        assert (np.abs(ends[0] - ends[1]).max() < 1e-12) == same


# --- stage II --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", ["ring", "path", "complete"])
def test_the_consensus_ends_for_all_in_the_same_round(graph):
    n, T, rounds, tolerance = 7, 10, 400, 1e-4
    shards = random_shards(n, 20, 5, seed=2)
    tap = Tap(LoopbackTransport(n))
    settings = {"graph": graph, "loss": "mean", "mechanism": noisy("gaussian")}
    early = simulate(DpDgd(consensus_rounds=rounds - T, tolerance=tolerance), shards, rounds, transport=tap, **settings)
    ended = {seat.state.ended for seat in early.seats}
    assert len(ended) == 1
    end = ended.pop()
    assert T < end < rounds
    assert {t for _, t, _, _ in tap.heard} == set(range(1, end + 1))
    assert {len(message) for _, t, _, message in tap.heard if t > T} == {8 * 6 + 16}
    # The same run without an early end, stopped by hand: the same vectors, and nobody had moved n - 1 rounds earlier.
    patient = simulate(DpDgd(consensus_rounds=rounds - T), shards, rounds, **settings)
    W, v = mixing_matrix(make_graph(graph, n, 0), "metropolis"), {}
    plain = simulate(DpDgd(consensus_rounds=0), shards, T, **settings)
    v[T] = np.array([seat.state.message[:-1] for seat in plain.seats])
    for t in range(T + 1, end + 1):
        v[t] = W @ v[t - 1]
    np.testing.assert_allclose([seat.state.message[:-1] for seat in early.seats], v[end], atol=1e-12)
    change = {t: np.linalg.norm(v[t] - v[t - 1], axis=1) / np.linalg.norm(v[t], axis=1) for t in range(T + 1, end + 1)}
    assert change[end - (n - 1)].max() <= tolerance
    earlier = end - 2 * (n - 1)
    assert earlier <= T or change[earlier].max() > tolerance
    assert np.abs(models(early) - models(patient)).max() < 1e-2


def test_a_single_rank_stops_too():
    algorithm = DpDgd(consensus_rounds=20, tolerance=1e-3)
    engine = simulate(algorithm, random_shards(1, 20, 5, 1), 30, graph="complete", loss="mean")
    assert engine.seats[0].state.ended == 12


# --- the steps and the noise -----------------------------------------------------------------------------------------


L2 = Regulariser(l2=0.01)


def terms_of(rounds, loss="logistic", penalty=L2, **settings):
    settings = {"loss": loss, "penalty": penalty, "graph": "complete"} | settings
    engine = simulate(Dgd(step=0.1, step_decay="constant"), random_shards(1, 10, 7, 0), rounds, **settings)
    return engine.seats[0].agent.terms


def test_steps_are_those_of_the_paper_below_the_cap():
    t = np.arange(1, 101)
    steps, _ = Dgd().plan(terms_of(100, "mean", Regulariser(box=1.0)))
    np.testing.assert_allclose(steps, 1 / t)  # mu = L = 1
    steps, _ = Dgd().plan(terms_of(100))
    mu, L = 0.01, 0.26
    np.testing.assert_allclose(steps, np.minimum(2 / (mu + L), (mu + L) / (2 * mu * L) / t))
    steps, _ = Dgd().plan(terms_of(100, penalty=Regulariser()))
    np.testing.assert_allclose(steps, 8 / np.sqrt(t))
    steps, _ = Dgd().plan(terms_of(100, "hinge", lipschitz=0.5))
    np.testing.assert_allclose(steps, np.minimum(2.0, 50 / t))


@pytest.mark.parametrize("penalty", [Regulariser(), Regulariser(l2=0.3)], ids=["none", "l2"])
def test_noise_reaches_the_result_with_the_factor_of_equation_8(penalty):
    """f_i is quadratic and the graph complete, so that an impulse in one round can be followed to the end."""
    shards, T = random_shards(3, 20, 2, seed=4), 8
    algorithm = DpDgd(consensus_rounds=2)

    def result(call):
        settings = {"graph": "complete", "loss": "mean", "penalty": penalty}
        engine = simulate(algorithm, shards, T + 2, mechanism=lambda i, m: Impulse(i, call), **settings)
        return models(engine)[0, 0], engine.seats[0].agent.terms

    (base, terms), impulse = result(0), np.mean([1, 2, 3])
    steps, scales = algorithm.plan(terms)
    reach = np.array([(result(t)[0] - base) / (impulse * scales[t - 1]) for t in range(1, T + 1)])
    np.testing.assert_allclose(scales, np.sqrt(steps / reach) / np.sqrt(steps[0] / reach[0]), rtol=1e-9)  # (9)
    # (9) is a minimum: of sum W^2 M^2, for a given sum of (eta / M)^2. A solver that knows no calculus agrees.

    def error(log_m):
        M = np.exp(log_m)
        return math.log(np.sum((reach * M) ** 2) * np.sum((steps / M) ** 2))

    found = minimize(error, np.zeros(T), method="BFGS", options={"gtol": 1e-9})
    assert error(np.log(scales)) == pytest.approx(found.fun, abs=1e-9)
    assert found.fun < error(np.log(np.arange(1, T + 1) ** -0.75)) < error(np.zeros(T))


def test_optimal_noise_falls_as_the_paper_says_when_ill_conditioned_and_faster_for_the_mean():
    t = np.arange(1, 10001)
    _, scales = Dgd().plan(terms_of(10000, "mean", Regulariser(box=1.0)))
    np.testing.assert_allclose(scales, 1 / t)
    _, scales = Dgd(step=1e9).plan(terms_of(10000, penalty=Regulariser(l2=1e-6)))
    late = t > 300
    assert np.polyfit(np.log(t[late]), np.log(scales[late]), 1)[0] == pytest.approx(-0.75, abs=0.01)
    _, scales = Dgd(noise_schedule="paper").plan(terms_of(100))
    np.testing.assert_allclose(scales, np.arange(1, 101) ** -0.75)
    _, scales = Dgd(noise_schedule="constant").plan(terms_of(100))
    np.testing.assert_array_equal(scales, 1.0)


def test_constant_steps_that_forget_at_once_keep_the_noise_bounded():
    _, scales = Dgd(step_decay="constant").plan(terms_of(100, "mean", Regulariser(box=1.0)))
    assert scales.max() / scales.min() == pytest.approx(math.sqrt(100))


def test_wrong_settings_are_refused():
    for algorithm, match in (
        (DpDgd(consensus_rounds=12), "fewer consensus rounds than the 12 rounds"),
        (DpDgd(step=0.0), "step > 0"),
        (DpDgd(step_decay="harmonic"), "expected strong convexity for harmonic steps"),
    ):
        with pytest.raises(ConfigError, match=match):
            simulate(algorithm, random_shards(3, 10, 4, 0), 12, loss="logistic", penalty=Regulariser())


# --- convergence -----------------------------------------------------------------------------------------------------


def pooled(shards, loss, penalty):
    """The optimum of F and its minimiser, by a solver that sees all data."""
    m = shards[0][0].dimension

    def value(x):
        losses = [np.mean(LOSSES[loss].value(rows.scores(x), labels)) for rows, labels in shards]
        return float(np.mean(losses)) + penalty.l2 / 2 * float(x @ x)

    def slope(x):
        return np.mean([gradient(shard, loss, x) for shard in shards], axis=0) + penalty.l2 * x

    bounds = None if penalty.box is None else [(-penalty.box, penalty.box)] * m
    found = minimize(
        value, np.zeros(m), jac=slope, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-15, "gtol": 1e-9}
    )
    return value, found.x, found.fun


def labelled(n, records, m, seed, shift=0.0):
    """Shards with a pattern to be learnt, each around its own centre."""
    draw = np.random.default_rng(seed)
    w, shards = draw.standard_normal(m), []
    for _ in range(n):
        X = draw.standard_normal((records, m)) + shift * draw.standard_normal(m)
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        shards.append((Dense(X), np.where(draw.random(records) < 0.05, -1, 1) * np.sign(X @ w)))
    return shards


def suboptimality(algorithm, shards, rounds, penalty, graph="ring"):
    """The worst of the ranks, relative to the start."""
    value, _, optimum = pooled(shards, "logistic", penalty)
    engine = simulate(algorithm, shards, rounds, graph=graph, loss="logistic", penalty=penalty)
    return max(value(x) - optimum for x in models(engine)) / (value(np.zeros_like(models(engine)[0])) - optimum)


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_reaches_the_optimum(graph):
    shards = labelled(5, 60, 10, seed=0, shift=0.5)
    assert suboptimality(DpDgd(), shards, 3000, Regulariser(l2=0.05), graph) < 1e-5


def test_reaches_an_optimum_on_the_boundary():
    """Each rank projects its own step, and the average of projections is off by the size of a step: 1/t."""
    shards, penalty = labelled(5, 60, 10, seed=0, shift=0.5), Regulariser(l2=0.05, box=0.3)
    _, best, _ = pooled(shards, "logistic", penalty)
    assert np.count_nonzero(np.abs(best) > 0.2999) > 3
    early, late = (suboptimality(DpDgd(), shards, rounds, penalty) for rounds in (750, 3000))
    assert late < 2e-4
    assert late / early == pytest.approx(0.25, rel=0.3)


def test_an_l1_penalty_gives_the_sparse_optimum():
    shards, penalty = labelled(5, 60, 10, seed=0, shift=0.5), Regulariser(l1=0.05, l2=0.05)
    engine = simulate(DpDgd(), shards, 3000, loss="logistic", penalty=penalty)
    for x in models(engine):
        g = np.mean([gradient(shard, "logistic", x) for shard in shards], axis=0) + penalty.l2 * x
        assert 0 < np.count_nonzero(x) < 10
        np.testing.assert_allclose(g[x != 0], -penalty.l1 * np.sign(x[x != 0]), atol=1e-3)
        assert np.abs(g).max() < penalty.l1 + 1e-3


def test_default_steps_serve_an_ill_conditioned_problem():
    assert suboptimality(DpDgd(), labelled(5, 60, 10, seed=0), 600, Regulariser(l2=5e-4)) < 1e-3


def test_the_cap_keeps_the_paper_s_steps_from_overshooting():
    """Rows in one direction have the curvature L, and c/t is above 2/L as long as t < c L / 2."""
    shards = [(Dense(np.tile([0.6, 0.8], (4, 1))), np.ones(4)) for _ in range(3)]
    settings = {"loss": "squared", "penalty": Regulariser(l2=0.05), "lipschitz": 1e6}
    best = np.array([0.6, 0.8]) / 1.05
    capped, uncapped = (
        np.abs(models(simulate(Dgd(step=step), shards, 6, **settings)) - best).max() for step in (None, 1e9)
    )
    assert capped < np.abs(best).max()
    assert uncapped > 10 * np.abs(best).max()


def test_constant_steps_stop_short_of_the_optimum_by_an_amount_that_shrinks_with_the_step():
    """[SKD] section II.C: with a fixed step the ranks settle in a neighbourhood of the size of the step."""
    shards, penalty = labelled(5, 60, 10, seed=0, shift=1.0), Regulariser(l2=0.05)
    _, best, _ = pooled(shards, "logistic", penalty)
    away = [
        np.linalg.norm(models(simulate(algorithm, shards, 2000, loss="logistic", penalty=penalty)) - best)
        for algorithm in (Dgd(step=step, step_decay="constant") for step in (0.4, 0.2, 0.1))
    ]
    assert away[0] / away[1] == pytest.approx(2.0, rel=0.15)
    assert away[1] / away[2] == pytest.approx(2.0, rel=0.15)


def test_the_mean_is_found_in_the_first_round_and_agreed_on_in_the_others():
    shards = random_shards(6, 20, 5, seed=3)
    engine = simulate(DpDgd(), shards, 300, loss="mean", penalty=Regulariser(box=1.0), graph="ring")
    mean = np.mean([rows.matrix.mean(axis=0) for rows, _ in shards], axis=0)
    np.testing.assert_allclose(models(engine), np.tile(mean, (6, 1)), atol=1e-10)


# --- the paper's claims, section V.A ---------------------------------------------------------------------------------


def cube_shards(n, records, p, R, seed):
    """Truncated normal points around 0.7 R with unit variance, as in [SKD] section V.A."""
    draw = np.random.default_rng(seed)
    X = 0.7 * R + draw.standard_normal((n, 20 * records, p))
    shards = []
    for points in X:
        inside = points[np.all(np.abs(points) <= R, axis=1)][:records]
        assert len(inside) == records
        shards.append((Dense(inside), np.zeros(records)))
    return shards


def normalised_error(algorithm, shards, rounds, R, mu_squared, repetitions):
    """The mean of |x - d|^2 / |d|^2, x the average of the ranks' models, with sum (Delta/M)^2 = mu^2."""
    mean = np.mean([rows.matrix.mean(axis=0) for rows, _ in shards], axis=0)
    schedule = make_schedule(make_graph("erdos-renyi:p=0.6", len(shards), 1), "laplacian", None, 0)
    settings = {"loss": "mean", "radius": R, "penalty": Regulariser(box=R), "schedule": schedule}
    quiet = simulate(algorithm, shards, rounds, **settings)
    planned = algorithm.releases(quiet.seats[0].agent.terms)
    sigma = math.sqrt(sum(r.count * (r.sensitivity / r.scale) ** 2 for r in planned) / mu_squared)
    errors = []
    for k in range(repetitions):
        engine = simulate(algorithm, shards, rounds, mechanism=noisy("gaussian", sigma, k), **settings)
        x = models(engine).mean(axis=0)
        errors.append(np.sum((x - mean) ** 2) / np.sum(mean**2))
    return float(np.mean(errors))


N, RECORDS, P, R = 10, 100, 5, 5.0


def theorem_mu_squared(eps, delta):
    return eps**2 / (eps + 2 * math.log(2 / delta))  # [SKD] (14)


def test_exact_calibration_halves_the_error_of_the_theorem():
    shards, (eps, delta) = cube_shards(N, RECORDS, P, R, 0), (1.0, 1e-3)
    exact = gdp_mu(eps, delta) ** 2
    assert exact > theorem_mu_squared(eps, delta)  # the theorem is valid, and wasteful
    two_stages = DpDgd(consensus_rounds=30, noise_schedule="paper")
    theorem = normalised_error(two_stages, shards, 130, R, theorem_mu_squared(eps, delta), 10)
    certified = normalised_error(DpDgd(consensus_rounds=30), shards, 130, R, exact, 10)
    assert certified < theorem / 2


def test_the_mean_costs_as_much_noise_as_one_release():
    """(8), (9) for eta_t = 1/t: sum_t W_t^2 M_t^2 = (sum_t Delta_t W_t)^2 / mu^2 = Delta^2 / mu^2, Delta = 2 L / b."""
    n, m, rounds, runs, mu = 5, 50, 40, 10, 0.5
    shards = random_shards(n, 20, m, seed=3)
    mean, algorithm = np.mean([rows.matrix.mean(axis=0) for rows, _ in shards], axis=0), DpDgd()
    settings = {"graph": "complete", "loss": "mean", "penalty": Regulariser()}
    terms = simulate(algorithm, shards, rounds, **settings).seats[0].agent.terms
    sigma = math.sqrt(sum(r.count * (r.sensitivity / r.scale) ** 2 for r in algorithm.releases(terms))) / mu
    errors = [
        np.sum((models(simulate(algorithm, shards, rounds, mechanism=noise, **settings))[0] - mean) ** 2)
        for noise in (noisy("gaussian", sigma, k) for k in range(runs))
    ]
    spread = math.sqrt(2 / (m * runs))  # of a mean of chi-squares, relative
    assert np.mean(errors) == pytest.approx(m * (terms.gradient_sensitivity / mu) ** 2 / n, rel=5 * spread)


@pytest.mark.parametrize(
    ("schedule", "mu_squared", "delta"),
    [
        ("paper", theorem_mu_squared, 1e-3),
        ("paper", theorem_mu_squared, 1e-6),
        ("optimal", lambda eps, delta: gdp_mu(eps, delta) ** 2, 1e-6),
    ],
    ids=["theorem, 1/(N N_i)", "theorem, 1/(N N_i)^2", "exact, 1/(N N_i)^2"],
)
def test_the_error_falls_with_the_square_of_epsilon(schedule, mu_squared, delta):
    """At delta = 1/(N N_i) by the theorem alone; what is exact there is flatter, see below."""
    shards, epsilons = cube_shards(N, RECORDS, P, R, 0), np.array([0.5, 1.0, 2.0, 4.0])
    algorithm = DpDgd(consensus_rounds=15, noise_schedule=schedule)
    errors = [normalised_error(algorithm, shards, 50, R, mu_squared(eps, delta), 10) for eps in epsilons]
    assert np.polyfit(np.log(epsilons), np.log(errors), 1)[0] == pytest.approx(-2.0, abs=0.3)


def test_the_exact_law_is_flatter_where_delta_is_large():
    epsilons = np.array([0.5, 1.0, 2.0, 4.0])
    for delta, slope in ((1e-3, -1.66), (1e-6, -1.84), (1e-9, -1.90)):
        error = [gdp_mu(eps, delta) ** -2 for eps in epsilons]
        assert np.polyfit(np.log(epsilons), np.log(error), 1)[0] == pytest.approx(slope, abs=0.005)
