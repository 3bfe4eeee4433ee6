"""Losses of the residual r = s - y of a number y, scaled to [-1, 1].

    squared    l(s) = r^2 / 2                                                                                      (1)
    huber      l(s) = r^2 / 2 for |r| <= delta,  delta |r| - delta^2 / 2 beyond                                    (2)

The slope of (2) is r clipped to [-delta, delta]. For rows of norm at most 1, (1) with its gradients clipped to L is (2)
with a delta of L/|a| for the record a; (2) with L = delta is never clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError
from dpmpi.problem.losses.base import Loss
from dpmpi.problem.task import TaskKind


class Squared(Loss):
    """The squared loss (1)."""

    kinds: ClassVar[tuple[TaskKind, ...]] = ("regression",)
    curvature = 1.0
    flow = 0.25

    def value(self, scores: Array, labels: Array) -> Array:
        """Return (s - y)^2 / 2."""
        residual = scores - labels
        return 0.5 * residual * residual

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return s - y."""
        return scores - labels

    def to_slope(self, scores: Array, labels: Array) -> None:
        """Overwrite the scores with `slope`."""
        np.subtract(scores, labels, out=scores)

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return alpha^2 / 2 + alpha y."""
        return alpha * (0.5 * alpha + labels)


@dataclass(frozen=True)
class Huber(Loss):
    """The Huber loss (2)."""

    kinds: ClassVar[tuple[TaskKind, ...]] = ("regression",)
    curvature = 1.0
    flow = 0.25

    delta: float = 0.5
    """Where the slope stops to grow, in units of the scaled label: 1 is half of the declared range."""

    def __post_init__(self) -> None:
        if not 0.0 < self.delta < math.inf:
            raise ConfigError(f"expected a delta above 0 for the Huber loss, found {self.delta:g}: 0.5 is usual")

    @property
    def clip(self) -> float:  # type: ignore[override]
        """The largest slope: nothing is clipped twice."""
        return self.delta

    def value(self, scores: Array, labels: Array) -> Array:
        """Return (2)."""
        residual = np.abs(scores - labels)
        inside = np.minimum(residual, self.delta)
        return inside * (residual - 0.5 * inside)

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return s - y, clipped to [-delta, delta]."""
        return np.clip(scores - labels, -self.delta, self.delta)

    def to_slope(self, scores: Array, labels: Array) -> None:
        """Overwrite the scores with `slope`."""
        np.subtract(scores, labels, out=scores)
        np.clip(scores, -self.delta, self.delta, out=scores)

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return alpha^2 / 2 + alpha y for |alpha| <= delta."""
        return np.where(np.abs(alpha) <= self.delta, alpha * (0.5 * alpha + labels), np.inf)
