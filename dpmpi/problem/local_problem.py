"""A rank's own part of the objective, as private queries.

f_i(x) is w times the mean of l(<a_r, x>, y_r) over its q records, w > 0 public. One query is, for a random set B of
record positions with expected size b,

    g = (w/b) sum over r in B of clip(c_r a_r),   c_r = l'(<a_r, x>, y_r)                (1)
    clip(c a) = c a min(1, L' / |c a|),  computed as  c clipped to [-L'/|a|, L'/|a|]     (2)

Replacing one record, with the same positions drawn, moves one term of the sum from one vector of norm <= L' to
another: the sensitivity is 2 L' w / b. The division is by the *expected* size, which is public; the realised size of a
Poisson batch is private and enters nowhere else.

Floating point: |fl(sum) - sum| <= n u n L' for a sum of n <= q such vectors in any order, and a computed norm is off by
(m + 8) u. With u = 2^-52, twice the unit of rounding, and

    L' = L / (1 + ((q + 1)^2 + m + 16) u)                                                (3)

the value that is *computed* moves by at most the declared 2 L w / b.

A loss of K scores has K slopes c_r, the record's gradient is the matrix a_r c_r' of norm |a_r| |c_r|, and

    clip(a c') = a c' min(1, L' / (|a| |c|))                                             (2')

with another (K + 16) u in (3), for the norm of c and the scaling. Slopes that are no numbers become 0. The model and
the gradient are vectors of m K numbers, row after row. (2') is the gradient of no function: who relies on one, as
`minimise` does, needs an L that clips nothing.

The problem of the mean, w times the mean of |x - d_r|^2 / 2 over records in the cube [-R, R]^m, has it too: of

    g = w (x - (1/b) sum over r in B of d_r),   |d_r| <= L = R sqrt(m)                    (4)

one record moves a term of norm L, at every x.
"""

from __future__ import annotations

import math

import numpy as np

from dpmpi.core import Array, Query
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.accelerated_gradient import Bounds, minimise
from dpmpi.problem.batches import Batch, BatchSampler
from dpmpi.problem.intercept import WithConstant
from dpmpi.problem.losses import Loss
from dpmpi.problem.rows import Coefficient, Dense, Positions, Rows, check_finite
from dpmpi.rng import PrivateStream


class LocalProblem(BatchSampler):
    """The mean loss over a rank's records, and its clipped subgradients over freshly drawn batches."""

    def __init__(
        self,
        rows: Rows | WithConstant,
        labels: Array,
        loss: Loss,
        batch: Batch,
        lipschitz: float,
        stream: PrivateStream,
        weight: float = 1.0,
        persons: Positions | None = None,
    ) -> None:
        super().__init__(batch, rows.count, stream, persons)
        if labels.shape != (rows.count,):
            raise DataError(f"expected one label for each of the {rows.count} records, found shape {labels.shape}")
        if not 0.0 < lipschitz < math.inf:
            raise ConfigError(f"expected a clipping norm L > 0, found {lipschitz}")
        check_finite(rows.inside if isinstance(rows, WithConstant) else rows)
        loss.check_labels(labels)
        self.rows = rows
        self.labels: Array = np.ascontiguousarray(labels, dtype=np.float64)
        self.loss = loss
        self.lipschitz = float(lipschitz)
        self.weight = weight
        K = loss.scores
        self.dimension = rows.dimension * K
        sampling = batch.sampling(rows.count)
        more = 0.0 if K == 1 else K + 16.0
        clip = lipschitz / (1.0 + ((rows.count + 1.0) ** 2 + rows.dimension + 16.0 + more) * 2.0**-52)  # (3)
        with np.errstate(divide="ignore", over="ignore"):
            self._limits: Array = np.minimum(clip / rows.norms, np.finfo(np.float64).max)
        self._lower: Array = -self._limits
        self._inverse = weight / sampling.expected
        self._query = Query(np.zeros(self.dimension), 2.0 * lipschitz * weight / sampling.expected, sampling)
        self._shape = None if K == 1 else (rows.dimension, K)

    def subgradient(self, x: Array) -> Query:
        """Return (1) at x over a freshly drawn batch: the same object every time, its buffer overwritten."""
        with np.errstate(over="ignore", invalid="ignore"):  # a warning would single out a shard with huge records
            self._fold(x, self.draw(), self._coefficient, self._query.value)
        return self._query

    def _fold(self, x: Array, chosen: Positions | None, coefficient: Coefficient, out: Array) -> None:
        """Write the sum of (1) to `out`; a model of K scores is folded as a matrix."""
        if self._shape is not None:
            x, out = x.reshape(self._shape), out.reshape(self._shape)
        self.rows.fold(x, chosen, coefficient, out)

    def value(self, x: Array) -> float:
        """Return f_i(x) over all records. This is a function of private data, for diagnostics only."""
        return self.weight * float(np.mean(self.loss.value(model_scores(self.rows, x), self.labels)))

    def minimise(self, linear: Array, quadratic: float, smoothness: float, x: Array, tolerance: float) -> None:
        """Write argmin_w f_i(w) + <linear, w> + (quadratic/2) |w|^2 to `x`, f_i with clipped records.

        Clipping (2) keeps a slope monotone in the score and its curvature in bounds: the clipped gradient is that of a
        convex, w L-Lipschitz, `smoothness`-smooth function.
        """
        np.divide(linear, -quadratic, out=x)
        with np.errstate(over="ignore", invalid="ignore"):  # as in `subgradient`
            minimise(self._full_gradient, Bounds(self.lipschitz * self.weight, smoothness, quadratic), x, tolerance)

    def _full_gradient(self, x: Array, out: Array) -> None:
        """Write (1) over all records to `out`."""
        self._fold(x, None, self._mean_slope, out)

    def _mean_slope(self, scores: Array, positions: slice | Positions) -> Array:
        """Return the factors of the a_r in (1) over all records."""
        c = self._slope(scores, positions)
        c *= self.weight / self.records
        return c

    def _coefficient(self, scores: Array, positions: slice | Positions) -> Array:
        """Return the factors of the a_r in (1)."""
        c = self._slope(scores, positions)
        c *= self._inverse
        return c

    def _slope(self, scores: Array, positions: slice | Positions) -> Array:
        """Overwrite the scores with the clipped slopes (2), and return them."""
        c = scores
        self.loss.to_slope(c, self.labels[positions])
        if c.ndim == 2:
            _clip_rows(c, self._limits[positions])  # (2')
            return c
        # (2). Scores of huge records overflow to inf - inf; fmin turns the NaN into the limit, minimum would keep it.
        np.fmin(c, self._limits[positions], out=c)
        np.fmax(c, self._lower[positions], out=c)
        return c


