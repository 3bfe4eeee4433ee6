"""Dense and sparse rows against each other and against plain loops."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

from dpmpi.errors import ConfigError, DataError
from dpmpi.problem import rows as rows_module
from dpmpi.problem.intercept import WithConstant
from dpmpi.problem.rows import Csr, Dense, check_finite, scale_rows, take

ALL_BLOCKS = Csr._blocks.func


def random_matrix(q, m, seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(q, m)) * (rng.random((q, m)) < 0.3)
    matrix[rng.random(q) < 0.2] = 0.0
    if q:
        matrix[[0, -1]] = 0.0  # empty rows at both ends
    return matrix


def csr(matrix):
    nonzero = [np.flatnonzero(row) for row in matrix]
    indptr = np.cumsum([0, *(len(k) for k in nonzero)])
    indices = np.concatenate([*nonzero, np.empty(0, np.intp)])
    data = np.concatenate([row[k] for row, k in zip(matrix, nonzero, strict=True)] + [np.empty(0)])
    return Csr(indptr, indices, data, matrix.shape[1])


def weights(scores, positions, offsets):
    return np.sin(scores) + offsets[positions]


def naive_fold(matrix, x, chosen, offsets):
    total = np.zeros(matrix.shape[1])
    for r in range(len(matrix)) if chosen is None else chosen:
        total += (np.sin(matrix[r] @ x) + offsets[r]) * matrix[r]
    return total


KINDS = pytest.mark.parametrize("make", [Dense, csr])


@KINDS
@pytest.mark.parametrize("block_bytes", [8, 7 * 8 * 11, 1 << 19])  # one row or entry, 7 rows of 11, everything
def test_fold_is_the_sum_of_weighted_rows(make, block_bytes, monkeypatch):
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(1)
    for q in (1, 6, 7, 8, 14, 15, 60):
        matrix = random_matrix(q, 11, seed=q)
        rows, x, offsets = make(matrix), rng.normal(size=11), rng.normal(size=q)
        subsets = [None, np.empty(0, np.intp), np.arange(q), *(np.array([r]) for r in range(q))]
        subsets += [np.flatnonzero(rng.random(q) < p) for p in (0.2, 0.5, 0.9)]
        for chosen in subsets:
            out = np.full(11, np.nan)
            rows.fold(x, chosen, lambda s, p, o=offsets: weights(s, p, o), out)
            np.testing.assert_allclose(out, naive_fold(matrix, x, chosen, offsets), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(rows.scores(x), matrix @ x, rtol=1e-12, atol=1e-13)


@KINDS
def test_fold_asks_for_every_chosen_row_once_and_in_order(make, monkeypatch):
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", 200)
    rows = make(random_matrix(40, 5))
    for chosen in (None, np.array([3, 4, 9, 39]), np.arange(0, 40, 2)):
        asked = []

        def coefficient(scores, positions, asked=asked):
            asked.extend(np.arange(40)[positions])
            return np.zeros(len(scores))

        rows.fold(np.zeros(5), chosen, coefficient, np.empty(5))
        assert asked == list(range(40) if chosen is None else chosen)


@KINDS
def test_sizes_and_norms(make):
    matrix = random_matrix(30, 9)
    rows = make(matrix)
    assert (rows.count, rows.dimension) == (30, 9)
    assert rows.nbytes >= 8 * np.count_nonzero(matrix)
    np.testing.assert_allclose(rows.norms, np.linalg.norm(matrix, axis=1), rtol=1e-13)
    assert rows.norms is rows.norms


@KINDS
@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-150, 1e150, 1e200, 1e307])
def test_norms_neither_underflow_nor_overflow(make, scale):
    matrix = np.array([[3.0, 0.0, 4.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]) * scale
    np.testing.assert_allclose(
        make(matrix).norms, np.array([5.0, 2**0.5, 0.0]) * scale, rtol=1e-3 if scale < 1e-300 else 1e-14
    )


def test_dense_keeps_a_fitting_matrix_and_converts_others():
    matrix = random_matrix(5, 4)
    assert Dense(matrix).matrix is matrix
    converted = Dense(np.asfortranarray(matrix))
    assert converted.matrix.flags.c_contiguous
    np.testing.assert_array_equal(converted.matrix, matrix)
    with pytest.raises(DataError, match="shape"):
        Dense(np.zeros(3))


@KINDS
def test_scaled_rows_obey_the_bound_exactly(make):
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(60, 33)) * 10.0 ** rng.integers(-3, 4, size=(60, 1))
    matrix[::3] /= np.linalg.norm(matrix[::3], axis=1, keepdims=True)  # on the bound, up to rounding
    small = np.linalg.norm(matrix, axis=1) < 0.999
    rows = make(matrix.copy())
    scale_rows(rows, 1.0)
    after = np.zeros_like(matrix)
    for k, unit in enumerate(np.eye(33)):
        after[:, k] = rows.scores(unit)
    assert all(sum(Fraction(v) ** 2 for v in row) <= 1 for row in after)
    np.testing.assert_array_equal(after[small], matrix[small])
    np.testing.assert_allclose(after, matrix / np.maximum(1.0, np.linalg.norm(matrix, axis=1))[:, None], rtol=1e-12)
    np.testing.assert_allclose(rows.norms, np.linalg.norm(after, axis=1), rtol=1e-14)
    scale_rows(rows, 1.0)
    np.testing.assert_array_equal(rows.scores(np.eye(33)[4]), after[:, 4])
    with pytest.raises(ConfigError):
        scale_rows(rows, 0.0)


@KINDS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_row_that_is_not_finite_is_named(make, bad):
    matrix = random_matrix(20, 6)
    matrix[3] = 1e308  # its norm overflows, its values do not
    check_finite(make(matrix))
    matrix[7, 2] = matrix[11, 0] = bad
    with pytest.raises(DataError, match="row 7 "):
        check_finite(make(matrix))


@KINDS
def test_take_copies_a_subset(make):
    matrix = random_matrix(20, 6)
    rows = make(matrix)
    x = np.random.default_rng(0).normal(size=6)
    for positions in (np.array([0, 3, 3, 19]), np.empty(0, np.intp), np.arange(20)):
        subset = take(rows, positions)
        np.testing.assert_allclose(subset.scores(x), matrix[positions] @ x, rtol=1e-13)
        assert (subset.count, subset.dimension) == (len(positions), 6)
    scale_rows(subset, 1e-3)
    np.testing.assert_allclose(rows.scores(x), matrix @ x, rtol=1e-13)


def test_sparse_columns_are_sorted_and_repeated_ones_refused():
    mixed = Csr(np.array([0, 3, 4]), np.array([4, 0, 2, 1]), np.array([5.0, 1.0, 3.0, 2.0]), 5)
    np.testing.assert_array_equal(mixed.indices, [0, 2, 4, 1])
    np.testing.assert_array_equal(mixed.scores(np.arange(1.0, 6.0)), [1 + 9 + 25, 4])
    with pytest.raises(DataError, match="found one again in row 1 "):
        Csr(np.array([0, 1, 4]), np.array([2, 2, 0, 2]), np.ones(4), 5)
    for indptr, indices, dimension in (
        ([0, 2], [0, 5], 5),
        ([0, 2], [-1, 0], 5),
        ([0, 3], [0, 1], 5),
        ([0, 2, 1, 2], [0, 1], 5),
    ):
        with pytest.raises(DataError):
            Csr(np.array(indptr), np.array(indices), np.ones(2), dimension)


@KINDS
def test_a_fold_allocates_less_than_one_vector(make):
    m = 200_000
    matrix = np.zeros((6, m))
    matrix[:, ::2] = 1.0
    rows, x, out = make(matrix), np.ones(m), np.empty(m)
    subsets = (None, np.array([2]), np.array([0, 2, 5]))
    for chosen in subsets:
        rows.fold(x, chosen, lambda s, _: s, out)
    tracemalloc.start()
    for chosen in subsets:
        rows.fold(x, chosen, lambda s, _: s, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * m / 10


@pytest.mark.parametrize("available", [True, False])
def test_without_scipys_private_loops_numpys_blocks_are_the_fallback(monkeypatch, available):
    """The loops are scipy's own, `scipy.sparse._sparsetools`: where a version moves them, blocks of rows serve."""
    if not available:
        monkeypatch.setattr(rows_module, "_LOOPS", "_elsewhere")
    rows_module.compiled_loops.cache_clear()
    assert (rows_module.compiled_loops() is not None) == available
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(30, 12)) * (rng.random((30, 12)) < 0.4)
    at, x, found = np.nonzero(matrix), rng.normal(size=12), np.empty(12)
    rows = Csr(np.searchsorted(at[0], np.arange(31)), at[1], matrix[at], 12)
    blocks = []
    monkeypatch.setattr(Csr, "_blocks", property(lambda self: blocks.append(1) or ALL_BLOCKS(self)))
    rows.fold(x, None, lambda scores, at: scores * scores, found)
    np.testing.assert_allclose(found, (matrix @ x) ** 2 @ matrix, rtol=1e-12)
    assert bool(blocks) != available
    rows_module.compiled_loops.cache_clear()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_constant_beside_the_features_is_inside_the_norm_bound(sparse):
    draw = np.random.default_rng(3)
    X = draw.standard_normal((60, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    inside = csr(X) if sparse else Dense(X)
    rows, wide = WithConstant(inside, 0.3), np.c_[X, np.full(60, 0.3)] / np.sqrt(1.09)
    x, out = draw.standard_normal(6), np.empty(6)
    assert (rows.count, rows.dimension) == (60, 6)
    np.testing.assert_allclose(rows.scores(x), wide @ x, rtol=0, atol=1e-14)
    np.testing.assert_allclose(rows.norms, np.linalg.norm(wide, axis=1), rtol=1e-14)
    assert rows.norms.max() < 1 + 1e-12
    for chosen in (None, np.array([1, 7, 8, 40])):
        rows.fold(x, chosen, lambda scores, positions: scores * scores, out)
        some = wide if chosen is None else wide[chosen]
        np.testing.assert_allclose(out, ((some @ x) ** 2) @ some, rtol=0, atol=1e-13)
