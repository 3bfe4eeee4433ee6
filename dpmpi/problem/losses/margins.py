"""Losses of the margin y s of a score s, for two classes y = -1 and y = +1.

hinge      l(s) = max(0, 1 - y s)                                                                              (1)
logistic   l(s) = log(1 + exp(-y s))                                                                           (2)
"""

from __future__ import annotations

import math

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError
from dpmpi.problem.losses.base import Loss

_FLAT = 350.0
"""Beyond this margin the slope of the logistic loss, 1e-152 from its limit, is taken to be constant.

exp would overflow at 709, and make subnormal numbers from 700 on, which take a processor longer than others.
"""


class Hinge(Loss):
    """The hinge loss (1), with subgradient 0 at the kink y s = 1."""

    kinked = True
    flow = 0.35
    at_zero = 1.0

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

        l_mu(s) = max over v in [0, 1] of v t - mu v^2 / 2,  attained at v = clip(t / mu, 0, 1)        (3)

    The hinge is (3) with mu = 0, hence 0 <= l - l_mu <= mu/2. The slope is -y v, in the domain of the hinge's
    conjugate, so that a point found with (3) certifies itself for the hinge.
    """

    def __init__(self, mu: float) -> None:
        if not 0.0 < mu < math.inf:
            raise ConfigError(f"expected a smoothing parameter mu > 0, found {mu}")
        self.mu, self.curvature = mu, 1.0 / mu

    def value(self, scores: Array, labels: Array) -> Array:
        """Return (3)."""
        t = 1.0 - labels * scores
        v = np.clip(t / self.mu, 0.0, 1.0)
        return v * (t - 0.5 * self.mu * v)

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return -y v with the maximiser v of (3)."""
        return -labels * np.clip((1.0 - labels * scores) / self.mu, 0.0, 1.0)

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return w + mu w^2 / 2 for w = y alpha in [-1, 0]."""
        w = labels * alpha
        return np.where((w >= -1.0) & (w <= 0.0), w + 0.5 * self.mu * w * w, np.inf)


class Logistic(Loss):
    """The logistic loss (2)."""

    curvature = 0.25
    clip = 0.5
    at_zero = math.log(2.0)

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

    def link(self, scores: Array) -> Array:
        """Return the probability of the class +1."""
        return 1.0 / (1.0 + np.exp(np.maximum(np.minimum(-scores, _FLAT), -_FLAT)))