class MeanProblem(BatchSampler):
    """The mean squared distance to a rank's records in the cube [-R, R]^m, (4)."""

    def __init__(
        self,
        rows: Rows,
        batch: Batch,
        radius: float,
        stream: PrivateStream,
        weight: float = 1.0,
        persons: Positions | None = None,
    ) -> None:
        if not isinstance(rows, Dense):
            raise DataError("expected dense records for the mean loss, found sparse ones: use --data mean:...")
        super().__init__(batch, rows.count, stream, persons)
        check_finite(rows)
        self.matrix: Array = np.clip(rows.matrix, -radius, radius)
        self.dimension = rows.dimension
        # Covers the rounding of the sum, and of its difference to an x that is not 10^6 times as large as the cube.
        self.lipschitz = mean_lipschitz(radius, rows.dimension)
        sampling = batch.sampling(rows.count)
        self.weight = weight
        self._query = Query(np.zeros(rows.dimension), 2.0 * self.lipschitz * weight / sampling.expected, sampling)
        self._mean: Array = self.matrix.mean(axis=0)
        self._spread = 0.5 * float(np.mean(np.sum((self.matrix - self._mean) ** 2, axis=1)))

    def subgradient(self, x: Array) -> Query:
        """Return (4) at x over a freshly drawn batch: the same object every time, its buffer overwritten."""
        chosen, g = self.draw(), self._query.value
        if chosen is None:
            np.subtract(x, self._mean, out=g)
        else:
            np.sum(self.matrix[chosen], axis=0, out=g)
            g *= -1.0 / self._query.sampling.expected
            g += x
        if self.weight != 1.0:
            g *= self.weight
        return self._query

    def value(self, x: Array) -> float:
        """Return f_i(x) over all records. This is a function of private data, for diagnostics only."""
        d = x - self._mean
        return self.weight * (self._spread + 0.5 * float(d @ d))

    def minimise(self, linear: Array, quadratic: float, smoothness: float, x: Array, tolerance: float) -> None:
        """Write argmin_w f_i(w) + <linear, w> + (quadratic/2) |w|^2 to `x`, to the last digits."""
        np.multiply(self._mean, self.weight, out=x)
        x -= linear
        x /= self.weight + quadratic


def mean_lipschitz(radius: float, dimension: int) -> float:
    """Return L of (4), with room for rounding."""
    return radius * math.sqrt(dimension) * (1.0 + 1e-9)


def model_scores(rows: Rows | WithConstant, x: Array) -> Array:
    """Return the scores that a model gives to records: one a record, or a row of K for a model of K columns."""
    return rows.scores(x if x.size == rows.dimension else x.reshape(rows.dimension, -1))


def accuracy_counts(rows: Rows | WithConstant, labels: Array, x: Array) -> tuple[int, int]:
    """Return (records that get the right class, records).

    The class of a record is the sign of its score, where 0 is the negative class, or the one with the largest score.
    """
    scores = model_scores(rows, x)
    right = (scores > 0.0) == (labels > 0.0) if scores.ndim == 1 else scores.argmax(axis=1) == labels
    return int(np.count_nonzero(right)), rows.count


def _clip_rows(slopes: Array, limits: Array) -> None:
    """Scale every row of slopes to a norm of at most its limit, in place; a row that is not finite becomes 0, (2')."""
    norms = np.sqrt(np.einsum("ij,ij->i", slopes, slopes))
    with np.errstate(divide="ignore"):
        factors = np.minimum(1.0, limits / norms)  # NaN stays NaN, 0 becomes 1
    lost = ~np.isfinite(norms)
    if lost.any():
        slopes[lost], factors[lost] = 0.0, 1.0
    slopes *= factors[:, None]
