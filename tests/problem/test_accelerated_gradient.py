"""Local minimisation: the theorem behind it, the distance it promises, and work that data cannot change."""

import re
from itertools import product

import numpy as np
import pytest

from dpmpi.errors import ConfigError
from dpmpi.problem.accelerated_gradient import Bounds, minimise
from dpmpi.problem.batches import Batch
from dpmpi.problem.local_problem import LocalProblem, MeanProblem
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.rows import Csr, Dense
from dpmpi.rng import PrivateStream, insecure_key

RECORDS, DIMENSION = 40, 5


class Counting(Dense):
    """Records that count the passes over them."""

    passes = 0

    def fold(self, x, chosen, coefficient, out):
        self.passes += 1
        super().fold(x, chosen, coefficient, out)

    def scores(self, x):
        self.passes += 1
        return super().scores(x)


def sparse(X):
    places = [np.flatnonzero(row) for row in X]
    at = np.concatenate([[0], np.cumsum([len(place) for place in places])])
    return Csr(at, np.concatenate(places), X[X != 0.0], X.shape[1])


def problem(X, y, loss="logistic", lipschitz=1.0, make=Dense):
    return LocalProblem(
        make(X), y, LOSSES[loss], Batch.parse("full"), lipschitz, PrivateStream(insecure_key(0, 0), "batch")
    )


def data_sets():
    """Yield name, rows of norm at most 1 and labels: ordinary and hostile ones, all of one shape."""
    draw = np.random.default_rng(3)
    X = draw.standard_normal((RECORDS, DIMENSION))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = draw.choice([-1.0, 1.0], RECORDS)
    yield "random", X, y
    yield "one class", X, np.ones(RECORDS)
    yield "equal rows", np.tile(X[:1], (RECORDS, 1)), y
    yield "equal records", np.tile(X[:1], (RECORDS, 1)), np.ones(RECORDS)
    yield "zero rows", np.zeros_like(X), y
    yield "one record", X * (np.arange(RECORDS) == 7)[:, None], y
    yield "separable", np.outer(y, X[0]), y
    scaled = X * np.logspace(0, -8, DIMENSION)
    yield "ill-conditioned", scaled, y
    yield "tiny rows", 1e-150 * X, y


DATA = {name: (X, y) for name, X, y in data_sets()}
LOSS = [("logistic", 1.0, 1.0), ("logistic", 0.3, 1.0), ("squared", 100.0, 1.0), ("squared", 0.3, 1e6)]
"""Loss, clipping norm, and the labels' size: the second and the last clip."""


def far_end(one, linear, quadratic, smoothness):
    """The minimiser by plain gradient descent, which contracts, in steps enough for all digits."""
    x, steepness = -linear / quadratic, quadratic + smoothness
    for _ in range(int(40 * steepness / quadratic)):
        x = x - (one.subgradient(x).value + linear + quadratic * x) / steepness
    return x


@pytest.mark.parametrize("margin", [0.1, 1e4])
@pytest.mark.parametrize("quadratic", [0.01, 1.0])
@pytest.mark.parametrize(("loss", "lipschitz", "size"), LOSS)
@pytest.mark.parametrize("name", DATA)
def test_the_promised_distance_is_kept_for_all_data(name, loss, lipschitz, size, quadratic, margin):
    """A linear term of size w `margin` puts the centre at scores up to `margin`, where a logistic slope is flat."""
    X, y = DATA[name]
    one, smoothness = problem(X, size * y, loss, lipschitz), LOSSES[loss].curvature
    linear = np.full(DIMENSION, -quadratic * margin / np.sqrt(DIMENSION))
    exact = far_end(one, linear, quadratic, smoothness)
    for tolerance in (0.5 * lipschitz, 1e-3 * lipschitz, 1e-7 * lipschitz):
        x = np.full(DIMENSION, np.nan)
        one.minimise(linear, quadratic, smoothness, x, tolerance)
        rounding = 1e-14 * (np.linalg.norm(exact) + lipschitz / quadratic)
        assert np.linalg.norm(x - exact) <= tolerance / quadratic + rounding


@pytest.mark.parametrize("q", [0.5, 0.1, 0.01])
def test_the_theorem_holds_on_hard_functions(q):
    """|z_N - x*| <= |x* - c| / reduction for Huber functions whose curvature ends at a width w, for all w and N."""
    bounds, ratios = Bounds(1.0, 1.0 - q, q), []
    for width, reduction in product([0.0, *np.logspace(-6, 0, 40)], np.logspace(0.05, 6, 30)):

        def gradient(x, out, width=width):
            np.clip((1.0 - q) * x - 1.0, -1.0, width - 1.0, out=out)

        x, exact = np.zeros(1), 1.0 if width >= 1.0 - q else (1.0 - width) / q
        minimise(gradient, bounds, x, 1.0 / reduction)
        ratios.append(abs(x[0] - exact) * reduction / exact)
    assert 0.9 < max(ratios) <= 1.0 + 1e-9


