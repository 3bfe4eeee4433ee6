"""Models of K scores: gradients, clipping and sensitivity against plain sums, in every layout of the records."""

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from scipy.sparse import csr_matrix

import dpmpi.problem.rows as rows_module
from dpmpi.errors import ConfigError
from dpmpi.problem.batches import Batch
from dpmpi.problem.intercept import WithConstant
from dpmpi.problem.local_problem import LocalProblem, accuracy_counts, model_scores
from dpmpi.problem.losses import LOSSES, Loss, Softmax, Weighted
from dpmpi.problem.optimum import Limits, find_optimum
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Csr, Dense
from dpmpi.rng import PrivateStream

Q, M, K = 40, 6, 3


def data(seed=0, q=Q, m=M):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(q, m)) / 3.0 * (rng.random((q, m)) < 0.6)
    return matrix, rng.integers(0, K, q).astype(float), rng.normal(size=m * K)


def csr(matrix):
    found = csr_matrix(matrix)
    return Csr(found.indptr, found.indices, found.data, matrix.shape[1])


def problem(rows, labels, lipschitz=1e6, batch="full", loss=None):
    return LocalProblem(
        rows, labels, loss or Softmax(K), Batch.parse(batch), lipschitz, PrivateStream(bytes(32), "batch")
    )


def clipped_mean(matrix, labels, x, lipschitz, loss=None):
    """Return the mean of the clipped gradients, one record at a time."""
    total = np.zeros((matrix.shape[1], K))
    for a, y in zip(matrix, labels, strict=True):
        slopes = (loss or Softmax(K)).slope((a @ x.reshape(-1, K))[None], np.array([y]))[0]
        g = np.outer(a, slopes)
        total += g * min(1.0, lipschitz / max(np.linalg.norm(g), 1e-300))
    return total.reshape(-1) / len(labels)


WAYS = ("blocks", "wide", "sparse", "compiled")


def rows_of(matrix, way, monkeypatch):
    if way in ("blocks", "wide"):
        monkeypatch.setattr(rows_module, "BLOCK_BYTES", 8 * matrix.shape[1] * (16 if way == "blocks" else 15))
        return Dense(matrix)
    if way == "sparse":
        monkeypatch.setattr(rows_module, "compiled_loops", lambda: None)
    return csr(matrix)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("constant", [0.0, 0.3])
@pytest.mark.parametrize("lipschitz", [0.1, 1e6])
def test_the_gradient_is_the_mean_of_clipped_outer_products(way, constant, lipschitz, monkeypatch):
    matrix, labels, _ = data()
    inside = rows_of(matrix, way, monkeypatch)
    rows, whole = inside, matrix
    if constant:
        rows, scale = WithConstant(inside, constant), 1.0 / np.hypot(1.0, constant)
        whole = np.column_stack([matrix, np.full(Q, constant)]) * scale
    x = np.random.default_rng(1).normal(size=whole.shape[1] * K) * 3.0
    p = problem(rows, labels, lipschitz)
    np.testing.assert_allclose(
        p.subgradient(x).value, clipped_mean(whole, labels, x, lipschitz), rtol=1e-10, atol=1e-13
    )
    np.testing.assert_allclose(model_scores(rows, x), whole @ x.reshape(-1, K), rtol=1e-12, atol=1e-14)
    right, count = accuracy_counts(rows, labels, x)
    assert (right, count) == (np.count_nonzero((whole @ x.reshape(-1, K)).argmax(axis=1) == labels), Q)


@pytest.mark.parametrize("batch", ["1", "fixed:7", "5"])
@pytest.mark.parametrize("make", [Dense, csr])
def test_batches_are_clipped_sums_over_the_drawn_records(batch, make):
    matrix, labels, x = data()
    p, twin = problem(make(matrix), labels, 0.2, batch), problem(make(matrix), labels, 0.2, batch)
    for _ in range(10):
        drawn = twin.draw()
        expected = clipped_mean(matrix[drawn], labels[drawn], x, 0.2) * len(drawn) / p.batch.size if len(drawn) else 0.0
        np.testing.assert_allclose(p.subgradient(x).value, expected + np.zeros(M * K), rtol=1e-10, atol=1e-13)


