"""Penalties: every step is checked to be the minimiser that it claims to be."""

from __future__ import annotations

import inspect
import math
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.errors import ConfigError
from dpmpi.problem.penalties import Regulariser, parse_penalty

PENALTIES = ("none", "l2:0.7", "l1:0.4", "elastic:0.4,0.7")
DOMAINS = (None, "box:0.8", "ball:1.3")
EVERY = pytest.mark.parametrize("h", [parse_penalty(p, d) for p in PENALTIES for d in DOMAINS], ids=str)
BOUNDED = pytest.mark.parametrize("h", [parse_penalty(p, d) for p in PENALTIES for d in DOMAINS[1:]], ids=str)
VECTORS = st.lists(st.sampled_from([0.0, 0.4, -0.4]) | st.floats(-5, 5), min_size=1, max_size=6).map(np.array)


def project(h, x):
    """Return a point of the domain near x."""
    if h.box is not None:
        return np.clip(x, -h.box, h.box)
    return x if h.ball is None else x * min(1.0, h.ball / max(np.linalg.norm(x), 1e-300))


def rivals(h, x, seed):
    """Yield points of the domain, near x and far from it, along coordinates and in random directions."""
    rng = np.random.default_rng(seed)
    for scale in (1e-4, 1e-2, 0.3, 3.0):
        for _ in range(8):
            yield project(h, x + scale * rng.normal(size=x.size))
        for k in range(x.size):
            for sign in (-1.0, 1.0):
                yield project(h, x + sign * scale * np.eye(x.size)[k])
    yield np.zeros_like(x)


def test_value_is_the_definition():
    x = np.array([3.0, -4.0])
    assert parse_penalty("elastic:0.5,0.1").value(x) == pytest.approx(0.5 * 7 + 0.05 * 25)
    assert parse_penalty("none").value(x) == 0.0
    assert parse_penalty("l1:1", "box:4").value(x) == 7.0
    assert parse_penalty("l1:1", "box:3.99").value(x) == math.inf
    assert parse_penalty("l2:1", "ball:5").value(x) == 12.5
    assert parse_penalty("l2:1", "ball:4.99").value(x) == math.inf
    assert parse_penalty("none", "box:4").value(-x) == 0.0


@EVERY
@settings(max_examples=40, deadline=None)
@given(z=VECTORS, A=st.floats(0, 4), gamma=st.floats(0.05, 4), seed=st.integers(0, 2**32 - 1))
def test_dual_step_beats_every_rival_by_its_strong_convexity(h, z, A, gamma, seed):
    x = np.full_like(z, np.nan)
    h.dual_step(z, A, gamma, x)
    assert h.value(x) < math.inf

    def objective(y):
        return z @ y + A * h.value(y) + gamma * y @ y / 2

    modulus = A * h.l2 + gamma
    for y in rivals(h, x, seed):
        assert objective(y) >= objective(x) + modulus / 2 * (y - x) @ (y - x) - 1e-10


@EVERY
@settings(max_examples=40, deadline=None)
@given(v=VECTORS, step=st.floats(0.05, 5), seed=st.integers(0, 2**32 - 1))
def test_prox_obeys_the_three_point_inequality(h, v, step, seed):
    x = np.full_like(v, np.nan)
    h.prox(v, step, x)
    for y in rivals(h, x, seed):
        left = h.value(x) + (x - v) @ (x - v) / (2 * step) + (1 / step + h.l2) / 2 * (y - x) @ (y - x)
        assert left <= h.value(y) + (y - v) @ (y - v) / (2 * step) + 1e-9


@EVERY
@settings(max_examples=20, deadline=None)
@given(pair=st.integers(1, 6).flatmap(lambda m: st.tuples(*[st.lists(st.floats(-5, 5), min_size=m, max_size=m)] * 2)))
def test_prox_is_firmly_nonexpansive(h, pair):
    u, v = map(np.array, pair)
    x, y = np.empty_like(u), np.empty_like(v)
    h.prox(u, 0.9, x)
    h.prox(v, 0.9, y)
    assert (x - y) @ (x - y) <= (u - v) @ (x - y) + 1e-12


@BOUNDED
@settings(max_examples=40, deadline=None)
@given(z=VECTORS, A=st.floats(0, 4), seed=st.integers(0, 2**32 - 1))
def test_without_curvature_a_bounded_domain_still_has_a_minimiser(h, z, A, seed):
    A = 0.0 if h.l2 > 0.0 else A
    x = np.full_like(z, np.nan)
    h.dual_step(z, A, 0.0, x)
    for y in rivals(h, x, seed):
        assert z @ y + A * h.l1 * np.abs(y).sum() >= z @ x + A * h.l1 * np.abs(x).sum() - 1e-10
    inside = np.abs(z) <= A * h.l1
    assert np.all(x[inside] == 0.0)


def test_a_penalty_of_ones_own_may_derive_from_the_usual_one():
    @dataclass(frozen=True)
    class Twice(Regulariser):
        extra: float = 1.0

    assert Twice(l2=0.5, extra=2.0) == Twice(0.0, 0.5, None, None, 2.0)
    assert str(inspect.signature(Regulariser)).startswith("(l1: 'float' = 0.0, l2")


