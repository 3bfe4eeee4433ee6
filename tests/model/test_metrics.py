"""Metrics against scikit-learn, with ties and empty classes; sums of parts against the whole."""

import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn import metrics as oracle
from sklearn.calibration import calibration_curve

from dpmpi.model.metrics import (
    class_codes,
    figures,
    grid_of,
    metrics,
    moments,
    probability_bin,
    ranking,
    reliability,
    sums,
    worst,
)  # fmt: skip
from dpmpi.problem.task import Task

TWO = Task("binary", ("no", "yes"))
NUMBERS = Task("regression", (), 25.0, 346.0)
COUNTS = Task("counts", (), 0.0, 50.0)


def several(K):
    return Task("multiclass", tuple(map(str, range(K))))


@st.composite
def classified(draw, K):
    """Scores with ties and labels of which classes may be missing."""
    n = draw(st.integers(1, 40))
    coarse = st.integers(-4, 4).map(lambda k: k / 2)
    columns = 1 if K == 2 else K
    scores = draw(st.lists(st.lists(coarse, min_size=columns, max_size=columns), min_size=n, max_size=n))
    labels = draw(st.lists(st.integers(0, K - 1), min_size=n, max_size=n))
    return np.array(scores), np.array(labels)


def test_bins_are_those_of_scikit_learn():
    assert probability_bin(np.array([0.0, 0.05, 0.0500001, 0.999, 1.0])).tolist() == [0, 0, 1, 19, 19]


