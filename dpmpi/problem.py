"""A rank's own part of the objective, f_i(x) = mean of l(<a_r, x>, y_r) over its q records, as private queries.

One query is, for a random set B of record positions with expected size b,

    g = (1/b) sum over r in B of clip(c_r a_r),   c_r = l'(<a_r, x>, y_r)                (1)
    clip(c a) = c a min(1, L' / |c a|),  computed as  c clipped to [-L'/|a|, L'/|a|]     (2)

Replacing one record, with the same positions drawn, moves one term of the sum from one vector of norm <= L' to
another: the sensitivity is 2 L' / b. The division is by the *expected* size, which is public; the realised size of a
Poisson batch is private and enters nowhere else.

Floating point: |fl(sum) - sum| <= n u n L' for a sum of n <= q such vectors in any order, and a computed norm is off by
(m + 8) u. With u = 2^-52, twice the unit of rounding, and

    L' = L / (1 + ((q + 1)^2 + m + 16) u)                                                (3)

the value that is *computed* moves by at most the declared 2 L / b.

The same holds for the problem of the mean, f_i(x) = mean of |x - d_r|^2 / 2 over records in the cube [-R, R]^m: of

    g = x - (1/b) sum over r in B of d_r,   |d_r| <= L = R sqrt(m)                        (4)

one record moves a term of norm L, at every x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmpi.core import Array, Penalty, Query, Sampling, Terms
from dpmpi.errors import ConfigError, DataError
from dpmpi.losses import LOSSES, Loss
from dpmpi.minimiser import minimise
from dpmpi.rng import PrivateStream
from dpmpi.rows import Dense, Positions, Rows, check_finite
from dpmpi.schedules import SampledSchedule, StaticSchedule


@dataclass(frozen=True, slots=True)
class Batch:
    """How the records of a query are drawn: all, a fixed number without replacement, or each with the same chance."""

    kind: Literal["full", "fixed", "poisson"]
    size: int = 0
    """The number of records (fixed) or its expectation (poisson); 0 for full."""

    @classmethod
    def parse(cls, text: str) -> Batch:
        """Return the batch that `full`, `one`, `N`, `poisson:N` or `fixed:N` describes.

        A plain 1 is one uniformly drawn record, a plain N > 1 a Poisson batch of expected size N.
        """
        if text == "full":
            return cls("full")
        if text in ("one", "1"):
            return cls("fixed", 1)
        kind, number = text.split(":", 1) if ":" in text else ("poisson", text)
        if number.isascii() and number.isdigit() and int(number) >= 1:
            if kind == "fixed":
                return cls("fixed", int(number))
            if kind == "poisson":
                return cls("poisson", int(number))
        raise ConfigError(f"expected a batch full, one, N, poisson:N or fixed:N with N >= 1, found {text!r}")

    def describe(self) -> str:
        """Return the batch as text that `parse` understands."""
        return "full" if self.kind == "full" else f"{self.kind}:{self.size}"

    def check(self, records: int) -> None:
        """Raise `ConfigError` if the batch is larger than a shard of `records` records."""
        if self.size > records:
            raise ConfigError(
                f"expected a batch of at most the {records} records of a rank, found {self.describe()}: "
                "use a smaller batch, or full"
            )

    def sampling(self, records: int) -> Sampling:
        """Return what the accountants need to know about a draw from `records` records."""
        return Sampling(self.kind, float(records if self.kind == "full" else self.size), records)


class _Drawing:
    """Draws the records of a query."""

    __slots__ = ("batch", "records", "stream")

    def __init__(self, batch: Batch, records: int, stream: PrivateStream) -> None:
        self.batch = batch
        self.records = records
        self.stream = stream

    def _draw(self) -> Positions | None:
        """Return the positions of a batch, in increasing order; None for all records."""
        q, b = self.records, self.batch.size
        if self.batch.kind == "full" or b == q:
            return None
        if self.batch.kind == "poisson":
            return poisson_positions(self.stream, q, b / q)
        return fixed_positions(self.stream, q, b)


class LocalProblem(_Drawing):
    """The mean loss over a rank's records, and its clipped subgradients over freshly drawn batches."""

    __slots__ = (
        "_inverse", "_limits", "_lower", "_query", "dimension", "labels", "lipschitz", "loss", "rows",
    )  # fmt: skip

    def __init__(
        self, rows: Rows, labels: Array, loss: Loss, batch: Batch, lipschitz: float, stream: PrivateStream
    ) -> None:
        _check(rows, labels, loss, batch, lipschitz)
        super().__init__(batch, rows.count, stream)
        self.rows = rows
        self.labels: Array = np.ascontiguousarray(labels, dtype=np.float64)
        self.loss = loss
        self.lipschitz = float(lipschitz)
        self.dimension = rows.dimension
        sampling = batch.sampling(rows.count)
        clip = lipschitz / (1.0 + ((rows.count + 1.0) ** 2 + rows.dimension + 16.0) * 2.0**-52)  # (3)
        with np.errstate(divide="ignore", over="ignore"):
            self._limits: Array = np.minimum(clip / rows.norms, np.finfo(np.float64).max)
        self._lower: Array = -self._limits
        self._inverse = 1.0 / sampling.expected
        self._query = Query(np.zeros(rows.dimension), 2.0 * lipschitz / sampling.expected, sampling)

    def subgradient(self, x: Array) -> Query:
        """Return (1) at x over a freshly drawn batch: the same object every time, its buffer overwritten."""
        with np.errstate(over="ignore", invalid="ignore"):  # a warning would single out a shard with huge records
            self.rows.fold(x, self._draw(), self._coefficient, self._query.value)
        return self._query

    def value(self, x: Array) -> float:
        """Return f_i(x) over all records. This is a function of private data, for diagnostics only."""
        return float(np.mean(self.loss.value(self.rows.scores(x), self.labels)))

    def minimise(self, linear: Array, quadratic: float, x: Array, tolerance: float) -> float:
        """Write argmin_w f_i(w) + <linear, w> + (quadratic/2) |w|^2 to `x`, f_i with clipped records; from x on.

        Clipping (2) keeps a slope monotone in the score: the clipped gradient is that of a convex, L-Lipschitz loss.
        """

        def gradient(w: Array) -> Array:
            g = np.zeros_like(w)
            self.rows.fold(w, None, lambda scores, at: self._slope(scores, at) / self.records, g)
            g += linear
            g += quadratic * w
            return g

        def curvature_at(w: Array) -> Array:
            scores = self.rows.scores(w)
            slope = self.loss.slope(scores, self.labels)
            bend = self.loss.bend(scores, self.labels)
            return np.where(np.abs(slope) <= self._limits, bend, 0.0) / self.records

        def times(weights: Array, v: Array, out: Array) -> None:
            self.rows.fold(v, None, lambda scores, at: weights[at] * scores, out)
            out += quadratic * v

        return minimise(gradient, curvature_at, times, x, tolerance)

    def _coefficient(self, scores: Array, positions: slice | Positions) -> Array:
        """Return the factors of the a_r in (1)."""
        c = self._slope(scores, positions)
        c *= self._inverse
        return c

    def _slope(self, scores: Array, positions: slice | Positions) -> Array:
        """Overwrite the scores with the clipped slopes (2), and return them."""
        c = scores
        self.loss.to_slope(c, self.labels[positions])
        # (2). Scores of huge records overflow to inf - inf; fmin turns the NaN into the limit, minimum would keep it.
        np.fmin(c, self._limits[positions], out=c)
        np.fmax(c, self._lower[positions], out=c)
        return c


