"""A smooth, strongly convex function minimised to a certified gradient norm: Newton steps by conjugate gradients.

For F with gradient g and Hessian H the step d solves H d = -g to a relative residual that shrinks with |g|, so that
convergence is superlinear. Along d the slope phi'(a) = <g(x + a d), d> grows from phi'(0) < 0; a step is taken if

    phi'(a) <= |phi'(0)| / 2                                                                        (1)

and halved otherwise. No value of F is needed: near the minimum its differences drown in rounding, those of g do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError

Field: TypeAlias = Callable[[Array], Array]
Product: TypeAlias = Callable[[Array, Array, Array], None]

_STEPS = 200
_HALVINGS = 60


def minimise(gradient: Field, curvature_at: Field, times: Product, x: Array, tolerance: float) -> float:
    """Move `x` until |gradient(x)| <= tolerance; return that norm.

    `times(curvature_at(x), v, out)` writes H(x) v to `out`.
    """
    g = gradient(x)
    for _ in range(_STEPS):
        norm = float(np.linalg.norm(g))
        if norm <= tolerance:
            return norm
        d = _newton_direction(curvature_at(x), times, g, norm)
        slope, a = float(g @ d), 1.0
        for _ in range(_HALVINGS):
            candidate = x + a * d
            ahead = gradient(candidate)
            if float(ahead @ d) <= 0.5 * abs(slope):  # (1)
                break
            a /= 2.0
        np.copyto(x, candidate)
        g = ahead
    raise ConfigError(
        f"expected a local gradient of norm {tolerance:.2g} at most, found {float(np.linalg.norm(g)):.2g} in the end: "
        "give a larger penalty (--penalty, --rho), or a larger tolerance"
    )


def _newton_direction(curvature: Array, times: Product, g: Array, norm: float) -> Array:
    """Return d with |H d + g| <= min(1/2, sqrt |g|) |g|, by conjugate gradients."""
    d, r = np.zeros_like(g), -g
    p, hp = r.copy(), np.empty_like(g)
    square, goal = float(r @ r), (min(0.1, math.sqrt(norm)) * norm) ** 2
    for _ in range(10 * g.size + 10):
        times(curvature, p, hp)
        bend = float(p @ hp)
        if bend <= 0.0:  # rounding: H is positive definite
            break
        a = square / bend
        d += a * p
        r -= a * hp
        last, square = square, float(r @ r)
        if square <= goal:
            break
        p *= square / last
        p += r
    return d if d.any() else -g
