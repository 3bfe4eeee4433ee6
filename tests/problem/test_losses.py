"""Losses: derivatives against differences, convexity and duality as inequalities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.losses import LOSSES, Hinge, Huber, Loss, Poisson, Softmax, Squared, Weighted, parse_loss, weighted
from dpmpi.problem.task import Task

HINGE = Hinge()
POISSON = Poisson(bound=6.0)
ALL = {name: loss for name, loss in LOSSES.items() if name not in ("softmax", "poisson")}
ALL |= {"smoothed": HINGE.smoothed(0.3), "weighted": Weighted(LOSSES["logistic"], (1.0, 0.25))}
"""Losses of one score with values of the same sign everywhere; softmax and poisson have tests of their own below."""
GRID = np.linspace(-4.0, 4.0, 161)  # holds the kinks -1 and 1
EVERY = pytest.mark.parametrize("name", ALL)
SMOOTH = pytest.mark.parametrize("name", [name for name, loss in ALL.items() if loss.smooth])


def labels_of(name):
    return (-1.0, 1.0, 0.7, -2.5) if name in ("squared", "huber") else (-1.0, 1.0)


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
        part = 0.25 if name == "weighted" else 1.0  # the weight of these labels
        assert 0.99 * part * loss.curvature < steepest <= part * loss.curvature * (1 + 1e-9)


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
        for v in (-0.9, -0.5, -0.01) if name not in ("weighted", "huber") else (-0.19, -0.1, -0.01):
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


# --- several scores, counts, weights ----------------------------------------------------------------------------------


def random_scores(classes, seed=0, records=50):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(records, classes)) * 3.0, rng.integers(0, classes, records).astype(float)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_softmax_slopes_are_the_derivatives_and_within_their_bounds(classes):
    loss, step = Softmax(classes), 1e-6
    scores, labels = random_scores(classes)
    slopes = loss.slope(scores, labels)
    for k in range(classes):
        moved = step * np.eye(classes)[k]
        difference = (loss.value(scores + moved, labels) - loss.value(scores - moved, labels)) / (2 * step)
        np.testing.assert_allclose(slopes[:, k], difference, atol=1e-8)
    assert np.all(np.linalg.norm(slopes, axis=1) <= loss.steepest)
    np.testing.assert_allclose(slopes.sum(axis=1), 0.0, atol=1e-14)
    at_zero = loss.slope(np.zeros((1, classes)), np.zeros(1))
    np.testing.assert_allclose(np.linalg.norm(at_zero), np.sqrt((classes - 1) / classes), rtol=1e-14)
    assert loss.value(np.zeros((1, classes)), np.zeros(1)) == pytest.approx(loss.at_zero)


def test_softmax_curvature_is_at_most_its_bound_which_two_scores_attain():
    for classes in (2, 3, 10):
        p = Softmax(classes).link(random_scores(classes, 1, 300)[0])
        hessians = np.einsum("ij,jk->ijk", p, np.eye(classes)) - np.einsum("ij,ik->ijk", p, p)
        assert np.linalg.eigvalsh(hessians).max() <= Softmax(classes).curvature + 1e-12
    p = np.array([0.5, 0.5, 0.0])
    assert np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max() == pytest.approx(0.5)


@settings(max_examples=60, deadline=None)
@given(classes=st.integers(2, 6), seed=st.integers(0, 10**6), sharp=st.floats(0.0, 40.0))
def test_softmax_fenchel_young_with_equality_at_the_slope(classes, seed, sharp):
    loss = Softmax(classes)
    scores, labels = random_scores(classes, seed, 5)
    scores *= sharp
    other = Softmax(classes).link(random_scores(classes, seed + 1, 5)[0])
    other[np.arange(5), labels.astype(int)] -= 1.0
    value = loss.value(scores, labels)
    assert np.all(value + loss.conjugate(other, labels) >= (other * scores).sum(axis=1) - 1e-10 * (1 + sharp))
    u = loss.slope(scores, labels)
    np.testing.assert_allclose(value + loss.conjugate(u, labels), (u * scores).sum(axis=1), atol=1e-10 * (1 + sharp))
    assert np.all(loss.conjugate(np.zeros_like(u), labels) == 0.0)
    assert np.all(np.isinf(loss.conjugate(u + 0.1, labels)))


def test_softmax_of_two_classes_is_logistic_in_the_difference_of_scores():
    scores, labels = random_scores(2)
    logistic, signs = LOSSES["logistic"], 2 * labels - 1
    np.testing.assert_allclose(
        Softmax(2).value(scores, labels), logistic.value(scores[:, 1] - scores[:, 0], signs), atol=1e-14
    )
    np.testing.assert_allclose(Softmax(2).link(scores)[:, 1], logistic.link(scores[:, 1] - scores[:, 0]), rtol=1e-12)


def test_softmax_is_stable_for_any_finite_score():
    scores = np.array([[1e308, -1e308, 0.0], [-1e308, -1e308, -1e308], [800.0, 0.0, -800.0]])
    labels = np.array([0.0, 1.0, 2.0])
    with np.errstate(over="ignore"):
        slopes, values = Softmax(3).slope(scores, labels), Softmax(3).value(scores, labels)
    assert np.all(np.isfinite(slopes))
    assert np.abs(slopes[slopes != 0]).min() > 1e-153  # never subnormal
    assert values.tolist() == [0.0, 0.0, 1600.0]  # log 3 is lost beside 1e308


GRID_OF_SCORES = np.linspace(-6.0, 6.0, 241)


@pytest.mark.parametrize("count", [0.0, 1.0, 6.0])
def test_poisson_is_half_of_the_deviance(count):
    from scipy.stats import poisson  # noqa: PLC0415

    labels = np.full_like(GRID_OF_SCORES, count)
    value = POISSON.value(GRID_OF_SCORES, labels)
    best = poisson.logpmf(count, count) if count else 0.0
    np.testing.assert_allclose(value, best - poisson.logpmf(count, np.exp(GRID_OF_SCORES)), atol=1e-9, rtol=1e-12)
    step = 1e-6
    difference = POISSON.value(GRID_OF_SCORES + step, labels) - POISSON.value(GRID_OF_SCORES - step, labels)
    np.testing.assert_allclose(POISSON.slope(GRID_OF_SCORES, labels), difference / (2 * step), rtol=1e-5, atol=1e-7)
    u = POISSON.slope(GRID_OF_SCORES, labels)
    np.testing.assert_allclose(value + POISSON.conjugate(u, labels), u * GRID_OF_SCORES, atol=1e-9)
    for other in (-count, -count / 2, 0.0, 1.0, 20.0):
        found = POISSON.conjugate(np.array([other]), np.array([count]))
        assert np.all(value + found >= other * GRID_OF_SCORES - 1e-9)
    assert np.isinf(POISSON.conjugate(np.array([-count - 1e-9]), np.array([count])))
    assert POISSON.conjugate(np.zeros(1), np.array([count])) == 0.0


@pytest.mark.parametrize("lipschitz", [0.5, 2.0])
@pytest.mark.parametrize("norm", [0.1, 0.5, 1.0])
def test_the_clipped_poisson_loss_is_as_smooth_as_it_says(lipschitz, norm):
    fine = np.linspace(-8.0, 8.0, 20001)
    for count in (0.0, 3.0, 6.0):
        slope = np.clip(POISSON.slope(fine, np.full_like(fine, count)), -lipschitz / norm, lipschitz / norm)
        assert np.max(np.diff(slope) / np.diff(fine)) * norm**2 <= POISSON.smoothness(lipschitz)


def test_huber_is_squared_inside_and_linear_outside_and_never_clipped_by_its_own_bound():
    huber = Huber(0.3)
    inside, outside = np.array([0.2, -0.29]), np.array([5.0, -7.0])
    np.testing.assert_array_equal(huber.value(inside, 0 * inside), Squared().value(inside, 0 * inside))
    np.testing.assert_allclose(huber.value(outside, 0 * outside), 0.3 * np.abs(outside) - 0.045)
    assert huber.clip == 0.3 == np.abs(huber.slope(outside, 0 * outside)).max()


def test_weights_multiply_the_loss_of_their_class_and_the_largest_counts_one():
    task = Task("multiclass", ("a", "b", "c"))
    loss = weighted(Softmax(3), {"b": 5.0, "c": 2.0}, task)
    assert loss.weights == (0.2, 1.0, 0.4)
    scores, labels = random_scores(3)
    each = np.array(loss.weights)[labels.astype(int)]
    np.testing.assert_allclose(loss.value(scores, labels), each * Softmax(3).value(scores, labels))
    slopes = loss.slope(scores, labels)
    np.testing.assert_allclose(slopes, each[:, None] * Softmax(3).slope(scores, labels))
    loss.to_slope(again := scores.copy(), labels)
    np.testing.assert_array_equal(again, slopes)
    np.testing.assert_allclose(
        loss.value(scores, labels) + loss.conjugate(slopes, labels), (slopes * scores).sum(axis=1), atol=1e-9
    )
    binary = weighted(LOSSES["hinge"], {"yes": 4.0}, Task("binary", ("no", "yes")))
    assert binary.value(np.zeros(2), np.array([-1.0, 1.0])).tolist() == [0.25, 1.0]
    for weights, other, message in (
        ({"d": 1.0}, task, "found 'd': name a class"),
        ({}, Task("regression", ()), "for classes only, found regression"),
    ):
        with pytest.raises(ConfigError, match=message):
            weighted(Softmax(3), weights, other)


@pytest.mark.parametrize("name", ["softmax", "poisson"])
def test_slopes_in_place_are_the_slopes(name):
    loss = {"softmax": Softmax(4), "poisson": POISSON}[name]
    scores, labels = random_scores(4)
    scores = scores if name == "softmax" else scores[:, 0].copy()
    loss.to_slope(again := scores.copy(), labels)
    np.testing.assert_array_equal(again, loss.slope(scores, labels))


@pytest.mark.parametrize("bad", [-1.0, 3.0, 0.5, np.nan])
def test_labels_that_are_no_class_or_count_are_refused(bad):
    for loss, expected in ((Softmax(3), "coded 0 to 2"), (Poisson(2.0), "from 0 to 2")):
        loss.check_labels(np.array([0.0, 2.0]))
        with pytest.raises(DataError, match=f"{expected}.* row 1 "):
            loss.check_labels(np.array([0.0, bad]))


@pytest.mark.parametrize("text", ["hubert", "huber:", "huber:-1", "huber:x", "logistic:2", ""])
def test_a_loss_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="loss"):
        parse_loss(text)


def test_a_loss_of_one_s_own_needs_a_value_and_a_slope():
    class Pinball(Loss):
        kinds = ("regression",)

        def value(self, scores, labels):
            return np.maximum(0.9 * (labels - scores), 0.1 * (scores - labels))

        def slope(self, scores, labels):
            return np.where(scores < labels, -0.9, 0.1)

    loss = Pinball()
    loss.to_slope(scores := np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    assert scores.tolist() == [-0.9, 0.1]
    assert (loss.certifies, loss.smooth, loss.scores) == (False, False, 1)
    loss.check_labels(np.array([0.3]))
    with pytest.raises(DataError, match="finite labels"):
        loss.check_labels(np.array([np.nan]))
