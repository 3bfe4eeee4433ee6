"""The softmax (multinomial logistic) loss of K scores, for a class y = 0 ... K-1.

    l(s) = log sum_k e^(s_k) - s_y,   p_k = e^(s_k) / sum_j e^(s_j),   slope p - e_y                               (1)

The record's gradient is the matrix a (p - e_y)' of norm |a| |p - e_y| <= sqrt(2) |a|. At s = 0 it has the norm
sqrt((K-1)/K) |a|, between 1/sqrt 2 and 1: a clip of 1/sqrt 2 keeps the direction of every record, and shortens those
that are far from right. The curvature is that of log sum exp, at most 1/2. With q = u + e_y in the simplex the
conjugate is sum_k q_k log q_k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from dpmpi.core import Array
from dpmpi.problem.losses.base import Loss
from dpmpi.problem.task import Task, TaskKind

_ROUNDING = 1e-12
_FLAT = 350.0
"""A score so far below the largest counts as that far: its part of 1e-152 does not matter, and is no subnormal number,
which would take a processor longer than others."""


@dataclass(frozen=True)
class Softmax(Loss):
    """The softmax loss (1) of `classes` scores; 0 as long as the classes are not known."""

    kinds: ClassVar[tuple[TaskKind, ...]] = ("multiclass",)
    curvature = 0.5
    clip = math.sqrt(0.5)
    steepest = math.sqrt(2.0)

    classes: int = 0
    """K"""

    @property
    def scores(self) -> int:  # type: ignore[override]
        """The scores of a record."""
        return self.classes

    @property
    def at_zero(self) -> float:  # type: ignore[override]
        """The value of log K at the scores 0."""
        return math.log(self.classes)

    def for_task(self, task: Task) -> Self:
        """Return the loss of the task's classes."""
        return replace(self, classes=task.scores)

    def value(self, scores: Array, labels: Array) -> Array:
        """Return (1) without overflow."""
        top = scores.max(axis=1, initial=-np.inf)
        rest = np.log(np.exp(np.maximum(scores - top[:, None], -_FLAT)).sum(axis=1))
        return np.asarray(top + rest - _of_class(scores, labels))

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return p - e_y."""
        found = scores.copy()
        self.to_slope(found, labels)
        return found

    def to_slope(self, scores: Array, labels: Array) -> None:
        """Overwrite the scores with `slope`."""
        scores -= scores.max(axis=1, initial=-np.inf)[:, None]
        np.maximum(scores, -_FLAT, out=scores)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1)[:, None]
        scores[np.arange(len(scores)), labels.astype(np.intp)] -= 1.0

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return the sum of q_k log q_k for q = alpha + e_y in the simplex, up to rounding."""
        q = alpha.copy()
        q[np.arange(len(q)), labels.astype(np.intp)] += 1.0
        inside = (q.min(axis=1, initial=0.0) >= -_ROUNDING) & (np.abs(q.sum(axis=1) - 1.0) <= _ROUNDING)
        # Where q is 0, q log q is 0, its limit.
        entropy = (q * np.log(np.where(q > 0.0, q, 1.0))).sum(axis=1)
        return np.where(inside, entropy, np.inf)

    def link(self, scores: Array) -> Array:
        """Return the probabilities p."""
        p: Array = np.exp(np.maximum(scores - scores.max(axis=1, initial=-np.inf)[:, None], -_FLAT))
        p /= p.sum(axis=1)[:, None]
        return p

    def check_labels(self, labels: Array) -> None:
        """Raise `DataError` for a label that is not a class."""
        right = (labels >= 0.0) & (labels < self.classes) & (labels == np.floor(labels))
        self._check(labels, right, f"classes coded 0 to {self.classes - 1}", ": declare all classes (--classes)")


def _of_class(scores: Array, labels: Array) -> Array:
    return np.asarray(scores[np.arange(len(scores)), labels.astype(np.intp)])