class MeanProblem(_Drawing):
    """The mean squared distance to a rank's records in the cube [-R, R]^m, (4)."""

    __slots__ = ("_mean", "_query", "_spread", "dimension", "lipschitz", "matrix")

    def __init__(self, rows: Rows, batch: Batch, radius: float, stream: PrivateStream) -> None:
        if not isinstance(rows, Dense):
            raise DataError("the mean loss takes dense records, found sparse ones: use --data mean:...")
        if rows.count < 1:
            raise DataError("expected a shard with at least one record, found none: use fewer ranks or more data")
        check_finite(rows)
        batch.check(rows.count)
        super().__init__(batch, rows.count, stream)
        self.matrix: Array = np.clip(rows.matrix, -radius, radius)
        self.dimension = rows.dimension
        # Covers the rounding of the sum, and of its difference to an x that is not 10^6 times as large as the cube.
        self.lipschitz = mean_lipschitz(radius, rows.dimension)
        sampling = batch.sampling(rows.count)
        self._query = Query(np.zeros(rows.dimension), 2.0 * self.lipschitz / sampling.expected, sampling)
        self._mean: Array = self.matrix.mean(axis=0)
        self._spread = 0.5 * float(np.mean(np.sum((self.matrix - self._mean) ** 2, axis=1)))

    def subgradient(self, x: Array) -> Query:
        """Return (4) at x over a freshly drawn batch: the same object every time, its buffer overwritten."""
        chosen, g = self._draw(), self._query.value
        if chosen is None:
            np.subtract(x, self._mean, out=g)
        else:
            np.sum(self.matrix[chosen], axis=0, out=g)
            g *= -1.0 / self._query.sampling.expected
            g += x
        return self._query

    def value(self, x: Array) -> float:
        """Return f_i(x) over all records. This is a function of private data, for diagnostics only."""
        d = x - self._mean
        return self._spread + 0.5 * float(d @ d)

    def minimise(self, linear: Array, quadratic: float, x: Array, tolerance: float) -> float:
        """Write argmin_w f_i(w) + <linear, w> + (quadratic/2) |w|^2 to `x`."""
        np.subtract(self._mean, linear, out=x)
        x /= 1.0 + quadratic
        return 0.0