def test_the_gradient_is_the_derivative_of_the_value():
    matrix, labels, x = data()
    p, step = problem(Dense(matrix), labels), 1e-6
    difference = [(p.value(x + step * e) - p.value(x - step * e)) / (2 * step) for e in np.eye(M * K)]
    np.testing.assert_allclose(p.subgradient(x).value, difference, atol=1e-8)


def adversaries(m):
    """Return rows that try to move a query far: huge, tiny, at the limits of floating point, aligned, empty."""
    big = np.finfo(np.float64).max
    rows = [np.full(m, s) for s in (1e8, -1e8, 1e154, 1e200, big, 1e-170, 1e-310, 0.0, 1.0)]
    mixed = np.full(m, big)
    mixed[::2] *= -1.0  # scores become inf - inf
    return [*rows, mixed, np.eye(m)[0] * 1e300]


@pytest.mark.parametrize("make", [Dense, csr])
@pytest.mark.parametrize("batch", ["full", "1", "fixed:3", "3"])
@pytest.mark.parametrize("loss", [Softmax(K), Weighted(Softmax(K), (0.1, 1.0, 0.5))], ids=["softmax", "weighted"])
def test_replacing_one_record_moves_no_query_further_than_declared(loss, batch, make):
    q, m = 5, 4
    matrix, labels, x = data(3, q, m)
    values = []
    for row in adversaries(m):
        for mark in range(K):
            changed, relabelled = matrix.copy(), labels.copy()
            changed[2], relabelled[2] = row, mark
            p = problem(make(changed), relabelled, 0.5, batch, loss)
            scales = (0.0, 1.0, 1e3, 1e150)
            values.append([p.subgradient(x * scale).value.copy() for scale in scales for _ in range(8)])
    found = np.array(values)
    assert np.all(np.isfinite(found))
    moved = np.linalg.norm(found[:, None] - found[None, :], axis=-1)
    assert np.max(moved) <= p.subgradient(x).sensitivity
    assert np.max(moved) > 0.8 * p.subgradient(x).sensitivity  # not by much more than needed


def test_a_gradient_that_is_clipped_has_exactly_the_norm_of_the_clip():
    matrix, labels, x = data()
    for r in range(Q):
        p = problem(Dense(matrix[r : r + 1]), labels[r : r + 1], 0.05)
        length = np.linalg.norm(p.subgradient(20.0 * x).value)
        assert length <= 0.05
        free = np.linalg.norm(clipped_mean(matrix[r : r + 1], labels[r : r + 1], 20.0 * x, 1e6))
        assert length == pytest.approx(min(free, 0.05), rel=1e-10)


def test_the_local_minimum_is_found_where_nothing_is_clipped():
    matrix, labels, _ = data()
    matrix /= np.maximum(1.0, np.linalg.norm(matrix, axis=1))[:, None]
    linear = np.random.default_rng(4).normal(size=M * K) / 10
    p, x = problem(Dense(matrix), labels, 1.5), np.zeros(M * K)
    p.minimise(linear, 0.1, 0.5, x, 1e-9)
    g = p.subgradient(x).value + linear + 0.1 * x
    assert np.linalg.norm(g) < 1e-8


# --- the optimum -----------------------------------------------------------------------------------------------------


def alone(buffer):
    """Leave the buffer: the sum over one process."""


def solve(matrix, labels, loss, penalty, cuts=2):
    parts = np.array_split(np.arange(len(labels)), cuts)
    shards = [(Dense(matrix[part].copy()), labels[part].copy()) for part in parts]
    weights = [cuts * len(part) / len(labels) for part in parts]
    width = matrix.shape[1] * loss.scores
    return find_optimum(shards, cuts, loss, penalty, width, alone, Limits(relative_gap=1e-13), weights=weights)