def test_one_step_is_as_good_as_one_step_can_be():
    """(1 - q) / (1 + q) after one step; a square of the largest and one of no curvature both reach it."""
    q = 0.2
    bounds = Bounds(1.0, 0.8, q)
    tolerance = (1.0 - q) / (1.0 + q) * (1.0 + 1e-12)
    assert len(bounds.steps(tolerance)) == 1
    for curvature in (0.0, 0.8):
        x, start = np.zeros(1), 1.0 / (curvature + q)
        minimise(lambda at, out, c=curvature: np.copyto(out, c * at - 1.0), bounds, x, tolerance)
        assert abs(x[0] - start) == pytest.approx(tolerance * start)


@pytest.mark.parametrize("condition", [1.5, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("reduction", [10.0, 1e6, 1e12])
def test_the_number_of_steps_grows_with_the_root_of_the_condition(condition, reduction):
    """The paper's closed form: A_N >= (1 - sqrt q)^-2N."""
    rate, steps = -np.log1p(-1.0 / np.sqrt(condition)), len(Bounds(1.0, condition - 1.0, 1.0).steps(1.0 / reduction))
    enough = np.log(np.sqrt(condition * (reduction**2 - 1.0))) / rate
    assert enough - 3.0 - np.log(condition) / rate < steps < enough + 1.0


def test_without_curvature_a_few_steps_do():
    x = np.zeros(2)
    minimise(lambda at, out: out.fill(0.25), Bounds(1.0, 0.0, 2.0), x, 1e-10)
    np.testing.assert_allclose(x, -0.125, atol=1e-10)


def passes(one, linear=None, tolerance=1e-6):
    """The passes over the records that one minimisation makes."""
    before = one.rows.passes
    direction = np.linspace(-1, 1, DIMENSION) if linear is None else linear
    one.minimise(direction, 0.05, one.loss.curvature, np.zeros(DIMENSION), tolerance)
    return one.rows.passes - before


@pytest.mark.parametrize(("loss", "lipschitz", "size"), LOSS)
def test_the_number_of_passes_depends_on_no_record_and_no_noise(loss, lipschitz, size):
    found = {
        passes(problem(X, size * y, loss, lipschitz, Counting), scale * np.ones(DIMENSION))
        for X, y in DATA.values()
        for scale in (0.0, 1.0, 1e6)
    }
    expected = len(Bounds(lipschitz, LOSSES[loss].curvature, 0.05).steps(1e-6)) + 1
    assert found == {expected}


class Impatient(LocalProblem):
    """Stops at the centre if that is good enough: what must not happen."""

    def minimise(self, linear, quadratic, smoothness, x, tolerance):
        centre, g = -linear / quadratic, np.zeros_like(linear)
        self.rows.fold(centre, None, self._mean_slope, g)
        if np.linalg.norm(g) > tolerance:
            super().minimise(linear, quadratic, smoothness, x, tolerance)


def test_an_early_exit_is_noticed():
    stream, full, loss = PrivateStream(insecure_key(0, 0), "batch"), Batch.parse("full"), LOSSES["logistic"]
    assert len({passes(Impatient(Counting(X), y, loss, full, 1.0, stream)) for X, y in DATA.values()}) > 1


@pytest.mark.parametrize("name", DATA)
def test_sparse_and_dense_records_give_the_same_minimum(name):
    X, y = DATA[name]
    found = []
    for make in (Dense, sparse):
        x = np.zeros(DIMENSION)
        problem(X, y, make=make).minimise(np.linspace(-1, 1, DIMENSION), 0.05, 0.25, x, 1e-9)
        found.append(x)
    np.testing.assert_allclose(*found, atol=1e-12)


@pytest.mark.parametrize("name", DATA)
def test_the_mean_is_found_in_closed_form(name):
    X, _ = DATA[name]
    one = MeanProblem(Dense(X), Batch.parse("full"), 1.0, PrivateStream(insecure_key(0, 0), "batch"))
    x, linear = np.zeros(DIMENSION), np.linspace(-1, 1, DIMENSION)
    one.minimise(linear, 0.5, 1.0, x, 0.0)
    np.testing.assert_allclose(x - X.mean(axis=0) + linear + 0.5 * x, 0.0, atol=1e-14)


def test_an_error_says_nothing_about_the_records():
    """Rows far beyond the bound that was declared: every shard's error is the same, with public numbers alone."""
    errors = set()
    for seed in range(5):
        X = 1e3 * np.random.default_rng(seed).standard_normal((RECORDS, DIMENSION))
        one = problem(X, X[:, 0], "squared", 1e9)
        with pytest.raises(ConfigError) as caught:
            one.minimise(np.ones(DIMENSION), 0.1, 1.0, np.zeros(DIMENSION), 1e-3)
        errors.add(str(caught.value))
    [error] = errors
    assert set(re.findall(r"\d[\d.e+-]*", error)) == {"0.001", "1"}


def test_a_tolerance_out_of_reach_is_refused_before_the_records_are_read():
    X, y = DATA["random"]
    one = problem(X, y, make=Counting)
    for tolerance in (0.0, 1e-17, float("nan")):
        with pytest.raises(ConfigError, match=r"expected a tolerance of at least 2\.2e-16, found"):
            one.minimise(np.ones(DIMENSION), 0.1, 0.25, np.zeros(DIMENSION), tolerance)
    assert one.rows.passes == 0