def make_problem(
    rows: Rows, labels: Array, loss: str, batch: Batch, lipschitz: float, stream: PrivateStream, radius: float = 0.0
) -> LocalProblem | MeanProblem:
    """Return the problem of a shard; `radius` bounds the records of the mean problem."""
    if loss == "mean":
        return MeanProblem(rows, batch, radius, stream)
    return LocalProblem(rows, labels, LOSSES[loss], batch, lipschitz, stream)


def mean_lipschitz(radius: float, dimension: int) -> float:
    """Return L of (4), with room for rounding."""
    return radius * math.sqrt(dimension) * (1.0 + 1e-9)


def make_terms(  # noqa: PLR0913 - one for each fact
    *, rank: int, schedule: StaticSchedule | SampledSchedule, rounds: int, active_rounds: int, dimension: int,
    lipschitz: float, sampling: Sampling, loss: str, normalized: bool, penalty: Penalty, bounded: bool,
) -> Terms:  # fmt: skip
    """Return the public facts about a rank; `normalized` says that no row is longer than 1."""
    static = isinstance(schedule, StaticSchedule)
    degrees = schedule.graph.degrees
    curvature = 1.0 if loss == "mean" else LOSSES[loss].curvature if normalized else None
    return Terms(
        rounds=rounds, active_rounds=active_rounds, size=schedule.size,
        degree=degrees[rank] if static else 0, max_degree=max(degrees) if static else 0,
        dimension=dimension, lipschitz=lipschitz, sampling=sampling,
        smoothness=curvature, curvature_floor=1.0 if loss == "mean" else 0.0,
        strong_convexity=penalty.l2, l1=penalty.l1, bounded=bounded,
    )  # fmt: skip


def poisson_positions(stream: PrivateStream, records: int, rate: float) -> Positions:
    """Return positions in 0 ... records-1, each drawn independently with probability `rate` < 1.

    The gap to the next position is geometric, P(gap >= k) = (1 - rate)^k, hence floor(log u / log(1 - rate)) for a
    uniform u.
    """
    scale = 1.0 / math.log1p(-rate)
    expected = records * rate
    enough = int(expected + 6.0 * math.sqrt(expected)) + 16
    pieces: list[Positions] = []
    last = -1
    while last < records:
        gaps = np.floor(np.log(stream.uniforms(enough)) * scale)
        piece = last + np.cumsum(gaps.astype(np.intp) + 1)
        last = int(piece[-1])
        pieces.append(piece)
    positions = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
    return positions[: np.searchsorted(positions, records)]


def fixed_positions(stream: PrivateStream, records: int, size: int) -> Positions:
    """Return a uniformly drawn set of `size` positions out of 0 ... records-1.

    Drawing with replacement until `size` different positions have come up treats all positions alike, hence also all
    sets. Above half of the records the complement is drawn, so that few draws are in vain.
    """
    if size == 1:
        return np.array([stream.integer(records)], np.intp)
    if 2 * size > records:
        keep = np.ones(records, np.bool_)
        if size < records:
            keep[fixed_positions(stream, records, records - size)] = False
        return np.flatnonzero(keep)
    last = np.uint64(2**64 - 2**64 % records - 1)  # words above it would favour small positions
    found = np.empty(0, np.intp)
    while len(found) < size:
        words = stream.words(size - len(found))
        found = np.union1d(found, (words[words <= last] % np.uint64(records)).astype(np.intp))
    return found


def accuracy_counts(rows: Rows, labels: Array, x: Array) -> tuple[int, int]:
    """Return (records whose label has the sign of their score, records); score 0 counts as +1."""
    return int(np.count_nonzero((rows.scores(x) >= 0.0) == (labels > 0.0))), rows.count


def _check(rows: Rows, labels: Array, loss: Loss, batch: Batch, lipschitz: float) -> None:
    """Raise `DataError` or `ConfigError` for a problem that cannot be posed."""
    if rows.count < 1:
        raise DataError("expected a shard with at least one record, found none: use fewer ranks or more data")
    if labels.shape != (rows.count,):
        raise DataError(f"expected one label for each of the {rows.count} records, found shape {labels.shape}")
    if not 0.0 < lipschitz < math.inf:
        raise ConfigError(f"expected a clipping norm L > 0, found {lipschitz}")
    check_finite(rows)
    loss.check_labels(labels)
    batch.check(rows.count)
