"""All contracts of a penalty, and the table of which it keeps.

With h the penalty, p = prox(v, step) and d = dual_step(z, A, gamma), for all points x, y where h is finite:

    h(a x + (1 - a) y) <= a h(x) + (1 - a) h(y)    for 0 <= a <= 1                                                  (1)
    h(p) + |p - v|^2 / 2s + |x - p|^2 / 2s <= h(x) + |x - v|^2 / 2s    the three points p, v, x; s = step           (2)
    |p - q|^2 <= <p - q, v - w>                    for q = prox(w, step): no two points move apart                  (3)
    <z, d> + A h(d) + gamma |d|^2 / 2              is no larger than what a search finds                            (4)

(2) holds for the minimiser and for no other point, as the objective of a prox is strongly convex.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpmpi.algorithms.dda import DpDda
from dpmpi.core import Array, Penalty
from dpmpi.problem.penalties import Regulariser
from dpmpi.runtime.flags import from_text, from_values
from dpmpi.runtime.plugins import penalty_of, settings_of_penalty
from dpmpi.testing.methods import run_contracts
from dpmpi.testing.releases import check_no_leak

MakePenalty = Callable[[], Penalty]
DIMENSION = 6
_STEPS = (0.05, 1.0, 7.0)
_WEIGHTS = ((1.0, 1.0), (0.3, 4.0), (9.0, 0.5))
"""A and gamma of dual steps."""
_CLOSE = 1e-8


def check_penalty(make: MakePenalty) -> None:
    """Print a table of all contracts of a penalty; raise AssertionError if one is broken. `make()` returns it."""
    h, draw = make(), np.random.default_rng(0)
    points = [scale * draw.standard_normal(DIMENSION) for scale in (0.02, 0.3, 1.0, 3.0, 30.0) for _ in range(4)]
    points += [np.zeros(DIMENSION), np.ones(DIMENSION), -np.ones(DIMENSION)]
    run_contracts(
        type(h).__name__,
        {
            "settings": ("its name and numbers are settings, as in config.toml", lambda: _check_settings(h)),
            "shapes": (
                "a number for a value; steps write to `out` and change nothing else",
                lambda: _check_shapes(h, points),
            ),
            "convex": ("its value is convex", lambda: _check_convex(h, points)),
            "rounding": ("its value forgives rounding at the edge of its domain", lambda: _check_rounding(h, points)),
            "prox": ("`prox` is the minimiser: the three-point inequality", lambda: _check_prox(h, points)),
            "nonexpansive": ("`prox` moves no two points apart", lambda: _check_nonexpansive(h, points)),
            "dual step": ("`dual_step` is as good as what a search finds", lambda: _check_dual_step(h, points, draw)),
            "dual steps": ("`add_dual_steps` adds them up", lambda: _check_sum(h, points)),
            "no leak": (
                "a run with it sends nothing of the records but releases",
                lambda: check_no_leak(DpDda, penalty=h, rounds=3),
            ),
        },
    )


def _prox(h: Penalty, v: Array, step: float) -> Array:
    out = np.full_like(v, np.nan)
    h.prox(v, step, out)
    return out


def _dual_step(h: Penalty, z: Array, A: float, gamma: float) -> Array:
    out = np.full_like(z, np.nan)
    h.dual_step(z, A, gamma, out)
    return out


def _inside(h: Penalty, points: list[Array]) -> list[Array]:
    """Return points where h is finite: those that are, and what `prox` makes of the others."""
    near = [x if h.value(x) < math.inf else _prox(h, x, 1.0) for x in points]
    return [x for x in near if h.value(x) < math.inf]


def _check_settings(h: Penalty) -> None:
    config = from_values({**settings_of_penalty(h), "epsilon": 1.0})
    again = from_text(config.to_toml(), Path("config.toml"), {})
    made = penalty_of(again.penalty, again.domain, again.plugin_digest)
    if type(made) is not type(h) or (made != h and (type(h) is Regulariser or vars(h))):
        raise AssertionError(f"expected {h} of its settings, found {made}: keep all that it is in its fields")


def _check_shapes(h: Penalty, points: list[Array]) -> None:
    for x in points:
        value, kept = h.value(x), x.copy()
        if not isinstance(value, float) or math.isnan(value):
            raise AssertionError(f"expected a float as the value, found {value!r}: return float(...)")
        steps = {"prox": _prox(h, x, 0.7), "dual_step": _dual_step(h, x, 0.7, 1.3)}
        for name, out in steps.items():
            if not np.isfinite(out).all():
                raise AssertionError(f"expected numbers in all of `out` after `{name}`, found others: write to out[:]")
        if not np.array_equal(x, kept):
            raise AssertionError("expected the points as they were, found others: write to `out` alone")


def _check_convex(h: Penalty, points: list[Array]) -> None:
    inside = _inside(h, points)
    if not inside:
        raise AssertionError("expected a point where the value is finite, found none")
    for x, y in zip(inside, inside[1:] + inside[:1], strict=True):
        for a in (0.1, 0.5, 0.9):
            chord = a * h.value(x) + (1.0 - a) * h.value(y)
            if not h.value(a * x + (1.0 - a) * y) <= chord + _CLOSE * (1.0 + abs(chord)):
                raise AssertionError(f"h(a x + (1-a) y) is above {chord:.6g} for a = {a}, x = {x}, y = {y}: not convex")


def _check_rounding(h: Penalty, points: list[Array]) -> None:
    for x in (_prox(h, v, step) for v in points for step in _STEPS):
        for way in points[:4]:
            if not h.value(x + 1e-12 * (1.0 + np.linalg.norm(x)) * np.sign(way)) < math.inf:
                raise AssertionError(
                    f"expected a finite value 1e-12 away from {x}, which `prox` returns, found infinity: means of "
                    "models leave a domain by rounding, so let `value` forgive 1e-9"
                )


def _check_prox(h: Penalty, points: list[Array]) -> None:
    inside = _inside(h, points)
    for v in points:
        for step in _STEPS:
            p = _prox(h, v, step)
            rivals = [*inside, *_inside(h, [p + 1e-3 * x / (1.0 + np.linalg.norm(x)) for x in points])]
            mine = h.value(p) + float((p - v) @ (p - v)) / (2.0 * step)
            for x in rivals:
                theirs = h.value(x) + float((x - v) @ (x - v)) / (2.0 * step)
                excess = mine + float((x - p) @ (x - p)) / (2.0 * step) - theirs
                if not excess <= _CLOSE * (1.0 + abs(theirs)):
                    raise AssertionError(
                        f"h(p) + |p - v|^2/2s + |x - p|^2/2s exceeds h(x) + |x - v|^2/2s by {excess:.3g} for s = "
                        f"{step}, v = {v}, x = {x}: `prox` is not the minimiser of h(x) + |x - v|^2/2s"
                    )


def _check_nonexpansive(h: Penalty, points: list[Array]) -> None:
    for step in _STEPS:
        images = [_prox(h, v, step) for v in points]
        for k in range(len(points)):
            moved, apart = images[k] - images[k - 1], points[k] - points[k - 1]
            if not moved @ moved <= moved @ apart + _CLOSE * (1.0 + apart @ apart):
                raise AssertionError(
                    f"|p - q|^2 exceeds <p - q, v - w> for step {step}, v = {points[k]}, w = {points[k - 1]}"
                )


def _check_dual_step(h: Penalty, points: list[Array], draw: np.random.Generator) -> None:
    for z in points[::3]:
        for A, gamma in _WEIGHTS:

            def objective(x: Array, z: Array = z, A: float = A, gamma: float = gamma) -> float:
                return float(z @ x) + A * h.value(x) + 0.5 * gamma * float(x @ x)

            d = _dual_step(h, z, A, gamma)
            best = min(
                _searched(objective, start, draw) for start in (d, np.zeros_like(d)) if objective(start) < math.inf
            )
            if not objective(d) <= best + _CLOSE * (1.0 + abs(best)):
                raise AssertionError(
                    f"expected a minimum of at most {best:.9g}, which a search finds, found {objective(d):.9g} at "
                    f"dual_step(z, {A}, {gamma}) for z = {z}: correct `dual_step`, or leave it out"
                )


def _searched(objective: Callable[[Array], float], x: Array, draw: np.random.Generator) -> float:
    """Return the least value that steps along coordinates and in random directions find from x."""
    value, length = objective(x), 4.0
    while length > 1e-5:
        ways = np.concatenate([np.eye(x.size), -np.eye(x.size), draw.standard_normal((8, x.size))])
        tries = [x + length * way for way in ways]
        values = [objective(there) for there in tries]
        k = int(np.argmin(values))
        if values[k] < value:
            x, value = tries[k], values[k]
        else:
            length /= 2.0
    return value


def _check_sum(h: Penalty, points: list[Array]) -> None:
    a, (A, gamma) = np.array([0.5, 2.0, 1.0]), np.array(_WEIGHTS).T
    for z in points[::4]:
        total, scratch = np.ones_like(z), np.empty_like(z)
        h.add_dual_steps(z, a, A, gamma, total, scratch)
        one_by_one = 1.0 + sum(a_s * _dual_step(h, z, A_s, g) for a_s, A_s, g in zip(a, A, gamma, strict=True))
        if not np.allclose(total, one_by_one, rtol=1e-9, atol=1e-12):
            raise AssertionError("expected `add_dual_steps` to add the dual steps up, found another sum: leave it out")