@given(classified(2))
def test_two_classes(drawn):
    scores, codes = drawn
    found = metrics(TWO, scores[:, 0], 2.0 * codes - 1.0, link="logistic")
    guess, p = (scores[:, 0] > 0).astype(int), 1.0 / (1.0 + np.exp(-scores[:, 0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["accuracy"] == pytest.approx(oracle.accuracy_score(codes, guess))
        assert found["balanced_accuracy"] == pytest.approx(oracle.balanced_accuracy_score(codes, guess))
        for name in ("precision", "recall", "f1"):
            expected = getattr(oracle, f"{name}_score")(codes, guess, zero_division=0)
            assert found[name] == pytest.approx(expected), name
        assert found["log_loss"] == pytest.approx(oracle.log_loss(codes, p, labels=[0, 1]))
        share, mean = calibration_curve(codes, p, n_bins=20) if len(set(codes)) == 2 else (None, None)
    assert found["majority"] == pytest.approx(np.bincount(codes).max() / len(codes))
    if len(set(codes)) < 2:
        assert found["auc"] is None
    else:
        assert found["auc"] == pytest.approx(oracle.roc_auc_score(codes, scores[:, 0]))
        curve = reliability(sums(TWO, "logistic", scores, 2.0 * codes - 1.0))
        np.testing.assert_allclose([row[:2] for row in curve], np.stack([mean, share], axis=1))
        expected = sum(n * abs(a - b) for a, b, n in curve) / len(codes)
        assert found["calibration_error"] == pytest.approx(expected)


@given(classified(4))
def test_several_classes(drawn):
    scores, codes = drawn
    task = several(4)
    found = metrics(task, scores, codes.astype(float), link="softmax")
    guess, there = scores.argmax(axis=1), sorted(set(codes))
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["accuracy"] == pytest.approx(oracle.accuracy_score(codes, guess))
        assert found["balanced_accuracy"] == pytest.approx(oracle.balanced_accuracy_score(codes, guess))
        for name in ("precision", "recall", "f1"):
            score = getattr(oracle, f"{name}_score")
            expected = score(codes, guess, average="macro", labels=there, zero_division=0)
            assert found[name] == pytest.approx(expected), name
        assert found["log_loss"] == pytest.approx(oracle.log_loss(codes, p, labels=range(4)))
    assert found["recall"] == pytest.approx(found["balanced_accuracy"])
    sure, right = p.max(axis=1), guess == codes
    bins = probability_bin(np.take_along_axis(p, guess[:, None], axis=1)[:, 0])
    error = sum(abs(sure[bins == b].sum() - right[bins == b].sum()) for b in range(20)) / len(codes)
    assert found["calibration_error"] == pytest.approx(error)
    if len(there) < 2:
        assert found["auc"] is None
    else:  # scikit-learn refuses classes that do not occur, so its one-against-the-rest is repeated class by class
        odds = ranking(task, scores)
        np.testing.assert_allclose(odds, np.log(p / (1 - p)), atol=1e-12)
        each = [oracle.roc_auc_score(codes == k, odds[:, k]) for k in there]  # ties of p may be broken by rounding
        assert found["auc"] == pytest.approx(np.mean(each), abs=1e-9)


def test_auc_of_several_classes_is_scikit_learns():
    draw = np.random.default_rng(0)
    scores, codes = draw.standard_normal((200, 3)), draw.integers(0, 3, 200)
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    found = metrics(several(3), scores, codes.astype(float), link="softmax")
    assert found["auc"] == pytest.approx(oracle.roc_auc_score(codes, p, multi_class="ovr"))


finite = st.floats(-2.0, 2.0)


@given(st.lists(st.tuples(finite, st.floats(-1.0, 1.0)), min_size=2, max_size=30))
def test_numbers_in_original_units(pairs):
    scores, labels = np.array(pairs).T
    y, guess = NUMBERS.unscaled(labels), NUMBERS.unscaled(scores)
    found = metrics(NUMBERS, scores, labels)
    assert found["rmse"] == pytest.approx(oracle.root_mean_squared_error(y, guess), abs=1e-9)
    assert found["mae"] == pytest.approx(oracle.mean_absolute_error(y, guess), abs=1e-9)
    if found["r2"] is None:
        assert np.ptp(y) < 1e-3
    else:
        assume(np.ptp(y) > 1e-3)
        assert found["r2"] == pytest.approx(oracle.r2_score(y, guess), rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(finite, st.integers(0, 50)), min_size=1, max_size=30))
def test_counts(pairs):
    scores, labels = np.array(pairs, dtype=float).T
    found = metrics(COUNTS, scores, labels)
    assert found["deviance"] == pytest.approx(oracle.mean_poisson_deviance(labels, np.exp(scores)), abs=1e-9)
    assert found["mae"] == pytest.approx(oracle.mean_absolute_error(labels, np.exp(scores)))


@pytest.mark.parametrize("K", [2, 3, 10])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_sums_of_parts_give_the_figures_of_the_whole_and_auc_within_its_error(K, scale):
    task, link = (TWO, "logistic") if K == 2 else (several(K), "softmax")
    draw = np.random.default_rng(K)
    codes = draw.integers(0, K, 3000)
    scores = scale * (0.7 * np.eye(K)[codes] + draw.standard_normal((3000, K)))
    scores, labels = (scores[:, 1:], 2.0 * codes - 1.0) if K == 2 else (scores, codes.astype(float))
    parts = [slice(0, 10), slice(10, 900), slice(900, 3000)]
    grid = grid_of(sum(moments(task, scores[part]) for part in parts))
    added = [sums(task, link, scores[part], labels[part], grid) for part in parts]
    found = figures(task, {name: sum(one[name] for one in added) for name in added[0]})
    whole = metrics(task, scores, labels, link=link)
    for name, value in whole.items():
        if name != "auc":
            assert found[name] == pytest.approx(value, rel=1e-9), name
    assert abs(found["auc"] - whole["auc"]) <= found["auc_error"]
    assert found["auc_error"] < (2e-4 if K == 2 else 2e-3)


@pytest.mark.parametrize("task", [TWO, several(3), NUMBERS, COUNTS], ids=lambda task: task.kind)
@pytest.mark.parametrize("rows", [0, 1, 60])
def test_several_models_at_once_have_the_sums_of_each(task, rows):
    draw, link = np.random.default_rng(3), {"binary": "logistic", "multiclass": "softmax"}.get(task.kind, "none")
    scores, labels = draw.standard_normal((5, rows, task.scores)), draw.integers(0, 3, rows).astype(float)
    grids = grid_of(moments(task, scores)) if task.classifies else None
    found = sums(task, link, scores, labels, grids)
    for k, one in enumerate(scores):
        alone = sums(task, link, one, labels, grid_of(moments(task, one)) if task.classifies else None)
        assert alone.keys() == found.keys()
        assert all(np.array_equal(alone[name], found[name][k]) for name in alone)


def test_nothing_to_say_without_rows_or_with_numbers_that_are_none():
    assert metrics(TWO, np.empty(0), np.empty(0)) == {"auc": None}
    assert metrics(NUMBERS, np.empty(0), np.empty(0)) == {}
    found = metrics(TWO, np.array([np.nan, np.inf, 1.0]), np.array([1.0, -1.0, 1.0]), link="logistic")
    assert found["log_loss"] is None
    assert found["accuracy"] == pytest.approx(1 / 3)
    found = metrics(several(3), np.array([[np.inf, 0, 0], [np.nan, 0, 0]]), np.array([0.0, 1.0]), link="softmax")
    assert found["log_loss"] is None


def test_a_hinge_has_no_probabilities():
    found = metrics(TWO, np.array([0.0, 1.0]), np.array([-1.0, 1.0]))
    assert "log_loss" not in found
    assert found["accuracy"] == 1.0  # a score of exactly 0 is the negative class


def test_worst_knows_what_is_better():
    assert worst("rmse", [1.0, 2.0]) == 2.0
    assert worst("auc", [0.6, 0.7]) == 0.6


def test_codes():
    assert class_codes(TWO, np.array([-1.0, 1.0])).tolist() == [0, 1]
    assert class_codes(several(3), np.array([2.0, 0.0])).tolist() == [2, 0]
