"""Metrics from noisy histograms: right without noise, within their error bars under it, as sensitive as stated."""

import json
import math

import numpy as np
import pytest

from dpmpi.model.histogram import BINS, EDGES, LARGEST_DEVIANCE, SCORE_EDGES, Statistics
from dpmpi.model.metrics import metrics
from dpmpi.problem.task import Task

KINDS = {
    "binary": Task(),
    "multiclass": Task("multiclass", ("a", "b", "c", "d")),
    "regression": Task("regression", (), 0.0, 50.0),
    "counts": Task("counts", (), 0.0, 20.0),
}
LINKS = {"binary": "logistic", "multiclass": "softmax", "regression": "identity", "counts": "log"}


def records(kind, rows, seed):
    """Scores of a model that is not perfect, and labels as the loss has them."""
    draw = np.random.default_rng(seed)
    if kind == "binary":
        scores = 2.0 * draw.standard_normal(rows) - 1.0
        return scores, np.where(draw.random(rows) < 1 / (1 + np.exp(-0.8 * scores)), 1.0, -1.0)
    if kind == "multiclass":
        scores = 1.5 * draw.standard_normal((rows, 4))
        chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        return scores, (chances.cumsum(axis=1) < draw.random((rows, 1))).sum(axis=1).clip(0, 3).astype(float)
    if kind == "regression":
        labels = np.clip(0.4 * draw.standard_normal(rows), -1, 1)
        return 0.8 * labels + 0.15 * draw.standard_normal(rows), labels
    scores = 0.5 * draw.standard_normal(rows) + 1.0
    return scores, np.minimum(draw.poisson(np.exp(scores)), 20).astype(float)


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_the_metrics_are_those_of_the_rows(kind):
    task, statistics = KINDS[kind], Statistics(KINDS[kind], True)
    scores, labels = records(kind, 4000, 1)
    found = statistics.figures(statistics.sums(scores, labels), 4000, 0.0)["metrics"]
    exact = metrics(task, scores, labels, link=LINKS[kind])
    assert set(found) == set(exact) - {"multiclass": {"auc"}, "counts": {"rmse", "r2"}}.get(kind, set())
    binned = {"auc": 0.004, "log_loss": 0.01, "calibration_error": 0.02}
    clipped = {"rmse": 0.02, "mae": 0.02, "r2": 0.01, "deviance": 0.01}
    for name, one in found.items():
        near = {**binned, **(clipped if kind != "binary" else {})}.get(name, 1e-12)
        assert one["value"] == pytest.approx(exact[name], abs=near), name


