import math
import re
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.crypto.ring import FixedPoint, check_capacity, decode
from dpmpi.errors import ConfigError, DataError


def encoded(x, clip, bits):
    out = np.empty(len(x), np.uint64)
    FixedPoint(clip, bits).encode(np.asarray(x, float), out)
    return out


def decoded(words, bits):
    out = np.empty(len(words))
    decode(words, np.array(2.0**-bits), out)
    return out.tolist()


def exact(x, clip, bits):
    """(1) in rational arithmetic; Python rounds halves to even, as rint does."""
    return round(Fraction(min(max(x, -clip), clip)) * 2**bits)


reals = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 5e-324, 1e300, -1e300])
clips = st.sampled_from([1.0, 0.3, 100.0, 2.0**20])


@given(st.lists(st.lists(reals, min_size=3, max_size=3), min_size=1, max_size=8), clips, st.integers(0, 39))
@settings(deadline=None)
def test_a_decoded_sum_is_the_exact_sum_of_rounded_values(rows, clip, bits):
    check_capacity(len(rows), clip, bits)  # at most 8 2^20 2^39 = 2^62
    total = np.zeros(3, np.uint64)
    for row in rows:
        total += encoded(row, clip, bits)
    for got, column in zip(decoded(total, bits), zip(*rows, strict=True), strict=True):
        steps = sum(exact(x, clip, bits) for x in column)
        assert got == float(Fraction(steps, 2**bits))  # a Fraction becomes the nearest float, as the decoder promises
        if abs(steps) <= 2**53:
            clipped = sum(Fraction(min(max(x, -clip), clip)) for x in column)
            assert abs(Fraction(got) - clipped) <= Fraction(len(column), 2 ** (bits + 1))


@given(st.lists(st.integers(-(2**60), 2**60), max_size=4), st.data())
@settings(deadline=None)
def test_partial_sums_may_leave_the_range_in_any_order(small, data):
    parts = data.draw(st.permutations([*small, 2**62, 2**62, 2**62, -(2**62), -(2**62), -(2**62)]))
    total = np.zeros(1, np.uint64)
    for part in parts:
        total += np.array([part % 2**64], np.uint64)
    assert decoded(total, 0) == [float(sum(small))]


@pytest.mark.parametrize("bits", [0, 20, 40])
@pytest.mark.parametrize("share", [1e-9, 0.5, 1.0 - 2.0**-52, 1.0, 1.0 + 2.0**-52, 1.9])
def test_encoding_is_exact_on_both_sides_of_the_bound_for_reading_bits(bits, share):
    bound, clip = 2.0 ** (50 - bits), 2.0 ** (55 - bits)
    step = 2.0**-bits
    for x in (share * bound, -share * bound):
        for row in ([x], [0.0, x, 0.5 * step, -0.5 * step, 1.5 * step, -2.5 * step, 5e-324]):
            signed = encoded(row, clip, bits).view(np.int64).tolist()
            assert signed == [exact(one, clip, bits) for one in row]


def test_the_rounding_bound_is_attained():
    tie = 2.0**-11  # to even, that is to zero
    total = sum(encoded([tie], 1.0, 10) for _ in range(6))
    assert 6 * tie - decoded(total, 10)[0] == 6 * 2.0**-11


def test_encoding_uses_no_vector_but_its_output():
    x, out = np.linspace(-2, 2, 100_000), np.empty(100_000, np.uint64)
    fixed, scale = FixedPoint(1.0, 40), FixedPoint(1.0, 40).scale()
    fixed.encode(x, out)
    tracemalloc.start()
    fixed.encode(x, out)
    decode(out, scale, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(DataError, match=re.escape(f"found {bad}: the iterates diverge")):
        encoded([1.0, 2.0, bad, 3.0], 1.0, 40)


@pytest.mark.parametrize(("clip", "bits"), [(0.0, 4), (-1.0, 4), (math.nan, 4), (math.inf, 4), (1.0, -1), (1.0, 63)])
def test_impossible_encodings_are_refused(clip, bits):
    with pytest.raises(ValueError, match="clip"):
        encoded([0.0], clip, bits)


@given(st.integers(1, 10**6), st.floats(1e-3, 1e12), st.integers(0, 63), st.floats(0, 1e9))
@settings(deadline=None)
def test_capacity_is_refused_exactly_when_the_largest_sum_does_not_fit(n, clip, bits, tail):
    def fits(f):
        return n * round(Fraction(clip) * 2**f) + math.ceil(Fraction(tail) * 2**f) < 2**63

    if fits(bits):
        check_capacity(n, clip, bits, tail)
        return
    with pytest.raises(ConfigError) as caught:
        check_capacity(n, clip, bits, tail)
    named = re.search(r"use at most (\d+) fractional bits", str(caught.value))
    if named is None:
        assert not fits(0)
        assert "smaller clip" in str(caught.value)
    else:
        assert fits(int(named[1]))
        assert not fits(int(named[1]) + 1)


def test_at_the_edge_of_the_capacity_the_sum_is_exact_and_beyond_it_turns_negative():
    clip = math.nextafter(2.0**22, 0)  # 2 clip 2^40 = 2^63 - 2^10
    check_capacity(2, clip, 40)
    assert decoded(2 * encoded([clip, -clip], clip, 40), 40) == [2 * clip, -2 * clip]
    with pytest.raises(ConfigError, match=r"found 2\^63.0 for 2 ranks .*: use at most 39 fractional bits"):
        check_capacity(2, 2.0**22, 40)
    assert decoded(2 * encoded([2.0**22], 2.0**22, 40), 40) == [-(2.0**23)]


@pytest.mark.parametrize("setting", [(0, 1.0, 40, 0.0), (3, 0.0, 40, 0.0), (3, 1.0, 64, 0.0), (3, 1.0, -1, 0.0),
                                     (3, math.nan, 40, 0.0), (3, 1.0, 40, math.inf), (3, 1.0, 40, -1.0)])  # fmt: skip
def test_impossible_capacities_are_refused_in_one_line(setting):
    with pytest.raises(ConfigError, match=r"^expected[^\n]*found[^\n]*$"):
        check_capacity(*setting)


def test_strict_encoding_refuses_what_the_other_clips():
    x, out = np.array([0.5, -3.0]), np.empty(2, np.uint64)
    FixedPoint(3.0, 8).encode(x, out, strict=True)
    assert out.view(np.int64).tolist() == [128, -768]
    with pytest.raises(DataError, match=r"below 2\.9 in a shared sum, found a larger one: use fewer --share-bits"):
        FixedPoint(2.9, 8).encode(x, out, strict=True)
    with pytest.raises(DataError, match="finite"):
        FixedPoint(3.0, 8).encode(np.array([np.nan, 0.0]), out, strict=True)
