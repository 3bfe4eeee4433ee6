"""Losses: derivatives against differences, convexity and duality as inequalities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.losses import LOSSES, Hinge

HINGE = Hinge()
ALL = {**LOSSES, "smoothed": HINGE.smoothed(0.3)}
GRID = np.linspace(-4.0, 4.0, 161)  # holds the kinks -1 and 1
EVERY = pytest.mark.parametrize("name", ALL)
SMOOTH = pytest.mark.parametrize("name", [name for name, loss in ALL.items() if loss.smooth])


def labels_of(name):
    return (-1.0, 1.0, 0.7, -2.5) if name == "squared" else (-1.0, 1.0)


def test_values_are_the_definitions():
    assert HINGE.value(np.array([0.25, 3.0]), np.array([1.0, 1.0])).tolist() == [0.75, 0.0]
    assert LOSSES["squared"].value(np.array([3.0]), np.array([1.0])).tolist() == [2.0]
    for y in (-1.0, 1.0):
        np.testing.assert_allclose(
            LOSSES["logistic"].value(GRID, np.full(161, y)), np.log(1 + np.exp(-y * GRID)), rtol=1e-14
        )


@SMOOTH
def test_slope_is_the_derivative(name):
    loss, step = ALL[name], 1e-6
    for y in labels_of(name):
        labels = np.full_like(GRID, y)
        difference = (loss.value(GRID + step, labels) - loss.value(GRID - step, labels)) / (2 * step)
        np.testing.assert_allclose(loss.slope(GRID, labels), difference, atol=5e-6)


@EVERY
def test_slope_is_a_subgradient_within_its_bound(name):
    loss = ALL[name]
    for y in labels_of(name):
        labels = np.full_like(GRID, y)
        value, slope = loss.value(GRID, labels), loss.slope(GRID, labels)
        assert np.all(value[None, :] >= value[:, None] + slope[:, None] * (GRID[None, :] - GRID[:, None]) - 1e-13)
        assert name == "squared" or np.all(np.abs(slope) <= 1.0)


@EVERY
def test_curvature_is_the_lipschitz_constant_of_the_slope(name):
    loss = ALL[name]
    labels = np.ones_like(GRID)
    steepest = np.max(np.diff(loss.slope(GRID, labels)) / np.diff(GRID))
    if loss.curvature is None:
        assert not loss.smooth
        assert steepest > 10.0  # a jump
    else:
        assert 0.99 * loss.curvature < steepest <= loss.curvature * (1 + 1e-9)


def test_the_hinge_has_slope_zero_at_the_kink():
    assert HINGE.slope(np.array([1.0, -1.0]), np.array([1.0, -1.0])).tolist() == [0.0, 0.0]


@EVERY
@settings(max_examples=100, deadline=None)
@given(s=st.floats(-50, 50), u=st.floats(-3, 3), pick=st.integers(0, 3))
def test_fenchel_young_with_equality_at_the_slope(name, s, u, pick):
    loss = ALL[name]
    y = np.array([labels_of(name)[pick % len(labels_of(name))]])
    score = np.array([s])
    value = loss.value(score, y)
    assert value + loss.conjugate(np.array([u]), y) >= u * s - 1e-11
    slope = loss.slope(score, y)
    np.testing.assert_allclose(value + loss.conjugate(slope, y), slope * score, atol=1e-11 * (1 + s * s))


@EVERY
def test_conjugate_is_the_supremum_over_scores(name):
    loss = ALL[name]
    scores = np.linspace(-60.0, 60.0, 24001)
    for y in labels_of(name):
        for v in (-0.9, -0.5, -0.01):
            best = np.max(v * y * scores - loss.value(scores, np.full_like(scores, y)))
            np.testing.assert_allclose(loss.conjugate(np.array([v * y]), np.array([y])), best, atol=1e-4)


@pytest.mark.parametrize("name", ["hinge", "smoothed", "logistic"])
def test_conjugate_is_infinite_outside_its_domain_and_finite_at_its_ends(name):
    y = np.array([-1.0, 1.0])
    for v in (-1.01, 0.01):
        assert np.all(np.isinf(ALL[name].conjugate(v * y, y)))
    for v in (-1.0, 0.0):
        assert np.all(np.isfinite(ALL[name].conjugate(v * y, y)))


def test_logistic_is_stable_for_any_score():
    scores = np.array([-np.inf, -1e308, -800.0, 800.0, 1e308, np.inf])
    ones = np.ones(6)
    logistic = LOSSES["logistic"]
    np.testing.assert_allclose(logistic.value(scores, ones), [np.inf, 1e308, 800.0, 0.0, 0.0, 0.0], atol=1e-300)
    flat = -np.exp(-350.0)  # 1e-152: the slope is constant from a margin of 350 on
    np.testing.assert_allclose(logistic.slope(scores, ones), [-1.0, -1.0, -1.0, flat, flat, flat], rtol=1e-14)
    np.testing.assert_allclose(
        logistic.slope(np.array([30.0]), np.array([1.0])), -np.exp(-30.0) / (1 + np.exp(-30.0)), rtol=1e-14
    )


@pytest.mark.parametrize("mu", [1e-3, 0.3, 2.0])
def test_the_smoothed_hinge_lies_at_most_half_mu_below(mu):
    smooth = HINGE.smoothed(mu)
    for y in (-1.0, 1.0):
        labels = np.full_like(GRID, y)
        gap = HINGE.value(GRID, labels) - smooth.value(GRID, labels)
        assert np.all(gap >= -1e-15)
        assert np.all(gap <= mu / 2 + 1e-15)
        assert np.max(gap) == pytest.approx(mu / 2)
        assert np.all(np.isfinite(HINGE.conjugate(smooth.slope(GRID, labels), labels)))


def test_unusable_labels_and_parameters_are_refused():
    for name in ("hinge", "logistic", "smoothed"):
        ALL[name].check_labels(np.array([1.0, -1.0]))
        for bad in (0.0, 2.0, np.nan):
            with pytest.raises(DataError, match=r"-1 and \+1.* row 1 "):
                ALL[name].check_labels(np.array([1.0, bad, bad]))
    LOSSES["squared"].check_labels(np.array([3.5]))
    with pytest.raises(DataError, match="row 0 "):
        LOSSES["squared"].check_labels(np.array([np.inf]))
    for mu in (0.0, -1.0, np.nan):
        with pytest.raises(ConfigError):
            HINGE.smoothed(mu)


def test_logistic_slopes_are_never_subnormal():
    """Subnormal numbers take a processor longer: huge margins would show in the time."""
    scores = np.concatenate([np.linspace(-2000.0, 2000.0, 4001), [-1e300, 1e300]])
    for label in (-1.0, 1.0):
        slopes = LOSSES["logistic"].slope(scores, np.full_like(scores, label))
        assert np.abs(slopes).min() > 1e-153
        np.testing.assert_allclose(slopes, -label / (1.0 + np.exp(np.clip(label * scores, -700, 700))), atol=1e-150)
