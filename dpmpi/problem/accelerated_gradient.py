"""A smooth convex function plus a square, minimised by accelerated gradient steps whose number data cannot change.

For f convex, its gradient at most L long and beta-Lipschitz, and a weight w > 0, the minimum of

    F(x) = f(x) + (w/2) |x - c|^2                                                                   (1)

is x* = c - grad f(x*) / w, hence at most L / w from the centre c, whatever f is. F is w-strongly convex and
(beta + w)-smooth. With q = w / (beta + w), A_0 = 0, x_0 = z_0 = c, written relative to c, the method of [TD23] is

    A_k+1   = ((1 + q) A_k + 2 (1 + sqrt((1 + A_k) (1 + q A_k)))) / (1 - q)^2                       (2)
    b_k     = A_k / ((1 - q) A_k+1),   d_k = ((1 - q)^2 A_k+1 - (1 + q) A_k) / (2 (1 + q + q A_k))  (3)
    y_k     = (1 - b_k) z_k + b_k x_k                                                               (4)
    x_k+1   = (1 - q) y_k - grad f(c + y_k) / (beta + w)                                            (5)
    z_k+1   = (1 - q d_k) z_k - d_k grad f(c + y_k) / (beta + w)                                    (6)

in which the gradient of the square is worked into (5) and (6). Its theorem,
|z_N - (x* - c)|^2 <= |x* - c|^2 / (1 + q A_N), with the bound on x* - c, says that

    |c + z_N - x*| <= tau / w   as soon as   1 + q A_N >= (L / tau)^2                               (7)

N, about sqrt((beta + w) / w) log(L / tau), is a function of beta / w and L / tau alone: of nothing in f, in c or on the
way. So is the number of gradients, N + 1 with the one that checks what (7) implies, |grad F| <= (beta + w) tau / w. No
method that uses gradients alone needs fewer for all f of this kind [TD23]; one that stops when it is done needs fewer
for most, and its duration then tells something about f.

[TD23] Taylor, Drori. An optimal gradient method for smooth strongly convex minimization. Mathematical Programming 199,
       2023. Algorithm "ITEM", Theorem 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from dpmpi.core import Array, combine
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError

Gradient: TypeAlias = Callable[[Array, Array], None]
"""Writes the gradient of f at its first argument to its second."""

_FINEST = 2.0**52
"""The largest L / tau: beyond it (7) is about digits that a float does not have."""


@frozen
class Bounds:
    """What holds for every f: the bounds of (1)."""

    lipschitz: float
    """L"""
    smoothness: float
    """beta"""
    weight: float
    """w"""

    @property
    def steepness(self) -> float:
        """The smoothness beta + w of F; a beta of next to nothing is rounded up, so that q stays below 1."""
        return max(self.smoothness, 1e-6 * self.weight) + self.weight

    def steps(self, tolerance: float) -> tuple[tuple[float, float], ...]:
        """Return (b_k, d_k) for k = 0 ... N - 1, N the smallest number that satisfies (7)."""
        if not self.lipschitz <= _FINEST * tolerance:
            raise ConfigError(
                f"expected a tolerance of at least {self.lipschitz / _FINEST:.2g}, found {tolerance:.2g}: "
                "give a larger one (--tolerance)"
            )
        return _coefficients(self.weight / self.steepness, self.lipschitz / tolerance)


@lru_cache(maxsize=64)
def _coefficients(q: float, reduction: float) -> tuple[tuple[float, float], ...]:
    """Return (3) until 1 + q A_k reaches the square of the reduction."""
    found, A = [], 0.0
    while 1.0 + q * A < reduction**2:  # (7)
        last, A = A, ((1.0 + q) * A + 2.0 * (1.0 + math.sqrt((1.0 + A) * (1.0 + q * A)))) / (1.0 - q) ** 2  # (2)
        b = last / ((1.0 - q) * A)
        d = ((1.0 - q) ** 2 * A - (1.0 + q) * last) / (2.0 * (1.0 + q + q * last))
        found.append((b, d))  # (3)
    return tuple(found)


def minimise(gradient: Gradient, bounds: Bounds, x: Array, tolerance: float) -> None:
    """Move `x` from the centre c of (1) to a point at most tolerance / w from the minimum, (7)."""
    q, step = bounds.weight / bounds.steepness, 1.0 / bounds.steepness
    z, ahead, y, g, at = (np.zeros_like(x) for _ in range(5))
    for b, d in bounds.steps(tolerance):
        combine(y, (1.0 - b, z), (b, ahead), scratch=ahead)  # (4)
        gradient(np.add(x, y, out=at), g)
        g *= step
        combine(ahead, (1.0 - q, y), (-1.0, g))  # (5)
        combine(z, (1.0 - q * d, z), (-d, g), scratch=g)  # (6)
    x += z
    gradient(x, g)
    g += np.multiply(z, bounds.weight, out=z)
    rounding = 2.0**-40 * bounds.lipschitz
    if not float(np.linalg.norm(g)) <= (tolerance + rounding) * bounds.steepness / bounds.weight:
        raise ConfigError(
            f"expected a local minimum to the tolerance {tolerance:.2g}, found none after the steps that suffice for "
            "rows of norm at most 1: normalize the rows, and check that the loss declares its curvature"
        )