def test_a_score_of_zero_is_the_negative_class_and_edges_belong_below():
    statistics = Statistics(Task(), True)
    counts = statistics.sums(np.array([0.0, -0.0, 5e-324, *SCORE_EDGES]), np.full(3 + len(SCORE_EDGES), -1.0))
    assert len(EDGES) + 1 == BINS == 24
    assert counts[BINS // 2 - 1] == 3.0  # 0, -0 and the edge
    assert counts[BINS // 2] == 2.0  # the smallest number above 0, and the next edge
    assert counts[BINS:].sum() == 0.0


EXTREMES = (-1e300, -3.0, 0.0, 1e-9, 0.7, 40.0, 1e300, math.inf, -math.inf, math.nan)


def extreme_records(kind, draw, rows):
    shape = (rows, 4) if kind == "multiclass" else rows
    labels = {"binary": (-1.0, 1.0), "multiclass": (0.0, 1.0, 2.0, 3.0), "regression": (-1.0, 0.3, 1.0, 1e9)}
    return draw.choice(EXTREMES, shape), draw.choice(labels.get(kind, (0.0, 1.0, 20.0, 1e9)), rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moved", [1, 3])
def test_no_records_move_the_counts_further_than_they_may(kind, moved):
    """The sensitivity contract, for one record and for a person of three, with records that are anything."""
    statistics, draw = Statistics(KINDS[kind], True), np.random.default_rng(5)
    most = 0.0
    for _ in range(300):
        scores, labels = extreme_records(kind, draw, 6)
        others, their = extreme_records(kind, draw, 6)
        before = statistics.sums(scores, labels)
        scores[:moved], labels[:moved] = others[:moved], their[:moved]
        difference = statistics.sums(scores, labels) - before
        most = max(most, float(np.linalg.norm(difference)))
        assert np.linalg.norm(difference) <= moved * statistics.sensitivity * (1 + 1e-12)
        assert np.abs(difference).sum() <= moved * statistics.sensitivity * statistics.l1_ratio * (1 + 1e-12)
        assert np.isfinite(before).all()
    assert most >= 0.4 * moved * statistics.sensitivity  # it is not stated much too large


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise", [0.0, 3.0, 12.0])
def test_metrics_are_within_two_error_bars(kind, noise):
    """Of the exact ones of the same rows, and without noise of those of all people whom the rows come from."""
    task, statistics, draw = KINDS[kind], Statistics(KINDS[kind], True), np.random.default_rng(7)
    scores, labels = records(kind, 40_000, 2)
    inside, runs, rows = {}, 60, 1500
    for _ in range(runs):
        chosen = draw.choice(len(labels), rows)
        near = slice(None) if noise == 0.0 else chosen
        exact = metrics(task, scores[near], labels[near], link=LINKS[kind])
        noisy = statistics.sums(scores[chosen], labels[chosen]) + noise * draw.standard_normal(statistics.width)
        for name, one in statistics.figures(noisy, rows, noise)["metrics"].items():
            within = one["value"] is not None and abs(one["value"] - exact[name]) <= 2 * one["error"]
            inside[name] = inside.get(name, 0) + within
    assert min(inside.values()) >= 0.9 * runs, inside


def test_error_bars_are_no_larger_than_they_need_be():
    statistics, draw = Statistics(Task(), True), np.random.default_rng(3)
    scores, labels = records("binary", 4000, 4)
    counts, off, errors = statistics.sums(scores, labels), [], []
    exact = metrics(Task(), scores, labels, link="logistic")["accuracy"]
    for _ in range(200):
        found = statistics.figures(counts + 20.0 * draw.standard_normal(48), 4000, 20.0)["metrics"]["accuracy"]
        off.append(found["value"] - exact)
        errors.append(found["error"])
    assert np.mean(errors) < 1.5 * np.std(off)
    # Noise alone: 48 cells moved to the public sum, of which half are right, so N accuracy has deviation s sqrt(12).
    assert np.std(off) == pytest.approx(20.0 * math.sqrt(12.0) / 4000, rel=0.2)


def test_the_same_counts_say_the_same():
    statistics, counts = Statistics(Task(), True), np.random.default_rng(0).normal(10, 5, 48)
    assert statistics.figures(counts, 500, 5.0) == statistics.figures(counts, 500, 5.0)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_alone_says_nothing_and_is_still_json(kind):
    statistics, draw = Statistics(KINDS[kind], True), np.random.default_rng(1)
    for rows in (1, 20):
        found = statistics.figures(1e4 * draw.standard_normal(statistics.width), rows, 1e4)
        text = json.dumps(found, allow_nan=False)
        assert len(text) > 50
        assert {one["value"] for one in found["metrics"].values()} == {None}
        assert {one["error"] for one in found["metrics"].values()} == {None}


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_is_null_from_some_noise_on_and_not_before(kind):
    statistics, draw = Statistics(KINDS[kind], True), np.random.default_rng(1)
    nulls = []
    for noise in (0.0, 3.0, 10.0, 30.0, 100.0, 300.0, 3000.0):
        numbers = 200 * np.array([0.05, 0.1, 0.5, 0.4])
        counts = np.full(statistics.width, 200 / statistics.width) if KINDS[kind].classifies else numbers
        found = statistics.figures(counts + noise * draw.standard_normal(len(counts)), 200, noise)["metrics"]
        nulls.append(sum(one["value"] is None for one in found.values()))
        for name, one in found.items():
            if name in ("r2", "log_loss") or one["value"] is None:
                continue
            half = 0.5 * (KINDS[kind].high - KINDS[kind].low)
            width = {"deviance": LARGEST_DEVIANCE, "mae": half * (2 if kind == "counts" else 1)}.get(name, 1.0)
            assert name == "rmse" or one["error"] < width / math.sqrt(12.0) * 1.1, name
    assert nulls[0] == 0
    assert nulls[-1] == len(found)


def test_scores_that_are_no_probabilities_have_no_log_loss():
    found = Statistics(Task(), False).figures(np.full(48, 10.0), 480, 1.0)
    assert not {"log_loss", "calibration_error"} & set(found["metrics"])
    assert "calibration" not in found
    assert len(found["roc"]["fpr"]["value"]) == BINS - 1
