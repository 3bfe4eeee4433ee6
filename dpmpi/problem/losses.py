"""Losses of a linear score s = <a, x> for a record (a, y).

    hinge      l(s) = max(0, 1 - y s)             y in {-1, +1}                     (1)
    logistic   l(s) = log(1 + exp(-y s))          y in {-1, +1}                     (2)
    squared    l(s) = (s - y)^2 / 2               y real                            (3)

`slope` is l'(s) or a subgradient; the record's (sub)gradient in x is slope * a. `conjugate` is the Fenchel conjugate
in s, l*(u) = sup_s u s - l(s), infinite outside its domain. For every u and s, l(s) + l*(u) >= u s (Fenchel-Young),
with equality iff u is a subgradient at s: that turns the slopes of any x into a dual certificate.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError, DataError

_FLAT = 350.0
"""Beyond this margin the slope of the logistic loss, 1e-152 from its limit, is taken to be constant.

exp would overflow at 709, and make subnormal numbers from 700 on, which take a processor longer than others.
"""


class Loss(Protocol):
    """A convex loss of a score, elementwise over records; of labels -1 and +1 unless it checks for others."""

    curvature: float | None = None
    """The Lipschitz constant of l', None if there is none."""

    @property
    def smooth(self) -> bool:
        """Whether l has a Lipschitz derivative."""
        return self.curvature is not None

    def value(self, scores: Array, labels: Array) -> Array:
        """Return l(s)."""

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return l'(s), or a subgradient."""

    def to_slope(self, scores: Array, labels: Array) -> None:
        """Overwrite the scores with `slope`, to the last bit."""
        np.copyto(scores, self.slope(scores, labels))

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return l*(alpha); infinity outside the domain."""

    def check_labels(self, labels: Array) -> None:
        """Raise `DataError` for a label that the loss does not take."""
        wrong = np.flatnonzero(np.abs(labels) != 1.0)
        if len(wrong):
            raise DataError(
                f"expected labels -1 and +1, found {labels[wrong[0]]:g} in row {wrong[0]} (counting from 0): "
                "recode the two classes, or use the squared loss"
            )


class Hinge(Loss):
    """The hinge loss (1), with subgradient 0 at the kink y s = 1."""

    def value(self, scores: Array, labels: Array) -> Array:
        """Return max(0, 1 - y s)."""
        return np.maximum(0.0, 1.0 - labels * scores)

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return -y where y s < 1, 0 elsewhere."""
        return -labels * (labels * scores < 1.0)

    def to_slope(self, scores: Array, labels: Array) -> None:
        """Overwrite the scores with `slope`."""
        np.multiply(labels, scores, out=scores)
        np.less(scores, 1.0, out=scores, casting="unsafe")
        np.multiply(labels, scores, out=scores)
        np.negative(scores, out=scores)

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return y alpha for y alpha in [-1, 0]."""
        v = labels * alpha
        return np.where((v >= -1.0) & (v <= 0.0), v, np.inf)

    def smoothed(self, mu: float) -> SmoothedHinge:
        """Return the hinge smoothed with parameter mu, at most mu/2 below it."""
        return SmoothedHinge(mu)


class SmoothedHinge(Loss):
    """Nesterov's smoothing of the hinge.

    With t = 1 - y s,

        l_mu(s) = max over v in [0, 1] of v t - mu v^2 / 2,  attained at v = clip(t / mu, 0, 1)        (4)

    The hinge is (4) with mu = 0, hence 0 <= l - l_mu <= mu/2. The slope is -y v, in the domain of the hinge's
    conjugate, so that a point found with (4) certifies itself for the hinge.
    """

    def __init__(self, mu: float) -> None:
        if not 0.0 < mu < math.inf:
            raise ConfigError(f"expected a smoothing parameter mu > 0, found {mu}")
        self.mu, self.curvature = mu, 1.0 / mu

    def value(self, scores: Array, labels: Array) -> Array:
        """Return (4)."""
        t = 1.0 - labels * scores
        v = np.clip(t / self.mu, 0.0, 1.0)
        return v * (t - 0.5 * self.mu * v)

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return -y v with the maximiser v of (4)."""
        return -labels * np.clip((1.0 - labels * scores) / self.mu, 0.0, 1.0)

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return w + mu w^2 / 2 for w = y alpha in [-1, 0]."""
        w = labels * alpha
        return np.where((w >= -1.0) & (w <= 0.0), w + 0.5 * self.mu * w * w, np.inf)


class Logistic(Loss):
    """The logistic loss (2)."""

    curvature = 0.25

    def value(self, scores: Array, labels: Array) -> Array:
        """Return log(1 + exp(-y s)) without overflow."""
        return np.logaddexp(0.0, -labels * scores)

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return -y / (1 + exp(y s)) without overflow."""
        return -labels / (1.0 + np.exp(np.maximum(np.minimum(labels * scores, _FLAT), -_FLAT)))

    def to_slope(self, scores: Array, labels: Array) -> None:
        """Overwrite the scores with `slope`."""
        np.multiply(labels, scores, out=scores)
        np.minimum(scores, _FLAT, out=scores)
        np.maximum(scores, -_FLAT, out=scores)
        np.exp(scores, out=scores)
        np.add(scores, 1.0, out=scores)
        np.divide(labels, scores, out=scores)
        np.negative(scores, out=scores)

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return p log p + (1 - p) log(1 - p) for p = -y alpha in [0, 1]."""
        p = -labels * alpha
        inside = (p >= 0.0) & (p <= 1.0)
        p = np.where(inside, p, 0.5)
        # At the ends p log p is 0, its limit.
        entropy = p * np.log(np.where(p > 0.0, p, 1.0)) + (1.0 - p) * np.log1p(-np.where(p < 1.0, p, 0.0))
        return np.where(inside, entropy, np.inf)


class Squared(Loss):
    """The squared loss (3)."""

    curvature = 1.0

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

    def check_labels(self, labels: Array) -> None:
        """Raise `DataError` for a label that is not a finite number."""
        wrong = np.flatnonzero(~np.isfinite(labels))
        if len(wrong):
            raise DataError(f"expected finite labels, found {labels[wrong[0]]} in row {wrong[0]} (counting from 0)")


LOSSES: dict[str, Hinge | Logistic | Squared] = {"hinge": Hinge(), "logistic": Logistic(), "squared": Squared()}
