"""All contracts of a loss, and the table of which it keeps.

With l the loss, u its slope, c its `curvature` and l* its conjugate, for all scores s, s' and all labels:

    l(s') >= l(s) + <u(s), s' - s>                       u is a subgradient, hence l is convex                     (1)
    <u(s), d> = (l(s + h d) - l(s - h d)) / 2h + O(h)    for all directions d, where u is Lipschitz               (2)
    |u(s) - u(s')| <= c |s - s'|                                                                                   (3)
    l(s) + l*(v) >= <v, s>, with equality for v = u(s)   Fenchel-Young                                             (4)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.algorithms.dda import DpDda
from dpmpi.core import Array
from dpmpi.errors import DataError
from dpmpi.problem.losses import Loss
from dpmpi.problem.task import Task
from dpmpi.runtime.flags import from_text, from_values
from dpmpi.runtime.plugins import loss_of, settings_of_loss
from dpmpi.testing.methods import run_contracts
from dpmpi.testing.releases import check_no_leak, check_sensitivity
from dpmpi.testing.simulation import labels_of, usual_task

MakeLoss = Callable[[], Loss]
_CLOSE = 1e-9


def check_loss(make: MakeLoss) -> None:
    """Print a table of all contracts of a loss; raise AssertionError if one is broken. `make()` returns the loss."""
    plain = make()
    task = usual_task(plain)
    loss, draw = plain.for_task(task), np.random.default_rng(0)
    scores, labels = _points(loss, task, draw)
    short: dict[str, Any] = {"loss": plain, "rounds": 3}
    run_contracts(
        type(plain).__name__,
        {
            "settings": ("its name and numbers are settings, as in config.toml", lambda: _check_settings(plain)),
            "shapes": (
                "a value for each record, slopes of the scores' shape",
                lambda: _check_shapes(loss, scores, labels),
            ),
            "one record": ("a record's loss depends on that record alone", lambda: _check_alone(loss, scores, labels)),
            "slope": ("the slope is a subgradient, and the loss convex", lambda: _check_convex(loss, scores, labels)),
            "differences": (
                "the slope of a smooth loss is its derivative",
                lambda: _check_differences(loss, scores, labels, draw),
            ),
            "curvature": (
                "`curvature` bounds how fast the slope changes",
                lambda: _check_curvature(loss, scores, labels),
            ),
            "steepest": ("`steepest` bounds the slope", lambda: _check_steepest(loss, scores, labels)),
            "in place": ("`to_slope` is `slope` to the last bit", lambda: _check_in_place(loss, scores, labels)),
            "conjugate": ("`conjugate` is that of the loss", lambda: _check_conjugate(loss, scores, labels)),
            "large scores": ("scores of any size have finite slopes", lambda: _check_large(loss, task)),
            "labels": ("it takes its task's labels, and no others", lambda: _check_labels(loss, task)),
            "sensitivity": (
                "one record moves a clipped gradient no further than declared",
                lambda: check_sensitivity(DpDda, lipschitz=0.5, **short),
            ),
            "no leak": ("a run sends nothing of the records but releases", lambda: check_no_leak(DpDda, **short)),
        },
    )


def _points(loss: Loss, task: Task, draw: np.random.Generator, count: int = 240) -> tuple[Array, Array]:
    """Return scores, near 0 and far from it, and labels."""
    shape = (count,) if loss.scores == 1 else (count, loss.scores)
    spread = draw.choice([0.3, 3.0], count)
    return draw.standard_normal(shape) * (spread if loss.scores == 1 else spread[:, None]), _labels(task, draw, count)


def _labels(task: Task, draw: np.random.Generator, count: int) -> Array:
    return draw.uniform(-1.0, 1.0, count) if task.kind == "regression" else draw.choice(labels_of(task), count)


def _inner(u: Array, s: Array) -> Array:
    """Return the inner product of each row."""
    product = u * s
    return product if product.ndim == 1 else np.asarray(product.sum(axis=1))


def _worst(excess: Array) -> tuple[int, float]:
    where = int(np.argmax(excess))
    return where, float(excess[where])


def _check_settings(loss: Loss) -> None:
    given = settings_of_loss(loss)
    if loss.kinds[0] in ("regression", "counts"):
        given["label_range"] = "0:20" if loss.kinds[0] == "counts" else "-1:1"
    config = from_values(given)
    again = from_text(config.to_toml(), Path("config.toml"), {})
    if loss_of(again.loss or "", again.plugin_digest) != loss and vars(loss):
        raise AssertionError(f"expected {loss} of its settings, found another: keep all that it is in its fields")


def _check_shapes(loss: Loss, scores: Array, labels: Array) -> None:
    kept = scores.copy()
    value, slope = loss.value(scores, labels), loss.slope(scores, labels)
    if value.shape != labels.shape or slope.shape != scores.shape:
        raise AssertionError(
            f"expected values of shape {labels.shape} and slopes of shape {scores.shape}, found {value.shape} and "
            f"{slope.shape}"
        )
    if not np.array_equal(scores, kept):
        raise AssertionError("expected scores as they were after `value` and `slope`, found others: work on a copy")
    if not (np.isfinite(value).all() and np.isfinite(slope).all()):
        raise AssertionError("expected finite values and slopes, found others")


def _check_alone(loss: Loss, scores: Array, labels: Array) -> None:
    some = slice(0, None, 7)
    for name in ("value", "slope"):
        whole, part = getattr(loss, name)(scores, labels)[some], getattr(loss, name)(scores[some], labels[some])
        if not np.array_equal(whole, part):
            raise AssertionError(
                f"expected the same `{name}` of a record whatever others are beside it, found another: no means, ranks "
                "or ranges over records, which the sensitivity does not cover"
            )


def _check_convex(loss: Loss, scores: Array, labels: Array) -> None:
    value, slope = loss.value(scores, labels), loss.slope(scores, labels)
    for shift in range(1, len(labels), 11):
        there = np.roll(scores, shift, axis=0)
        gap = value + _inner(slope, there - scores) - loss.value(there, labels)
        where, most = _worst(gap - _CLOSE * (1.0 + np.abs(value)))
        if most > 0.0:
            raise AssertionError(
                f"l(s') >= l(s) + slope(s) (s' - s) fails by {gap[where]:.3g} for s = {scores[where]}, s' = "
                f"{there[where]}, label {labels[where]:g}: is a sign of the slope wrong, or the loss not convex?"
            )


def _check_differences(loss: Loss, scores: Array, labels: Array, draw: np.random.Generator) -> None:
    if not loss.smooth:
        return
    h, d = 1e-6, draw.standard_normal(scores.shape)
    difference = (loss.value(scores + h * d, labels) - loss.value(scores - h * d, labels)) / (2.0 * h)
    slope = _inner(loss.slope(scores, labels), d)
    off = np.abs(slope - difference)
    bound = 1e-5 * (1.0 + (loss.curvature or 0.0)) * (1.0 + np.abs(difference) + np.abs(loss.value(scores, labels)))
    where, most = _worst(off - bound)
    if most > 0.0:
        raise AssertionError(
            f"expected a slope of {difference[where]:.6g} by differences, found {slope[where]:.6g} at s = "
            f"{scores[where]}, label {labels[where]:g}"
        )


def _check_curvature(loss: Loss, scores: Array, labels: Array) -> None:
    if loss.curvature is None:
        return
    slope = loss.slope(scores, labels)
    for step in (1e-4, 0.1, 3.0):
        there = scores + step * np.sign(np.roll(scores, 1, axis=0))
        changed = _norms(loss.slope(there, labels) - slope)
        where, most = _worst(changed - loss.curvature * _norms(there - scores) * (1.0 + 1e-6) - 1e-9)
        if most > 0.0:
            raise AssertionError(
                f"expected slopes to change by at most curvature = {loss.curvature:g} times the distance, found "
                f"{changed[where] / _norms(there - scores)[where]:.4g} at s = {scores[where]}: raise it, or say None"
            )


def _norms(rows: Array) -> Array:
    return np.abs(rows) if rows.ndim == 1 else np.asarray(np.linalg.norm(rows, axis=1))


def _check_steepest(loss: Loss, scores: Array, labels: Array) -> None:
    most = float(_norms(loss.slope(scores, labels)).max())
    if loss.steepest is not None and most > loss.steepest * (1 + 1e-9):
        raise AssertionError(f"expected slopes of at most steepest = {loss.steepest:g}, found {most:.4g}")


def _check_in_place(loss: Loss, scores: Array, labels: Array) -> None:
    written = scores.copy()
    loss.to_slope(written, labels)
    if not np.array_equal(written, loss.slope(scores, labels)):
        raise AssertionError("expected `to_slope` to write what `slope` returns, found other bits: drop `to_slope`")


def _check_conjugate(loss: Loss, scores: Array, labels: Array) -> None:
    if not loss.certifies:
        return
    value, slope = loss.value(scores, labels), loss.slope(scores, labels)
    room = 1e-7 * (1.0 + np.abs(value) + np.abs(_inner(slope, scores)))
    at_slope = value + loss.conjugate(slope, labels) - _inner(slope, scores)
    where, most = _worst(np.abs(at_slope) - room)
    if not most <= 0.0:
        found = f"{at_slope[where]:.3g} more at s = {scores[where]}"
        raise AssertionError(f"expected l(s) + l*(u) = u s for the slope u, found {found}: correct `conjugate`")
    for shift in range(1, len(labels), 23):
        other = loss.slope(np.roll(scores, shift, axis=0), labels)
        gap = _inner(other, scores) - value - loss.conjugate(other, labels)
        where, most = _worst(gap - room)
        if most > 0.0:
            raise AssertionError(f"expected l(s) + l*(v) >= v s, found {gap[where]:.3g} less at s = {scores[where]}")


def _check_large(loss: Loss, task: Task) -> None:
    for size in (1e3, 1e8):
        for label in labels_of(task):
            scores = size * (np.array([-1.0, 1.0]) if loss.scores == 1 else np.eye(loss.scores) - 0.5)
            with np.errstate(all="ignore"):
                found = loss.slope(scores, np.full(len(scores), label))
            if np.isnan(found).any():
                raise AssertionError(f"expected slopes at scores of size {size:g}, found NaN: guard against overflow")


def _check_labels(loss: Loss, task: Task) -> None:
    loss.check_labels(labels_of(task))
    for wrong in (np.nan, np.inf):
        try:
            loss.check_labels(np.array([labels_of(task)[0], wrong]))
        except DataError:
            continue
        raise AssertionError(f"expected `check_labels` to refuse {wrong}, found that it does not")
