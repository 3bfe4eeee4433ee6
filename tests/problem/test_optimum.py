"""The reference optimum against other people's solvers, and its certificate against feasible points."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, NonlinearConstraint, linprog, minimize
from scipy.sparse import csr_matrix
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from dpmpi.core import Array
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.optimum import Limits, Optimum, find_optimum
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Csr, Dense

DEFAULT = Limits()
SCALAR = ("hinge", "huber", "logistic", "squared")
"""Losses of a score that take labels -1 and +1."""
SIZES = (9, 30, 14, 5, 22)
PENALTIES = {
    "l2": Regulariser(l2=0.01),
    "l1": Regulariser(l1=0.01),
    "elastic": Regulariser(l1=0.01, l2=0.02),
    "box": Regulariser(box=1.2),
    "l2 box": Regulariser(l2=0.01, box=1.2),
    "elastic box": Regulariser(l1=0.01, l2=0.01, box=1.2),
    "ball": Regulariser(ball=2.5),
    "l2 ball": Regulariser(l2=0.01, ball=2.5),
    "l1 ball": Regulariser(l1=0.01, ball=2.5),
}


class Data:
    """Shards of unequal sizes; `weights` are the w of F as one would write them for pooled data."""

    def __init__(self, seed: int, sizes: Sequence[int] = SIZES, dimension: int = 6, real: bool = False) -> None:
        generator = np.random.default_rng(seed)
        matrix = generator.normal(size=(sum(sizes), dimension)) + 0.3
        matrix *= generator.random(matrix.shape) < 0.6
        matrix[0] = 0.0
        self.matrix = matrix / np.maximum(np.linalg.norm(matrix, axis=1), 1e-9)[:, None]
        scores = 2 * self.matrix @ generator.normal(size=dimension) + 0.7 * generator.normal(size=sum(sizes))
        self.labels = scores if real else np.where(scores >= 0, 1.0, -1.0)
        self.weights = np.concatenate([np.full(q, 1 / (len(sizes) * q)) for q in sizes])
        self.cuts = np.cumsum((0, *sizes))

    def shards(self, sparse: bool = False) -> list[tuple[Dense | Csr, Array]]:
        return [
            (sparse_rows(self.matrix[a:b]) if sparse else Dense(self.matrix[a:b].copy()), self.labels[a:b].copy())
            for a, b in pairwise(self.cuts)
        ]

    def solve(self, loss: str, penalty: Regulariser, limits: Limits = DEFAULT, sparse: bool = False) -> Optimum:
        shards = self.shards(sparse)
        return find_optimum(shards, len(shards), LOSSES[loss], penalty, self.matrix.shape[1], alone, limits)

    def value(self, loss: str, penalty: Regulariser, x: Array) -> float:
        s, y = self.matrix @ x, self.labels
        r = np.abs(s - y)
        terms = {
            "hinge": np.maximum(0, 1 - y * s),
            "logistic": np.logaddexp(0, -y * s),
            "squared": r**2 / 2,
            "huber": np.where(r < 0.5, r**2 / 2, 0.5 * r - 0.125),
        }
        return float(self.weights @ terms[loss] + penalty.l1 * np.abs(x).sum() + penalty.l2 / 2 * x @ x)


def sparse_rows(matrix: Array) -> Csr:
    m = csr_matrix(matrix)
    return Csr(m.indptr, m.indices, m.data, m.shape[1])


def alone(buffer: Array) -> None:
    """Leave the buffer: the sum over one process."""


def assert_agrees(found: Optimum, data: Data, loss: str, penalty: Regulariser, x: Array, slack: float = 1e-8) -> None:
    other = data.value(loss, penalty, x)
    assert found.value == pytest.approx(data.value(loss, penalty, found.x), abs=1e-12)
    assert found.lower_bound is not None
    assert found.lower_bound <= other + 1e-12
    assert found.value <= other + 1e-5
    assert other <= found.value + slack


# --- other people's solvers -------------------------------------------------------------------------------------------


def test_logistic_with_l2_is_logistic_regression() -> None:
    data, penalty = Data(1), Regulariser(l2=0.01)
    other = LogisticRegression(C=1 / penalty.l2, fit_intercept=False, tol=1e-10, max_iter=1000)
    x = other.fit(data.matrix, data.labels, sample_weight=data.weights).coef_[0]
    found = data.solve("logistic", penalty, Limits(relative_gap=1e-11))
    assert_agrees(found, data, "logistic", penalty, x)
    assert found.x == pytest.approx(x, abs=1e-4)


def test_hinge_with_l2_is_the_linear_support_vector_machine() -> None:
    data, penalty = Data(2), Regulariser(l2=0.01)
    other = LinearSVC(loss="hinge", dual=True, C=1 / penalty.l2, fit_intercept=False, tol=1e-8, max_iter=10**6)
    x = other.fit(data.matrix, data.labels, sample_weight=data.weights).coef_[0]
    found = data.solve("hinge", penalty)
    assert_agrees(found, data, "hinge", penalty, x)
    assert found.x == pytest.approx(x, abs=0.05)  # strong convexity: |x - x*|^2 <= 2 gap / l2


def test_squared_with_l2_is_ridge_regression() -> None:
    data, penalty = Data(3, real=True), Regulariser(l2=0.02)
    x = Ridge(alpha=penalty.l2, fit_intercept=False).fit(data.matrix, data.labels, sample_weight=data.weights).coef_
    found = data.solve("squared", penalty, Limits(relative_gap=1e-12))
    assert_agrees(found, data, "squared", penalty, x)
    assert found.x == pytest.approx(x, abs=1e-5)


@pytest.mark.parametrize("l2", [0.0, 0.03])
def test_squared_with_l1_is_the_lasso_or_elastic_net(l2: float) -> None:
    data, penalty = Data(4, real=True), Regulariser(l1=0.05, l2=l2)
    settings = {"fit_intercept": False, "tol": 1e-12, "max_iter": 10**5}
    both = penalty.l1 + l2
    other = ElasticNet(alpha=both, l1_ratio=penalty.l1 / both, **settings) if l2 else Lasso(alpha=both, **settings)
    x = other.fit(data.matrix, data.labels, sample_weight=data.weights * len(data.labels)).coef_
    found = data.solve("squared", penalty, Limits(relative_gap=1e-10))
    assert_agrees(found, data, "squared", penalty, x)
    assert found.x == pytest.approx(x, abs=1e-4)


@pytest.mark.parametrize("penalty", [Regulariser(l1=0.02), Regulariser(box=0.7), Regulariser(l1=0.02, box=0.7)])
def test_hinge_with_l1_or_a_box_is_a_linear_program(penalty: Regulariser) -> None:
    data = Data(5)
    q, m = data.matrix.shape
    signed = data.labels[:, None] * data.matrix  # variables p, n, slack: y <a, p - n> + slack >= 1
    cost = np.concatenate((np.full(2 * m, penalty.l1), data.weights))
    bounds = [(0, penalty.box)] * (2 * m) + [(0, None)] * q
    program = linprog(cost, A_ub=-np.hstack((signed, -signed, np.eye(q))), b_ub=-np.ones(q), bounds=bounds)
    assert_agrees(data.solve("hinge", penalty), data, "hinge", penalty, program.x[:m] - program.x[m : 2 * m])


def test_without_a_penalty_there_is_no_bound_but_the_least_squares_solution() -> None:
    data = Data(6, real=True)
    found = data.solve("squared", Regulariser())
    root = np.sqrt(data.weights)
    x = np.linalg.lstsq(root[:, None] * data.matrix, root * data.labels, rcond=None)[0]
    assert found.lower_bound is None
    assert found.gap is None
    assert found.x == pytest.approx(x, abs=1e-4)


def test_hinge_without_a_penalty_is_a_linear_program() -> None:
    data = Data(7)
    q, m = data.matrix.shape
    signed = data.labels[:, None] * data.matrix
    bounds = [(None, None)] * m + [(0, None)] * q
    cost = np.concatenate((np.zeros(m), data.weights))
    program = linprog(cost, A_ub=-np.hstack((signed, np.eye(q))), b_ub=-np.ones(q), bounds=bounds)
    found = data.solve("hinge", Regulariser())
    assert found.lower_bound is None
    assert found.value == pytest.approx(program.fun, abs=1e-5)


# --- the certificate --------------------------------------------------------------------------------------------------


def by_nonlinear_programming(data: Data, loss: str, penalty: Regulariser) -> Array:
    """Minimise F in (p, n, slack), x = p - n, with sequential quadratic programming."""
    q, m = data.matrix.shape
    y, w, A = data.labels, data.weights, data.matrix

    def objective(z: Array) -> float:
        x = z[:m] - z[m : 2 * m]
        quadratic = penalty.l2 / 2 * x @ x + penalty.l1 * z[: 2 * m].sum() + 1e-9 * z[: 2 * m] @ z[: 2 * m]
        s = A @ x
        r = np.abs(s - y)
        fit = {
            "hinge": z[2 * m :],
            "logistic": np.logaddexp(0, -y * s),
            "squared": r**2 / 2,
            "huber": np.where(r < 0.5, r**2 / 2, 0.5 * r - 0.125),
        }[loss]
        return float(w @ fit + quadratic)

    constraints = []
    if loss == "hinge":
        signed = y[:, None] * A
        constraints.append(LinearConstraint(np.hstack((signed, -signed, np.eye(q))), lb=np.ones(q)))
    if penalty.ball is not None:
        square = penalty.ball**2
        constraints.append(NonlinearConstraint(lambda z: square - np.sum((z[:m] - z[m : 2 * m]) ** 2), 0, np.inf))
    slacks = q if loss == "hinge" else 0
    start = np.concatenate((np.full(2 * m, 0.1), np.full(slacks, 1.0)))
    bounds = [(0, penalty.box)] * (2 * m) + [(0, None)] * slacks
    options = {"ftol": 1e-12, "maxiter": 500}
    z = minimize(objective, start, method="SLSQP", bounds=bounds, constraints=constraints, options=options).x
    x = z[:m] - z[m : 2 * m]
    if penalty.ball is not None:
        x *= min(1.0, penalty.ball / np.linalg.norm(x))
    return x


@pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES.keys())
@pytest.mark.parametrize("loss", SCALAR)
def test_agrees_with_nonlinear_programming(loss: str, penalty: Regulariser) -> None:
    data = Data(8, sizes=(4, 9), dimension=3)
    x = by_nonlinear_programming(data, loss, penalty)
    assert_agrees(data.solve(loss, penalty), data, loss, penalty, x, slack=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(SCALAR),
    name=st.sampled_from(sorted(PENALTIES)),
    passes=st.sampled_from([1, 2, 7, 8000]),
)
def test_no_feasible_point_is_below_the_bound(seed: int, loss: str, name: str, passes: int) -> None:
    data, penalty = Data(seed, sizes=(7, 3, 12), dimension=4), PENALTIES[name]
    found = data.solve(loss, penalty, Limits(passes=passes))
    best = data.solve(loss, penalty, Limits(relative_gap=1e-7 if loss == "hinge" else 1e-9, passes=2000))
    assert found.lower_bound is not None
    assert found.lower_bound <= best.value + 1e-12
    assert best.lower_bound is not None
    assert best.lower_bound <= found.value + 1e-12
    assert penalty.value(found.x) < np.inf
    steps = np.random.default_rng(seed).normal(size=(200, 4)) * np.logspace(-4, 0, 200)[:, None]
    feasible = [data.value(loss, penalty, x) for x in best.x + steps if penalty.value(x) < np.inf]
    assert min(feasible, default=np.inf) >= best.lower_bound - 1e-12
    if passes == 8000:
        target = 1e-5 if loss == "hinge" else 1e-6
        start = data.value(loss, penalty, np.zeros(4))
        assert found.gap is not None
        assert found.gap <= target * (start - found.value) + 1e-12


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("seed", range(3))
def test_the_answer_is_inside_the_ball_and_not_below_the_bound(loss: str, seed: int) -> None:
    found = Data(seed).solve(loss, Regulariser(l2=0.01, ball=2.5), Limits(relative_gap=1e-13, passes=1500))
    assert np.linalg.norm(found.x) <= 2.5 * (1 + 1e-14)
    assert found.gap is not None
    assert abs(found.gap) <= 2e-13


@pytest.mark.parametrize("loss", SCALAR)
def test_a_strong_l1_penalty_leaves_nothing(loss: str) -> None:
    found = Data(9).solve(loss, Regulariser(l1=5.0))
    assert not found.x.any()
    assert found.gap == pytest.approx(0.0, abs=1e-12)


# --- many processes ---------------------------------------------------------------------------------------------------


def in_processes(data: Data, count: int, loss: str, penalty: Regulariser, limits: Limits) -> list[Optimum]:
    """Deal the shards out to threads that add up through a barrier, in their order."""
    shards = data.shards()
    barrier = threading.Barrier(count, timeout=10)
    slots: list[Array] = [np.empty(0)] * count
    found: dict[int, Optimum] = {}

    def process(k: int) -> None:
        def total(buffer: Array) -> None:
            slots[k] = buffer.copy()
            barrier.wait()
            buffer[:] = sum(slots)
            barrier.wait()

        found[k] = find_optimum(shards[k::count], len(shards), LOSSES[loss], penalty, 6, total, limits)

    threads = [threading.Thread(target=process, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[k] for k in range(count)]


@pytest.mark.parametrize("name", ["l2", "elastic", "ball"])
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_the_optimum_does_not_depend_on_who_hosts_the_shards(loss: str, name: str) -> None:
    data, penalty, limits = Data(10), PENALTIES[name], Limits(relative_gap=1e-6)
    alone_ = data.solve(loss, penalty, limits)
    for count in (1, 2, 5):
        together = in_processes(data, count, loss, penalty, limits)
        for one in together:
            assert one.x.tobytes() == together[0].x.tobytes()
            assert (one.value, one.lower_bound) == (together[0].value, together[0].lower_bound)
        assert together[0].value == pytest.approx(alone_.value, abs=2e-6)


def test_a_shard_weighs_the_same_whatever_its_size() -> None:
    data, penalty = Data(11), PENALTIES["l2"]
    shards = data.shards()
    rows, labels = shards[0]
    thrice = Dense(np.tile(data.matrix[: rows.count], (3, 1))), np.tile(labels, 3)
    limits = Limits(relative_gap=1e-10)
    once = find_optimum(shards, 5, LOSSES["logistic"], penalty, 6, alone, limits)
    again = find_optimum([thrice, *shards[1:]], 5, LOSSES["logistic"], penalty, 6, alone, limits)
    assert again.value == pytest.approx(once.value, abs=1e-9)
    assert again.x == pytest.approx(once.x, abs=1e-4)


@pytest.mark.parametrize("loss", SCALAR)
def test_sparse_rows_give_the_same_optimum(loss: str) -> None:
    data, penalty, limits = Data(12), PENALTIES["l2"], Limits(relative_gap=1e-7)
    dense, sparse = data.solve(loss, penalty, limits), data.solve(loss, penalty, limits, sparse=True)
    assert sparse.value == pytest.approx(dense.value, abs=2e-7)
    assert sparse.x == pytest.approx(dense.x, abs=0.01)


# --- cost and manners -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "ball", "passes"),
    [
        ("hinge", None, 400),
        ("logistic", None, 50),
        ("squared", None, 50),
        ("hinge", 10.0, 600),
        ("logistic", 10.0, 100),
    ],
)
def test_reaches_the_target_in_few_passes(loss: str, ball: float | None, passes: int) -> None:
    data, penalty = Data(13, sizes=(100,) * 20, dimension=100), Regulariser(l2=5e-4, ball=ball)
    found = data.solve(loss, penalty, Limits(passes=passes))
    start = data.value(loss, penalty, np.zeros(100))
    assert found.gap is not None
    assert found.gap <= (1e-5 if loss == "hinge" else 1e-6) * (start - found.value)


def test_stops_at_the_limit_and_reports_every_pass() -> None:
    data, gaps = Data(14), []
    shards = data.shards()
    limits = Limits(relative_gap=1e-14, passes=17)
    report = lambda iteration, gap: gaps.append((iteration, gap))  # noqa: E731
    found = find_optimum(shards, 5, LOSSES["hinge"], PENALTIES["l2"], 6, alone, limits, report)
    assert [iteration for iteration, _ in gaps] == list(range(1, 18))
    assert all(later <= earlier for (_, earlier), (_, later) in pairwise(gaps))
    assert found.gap == gaps[-1][1]


def test_allocates_nothing_of_the_size_of_the_data() -> None:
    data = Data(15, sizes=(3000, 3000), dimension=200)
    shards = data.shards()
    find_optimum(shards, 2, LOSSES["hinge"], PENALTIES["l2"], 200, alone, Limits(passes=3))
    tracemalloc.start()
    try:
        find_optimum(shards, 2, LOSSES["hinge"], PENALTIES["l2"], 200, alone, Limits(passes=50))
        assert tracemalloc.get_traced_memory()[1] < 0.25 * 3000 * 200 * 8
    finally:
        tracemalloc.stop()


def test_refuses_shards_that_do_not_fit() -> None:
    data = Data(16)
    shards = data.shards()
    with pytest.raises(ConfigError, match=r"at least 5 agents.*, found 4"):
        find_optimum(shards, 4, LOSSES["hinge"], PENALTIES["l2"], 6, alone)
    with pytest.raises(DataError, match="dimension 7"):
        find_optimum(shards, 5, LOSSES["hinge"], PENALTIES["l2"], 7, alone)
    with pytest.raises(DataError, match="3 labels"):
        find_optimum([(shards[0][0], shards[0][1][:3])], 1, LOSSES["hinge"], PENALTIES["l2"], 6, alone)
