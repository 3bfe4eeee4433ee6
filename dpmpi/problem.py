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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmpi.core import Array, Query, Sampling
from dpmpi.errors import ConfigError, DataError
from dpmpi.losses import Loss
from dpmpi.rng import PrivateStream
from dpmpi.rows import Positions, Rows, check_finite


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


class LocalProblem:
    """The mean loss over a rank's records, and its clipped subgradients over freshly drawn batches."""

    __slots__ = (
        "_inverse", "_limits", "_lower", "_query",
        "batch", "dimension", "labels", "lipschitz", "loss", "records", "rows", "stream",
    )  # fmt: skip

    def __init__(
        self, rows: Rows, labels: Array, loss: Loss, batch: Batch, lipschitz: float, stream: PrivateStream
    ) -> None:
        _check(rows, labels, loss, batch, lipschitz)
        self.rows = rows
        self.labels: Array = np.ascontiguousarray(labels, dtype=np.float64)
        self.loss = loss
        self.batch = batch
        self.lipschitz = float(lipschitz)
        self.stream = stream
        self.records = rows.count
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

    def _coefficient(self, scores: Array, positions: slice | Positions) -> Array:
        """Return the factors of the a_r in (1)."""
        c = self.loss.slope(scores, self.labels[positions])
        # (2). Scores of huge records overflow to inf - inf; fmin turns the NaN into the limit, minimum would keep it.
        np.fmin(c, self._limits[positions], out=c)
        np.fmax(c, self._lower[positions], out=c)
        c *= self._inverse
        return c

    def _draw(self) -> Positions | None:
        """Return the positions of a batch, in increasing order; None for all records."""
        q, b = self.records, self.batch.size
        if self.batch.kind == "full" or b == q:
            return None
        if self.batch.kind == "poisson":
            return poisson_positions(self.stream, q, b / q)
        return fixed_positions(self.stream, q, b)


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
