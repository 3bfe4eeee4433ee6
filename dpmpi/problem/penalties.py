"""The shared regulariser and its domain.

    h(x) = l1 |x|_1 + (l2 / 2) |x|^2 + I(x),   I = indicator of R^m, [-R, R]^m or {|x| <= R}.      (1)

The steps that algorithms take with h are one problem, with s = soft(v, tau) = v - clip(v, -tau, tau):

    argmin_x  (d/2) |x|^2 - <v, x> + tau |x|_1 + I(x)                                              (2)

    dual_step(z, A, gamma) = argmin <z, x> + A h(x) + gamma |x|^2 / 2:  v = -z, tau = A l1, d = A l2 + gamma      (3)
    prox(v, step) = argmin h(x) + |x - v|^2 / (2 step):                  tau = step l1, d = step l2 + 1           (4)
    project(v, shrink) = argmin I(x) + shrink |x|_1 + |x - v|^2 / 2:     tau = shrink, d = 1                      (4')

(The indicator does not scale with A.) All of h is even, so that (3) is minus the solution of (2) for v = z.

Solution of (2) for d > 0. No domain: x = s / d, as 0 in d x - v + tau sign(x) says coordinate by coordinate.
Box: the problem is separable, and a convex function of one variable over an interval is minimised by moving its
minimiser to the nearest end: x = clip(s / d, -R, R).
Ball: let lam >= 0 be the multiplier of |x|^2 / 2 <= R^2 / 2. The Lagrangian is (2) without domain and with d + lam for
d, so its minimiser is s / (d + lam): lam changes the length of the soft-thresholded vector and not its direction. The
conditions |x| <= R and lam (|x| - R) = 0 are met by lam = max(0, |s| / R - d), and for a convex problem they suffice:

    x = s / max(d, |s| / R),   0 if s = 0.                                                         (5)

Solution for d = 0: a linear function plus tau |x|_1. Box: the vertex R sign(s), 0 where s = 0. Ball: (5). No domain:
0 if s = 0, otherwise there is no minimiser.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpmpi.core import Array, Penalty
from dpmpi.errors import ConfigError, nearest

_OUTSIDE = 1.0 + 1e-9  # means of points on the boundary lie outside by rounding
_SMALL = 1e-280  # a sum of squares below it may have lost summands to underflow


@dataclass(frozen=True)
class Regulariser(Penalty):
    """h of (1). `out` may not alias the input; no step allocates an m-vector."""

    l1: float = 0.0
    l2: float = 0.0
    box: float | None = None
    ball: float | None = None

    def __post_init__(self) -> None:
        for name, weight in (("l1", self.l1), ("l2", self.l2)):
            if not 0.0 <= weight < math.inf:
                raise ConfigError(f"expected a penalty weight {name} >= 0, found {weight}")
        for name, radius in (("box", self.box), ("ball", self.ball)):
            if radius is not None and not 0.0 < radius < math.inf:
                raise ConfigError(f"expected a domain {name}:R with R > 0, found {radius}")
        if self.box is not None and self.ball is not None:
            raise ConfigError("expected one domain, found a box and a ball: drop one of them")

    @property
    def domain(self) -> str | None:
        """The domain as text: `box:R`, `ball:R` or None."""
        if self.box is not None:
            return f"box:{self.box!r}"
        return None if self.ball is None else f"ball:{self.ball!r}"

    def describe(self) -> str:
        """Return the penalty as text; `parse_penalty(h.describe(), h.domain)` equals h."""
        if self.l1 > 0.0:
            return f"elastic:{self.l1!r},{self.l2!r}" if self.l2 > 0.0 else f"l1:{self.l1!r}"
        return f"l2:{self.l2!r}" if self.l2 > 0.0 else "none"

    def value(self, x: Array) -> float:
        """Return h(x), (1); infinity outside the domain (beyond rounding)."""
        square = float(np.dot(x, x))
        if self.ball is not None and math.sqrt(square) > self.ball * _OUTSIDE:
            return math.inf
        if self.box is not None and max(float(x.max()), -float(x.min())) > self.box * _OUTSIDE:
            return math.inf
        one = self.l1 * float(np.linalg.norm(x, 1)) if self.l1 > 0.0 else 0.0
        return one + 0.5 * self.l2 * square

    def dual_step(self, z: Array, A: float, gamma: float, out: Array) -> None:
        """Write argmin_x <z, x> + A h(x) + gamma |x|^2 / 2 to `out`, (3)."""
        self._solve(z, A * self.l1, A * self.l2 + gamma, -1.0, out)

    def add_dual_steps(self, z: Array, a: Array, A: Array, gamma: Array, total: Array, scratch: Array) -> None:
        """Add sum_s a[s] dual_step(z, A[s], gamma[s]) to `total`.

        Without l1 and domain every step is a multiple of z, and the sum is -z sum_s a[s] / (A[s] l2 + gamma[s]).
        """
        d = A * self.l2 + gamma
        if self.l1 == 0.0 and self.domain is None and np.all(d > 0.0):
            np.multiply(z, -float(np.sum(a / d)), out=scratch)
            total += scratch
            return
        Penalty.add_dual_steps(self, z, a, A, gamma, total, scratch)

    def prox(self, v: Array, step: float, out: Array) -> None:
        """Write argmin_x h(x) + |x - v|^2 / (2 step) to `out`, (4)."""
        if not 0.0 < step < math.inf:
            raise ConfigError(f"expected a proximal step > 0, found {step}")
        self._solve(v, step * self.l1, step * self.l2 + 1.0, 1.0, out)

    def project(self, v: Array, out: Array, shrink: float = 0.0) -> None:
        """Write the point of the domain nearest to v to `out`; with `shrink`, that for shrink |x|_1 on top, (4')."""
        self._solve(v, shrink, 1.0, 1.0, out)

    def _solve(self, v: Array, tau: float, d: float, sign: float, out: Array) -> None:
        """Write `sign` times the solution of (2) to `out`."""
        if not (tau >= 0.0 and d >= 0.0):
            raise ConfigError(f"expected weights A >= 0 and gamma >= 0, found A l1 = {tau} and A l2 + gamma = {d}")
        if tau > 0.0:
            np.clip(v, -tau, tau, out=out)
            np.subtract(v, out, out=out)
            s = out
        else:
            s = v
        if self.ball is not None:
            square = float(np.dot(s, s))
            if not _SMALL < square < math.inf and (top := max(float(s.max()), -float(s.min()))) > 0.0:
                # x depends on s / d only, so s may be brought into the range of its square.
                s, d = np.divide(s, top, out=out), d / top
                square = float(np.dot(s, s))
            d = max(d, math.sqrt(square) / self.ball)  # (5)
        if d > 0.0:
            np.multiply(s, sign / d, out=out)
        elif self.box is not None:
            np.sign(s, out=out)
            out *= sign * self.box
        elif np.any(s):
            raise ConfigError(
                "expected a step with a minimiser, found A l2 + gamma = 0 without a domain: "
                "set gamma > 0, an l2 penalty, or a domain"
            )
        else:
            out.fill(0.0)
        if self.box is not None:
            np.clip(out, -self.box, self.box, out=out)


PENALTIES: dict[str, tuple[str, ...]] = {"none": (), "l2": ("l2",), "l1": ("l1",), "elastic": ("l1", "l2")}


def parse_penalty(text: str, domain: str | None = None, others: Sequence[str] = ()) -> Regulariser:
    """Return the regulariser of `l2:W`, `l1:W`, `elastic:L1,L2` or `none`, on the domain `box:R`, `ball:R` or None.

    `others` are names of further penalties, for the message.
    """
    name, _, rest = text.partition(":")
    if name not in PENALTIES:
        known = ", ".join(["l2:W", "l1:W", "elastic:L1,L2", *others])
        raise ConfigError(f"expected a penalty {known} or none, found {text!r}{nearest(name, (*PENALTIES, *others))}")
    keys = PENALTIES[name]
    parts = rest.split(",") if rest else []
    if len(parts) != len(keys) or (":" in text and not parts):
        form = ":".join([name, ",".join(key.upper() for key in keys)]) if keys else name
        raise ConfigError(f"expected a penalty {form}, found {text!r}")
    fields = {key: _number(part, f"penalty {text!r}") for key, part in zip(keys, parts, strict=True)}
    if domain is not None:
        name, _, rest = domain.partition(":")
        if name not in ("box", "ball"):
            raise ConfigError(f"expected a domain box:R or ball:R, found {domain!r}")
        fields[name] = _number(rest, f"domain {domain!r}")
    return Regulariser(**fields)


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"expected a number in the {where}, found {text!r}") from None
