"""How good a model is, from a noisy histogram of its predictions: all metrics at once, each with an error bar.

A record of class c with score s falls into one of 2 x 24 cells: its class, and the bin of the predicted probability
p = 1/(1 + exp(-s)). The bins are (a, b] between the public edges

    p = .05 .1 .15 ... .95   and   .02 .98 .4875 .5125                                                              (1)

that is 20 bins of equal width, of which the outermost are cut, where the log loss is steep, and those around 1/2, where
the predictions of a model that was trained under much noise lie. p = 1/2 exactly is the negative class.
For K classes a record falls into a cell of each of three histograms,

    (true class, predicted class)   K x K                                                                           (2)
    (right or wrong, probability of the predicted class, in 20 bins)   2 x 20                                       (3)
    -log of the probability of the true class, in 20 bins                                                           (4)

For numbers, with u the label scaled to [-1, 1], v its prediction clipped to that, and e = min(|u-v|, 1), so that nobody
is off by more than half of the declared range, a record adds

    ( e^2,  e,  (u+1) / 2,  u^2 )                                                                                   (5)

and for counts, y the label and l its expectation clipped to the declared range [0, high],

    ( min(d, 10) / 10,  |y-l| / high,  y / high,  (y/high)^2 ),   d = 2 (y log(y/l) - y + l)                        (6)

Sensitivity: replacing one record takes 1 from a cell and adds 1 to another, of one histogram or of three, or moves four
numbers in [0, 1]: in L2 by at most

    sqrt 2 for (1),   sqrt 6 for (2) to (4),   2 for (5) and (6)                                                    (7)

Noise of deviation s is added to each cell. The number of rows N is public, so that the cells of each histogram are
moved by the same amount until they add up to N; everything else is computed from that. Negative cells stay: sums over
them are unbiased.

`error_bars.py` says how sure a metric is, and when it is not told from noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.model.error_bars import (
    BLIND,
    REPETITIONS,
    Metrics,
    adding_up,
    drawn_again,
    mean_known,
    nothing,
    share,
    told_from_noise,
    with_deviations,
    with_errors,
    without_floor,
)
from dpmpi.model.metrics import CALIBRATION_BINS, INNER_EDGES, probability_bin
from dpmpi.problem.task import Task

EDGES = np.sort(np.concatenate((INNER_EDGES, (0.02, 0.98, 0.4875, 0.5125))))
"""(1)"""
BINS = len(EDGES) + 1
CALIBRATED = np.concatenate(([0], np.searchsorted(EDGES, INNER_EDGES) + 1))
"""Where the bins of equal width begin among (1)."""
LOSS_EDGES = np.array((0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.55, 0.7, 0.85, 1, 1.25, 1.5, 1.8, 2.1, 2.5, 3, 3.6, 4.5, 6))
"""The bins of (4)."""
LARGEST_DEVIANCE = 10.0
_SEED = 0x6470_6D70
_OUTER = 1.0  # how far beyond the last edge the scores of an outer bin are taken to lie, and to be spread


@frozen
class Statistics:
    """What is counted of held-out rows for a task, and what follows from the counts under noise."""

    task: Task
    probable: bool = True
    """Whether scores of classes are those of probabilities; else there is no log loss and no calibration."""

    @property
    def width(self) -> int:
        """The number of cells."""
        if self.task.kind == "binary":
            return 2 * BINS
        return sum(self._sizes) if self.task.kind == "multiclass" else 4

    @property
    def sensitivity(self) -> float:
        """How far replacing one record moves the counts, in L2: (7)."""
        return {"binary": math.sqrt(2.0), "multiclass": math.sqrt(6.0)}.get(self.task.kind, 2.0)

    @property
    def l1_ratio(self) -> float:
        """How far it moves them in L1, over `sensitivity`: 2, 6 or 4."""
        return self.sensitivity

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """The cells of (2), (3), (4)."""
        return len(self.task.classes) ** 2, 2 * CALIBRATION_BINS, len(LOSS_EDGES) + 1

    def sums(self, scores: Array, labels: Array) -> Array:
        """Return the counts of the rows with these scores and labels, as the loss has them."""
        with np.errstate(all="ignore"):  # a warning would single out a shard
            if self.task.kind == "binary":
                found = np.bincount(BINS * (labels > 0) + _bins(scores), minlength=self.width).astype(np.float64)
            elif self.task.kind == "multiclass":
                found = self._class_counts(scores, labels.astype(np.intp))
            else:
                found = self._moments(scores, labels).sum(axis=0)
        return found

    def figures(self, noisy: Array, rows: int, deviation: float) -> dict[str, Any]:
        """Return the metrics of noisy counts of `rows` rows, with errors and curves, JSON-ready.

        `deviation` is that of the noise in a cell.
        """
        draw = np.random.Generator(np.random.Philox(_SEED))
        if self.task.kind == "binary":
            return _binary_figures(noisy.reshape(2, BINS), rows, deviation, draw, probable=self.probable)
        if self.task.kind == "multiclass":
            return self._class_figures(noisy, rows, deviation, draw)
        means = noisy / rows
        spread = np.sqrt(np.clip(means * (1.0 - means), 0.0, 0.25) / rows + (deviation / rows) ** 2)
        drawn = means + spread * draw.standard_normal((REPETITIONS, 4))
        found = with_errors(self._number_metrics(means), self._number_metrics(drawn))
        if "rmse" in found:  # a root is steep where little is left beside the noise
            ends = [self._number_metrics(means + side * spread)["rmse"] for side in (-2.0, 2.0)]
            reach = max(abs(float(end) - found["rmse"]["value"]) for end in ends)
            found["rmse"]["error"] = max(found["rmse"]["error"], 0.5 * reach)
        for name, wide in zip(("deviance" if self.task.kind == "counts" else "rmse", "mae"), spread, strict=False):
            found[name] = nothing() if wide >= BLIND else found[name]  # (2) of error_bars.py
        if "r2" in found:
            found |= told_from_noise({"r2": found["r2"]}, 2)
        return {"metrics": found}

    # --- K classes ---------------------------------------------------------------------------------------------------

    def _class_counts(self, scores: Array, labels: Any) -> Array:
        """Return (2), (3), (4) one after the other."""
        classes, every = len(self.task.classes), np.arange(len(labels))
        highest = scores.max(axis=1, keepdims=True) if len(labels) else scores[:, :1]
        logs = scores - highest
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        predicted = logs.argmax(axis=1) if len(labels) else labels
        sure = np.exp(logs[every, predicted])
        losses = np.searchsorted(LOSS_EDGES, -logs[every, labels], side="left")
        cells = (classes * labels + predicted, CALIBRATION_BINS * (predicted == labels) + probability_bin(sure), losses)
        counts = [np.bincount(cell, minlength=size) for cell, size in zip(cells, self._sizes, strict=True)]
        return np.concatenate(counts).astype(np.float64)

    def _split(self, counts: Array) -> list[Array]:
        return np.split(counts, np.cumsum(self._sizes)[:-1], axis=-1)

    def _class_figures(self, noisy: Array, rows: int, deviation: float, draw: np.random.Generator) -> dict[str, Any]:
        parts = [adding_up(part, rows) for part in self._split(noisy)]
        drawn = [drawn_again(part, rows, deviation, draw) for part in parts]
        floor = self._calibration(drawn_again(_calibrated(parts[1]), rows, deviation, draw), rows)
        found = self._class_metrics(parts, rows)
        metrics = with_errors(found, self._class_metrics(drawn, rows))
        if self.probable:
            metrics["calibration_error"] = without_floor(
                self._calibration(parts[1], rows), self._calibration(drawn[1], rows), floor
            )
        k = len(self.task.classes)
        table, spread = parts[0].reshape(k, k), drawn[0].std(axis=0).reshape(k, k)
        metrics = told_from_noise(metrics, k)
        return {"metrics": metrics, "confusion": {"value": table.tolist(), "error": spread.tolist()}}

    def _class_metrics(self, parts: list[Array], rows: int) -> Metrics:
        k = len(self.task.classes)
        table, right = parts[0].reshape(*parts[0].shape[:-1], k, k), parts[1]
        hits, true, said = np.diagonal(table, axis1=-2, axis2=-1), table.sum(axis=-1), table.sum(axis=-2)
        few = k * k <= 2 * CALIBRATION_BINS  # the sum over fewer cells has less noise
        count = hits.sum(axis=-1) if few else right[..., CALIBRATION_BINS:].sum(axis=-1)
        recall, precision, f1 = share(hits, true), share(hits, said), share(2.0 * hits, true + said)
        found = {
            "accuracy": count / rows,
            "majority": true.max(axis=-1) / rows,
            "balanced_accuracy": mean_known(recall),
            "precision": mean_known(precision),
            "recall": mean_known(recall),
            "f1": mean_known(f1),
        }
        if self.probable:
            ends = np.concatenate(([0.0], LOSS_EDGES, [LOSS_EDGES[-1] + 2 * _OUTER]))
            found["log_loss"] = parts[2] @ (0.5 * (ends[1:] + ends[:-1])) / rows
        return found

    @staticmethod
    def _calibration(counts: Array, rows: int) -> Array:
        """Return the sum over bins of |right ones - probability x rows in it| / rows."""
        wrong, right = counts[..., :CALIBRATION_BINS], counts[..., CALIBRATION_BINS:]
        return np.asarray(np.abs(right - _SURE * (right + wrong)).sum(axis=-1) / rows)

    # --- numbers and counts ------------------------------------------------------------------------------------------

    def _moments(self, scores: Array, labels: Array) -> Array:
        """Return (5) or (6), one row a record."""
        if self.task.kind == "regression":
            u, v = np.clip(labels, -1.0, 1.0), np.clip(np.nan_to_num(scores), -1.0, 1.0)
            off = np.minimum(np.abs(u - v), 1.0)
            return np.stack([off**2, off, (u + 1) / 2, u**2], axis=1)
        high = self.task.high
        y, expected = np.clip(labels, 0.0, high), np.clip(np.exp(np.nan_to_num(scores)), 1e-9, high)
        deviance = 2.0 * (np.where(y > 0, y * np.log(np.maximum(y, 1e-9) / expected), 0.0) - y + expected)
        part = np.clip(deviance, 0.0, LARGEST_DEVIANCE) / LARGEST_DEVIANCE
        return np.stack([part, np.abs(y - expected) / high, y / high, (y / high) ** 2], axis=1)

    def _number_metrics(self, means: Array) -> Metrics:
        """Return the metrics of the means of (5) in original units, or of (6)."""
        first, off = np.maximum(means[..., 0], 0.0), np.maximum(means[..., 1], 0.0)
        if self.task.kind == "counts":
            return {"deviance": LARGEST_DEVIANCE * first, "mae": self.task.high * off}
        half = 0.5 * (self.task.high - self.task.low)
        variance = means[..., 3] - (2.0 * means[..., 2] - 1.0) ** 2
        r2 = np.where(variance > 0, 1.0 - first / np.where(variance > 0, variance, 1.0), np.nan)
        return {"rmse": half * np.sqrt(first), "mae": half * off, "r2": r2}


# --- two classes -----------------------------------------------------------------------------------------------------


_SURE = (np.arange(CALIBRATION_BINS) + 0.5) / CALIBRATION_BINS
"""The probabilities in the middle of the bins of (3)."""


def _bins(scores: Array) -> Any:
    """Return the bin (1) of each score."""
    return np.searchsorted(SCORE_EDGES, scores, side="left")


SCORE_EDGES = np.log(EDGES) - np.log1p(-EDGES)
SCORE_EDGES[BINS // 2 - 1] = 0.0
_ENDS = np.concatenate(([SCORE_EDGES[0] - 2 * _OUTER], SCORE_EDGES, [SCORE_EDGES[-1] + 2 * _OUTER]))
_MIDDLES, _WIDTHS = 0.5 * (_ENDS[1:] + _ENDS[:-1]), _ENDS[1:] - _ENDS[:-1]
_PROBABILITIES = 1.0 / (1.0 + np.exp(-_MIDDLES))
_LOSSES = np.logaddexp(0.0, np.stack([_MIDDLES, -_MIDDLES]))
"""The log loss of a record of either class in the middle of a bin."""
_SLOPES = np.stack([_PROBABILITIES, 1.0 - _PROBABILITIES])
_INNER = np.diff(np.concatenate(([0.0], EDGES, [1.0]))) / (12.0 * _PROBABILITIES * (1.0 - _PROBABILITIES))
"""By how much a record of the second class in a bin is likelier than not to be above one of the first in the same bin,
if the predicted probabilities are right and spread evenly."""


def _binary_metrics(h: Array, rows: int) -> Metrics:
    """Return the metrics of histograms of shape (..., 2, BINS), without calibration."""
    first, second = h[..., 0, :], h[..., 1, :]
    middle = BINS // 2
    tn, fp = first[..., :middle].sum(axis=-1), first[..., middle:].sum(axis=-1)
    fn, tp = second[..., :middle].sum(axis=-1), second[..., middle:].sum(axis=-1)
    below = np.cumsum(first, axis=-1) - first
    pairs = (second * (below + (0.5 + 0.5 * np.minimum(_INNER, 0.5)) * first)).sum(axis=-1)
    recall, other = share(tp, tp + fn), share(tn, tn + fp)
    return {
        "accuracy": (tp + tn) / rows,
        "majority": np.maximum(tp + fn, tn + fp) / rows,
        "balanced_accuracy": 0.5 * (recall + other),
        "precision": share(tp, tp + fp),
        "recall": recall,
        "f1": share(2.0 * tp, 2.0 * tp + fp + fn),
        "auc": share(pairs, (tp + fn) * (tn + fp)),
    }


def _log_loss(h: Array, rows: int) -> Array:
    return np.asarray((h * _LOSSES).sum(axis=(-2, -1)) / rows)


def _calibration(h: Array, rows: int) -> Array:
    """Return the sum over bins of equal width of |rows of the second class - predicted ones| / rows."""
    off = h[..., 1, :] - _PROBABILITIES * h.sum(axis=-2)
    return np.asarray(np.abs(np.add.reduceat(off, CALIBRATED, axis=-1)).sum(axis=-1) / rows)


def _binary_figures(
    noisy: Array, rows: int, deviation: float, draw: np.random.Generator, *, probable: bool
) -> dict[str, Any]:
    h = adding_up(noisy.reshape(-1), rows).reshape(2, BINS)
    drawn = drawn_again(h.reshape(-1), rows, deviation, draw).reshape(-1, 2, BINS)
    found, again, shares = _binary_metrics(h, rows), _binary_metrics(drawn, rows), np.clip(h, 0.0, None) / rows
    both = shares.sum(axis=1)
    hidden = {"auc": float((shares[0] * shares[1] * 0.5 * np.minimum(_INNER, 0.5)).sum() / max(both.prod(), 1e-12))}
    if probable:
        found["log_loss"], again["log_loss"] = _log_loss(h, rows), _log_loss(drawn, rows)
        hidden["log_loss"] = float((shares * _SLOPES * _WIDTHS).sum() / 8.0)
    metrics = with_errors(found, again, hidden)
    told: dict[str, Any] = {"metrics": metrics, "confusion": with_deviations(_confusion(h), _confusion(drawn))}
    curves = zip(("fpr", "tpr"), _roc(h), _roc(drawn), strict=True)
    told["roc"] = {name: with_deviations(curve, more) for name, curve, more in curves}
    if probable:
        right = np.stack([(1.0 - _PROBABILITIES), _PROBABILITIES]) * np.clip(h.sum(axis=0), 0.0, None)
        floor = _calibration(drawn_again(right.reshape(-1), rows, deviation, draw).reshape(-1, 2, BINS), rows)
        metrics["calibration_error"] = without_floor(_calibration(h, rows), _calibration(drawn, rows), floor)
        told["calibration"] = {"predicted": _PROBABILITIES.tolist(), **with_deviations(_observed(h), _observed(drawn))}
    told["metrics"] = told_from_noise(metrics, 2)
    return told


def _confusion(h: Array) -> Array:
    """Return the table of (true class, predicted class)."""
    middle = BINS // 2
    return np.stack([h[..., :middle].sum(axis=-1), h[..., middle:].sum(axis=-1)], axis=-1)


def _roc(h: Array) -> tuple[Array, Array]:
    """Return the shares of either class above each edge, from the lowest to the highest."""
    above = np.cumsum(h[..., ::-1], axis=-1)[..., ::-1][..., 1:]
    total = h.sum(axis=-1, keepdims=True)
    shares = share(above, total)
    return shares[..., 0, :], shares[..., 1, :]


def _observed(h: Array) -> Array:
    """Return the share of the second class in each bin."""
    return share(h[..., 1, :], h.sum(axis=-2))


def _calibrated(counts: Array) -> Array:
    """Return (3) of a model that is right as often as it says, with as many rows in each bin."""
    each = np.clip(counts[:CALIBRATION_BINS] + counts[CALIBRATION_BINS:], 0.0, None)
    return np.concatenate([(1.0 - _SURE) * each, _SURE * each])