def test_without_curvature_and_domain_only_a_zero_dual_has_a_step():
    out = np.full(2, np.nan)
    for h in (Regulariser(), Regulariser(l1=0.5)):
        h.dual_step(np.zeros(2), 1.0, 0.0, out)
        assert out.tolist() == [0.0, 0.0]
        with pytest.raises(ConfigError, match="gamma > 0"):
            h.dual_step(np.array([0.0, 0.6]), 1.0, 0.0, out)
    Regulariser(l1=0.5).dual_step(np.array([0.5, -0.3]), 1.0, 0.0, out)
    assert out.tolist() == [0.0, 0.0]
    for A, gamma in ((1.0, -1.0), (-1.0, 0.0), (1.0, math.nan)):
        with pytest.raises(ConfigError):
            Regulariser(l1=0.5).dual_step(np.ones(2), A, gamma, out)
    with pytest.raises(ConfigError, match="step"):
        Regulariser().prox(np.ones(2), 0.0, out)


@EVERY
@pytest.mark.parametrize("shrink", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_a_projection_is_nearest_in_the_domain(h, shrink, seed):
    v, x = np.random.default_rng(seed).normal(size=6), np.full(6, np.nan)
    h.project(v, x, shrink)

    def distance(y):
        return 0.5 * np.sum((y - v) ** 2) + shrink * np.abs(y).sum()

    assert h.value(x) < math.inf
    assert all(distance(y) >= distance(x) - 1e-12 for y in rivals(h, x, seed))
    if shrink == 0.0 and h.domain is None:
        np.testing.assert_array_equal(x, v)


@EVERY
@pytest.mark.parametrize("count", [0, 1, 7])
def test_added_dual_steps_are_the_sum_of_the_steps(h, count):
    rng = np.random.default_rng(count)
    z, a = rng.normal(size=9), rng.random(count)
    A, gamma = np.cumsum(a), rng.random(count) + 0.1
    start = rng.normal(size=9)
    total, expected, x = start.copy(), start.copy(), np.empty(9)
    h.add_dual_steps(z, a, A, gamma, total, np.empty(9))
    for s in range(count):
        h.dual_step(z, A[s], gamma[s], x)
        expected += a[s] * x
    np.testing.assert_allclose(total, expected, rtol=1e-13, atol=1e-14)


def test_added_dual_steps_without_curvature_behave_like_the_loop():
    one, total = np.ones(1), np.zeros(2)
    Regulariser().add_dual_steps(np.zeros(2), one, one, 0 * one, total, np.empty(2))
    assert total.tolist() == [0.0, 0.0]
    with pytest.raises(ConfigError, match="gamma > 0"):
        Regulariser().add_dual_steps(np.ones(2), one, one, 0 * one, total, np.empty(2))


@EVERY
def test_steps_leave_their_input_alone_and_allocate_no_vector(h):
    m = 50_000
    z = np.linspace(-1.0, 1.0, m)
    before, out, total = z.copy(), np.empty(m), np.zeros(m)
    three = np.array([1.0, 2.0, 3.0])
    tracemalloc.start()
    h.dual_step(z, 1.0, 1.0, out)
    h.prox(z, 1.0, out)
    h.project(z, out, shrink=0.1)
    h.add_dual_steps(z, three, three, three, total, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * m / 10
    np.testing.assert_array_equal(z, before)


@EVERY
def test_text_round_trip(h):
    assert parse_penalty(h.describe(), h.domain) == h


def test_text_is_what_was_meant():
    assert parse_penalty("l2:0.0005") == Regulariser(l2=0.0005)
    assert parse_penalty("l1:0.01", "box:2") == Regulariser(l1=0.01, box=2.0)
    assert parse_penalty("elastic:0.001,0.0005", "ball:3") == Regulariser(l1=0.001, l2=0.0005, ball=3.0)
    assert parse_penalty("none") == Regulariser()
    assert parse_penalty("l2:0.0005").describe() == "l2:0.0005"


WRONG = ["l2" + rest for rest in ("", ":", ":1,2", ":-1", ":inf", ":x")]
WRONG += ["", "l3:1", "l1:nan", "none:", "none:1", "elastic:1", "elastic:1,"]
DOMAINS = ["cube:1", "box", "box:0", "ball:-1", "ball:nan", ""]


@pytest.mark.parametrize(
    ("text", "domain"), [*((text, None) for text in WRONG), *(("none", domain) for domain in DOMAINS)]
)
def test_impossible_text_is_refused_in_one_line(text, domain):
    with pytest.raises(ConfigError, match=r"^expected .* found ") as caught:
        parse_penalty(text, domain)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_names_and_two_domains_are_refused():
    with pytest.raises(ConfigError, match="l2:W, l1:W, elastic:L1,L2 or none"):
        parse_penalty("ridge:1")
    with pytest.raises(ConfigError, match="one domain"):
        Regulariser(box=1.0, ball=1.0)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_the_ball_step_keeps_its_length_at_the_limits_of_floating_point(scale):
    h, x, z = Regulariser(ball=2.0), np.empty(2), np.array([3.0, -4.0]) * scale
    with np.errstate(over="ignore"):
        h.dual_step(z, 1.0, 0.0, x)
        np.testing.assert_allclose(x, [-1.2, 1.6], rtol=1e-14)
        h.dual_step(z, 1.0, 10.0 * scale, x)
        np.testing.assert_allclose(x, [-0.3, 0.4], rtol=1e-14)
