"""How good predictions are: figures of classes, probabilities, numbers and counts, from sums over records.

All figures are functions of sums over the held-out records, so that ranks can add up theirs. With n records, m_jk the
number of class j that were predicted as k, p a predicted probability and y in {0, 1} whether it came true,

    accuracy            sum_k m_kk / n,   and beside it `majority` = max_j sum_k m_jk / n, that of a constant       (1)
    recall_k            m_kk / sum_j m_kj            precision_k   m_kk / sum_j m_jk,  0 if k was never predicted   (2)
    f1_k                2 m_kk / (sum_j m_kj + sum_j m_jk)                                                          (3)
    balanced_accuracy   mean of recall_k over the classes that occur                                                (4)
    log_loss            mean of -log p of the class that came true                                                  (5)
    calibration_error   sum_b (n_b / n) |mean p - mean y| over the records of bin b: 20 bins of p of equal width    (6)
    auc                 P(s > s') + P(s = s') / 2 for a record of the class and one of another, s their scores      (7)
    rmse, mae, r2       sqrt(mean e^2), mean |e|, 1 - mean e^2 / variance of y; e = prediction - y, original units  (8)
    deviance            2 mean(y log(y / mu) - y + mu) for counts y and their predictions mu                        (9)

Of two classes precision, recall, F1 and AUC are those of the second, and p in (6) is its probability. Of K classes they
are means over the classes that occur among the records (macro), AUC of the probabilities of one against the rest, and p
in (6) is that of the predicted class. What is not defined is None: AUC of one class alone, R^2 of equal labels.

AUC alone needs more than sums of fixed length. `metrics` sorts and is exact. Over ranks, scores are counted in G bins
whose edges are normal quantiles around the mean score; two records in one bin count as equal, so that

    |auc - exact| <= auc_error = (1/2) sum_b P_b N_b / (P N)     P_b, N_b: records of the class, and others, in b  (10)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.model.model import probabilities
from dpmpi.problem.task import Task

Metrics: TypeAlias = dict[str, float | None]
Sums: TypeAlias = dict[str, Array]

CALIBRATION_BINS = 20
"""Bins of a probability: those of (6), of a reliability curve and of a private histogram."""
INNER_EDGES: Array = np.arange(1, CALIBRATION_BINS) / CALIBRATION_BINS
RANKING_BINS = 4096
LEAST_RANKING_BINS = 256
LOWER_IS_BETTER = frozenset({"log_loss", "calibration_error", "rmse", "mae", "deviance"})
NOT_OF_A_MODEL = frozenset({"majority", "auc_error"})
"""Figures of the records, or about another figure."""


def probability_bin(p: Array) -> NDArray[np.intp]:
    """Return the bin of each probability; an inner edge belongs to the bin below it, as in scikit-learn."""
    return np.searchsorted(INNER_EDGES, p)


def metrics(task: Task, scores: Array, labels: Array, *, link: str = "none") -> Metrics:
    """Return all figures of scores, n or n x K, for labels as the loss has them; `link` as in `Model`."""
    table = scores.reshape(len(labels), task.scores)
    found = figures(task, sums(task, link, table, labels))
    if task.classifies:
        ranks, codes = ranking(task, table), class_codes(task, labels)
        each = [_exact_auc(ranks[:, k], codes == _class_of(task, k)) for k in range(ranks.shape[1])]
        found["auc"] = _mean([auc for k, auc in enumerate(each) if task.kind == "binary" or np.any(codes == k)])
    return found


def class_codes(task: Task, labels: Array) -> NDArray[np.intp]:
    """Return labels of the loss as codes from 0 on: of two classes -1 and +1 are 0 and 1."""
    return (labels > 0.0).astype(np.intp) if task.kind == "binary" else labels.astype(np.intp)


def ranking(task: Task, scores: Array) -> Array:
    """Return the keys that AUC sorts by: scores, or for each of K classes the log odds log(p / (1 - p)), rising with p.

    They are s_k - log sum over j != k of exp(s_j).
    """
    if task.kind == "binary":
        return scores
    odds = np.empty_like(scores)
    for k in range(scores.shape[-1]):
        others = np.delete(scores, k, axis=-1)
        top = others.max(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):  # of a run that diverged
            odds[..., k] = scores[..., k] - top[..., 0] - np.log(np.exp(others - top).sum(axis=-1))
    return odds


def sums(
    task: Task, link: str, scores: Array, labels: Array, grid: Array | None = None, bins: int = RANKING_BINS
) -> Sums:
    """Return the sums over records that `figures` needs, arrays whose shapes do not depend on the records.

    `grid` has the mean and the standard deviation of each column of `ranking`; without it there are no counts for AUC,
    for which all columns together have so many bins. Of several models' scores, M x n x K, with as many grids, the
    arrays have a first axis of length M.
    """
    if scores.ndim == 2:
        found = sums(task, link, scores[None], labels, None if grid is None else grid[None], bins)
        return {name: value[0] for name, value in found.items()}
    with np.errstate(
        over="ignore", invalid="ignore", divide="ignore"
    ):  # a run that diverged has no figures, not an end
        return _sums(task, link, scores, labels, grid, bins)


def _sums(task: Task, link: str, scores: Array, labels: Array, grid: Array | None, bins: int) -> Sums:
    if not task.classifies:
        return _error_sums(task, scores[..., 0], labels)
    K, codes = len(task.classes), class_codes(task, labels)
    predicted = np.argmax(scores, axis=-1) if task.kind == "multiclass" else (scores[..., 0] > 0.0).astype(np.intp)
    found = {"confusion": _counts(codes * K + predicted, K * K).reshape(-1, K, K)}
    if link in ("logistic", "softmax"):
        found |= _probability_sums(task, link, scores, codes, predicted)
    if grid is not None:
        found["ranking"] = _ranking_counts(task, ranking(task, scores), codes, grid, bins)
    return found


def moments(task: Task, scores: Array) -> Array:
    """Return the sums from which `grid_of` finds the grid: records, and for each column its sum and that of squares.

    Of the scores of several models they are rows of a matrix.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        values = np.clip(np.nan_to_num(ranking(task, scores)), -1e6, 1e6)
    count = np.full((*values.shape[:-2], 1), float(values.shape[-2]))
    return np.concatenate([count, values.sum(axis=-2), (values * values).sum(axis=-2)], axis=-1)


