"""Linear combinations in place: the same bits as written out, nothing allocated."""

import tracemalloc

import numpy as np
import pytest

from dpmpi.core import combine

M = 50_000
X, Y, Z = np.random.default_rng(3).standard_normal((3, M))


def test_a_combination_is_what_the_equation_says_to_the_bit():
    out, scratch = np.full(M, np.nan), np.empty(M)
    combine(out, (0.3, X), (1.0, Y), (-0.7, Z), scratch=scratch, over=1.3)
    np.testing.assert_array_equal(out, (0.3 * X + Y - 0.7 * Z) / 1.3)
    combine(out, (1.0, X), (-1.0, Y))
    np.testing.assert_array_equal(out, X - Y)
    combine(out, (-1.0, Y), (1.0, X))
    np.testing.assert_array_equal(out, X - Y)


def test_it_may_begin_with_itself_and_use_a_term_as_scratch():
    out, last = X.copy(), Y.copy()
    combine(out, (1.0, out), (0.5, last), scratch=last)
    np.testing.assert_array_equal(out, X + 0.5 * Y)
    combine(out, (-2.0, out), (1.0, Z))
    np.testing.assert_array_equal(out, Z - 2.0 * (X + 0.5 * Y))


def test_a_factor_without_scratch_is_refused():
    with pytest.raises(ValueError, match="pass scratch="):
        combine(np.zeros(3), (1.0, np.ones(3)), (2.0, np.ones(3)))


def test_nothing_is_allocated():
    out, scratch = np.empty(M), np.empty(M)
    tracemalloc.start()
    combine(out, (0.3, X), (1.0, Y), (-0.7, Z), scratch=scratch, over=1.3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * M / 10


def test_the_result_cannot_be_scratch():
    out = np.zeros(M)
    with pytest.raises(ValueError, match="found out itself: pass scratch="):
        combine(out, (1.0, X), (0.5, Y), scratch=out)