def test_softmax_is_multinomial_logistic_regression():
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    matrix, labels, _ = data(5, 120)
    l2 = 0.01
    found = solve(matrix, labels, Softmax(K), Regulariser(l2=l2))
    other = LogisticRegression(C=1 / (l2 * len(labels)), fit_intercept=False, tol=1e-12, max_iter=10000)
    coefficients = other.fit(matrix, labels).coef_
    np.testing.assert_allclose(found.x.reshape(M, K).T, coefficients, atol=1e-6)
    assert abs(found.gap) < 1e-12


@pytest.mark.parametrize("penalty", [Regulariser(l1=0.02), Regulariser(ball=1.5), Regulariser(l2=0.01, box=0.4)])
def test_a_softmax_optimum_is_certified_under_every_penalty(penalty):
    matrix, labels, _ = data(6, 80)
    found = solve(matrix, labels, Softmax(K), penalty)
    assert 0.0 <= found.gap + 1e-13 < 1e-8
    rng = np.random.default_rng(0)
    for scale in np.logspace(-4, 0, 100):
        x = found.x + scale * rng.normal(size=M * K)
        if penalty.value(x) < np.inf:
            value = Softmax(K).value(matrix @ x.reshape(M, K), labels).mean() + penalty.value(x)
            assert value >= found.lower_bound - 1e-12


def test_poisson_is_poisson_regression():
    from sklearn.linear_model import PoissonRegressor  # noqa: PLC0415

    matrix, _, x = data(7, 200)
    labels = np.random.default_rng(8).poisson(np.exp(matrix @ x[:M])).clip(max=20).astype(float)
    l2 = 0.01
    found = solve(matrix, labels, LOSSES["poisson"], Regulariser(l2=l2))
    other = PoissonRegressor(alpha=l2, fit_intercept=False, tol=1e-12, max_iter=10000).fit(matrix, labels)
    np.testing.assert_allclose(found.x, other.coef_, atol=1e-6)
    assert abs(found.gap) < 1e-12


@pytest.mark.parametrize("name", ["huber", "squared"])
def test_huber_and_squared_are_what_another_solver_finds(name):
    matrix, _, x = data(9, 100)
    labels = np.tanh(matrix @ x[:M] + 0.5 * np.random.default_rng(2).standard_t(2, 100))
    l2, loss = 0.01, LOSSES[name]
    found = solve(matrix, labels, loss, Regulariser(l2=l2))

    def value(w):
        s = matrix @ w
        g = matrix.T @ loss.slope(s, labels) / len(labels) + l2 * w
        return loss.value(s, labels).mean() + l2 / 2 * w @ w, g

    other = scipy_minimize(value, np.zeros(M), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    np.testing.assert_allclose(found.x, other, atol=1e-6)
    if name == "squared":
        from sklearn.linear_model import Ridge  # noqa: PLC0415

        ridge = Ridge(alpha=l2 * len(labels), fit_intercept=False, tol=1e-12).fit(matrix, labels)
        np.testing.assert_allclose(found.x, ridge.coef_, atol=1e-6)


@pytest.mark.parametrize("loss", [LOSSES["logistic"], LOSSES["hinge"]], ids=["logistic", "hinge"])
def test_class_weights_are_those_of_scikit_learn(loss):
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    matrix, classes, _ = data(10, 150)
    labels, weights = np.where(classes > 0, 1.0, -1.0), (0.25, 1.0)
    l2 = 0.02
    found = solve(matrix, labels, Weighted(loss, weights), Regulariser(l2=l2))
    assert abs(found.gap) < 1e-5
    if loss is LOSSES["logistic"]:
        other = LogisticRegression(
            C=1 / (l2 * len(labels)), fit_intercept=False, tol=1e-12, max_iter=10000, class_weight={-1: 0.25, 1: 1.0}
        )
        np.testing.assert_allclose(found.x, other.fit(matrix, labels).coef_[0], atol=1e-6)


def test_a_loss_without_a_conjugate_has_no_reference():
    class Pinball(Loss):
        kinds = ("regression",)

    matrix, labels, _ = data()
    with pytest.raises(ConfigError, match=r"expected a loss with a conjugate for --reference.*found Pinball"):
        solve(matrix, labels, Pinball(), Regulariser(l2=0.1))
