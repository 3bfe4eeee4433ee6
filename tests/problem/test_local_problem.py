"""The local problem: right gradients, a sensitivity that holds, batches with the distribution that was declared."""

from __future__ import annotations

import math
import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom, chi2

from dpmpi.core import Sampling
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.batches import Batch, fixed_positions, poisson_positions
from dpmpi.problem.local_problem import LocalProblem, accuracy_counts
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.rows import Csr, Dense
from dpmpi.rng import PrivateStream, insecure_key


def stream(seed=0):
    return PrivateStream(insecure_key(seed, 0), "batches")


def csr(matrix):
    q, m = matrix.shape
    return Csr(np.arange(0, q * m + 1, m), np.tile(np.arange(m), q), matrix.ravel().copy(), m)


def data(q=40, m=6, seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(q, m)) / 3.0
    return matrix, np.where(rng.random(q) < 0.5, -1.0, 1.0), rng.normal(size=m)


def problem(matrix, labels, loss="logistic", batch="full", lipschitz=1e6, make=Dense, seed=0):
    return LocalProblem(make(matrix), labels, LOSSES[loss], Batch.parse(batch), lipschitz, stream(seed))


# --- the value -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Dense, csr])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_full_gradient_is_the_derivative_of_the_value(loss, make):
    matrix, labels, x = data()
    p = problem(matrix, labels, loss, make=make)
    step = 1e-6
    difference = [(p.value(x + step * e) - p.value(x - step * e)) / (2 * step) for e in np.eye(6)]
    np.testing.assert_allclose(p.subgradient(x).value, difference, atol=1e-8)


def test_full_hinge_subgradient_supports_the_value():
    matrix, labels, x = data()
    p = problem(matrix, labels, "hinge")
    g = p.subgradient(x).value.copy()
    rng = np.random.default_rng(1)
    for y in x + rng.normal(size=(200, 6)) * 10.0 ** rng.integers(-3, 2, size=(200, 1)):
        assert p.value(y) >= p.value(x) + g @ (y - x) - 1e-12


@pytest.mark.parametrize("make", [Dense, csr])
@pytest.mark.parametrize("batch", ["full", "one", "fixed:7", "fixed:39", "poisson:5", "poisson:40"])
@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared", "huber"])
def test_subgradient_is_the_clipped_sum_over_the_drawn_records_by_the_expected_size(loss, batch, make):
    matrix, labels, x = data()
    p, twin = problem(matrix, labels, loss, batch, 0.4, make), problem(matrix, labels, loss, batch, 0.4, make)
    expected = p.batch.size or 40
    sizes = set()
    for _ in range(20):
        chosen = twin.draw()
        drawn = np.arange(40) if chosen is None else chosen
        sizes.add(len(drawn))
        total = np.zeros(6)
        for r in drawn:
            g = LOSSES[loss].slope(matrix[r] @ x, labels[r]) * matrix[r]
            total += g * min(1.0, 0.4 / max(np.linalg.norm(g), 1e-300))
        query = p.subgradient(x)
        np.testing.assert_allclose(query.value, total / expected, rtol=1e-10, atol=1e-13)
        assert query.sensitivity == 2 * 0.4 / expected
        assert query.sampling == p.batch.sampling(40)
    assert (len(sizes) > 1) == (batch == "poisson:5")


def test_the_query_is_the_same_object_and_survives_being_noised():
    matrix, labels, x = data()
    p = problem(matrix, labels)
    first = p.subgradient(x)
    before = first.value.copy()
    first.value[:] += 1e9
    assert p.subgradient(x) is first
    np.testing.assert_array_equal(first.value, before)


# --- the sensitivity -------------------------------------------------------------------------------------------------


def adversaries(m):
    """Return rows that try to move a query far: huge, tiny, at the limits of floating point, aligned, empty."""
    big = np.finfo(np.float64).max
    rows = [np.full(m, s) for s in (1e8, -1e8, 1e154, 1e200, big, 1e-170, 1e-310, 0.0, 1.0)]
    mixed = np.full(m, big)
    mixed[::2] *= -1.0  # scores become inf - inf
    return [*rows, mixed, np.eye(m)[0] * 1e300]


