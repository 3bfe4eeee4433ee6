"""The Poisson loss of a score s that is the logarithm of the expected count, for a count y = 0, 1, 2 ... B.

    l(s) = e^s - y s - (y - y log y),   slope e^s - y                                                              (1)

is half of the deviance: 0 where e^s = y. Its curvature e^s is not bounded. That of the clipped loss is: where the slope
is not clipped, e^s <= y + L/|a|, so that for |a| <= 1

    e^s |a|^2 <= B |a|^2 + L |a| <= B + L                                                                          (2)

With v = alpha + y >= 0 the conjugate is v log v - v + (y - y log y).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from dpmpi.core import Array
from dpmpi.problem.losses.base import Loss
from dpmpi.problem.task import Task, TaskKind

_HIGHEST = 350.0
"""Beyond this score the count is taken to be constant: e^350 is 10^152, and its square still a number."""


@dataclass(frozen=True)
class Poisson(Loss):
    """The Poisson loss (1) of counts up to a declared bound."""

    kinds: ClassVar[tuple[TaskKind, ...]] = ("counts",)
    flow = 0.25

    bound: float = 1.0
    """B"""

    @property
    def clip(self) -> float:  # type: ignore[override]
        """The standard deviation of a count whose expectation is the bound."""
        return math.sqrt(self.bound)

    def smoothness(self, lipschitz: float) -> float | None:
        """Return (2)."""
        return self.bound + lipschitz

    def for_task(self, task: Task) -> Self:
        """Return the loss of counts up to the task's bound."""
        return replace(self, bound=task.high)

    def value(self, scores: Array, labels: Array) -> Array:
        """Return (1)."""
        return np.exp(np.minimum(scores, _HIGHEST)) - labels * scores - _at_best(labels)

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return e^s - y."""
        return np.exp(np.minimum(scores, _HIGHEST)) - labels

    def to_slope(self, scores: Array, labels: Array) -> None:
        """Overwrite the scores with `slope`."""
        np.minimum(scores, _HIGHEST, out=scores)
        np.exp(scores, out=scores)
        np.subtract(scores, labels, out=scores)

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return v log v - v + (y - y log y) for v = alpha + y >= 0."""
        v = alpha + labels
        return np.where(v >= 0.0, _at_best(labels) - _at_best(np.maximum(v, 0.0)), np.inf)

    def link(self, scores: Array) -> Array:
        """Return the expected counts e^s."""
        return np.exp(np.minimum(scores, _HIGHEST))

    def check_labels(self, labels: Array) -> None:
        """Raise `DataError` for a label that is not a count from 0 to the bound."""
        right = (labels >= 0.0) & (labels <= self.bound) & (labels == np.floor(labels))
        self._check(labels, right, f"whole numbers from 0 to {self.bound:g} as labels", ": declare a larger bound")


def _at_best(counts: Array) -> Array:
    """Return y - y log y: the least of e^s - y s."""
    return counts * (1.0 - np.log(np.where(counts > 0.0, counts, 1.0)))
