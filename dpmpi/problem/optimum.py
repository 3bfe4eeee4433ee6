"""The optimum of the distributed objective, with a proof of how close it is.

Agent i of n holds records (a_ir, y_ir), r = 1 ... q_i. With l the loss of a score and h the penalty with its domain,

    F(x) = sum_ir w_ir l(<a_ir, x>, y_ir) + h(x),   w_ir = c_i / (n q_i)                           (1)

where c_i is the weight of rank i, 1 in the mean over the ranks.

Nobody gathers the data. Every process runs this same code in lockstep, makes one pass over the records that it hosts
per evaluation, and adds up m + 3 numbers with the others: g = sum_ir w_ir u_ir a_ir with u_ir the slopes of the loss
at the scores, and the sums of w l, w l_mu and w l*(u). (For K scores u a is the matrix a u', and x has m K numbers.)
All decisions are functions of these totals alone, hence the same everywhere (given the same floating-point arithmetic).

Certificate. For any slopes u in the domain of the conjugate l*, with g = sum w u a, Fenchel duality gives

    F(x) >= D(u) = - sum w l*(u) - H(-g)   for all x,   H(v) = max_x <v, x> - h(x)                 (2)

and the maximiser in H(-g) is argmin_x <g, x> + h(x), one dual step of the penalty. F(x) - D(u) bounds the distance to
the optimum. With neither an l2 term nor a bounded domain, H is the indicator of |v|_inf <= l1. Then

    D(theta u) >= - theta sum w l*(u),   theta = l1 / max(l1, |g|_inf)                             (3)

since l* is convex and l*(0) = - inf l = 0 for all losses here. Without any penalty H is finite at 0 only: there is no
bound, `lower_bound` is None, and the search ends when the gradient has shrunk by the tolerance.

Hinge. The smoothed hinge l_mu(s) = max_u u s - l*(u) - mu u^2 / 2 has slopes u in the domain of l*, so (2) with the
conjugate of the hinge itself holds for them. The gap splits into

    F(x) - D(u) = [<g, x> + h(x) + H(-g)] + sum w (l + l*(u) - u s)                                (4)

where the bracket is the gap of the smoothed problem, and the rest is at most mu/4 per record with a margin in (0, mu)
and zero for all others. A stage of the search ends when the bracket falls below half of the rest; the next one has a
smaller mu. Few records sit on the margin, so the gap falls far below mu.

Search. Without a ball: L-BFGS-B [BLNZ], the box as its bounds, an l1 term by x = p - n with p, n >= 0. With a ball:
accelerated proximal gradient [BT] with backtracking and the gradient restart of [OC].

[BLNZ] Byrd, Lu, Nocedal, Zhu. A limited memory algorithm for bound constrained optimization. SISC 16(5), 1995.
[BT] Beck, Teboulle. A fast iterative shrinkage-thresholding algorithm for linear inverse problems. SIIMS 2(1), 2009.
[OC] O'Donoghue, Candes. Adaptive restart for accelerated gradient schemes. FoCM 15, 2015.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from dpmpi.core import Array, Penalty, Problem
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.intercept import WithConstant
from dpmpi.problem.losses import Loss
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Rows

Total: TypeAlias = Callable[[Array], None]
"""Replaces a buffer, in place, by its sum over all processes; the same bits on each of them."""

_WIDTHS = tuple(0.1 * 8.0**-k for k in range(9))  # of the smoothed hinge, one stage each
_RESTARTS = 3  # of the quasi-Newton memory on a smooth loss, should rounding stop the line search early
_MEMORY = 20
_ROUNDING = 1e-13


@frozen
class Limits:
    """When to stop: at (F - lower bound) <= relative_gap (F(0) - F), or after `passes` over the data.

    None for `relative_gap` means 1e-6 for smooth losses and 1e-5 for the hinge.
    """

    relative_gap: float | None = None
    passes: int = 5000


@frozen
class Optimum:
    """The best point that was found. F(x) = value, and lower_bound <= min F <= value."""

    x: Array
    value: float
    lower_bound: float | None
    """None when there is neither a penalty nor a domain: then there is no bound."""
    seconds: float

    @property
    def gap(self) -> float | None:
        """How far `value` can be above the optimum, if that is known."""
        return None if self.lower_bound is None else self.value - self.lower_bound


def find_optimum(  # noqa: PLR0913 - the data, the problem, and how to search
    shards: Sequence[tuple[Rows | WithConstant, Array]],
    agents: int,
    loss: Loss,
    penalty: Penalty,
    dimension: int,
    total: Total,
    limits: Limits | None = None,
    progress: Callable[[int, float], None] | None = None,
    *,
    weights: Sequence[float] | None = None,
) -> Optimum:
    """Minimise (1) over all processes, each of which calls this at the same time with its own shards.

    `shards` are the (rows, labels) hosted here, `weights` their c_i (1 by default), `agents` is n over all processes.
    `progress(passes, gap)` is called after every pass; the gap is infinite while there is no bound.
    """
    if agents < max(1, len(shards)):
        raise ConfigError(f"expected at least {max(1, len(shards))} agents, one for each shard, found {agents}")
    for rows, labels in shards:
        if rows.count == 0 or rows.count != len(labels) or rows.dimension * loss.scores != dimension:
            found = f"found {rows.count} rows of dimension {rows.dimension} and {len(labels)} labels"
            raise DataError(
                f"expected rows of dimension {dimension // loss.scores}, one label each, {found}: check the file"
            )
    if not loss.certifies:
        raise ConfigError(
            "expected a loss with a conjugate for --reference, which proves the optimum by it, found "
            f"{type(loss).__name__}: add `conjugate` to it, or leave --reference out"
        )
    if type(penalty) is not Regulariser:
        raise ConfigError(
            "expected a penalty l2, l1, elastic or none for --reference, which proves the optimum by it, found "
            f"{type(penalty).__name__}: leave --reference out"
        )
    limits = limits or Limits()
    default = 1e-6 if loss.smooth else 1e-5
    tolerance = default if limits.relative_gap is None else limits.relative_gap
    x, began = np.zeros(dimension), time.perf_counter()
    weighed = [1.0] * len(shards) if weights is None else weights
    search = _Search(shards, weighed, agents, loss, penalty, total, tolerance, limits.passes, progress, x, began)
    stage = _quasi_newton if penalty.ball is None else _proximal_gradient
    for width in _WIDTHS if loss.kinked else (None,) * _RESTARTS:
        search.width = width
        x = stage(search, x)
        if search.finished:
            break
    return search.optimum()


def find_mean(problems: Sequence[Problem], agents: int, penalty: Penalty, dimension: int, total: Total) -> Optimum:
    """Minimise F for problems of the mean, f_i(x) = c_i |x - d_i|^2 / 2 + const: at prox_h of the mean of c_i d_i."""
    began = time.perf_counter()
    middle, own, x = (np.zeros(dimension) for _ in range(3))
    for problem in problems:
        problem.minimise(x, 0.0, 1.0, own, 0.0)
        own *= problem.weight
        middle += own
    total(middle)
    middle /= agents
    penalty.prox(middle, 1.0, out=x)
    values = np.array([sum(problem.value(x) for problem in problems)])
    total(values)
    value = float(values[0]) / agents + penalty.value(x)
    return Optimum(x, value, value, time.perf_counter() - began)


@dataclass(slots=True)
class _Point:
    """A point x, the sum of w l_mu there, its gradient g, and whether the stage may end here."""

    x: Array
    smooth: float
    slope: Array
    settled: bool


class _StageOver(Exception):
    """Carries the last point out of a solver that would go on."""


@dataclass(slots=True)
class _Search:
    """Evaluates points, and keeps the best value, the best bound and the count of passes."""

    shards: Sequence[tuple[Rows | WithConstant, Array]]
    weights: Sequence[float]
    agents: int
    loss: Loss
    penalty: Regulariser
    total: Total
    tolerance: float
    limit: int
    progress: Callable[[int, float], None] | None
    best: Array
    began: float
    value: float = math.inf
    lower: float = -math.inf
    start_value: float = math.nan
    start_slope: float = math.nan
    width: float | None = None
    """The mu of the smoothed hinge; None for the loss as it is."""
    passes: int = 0
    converged: bool = False

    @property
    def bounded(self) -> bool:
        """Whether D of (2) is ever finite."""
        return self.penalty != Regulariser()

    @property
    def finished(self) -> bool:
        """Whether the target is met, or the passes are spent."""
        return self.converged or self.passes >= self.limit

    def optimum(self) -> Optimum:
        """Return the best point so far."""
        lower = self.lower if self.bounded else None
        return Optimum(self.best, self.value, lower, time.perf_counter() - self.began)

    def evaluate(self, x: Array, inside: bool = True) -> _Point:
        """Make one pass over the data at x. A point that may lie outside the domain, however little, is no answer."""
        sums = self._sums(x)
        g, (loss, smooth, conjugate) = sums[:-3], map(float, sums[-3:])
        value = loss + (self.penalty.value(x) if inside else math.inf)
        if self.passes == 0:
            self.start_value, self.start_slope = value, float(np.linalg.norm(g))
        self.passes += 1
        if value < self.value:
            self.best, self.value = x.copy(), value
        bound = self._bound(g, conjugate)
        self.lower = max(self.lower, bound)
        gap = self.value - self.lower
        if self.progress is not None:
            self.progress(self.passes, gap)
        if self.bounded:
            self.converged = gap <= max(self.tolerance * (self.start_value - self.value), _ROUNDING * self.start_value)
            rest = loss + conjugate - float(g @ x)  # of (4)
            settled = value - bound - rest <= 0.5 * rest and self.width is not None
        else:
            settled = float(np.linalg.norm(g)) <= self.tolerance * self.start_slope
            self.converged = settled and (self.width or 0.0) <= self.tolerance
        return _Point(x.copy(), smooth, g, settled or self.finished)

    def _sums(self, x: Array) -> Array:
        """Return g, and the sums of w l, w l_mu and w l*(u), over all processes, in one vector."""
        loss = self.loss
        smooth: Loss = loss.smoothed(self.width) if self.width else loss
        sums, own = np.zeros(len(x) + 3), np.zeros(len(x) + 3)

        def slopes(scores: Array, positions: Any) -> Array:
            y = labels[positions]
            u = smooth.slope(scores, y)
            values = loss.value(scores, y)
            own[-3] += values.sum()
            own[-2] += (values if smooth is loss else smooth.value(scores, y)).sum()
            own[-1] += loss.conjugate(u, y).sum()
            return u

        for (rows, labels), weight in zip(self.shards, self.weights, strict=True):  # noqa: B007  (labels: in slopes)
            own[-3:] = 0.0
            matrix = () if loss.scores == 1 else (rows.dimension, loss.scores)
            rows.fold(x.reshape(matrix or -1), None, slopes, own[:-3].reshape(matrix or -1))
            own /= self.agents * rows.count / weight
            sums += own
        self.total(sums)
        return sums

    def _bound(self, g: Array, conjugate: float) -> float:
        """Return D of (2), or its minorant (3); minus infinity without any penalty."""
        penalty = self.penalty
        if penalty.l2 or penalty.box is not None or penalty.ball is not None:
            x = np.empty_like(g)
            penalty.dual_step(g, 1.0, 0.0, out=x)
            return -conjugate + float(g @ x) + penalty.value(x)
        if penalty.l1:
            return -conjugate * penalty.l1 / max(penalty.l1, float(np.abs(g).max()))
        return -math.inf


def _quasi_newton(search: _Search, x: Array) -> Array:
    """Run L-BFGS-B from x until the stage is over; return the last point."""
    from scipy.optimize import minimize  # noqa: PLC0415  (a fifth of a second that other runs need not pay)

    penalty = search.penalty
    split, m = penalty.l1 > 0.0, len(x)

    def model(z: Array) -> Array:
        return z[:m] - z[m:] if split else z

    def function(z: Array) -> tuple[float, Array]:
        point = search.evaluate(model(z))
        if point.settled:
            raise _StageOver(point.x)
        value = point.smooth + 0.5 * penalty.l2 * float(point.x @ point.x)
        slope = point.slope + penalty.l2 * point.x
        if not split:
            return value, slope
        return value + penalty.l1 * float(z.sum()), np.concatenate((slope + penalty.l1, penalty.l1 - slope))

    start = np.concatenate((np.maximum(x, 0.0), np.maximum(-x, 0.0))) if split else x
    least = 0.0 if split or penalty.box is None else -penalty.box
    bounds = [(least, penalty.box)] * len(start) if split or penalty.box is not None else None
    options = {"maxcor": _MEMORY, "ftol": 0.0, "gtol": 0.0, "maxiter": search.limit, "maxfun": 2 * search.limit}
    try:
        return model(minimize(function, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)
    except _StageOver as over:
        return np.asarray(over.args[0])


def _proximal_gradient(search: _Search, x: Array) -> Array:
    """Run accelerated proximal gradient steps from x until the stage is over; return the last point."""
    y = search.evaluate(x)
    momentum, step, near = 1.0, 1.0, x.copy()
    while not y.settled:
        while True:
            search.penalty.prox(y.x - step * y.slope, step, out=near)
            new = search.evaluate(near)
            if new.settled:
                return new.x
            moved = new.x - y.x
            square = float(moved @ moved)
            bend = float((new.slope - y.slope) @ moved)
            # Either test implies descent for a convex loss; the second one survives cancellation near the optimum.
            if new.smooth <= y.smooth + float(y.slope @ moved) + square / (2.0 * step) or 2.0 * step * bend <= square:
                break
            step *= 0.5
        if momentum == 1.0 and bend > 0.0:
            step = max(step, 0.5 * square / bend)  # the curvature just seen, halved: backtracking forgives an excess
        if float((y.x - new.x) @ (new.x - x)) > 0.0:
            y, momentum = new, 1.0
        else:
            grown = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
            ahead = new.x + (momentum - 1.0) / grown * (new.x - x)
            y = new if momentum == 1.0 else search.evaluate(ahead, inside=False)
            momentum = grown
        x = new.x
    return y.x