def grid_of(summed: Array) -> Array:
    """Return means and standard deviations of the columns from the sums of `moments`."""
    n, (first, second) = np.maximum(summed[..., :1], 1.0), np.split(summed[..., 1:], 2, axis=-1)
    mean = first / n
    spread = np.sqrt(np.maximum(second / n - mean * mean, 0.0))
    return np.stack([mean, np.where(spread > 0.0, spread, 1.0)], axis=-2)


def figures(task: Task, found: Mapping[str, Array]) -> Metrics:
    """Return (1) to (9) from sums; AUC with (10) if the sums have counts for it. What is no number is None."""
    told = _class_figures(task, found) if task.classifies else _error_figures(task, found["errors"])
    return {name: value if value is not None and np.isfinite(value) else None for name, value in told.items()}


def _class_figures(task: Task, found: Mapping[str, Array]) -> Metrics:
    """Return (1) to (7)."""
    m = found["confusion"]
    n, true, guessed, right = m.sum(), m.sum(axis=1), m.sum(axis=0), np.diag(m)
    if not n:
        return {}
    recall, precision = _ratio(right, true), _ratio(right, guessed)
    f1, occurs = _ratio(2.0 * right, true + guessed), true > 0.0
    told: Metrics = {"accuracy": float(right.sum() / n), "majority": float(true.max() / n)}
    told["balanced_accuracy"] = float(recall[occurs].mean())
    for name, values in (("precision", precision), ("recall", recall), ("f1", f1)):
        told[name] = float(values[1]) if task.kind == "binary" else float(values[occurs].mean())
    if "log_loss" in found:
        told["log_loss"] = float(found["log_loss"][0] / n)
        told["calibration_error"] = float(np.abs(found["calibration"][:, 1] - found["calibration"][:, 2]).sum() / n)
    if "ranking" in found:
        each = [(*_binned_auc(counts), occurs[_class_of(task, k)]) for k, counts in enumerate(found["ranking"])]
        kept = [(auc, error) for auc, error, there in each if there or task.kind == "binary"]
        told["auc"], told["auc_error"] = (_mean([pair[i] for pair in kept]) for i in (0, 1))
    return told


def reliability(found: Mapping[str, Array]) -> list[list[float]] | None:
    """Return (mean p, mean y, records) of each bin of (6) that has any; None without probabilities."""
    if "calibration" not in found:
        return None
    return [[float(p / n), float(y / n), float(n)] for n, p, y in found["calibration"] if n]


def worst(name: str, values: list[float]) -> float:
    """Return the worst of several figures of a name."""
    return max(values) if name in LOWER_IS_BETTER else min(values)


