"""Error bars of metrics from noisy counts, and which metrics are not told from noise.

An error bar is a standard deviation over 400 repetitions: rows drawn with the frequencies that were found, N of them,
and fresh noise, from a public seed. It covers what N rows say about the people whom they come from, and the noise. Bins
hide where in them a score lies: for the log loss and the area under the curve what that can change is added. The
calibration error is a sum of absolute values, which noise makes larger: what noise alone would show is taken off, and
half of it is part of the error. Of means of numbers in [0, 1] the variance is taken to be the largest that numbers of
this mean can have.

A metric is not told from noise, and null, if its error is at least that of a blind guess in [0, 1] and, where its
values are not bound to that, two errors from it reach v0, the value of a model that has learned nothing:

    shares (accuracy, f1, auc ...)   error >= 1 / sqrt 12                                                           (1)
    means of numbers and counts      error of the mean, which lies in [0, 1], >= 1 / sqrt 12                        (2)
    R^2                              error >= 1 / sqrt 12      and |value - v0| <= 2 error,  v0 = 0                 (3)
    log loss                         error >= log K / sqrt 12  and |value - v0| <= 2 error,  v0 = log K             (4)

Means over classes of shares that are noise have smaller errors than that: where the accuracy is null, all metrics of
the same counts are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from dpmpi.core import Array

REPETITIONS = 400
BLIND = 1.0 / math.sqrt(12.0)
"""The error of a guess in [0, 1] that knows nothing."""
Metrics: TypeAlias = dict[str, Array]
"""Metrics by name: of one histogram each a number, of many an array."""


def adding_up(counts: Array, rows: int) -> Array:
    """Return counts that add up to the public number of rows, as near to these as possible."""
    return np.asarray(counts - (counts.sum(axis=-1, keepdims=True) - rows) / counts.shape[-1])


def drawn_again(counts: Array, rows: int, deviation: float, draw: np.random.Generator) -> Array:
    """Return the counts of other rows of the same frequencies under other noise, one row a repetition."""
    shares = np.clip(counts, 0.0, None)
    total = shares.sum()
    shares = shares / total if total > 0 else np.full(len(counts), 1.0 / len(counts))
    again = draw.multinomial(rows, shares, REPETITIONS) + deviation * draw.standard_normal((REPETITIONS, len(counts)))
    return adding_up(again, rows)


def share(part: Array, whole: Array) -> Array:
    """Return part / whole in [0, 1]; NaN where noise leaves no whole."""
    known = whole > 0
    return np.where(known, np.clip(part / np.where(known, whole, 1.0), 0.0, 1.0), np.nan)


def mean_known(values: Array) -> Array:
    """Return the mean over the last axis of what is known; NaN if nothing is."""
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)


def with_errors(found: Metrics, again: Metrics, hidden: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return each metric with its error; None for one of which noise leaves nothing.

    The largest of several shares is too large in the mean: by about as much as it is in the repetitions.
    """
    told: dict[str, Any] = {}
    for name, value in found.items():
        if np.isnan(value):
            told[name] = nothing()
            continue
        spread = math.hypot(_deviation(again[name], float(value)), (hidden or {}).get(name, 0.0))
        spread += abs(float(again[name].mean() - value)) if name == "majority" else 0.0
        most = 1.0 if name in ("accuracy", "majority") else math.inf
        least = 0.0 if name in ("accuracy", "majority", "log_loss") else -math.inf
        told[name] = {"value": min(max(float(value), least), most), "error": spread}
    return told


def told_from_noise(metrics: dict[str, Any], classes: int) -> dict[str, Any]:
    """Return the metrics with None for those of (1), (3) and (4), and for all if the accuracy is one of them."""
    noise = {name for name, one in metrics.items() if one["value"] is None or _is_noise(name, classes, **one)}
    noise |= set(metrics) if "accuracy" in noise else set()
    return {name: nothing() if name in noise else one for name, one in metrics.items()}


def _is_noise(name: str, classes: int, value: float, error: float) -> bool:
    """Return whether (1), (3) or (4) holds."""
    if name in ("r2", "log_loss"):
        width, v0 = (1.0, 0.0) if name == "r2" else (math.log(classes), math.log(classes))
        return error >= BLIND * width and abs(value - v0) <= 2.0 * error
    return error >= BLIND


def nothing() -> dict[str, None]:
    """Return a metric that is null."""
    return {"value": None, "error": None}


def _deviation(again: Array, value: float) -> float:
    """Return how far repetitions are from the value, in the mean; one that has no value is off by 1/2."""
    off = np.where(np.isnan(again), 0.5, again - value)
    return float(np.sqrt(np.mean(off**2)))


def without_floor(found: Array, again: Array, floor: Array) -> dict[str, float]:
    """Return a sum of absolute values without what noise alone would show, and its error."""
    least = float(floor.mean())
    value = math.sqrt(max(float(found) ** 2 - least**2, 0.0))
    return {"value": value, "error": math.hypot(float(again.std()), 0.5 * least)}


def with_deviations(value: Array, again: Array) -> dict[str, Any]:
    """Return numbers and their deviations, JSON-ready."""
    error: Array = np.nanstd(again, axis=0) if again.size else np.zeros_like(value)
    return {"value": _listed(value), "error": _listed(error)}


def _listed(values: Array) -> Any:
    """Return nested lists with None for what is not known."""
    if values.ndim:
        return [_listed(one) for one in values]
    return None if np.isnan(values) else float(values)