@pytest.mark.parametrize("make", [Dense, csr])
@pytest.mark.parametrize("batch", ["full", "one", "fixed:3", "poisson:3"])
@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared", "huber"])
def test_replacing_one_record_moves_no_query_further_than_declared(loss, batch, make):
    q, m = 5, 4
    matrix, labels, x = data(q, m)
    marks = (-1.0, 1.0) if loss in ("hinge", "logistic") else (-1.0, 1e300, -1e300)
    values = []
    for row in adversaries(m):
        for mark in marks:
            changed, relabelled = matrix.copy(), labels.copy()
            changed[2], relabelled[2] = row, mark
            p = problem(changed, relabelled, loss, batch, 0.5, make)
            values.append(
                [p.subgradient(x * scale).value.copy() for scale in (0.0, 1.0, 1e3, 1e150) for _ in range(12)]
            )
    values = np.array(values)
    assert np.all(np.isfinite(values))
    moved = np.linalg.norm(values[:, None] - values[None, :], axis=-1)
    assert np.max(moved) <= p.subgradient(x).sensitivity
    assert np.max(moved) > 0.9 * p.subgradient(x).sensitivity  # the bound is attained: opposite labels, same row


def test_the_bound_holds_to_the_last_bit_for_aligned_unit_records():
    q = 300
    matrix = np.zeros((q, 3))
    matrix[:, 1] = 1.0
    labels = np.ones(q)
    for lipschitz in (1.0, 0.1, 1 / 3, 0.7):
        kept = problem(matrix, labels, "hinge", lipschitz=lipschitz).subgradient(np.zeros(3))
        labels[7] = -1.0
        moved = problem(matrix, labels, "hinge", lipschitz=lipschitz).subgradient(np.zeros(3)).value - kept.value
        labels[7] = 1.0
        assert kept.sensitivity * (1 - 1e-9) < np.linalg.norm(moved) <= kept.sensitivity


# --- the draws -------------------------------------------------------------------------------------------------------


def chi_square_p(observed, expected, freedom):
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    return chi2.sf(np.sum((observed - expected) ** 2 / expected), freedom)


def poisson_counts(rate, draws=20_000, q=20):
    s = stream(5)
    hit = np.zeros((draws, q), bool)
    for row in hit:
        row[poisson_positions(s, q, rate)] = True
    return hit


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_poisson_batches_hold_each_record_independently_at_the_rate(rate):
    draws, q = 20_000, 20
    hit = poisson_counts(rate)
    frequency = hit.sum(axis=0)
    z = (frequency - draws * rate) / math.sqrt(draws * rate * (1 - rate))
    assert chi2.sf(z @ z, q) > 1e-3
    assert abs(np.sum(z)) < 3.5 * math.sqrt(q)
    sizes = np.bincount(hit.sum(axis=1), minlength=q + 1)
    expected = binom.pmf(np.arange(q + 1), q, rate) * draws
    common = expected >= 10
    assert chi_square_p(
        [*sizes[common], sizes[~common].sum()], [*expected[common], expected[~common].sum()], common.sum()
    ) > 1e-3  # fmt: skip
    for a, b in ((0, q - 1), (0, 1), (q - 2, q - 1)):
        table = [np.sum((hit[:, a] == i) & (hit[:, b] == j)) for i in (0, 1) for j in (0, 1)]
        chance = [(rate if i else 1 - rate) * (rate if j else 1 - rate) * draws for i in (0, 1) for j in (0, 1)]
        assert chi_square_p(table, chance, 3) > 1e-3


def test_the_poisson_test_would_notice_a_rate_that_is_off_by_three_percent():
    draws, q, rate = 20_000, 20, 0.3
    z = (poisson_counts(rate * 1.03).sum(axis=0) - draws * rate) / math.sqrt(draws * rate * (1 - rate))
    assert np.sum(z) > 3.5 * math.sqrt(q)


def test_poisson_sizes_have_mean_and_variance_of_a_binomial_on_a_large_shard():
    s, q, b, draws = stream(2), 20_000, 50, 4_000
    sizes = []
    for _ in range(draws):
        positions = poisson_positions(s, q, b / q)
        assert np.all(np.diff(positions) > 0)
        assert np.all((positions >= 0) & (positions < q))
        sizes.append(len(positions))
    variance = b * (1 - b / q)
    assert abs(np.mean(sizes) - b) < 4 * math.sqrt(variance / draws)
    assert abs(np.var(sizes) - variance) < 4 * variance * math.sqrt(2 / draws)