def _probability_sums(
    task: Task, link: str, scores: Array, codes: NDArray[np.intp], predicted: NDArray[np.intp]
) -> Sums:
    """Return the sums of (5) and (6)."""
    M, n, K = scores.shape
    p = probabilities(scores.reshape(M * n, K), link)
    p = p.reshape(M, n, p.shape[1])
    if task.kind == "binary":
        loss = np.logaddexp(0.0, np.where(codes == 1, -scores[..., 0], scores[..., 0]))
        sure, came = p[..., 1], np.broadcast_to(codes == 1, (M, n))
    else:
        true = np.broadcast_to(codes[:, None], (M, n, 1))
        loss = np.logaddexp(0.0, -np.take_along_axis(ranking(task, scores), true, axis=2)[..., 0])
        sure, came = np.take_along_axis(p, predicted[..., None], axis=2)[..., 0], codes == predicted
    where = probability_bin(sure)
    columns = [_counts(where, CALIBRATION_BINS, weights) for weights in (None, sure, came.astype(np.float64))]
    return {"log_loss": loss.sum(axis=1, keepdims=True), "calibration": np.stack(columns, axis=2)}


def _ranking_counts(task: Task, values: Array, codes: NDArray[np.intp], grid: Array, bins: int) -> Array:
    """Return for each column how many records of the class, and how many others, fall into each bin of (10)."""
    G = max(LEAST_RANKING_BINS, bins // values.shape[-1])
    edges, found = _normal_quantiles(G), []
    for k in range(values.shape[-1]):
        where = np.searchsorted(edges, (values[..., k] - grid[:, 0, k, None]) / grid[:, 1, k, None])
        mine = codes == _class_of(task, k)
        found.append([_counts(where[:, mine], G), _counts(where[:, ~mine], G)])
    return np.moveaxis(np.array(found), 2, 0)


@cache
def _normal_quantiles(G: int) -> Array:
    """Return the G - 1 inner edges of bins that a standard normal number falls into equally often."""
    from statistics import NormalDist  # noqa: PLC0415 - evaluation alone needs it

    normal = NormalDist()
    return np.array([normal.inv_cdf(k / G) for k in range(1, G)])


def _binned_auc(counts: Array) -> tuple[float | None, float | None]:
    """Return (7) of counts by bin, and (10)."""
    mine, others = counts
    P, N = mine.sum(), others.sum()
    if not P or not N:
        return None, None
    below = np.cumsum(others) - others
    ties = float(0.5 * (mine * others).sum() / (P * N))
    return float((mine * below).sum() / (P * N)) + ties, ties


def _exact_auc(values: Array, mine: NDArray[np.bool_]) -> float | None:
    """Return (7), of equal scores by half."""
    P, N = int(mine.sum()), int((~mine).sum())
    if not P or not N:
        return None
    others = np.sort(values[~mine])
    below, upto = (np.searchsorted(others, values[mine], side=side) for side in ("left", "right"))
    return float((below + upto).sum() / (2.0 * P * N))


def _error_sums(task: Task, scores: Array, labels: Array) -> Sums:
    """Return the sums of (8) and (9): records, labels and their squares around the middle, |e|, e^2, deviance."""
    y = task.unscaled(labels)
    predicted = np.exp(np.minimum(scores, 700.0)) if task.kind == "counts" else task.unscaled(scores)
    d, e = y - 0.5 * (task.low + task.high), predicted - y
    deviance = np.zeros(len(e))
    if task.kind == "counts":
        positive = np.where(y > 0.0, y, 1.0)
        deviance = np.sum(2.0 * (np.where(y > 0.0, y * (np.log(positive) - scores), 0.0) + e), axis=1)
    of_records = [np.full(len(e), value) for value in (float(len(y)), d.sum(), (d * d).sum())]
    return {"errors": np.stack([*of_records, np.abs(e).sum(axis=1), (e * e).sum(axis=1), deviance], axis=1)}


def _error_figures(task: Task, found: Array) -> Metrics:
    """Return (8), and (9) for counts."""
    n, first, second, absolute, squared, deviance = (float(value) for value in found)
    if not n:
        return {}
    spread = second - first * first / n
    told: Metrics = {"rmse": float(np.sqrt(squared / n)), "mae": absolute / n}
    told["r2"] = 1.0 - squared / spread if spread > 1e-12 * max(second, 1e-300) else None
    return told | ({"deviance": deviance / n} if task.kind == "counts" else {})


def _class_of(task: Task, column: int) -> int:
    """Return the class that a column of `ranking` is the score of."""
    return 1 if task.kind == "binary" else column


def _counts(where: NDArray[np.intp], length: int, weights: Array | None = None) -> Array:
    """Return how often each of `length` numbers is in each row, or the sum of its weights."""
    M = len(where)
    apart = where + length * np.arange(M)[:, None]
    found = np.bincount(apart.reshape(-1), None if weights is None else weights.reshape(-1), minlength=M * length)
    return found.astype(np.float64).reshape(M, length)


def _ratio(above: Array, below: Array) -> Array:
    """Return above / below, 0 where below is 0."""
    return np.asarray(np.divide(above, below, out=np.zeros_like(above), where=below > 0.0))


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