def test_poisson_draws_go_on_when_the_first_words_do_not_reach_the_end():
    class Ones:
        calls = 0

        def uniforms(self, count):
            self.calls += 1
            return np.ones(count)  # gap 0: every record

    ones = Ones()
    np.testing.assert_array_equal(poisson_positions(ones, 1000, 0.1), np.arange(1000))
    assert ones.calls > 1


@pytest.mark.parametrize(("q", "b"), [(5, 1), (6, 2), (6, 3), (6, 5), (8, 4)])
def test_fixed_batches_are_uniform_over_all_sets(q, b):
    s, draws = stream(4), 12_000
    sets = list(combinations(range(q), b))
    seen = dict.fromkeys(sets, 0)
    for _ in range(draws):
        seen[tuple(int(r) for r in fixed_positions(s, q, b))] += 1
    assert chi_square_p(list(seen.values()), [draws / len(sets)] * len(sets), len(sets) - 1) > 1e-3


def test_fixed_batches_of_a_whole_shard_hold_everything():
    assert fixed_positions(stream(), 4, 4).tolist() == [0, 1, 2, 3]
    positions = fixed_positions(stream(), 100_000, 64)
    assert len(positions) == 64
    assert np.all(np.diff(positions) > 0)


# --- batches as text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("full", Batch("full")), ("1", Batch("fixed", 1)), ("one", Batch("fixed", 1)), ("256", Batch("poisson", 256)),
        ("poisson:256", Batch("poisson", 256)), ("poisson:1", Batch("poisson", 1)), ("fixed:32", Batch("fixed", 32)),
    ],
)  # fmt: skip
def test_batch_text(text, batch):
    assert Batch.parse(text) == batch
    assert Batch.parse(batch.describe()) == batch


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1.5", "all", "fixed", "fixed:", "fixed:0", "poisson:x", "x:3", ":3", "full:3", "²"]
)
def test_impossible_batch_text_is_refused(text):
    with pytest.raises(ConfigError, match=r"^expected a batch .* found "):
        Batch.parse(text)


def test_batch_sampling_and_size():
    assert Batch.parse("full").sampling(50) == Sampling("full", 50.0, 50)
    assert Batch.parse("one").sampling(50) == Sampling("fixed", 1.0, 50)
    assert Batch.parse("8").sampling(50) == Sampling("poisson", 8.0, 50)
    Batch.parse("fixed:50").check(50)
    with pytest.raises(ConfigError, match="at most the 50 records"):
        Batch.parse("fixed:51").check(50)


# --- the rest --------------------------------------------------------------------------------------------------------


def test_accuracy_counts_signs_and_zero_as_positive():
    rows = Dense(np.array([[1.0], [-1.0], [0.0], [0.0], [2.0]]))
    assert accuracy_counts(rows, np.array([1.0, -1.0, 1.0, -1.0, -1.0]), np.ones(1)) == (3, 5)


def test_problems_that_cannot_be_posed_are_refused():
    matrix, labels, _ = data()
    for kwargs, error in (
        ({"matrix": matrix[:0], "labels": labels[:0]}, DataError),
        ({"labels": labels[:-1]}, DataError),
        ({"labels": labels * 2}, DataError),
        ({"matrix": np.where(np.arange(40)[:, None] == 3, np.nan, matrix)}, DataError),
        ({"lipschitz": 0.0}, ConfigError),
        ({"lipschitz": math.inf}, ConfigError),
        ({"batch": "fixed:41"}, ConfigError),
    ):
        with pytest.raises(error):
            problem(**{"matrix": matrix, "labels": labels, **kwargs})


@pytest.mark.parametrize("make", [Dense, csr])
@pytest.mark.parametrize("batch", ["full", "one", "fixed:3", "poisson:3"])
def test_a_subgradient_allocates_no_vector(make, batch):
    m = 200_000
    rng = np.random.default_rng(0)
    p = problem(rng.normal(size=(6, m)), np.ones(6), "hinge", batch, 1.0, make)
    x = np.zeros(m)
    for _ in range(10):
        p.subgradient(x)
    tracemalloc.start()
    for _ in range(20):
        p.subgradient(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * m / 10
