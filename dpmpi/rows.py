"""A shard's records, dense or sparse, in float64.

Both kinds offer the same two passes over the records a_1 ... a_q in R^m:

    scores(x)  = (<a_1, x>, ..., <a_q, x>)                                          (1)
    fold(x, c) = sum over chosen r of c_r a_r,   c = coefficient(<a_r, x>, r)       (2)

(2) is a (sub)gradient of a sum of losses of linear scores. It works through blocks of rows that fit into the cache, so
that a block is read from memory once, although it is used twice: for its scores and for its share of the sum.

The scratch is allocated once and belongs to the object: one `fold` at a time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.errors import ConfigError, DataError
from dpmpi.segments import Segments, bounds, split, spread

Positions: TypeAlias = NDArray[np.intp]
"""Row numbers, counted from 0, in increasing order."""

Coefficient: TypeAlias = Callable[[Array, slice | Positions], Array]
"""Takes the scores of a block of rows and their positions; returns one coefficient a row."""

BLOCK_BYTES = 1 << 20
"""About half of a second-level cache: the second use of a block hits it, the calls' overhead is amortised."""

LEAST_ROWS = 16
"""Every block adds a vector of the dimension to the sum: few rows a block would add more than they save."""

ENTRY_BYTES = 32
"""What a sparse entry takes while it is worked on: column, value, product, coefficient."""

COMPILED_ENTRIES = 1 << 18
"""From so many entries on, scipy's loops repay the 0.2 s of their import within about a hundred passes."""

_TINY = 1e-280  # a sum of squares below it may have lost summands to underflow


class Dense:
    """Records as a C-contiguous float64 matrix, one row each; such a matrix is kept, not copied."""

    __slots__ = ("_block_rows", "_gathered", "_norms", "_partial", "_pass_rows", "count", "dimension", "matrix")

    def __init__(self, matrix: Array) -> None:
        if matrix.ndim != 2 or matrix.shape[1] < 1:
            raise DataError(
                f"expected a matrix with one record a row, found shape {matrix.shape}: reshape the features"
            )
        self.matrix: Array = np.ascontiguousarray(matrix, dtype=np.float64)
        self.count, self.dimension = self.matrix.shape
        fitting = BLOCK_BYTES // (8 * self.dimension)
        self._block_rows = max(LEAST_ROWS, fitting)
        # Where few rows fit into the cache, all in one go: to read them twice costs less than to add up many blocks.
        self._pass_rows = fitting if fitting >= LEAST_ROWS else max(1, self.count)
        self._gathered: Array | None = None
        self._partial: Array | None = None
        self._norms: Array | None = None

    @property
    def nbytes(self) -> int:
        """The bytes that the records take."""
        return self.matrix.nbytes

    @property
    def norms(self) -> Array:
        """The L2 norm of every row."""
        if self._norms is None:
            self._norms = _norms(np.einsum("ij,ij->i", self.matrix, self.matrix), self._values)
        return self._norms

    def scores(self, x: Array) -> Array:
        """Return <a_r, x> for every row r, (1)."""
        return np.asarray(np.dot(self.matrix, x))

    def fold(self, x: Array, chosen: Positions | None, coefficient: Coefficient, out: Array) -> None:
        """Write the sum of c_r a_r over the `chosen` rows (None: all) to `out`, (2)."""
        n, step = (self.count, self._pass_rows) if chosen is None else (len(chosen), self._block_rows)
        if n == 0:
            out.fill(0.0)
        for lo in range(0, n, step):
            hi = min(lo + step, n)
            positions = slice(lo, hi) if chosen is None else chosen[lo:hi]
            block = self.matrix[lo:hi] if isinstance(positions, slice) else self._gather(positions)
            c = coefficient(np.dot(block, x), positions)
            target = out if lo == 0 else self._spare()
            if hi - lo == 1:
                np.multiply(block[0], c[0], out=target)
            else:
                np.dot(c, block, out=target)
            if lo > 0:
                out += target

    def _values(self, row: np.intp) -> Array:
        return np.asarray(self.matrix[row])

    def _gather(self, positions: Positions) -> Array:
        """Return the rows at `positions`: a single one as a view, several in the block buffer."""
        if len(positions) == 1:
            return self.matrix[positions[0] : positions[0] + 1]
        if self._gathered is None:
            self._gathered = np.empty((min(self._block_rows, self.count), self.dimension))
        # With mode="raise" numpy would buffer the output.
        return np.take(self.matrix, positions, axis=0, out=self._gathered[: len(positions)], mode="clip")

    def _spare(self) -> Array:
        if self._partial is None:
            self._partial = np.empty(self.dimension)
        return self._partial


class Csr:
    """Records in compressed sparse rows: row r holds data[k] in column indices[k] for indptr[r] <= k < indptr[r+1].

    Columns are sorted within a row if they are not; a column that occurs twice in a row is refused, because the norm
    of such a row, and with it the clipping, would be wrong. Arrays of the right type are kept, not copied.
    """

    __slots__ = ("_blocks", "_compiled", "_norms", "_work", "count", "data", "dimension", "indices", "indptr")

    def __init__(self, indptr: Positions, indices: Positions, data: Array, dimension: int) -> None:
        self.indptr: Positions = np.ascontiguousarray(indptr, dtype=np.intp)
        self.indices: Positions = np.ascontiguousarray(indices, dtype=np.intp)
        self.data: Array = np.ascontiguousarray(data, dtype=np.float64)
        self.count, self.dimension = len(self.indptr) - 1, int(dimension)
        self._blocks: list[tuple[slice, slice, Segments]] | None = None
        self._compiled: Any = None
        self._norms: Array | None = None
        self._work: Array | None = None
        self._check_layout()

    @property
    def nbytes(self) -> int:
        """The bytes that the records take."""
        return self.indptr.nbytes + self.indices.nbytes + self.data.nbytes

    @property
    def norms(self) -> Array:
        """The L2 norm of every row."""
        if self._norms is None:
            with np.errstate(over="ignore", invalid="ignore"):
                self._norms = _norms(Segments(np.diff(self.indptr)).sums(self.data * self.data), self._values)
        return self._norms

    def scores(self, x: Array) -> Array:
        """Return <a_r, x> for every row r, (1)."""
        out = np.empty(self.count)
        for rows, entries, segments in self._all_blocks():
            out[rows] = segments.sums(self._products(x, self.indices[entries], self.data[entries]))
        return out

    def fold(self, x: Array, chosen: Positions | None, coefficient: Coefficient, out: Array) -> None:
        """Write the sum of c_r a_r over the `chosen` rows (None: all) to `out`, (2)."""
        out.fill(0.0)
        if chosen is None and (loops := self._loops()) is not None:
            arrays, scores = (self.indptr, self.indices, self.data), np.zeros(self.count)
            loops.csr_matvec(self.count, self.dimension, *arrays, x, scores)
            c = coefficient(scores, slice(0, self.count))
            loops.csc_matvec(self.dimension, self.count, *arrays, c, out)  # rows are the transpose's columns
            return
        for positions, entries, segments in self._all_blocks() if chosen is None else self._some_blocks(chosen):
            columns, values = self.indices[entries], self.data[entries]
            work = self._products(x, columns, values)
            c = coefficient(segments.sums(work), positions)
            np.multiply(values, c[0] if len(c) == 1 else np.repeat(c, segments.lengths), out=work)
            np.add.at(out, columns, work)

    def _values(self, row: np.intp) -> Array:
        return self.data[self.indptr[row] : self.indptr[row + 1]]

    def _some_blocks(self, chosen: Positions) -> Iterator[tuple[Positions, slice | Positions, Segments]]:
        """Yield the positions of a block of rows, where their entries lie, and how long they are."""
        starts, lengths = self.indptr[chosen], self.indptr[chosen + 1] - self.indptr[chosen]
        for lo, hi in [(0, 1)] if len(chosen) == 1 else split(bounds(lengths), BLOCK_BYTES // ENTRY_BYTES):
            one = hi - lo == 1
            entries = slice(starts[lo], starts[lo] + lengths[lo]) if one else spread(starts[lo:hi], lengths[lo:hi])
            yield chosen[lo:hi], entries, Segments(lengths[lo:hi])

    def _products(self, x: Array, columns: Positions, values: Array) -> Array:
        """Return values * x[columns] in the block buffer."""
        if self._work is None:
            longest = int(np.max(np.diff(self.indptr), initial=0))
            self._work = np.empty(max(longest, min(BLOCK_BYTES // ENTRY_BYTES, len(self.data))))
        work = np.take(x, columns, out=self._work[: len(columns)], mode="clip")
        work *= values
        return work

    def _all_blocks(self) -> list[tuple[slice, slice, Segments]]:
        if self._blocks is None:
            self._blocks = [
                (slice(lo, hi), slice(*self.indptr[[lo, hi]]), Segments(np.diff(self.indptr[lo : hi + 1])))
                for lo, hi in split(self.indptr, BLOCK_BYTES // ENTRY_BYTES)
            ]
        return self._blocks

    def _loops(self) -> Any:
        """Return scipy's loops over sparse rows, or None: for few entries, or where scipy does not have them."""
        if self._compiled is None:
            self._compiled = False
            if len(self.data) >= COMPILED_ENTRIES:
                with contextlib.suppress(ImportError):  # they are scipy's own: its public products make new vectors
                    from scipy.sparse import _sparsetools  # noqa: PLC0415 - slow, and few shards are so large

                    self._compiled = _sparsetools
        return self._compiled or None

    def _check_layout(self) -> None:
        """Raise `DataError` unless the three arrays describe rows without repeated columns; sort the columns."""
        lengths = np.diff(self.indptr)
        n = len(self.indices)
        if self.count < 0 or self.indptr[0] != 0 or self.indptr[-1] != n or len(self.data) != n or np.any(lengths < 0):
            raise DataError(
                f"expected row pointers that rise from 0 to the number of entries, found {len(self.indptr)} pointers, "
                f"{n} columns and {len(self.data)} values that do not fit: rebuild the sparse rows"
            )
        if self.dimension < 1 or (n and (self.indices.min() < 0 or self.indices.max() >= self.dimension)):
            raise DataError(f"expected columns 0 to {self.dimension - 1}, found others: raise the number of features")
        row_of = np.repeat(np.arange(self.count), lengths)
        same_row = row_of[1:] == row_of[:-1]
        if np.any(same_row & (self.indices[1:] <= self.indices[:-1])):
            order = np.lexsort((self.indices, row_of))
            self.indices, self.data = self.indices[order], self.data[order]
            twice = np.flatnonzero(same_row & (self.indices[1:] == self.indices[:-1]))
            if len(twice):
                raise DataError(
                    f"expected every column at most once in a row, found one again in row {row_of[twice[0]]} (counting "
                    "from 0): add up or drop the repeated entries"
                )


Rows: TypeAlias = Dense | Csr


def scale_rows(rows: Rows, bound: float) -> None:
    """Scale every row whose norm exceeds `bound` down to a norm of at most `bound`, in place.

    A computed norm is off by up to (m + 8) units of rounding. So that the true norm obeys the bound, a row that is that
    close to it is moved twice as far inside; a second call then changes nothing.
    """
    if not 0.0 < bound < math.inf:
        raise ConfigError(f"expected a positive bound on the norm of a record, found {bound}")
    slack = (rows.dimension + 8) * 2.0**-53
    with np.errstate(divide="ignore"):
        factors = np.where(rows.norms > bound * (1.0 - slack), bound * (1.0 - 2.0 * slack) / rows.norms, 1.0)
    if isinstance(rows, Dense):
        np.multiply(rows.matrix, factors[:, None], out=rows.matrix)
    else:
        rows.data *= np.repeat(factors, np.diff(rows.indptr))
    rows._norms = None


def check_finite(rows: Rows) -> None:
    """Raise `DataError` that names the first row with a NaN or an infinity."""
    for r in np.flatnonzero(~np.isfinite(rows.norms)):  # a norm may also overflow although all values are finite
        if not np.isfinite(rows._values(r)).all():
            raise DataError(
                f"expected finite features, found NaN or infinity in row {r} (counting from 0): mend or drop the row"
            )


def take(rows: Rows, positions: Positions) -> Rows:
    """Return a copy of the rows at `positions`."""
    if isinstance(rows, Dense):
        return Dense(rows.matrix[positions])
    lengths = np.diff(rows.indptr)[positions]
    entries = spread(rows.indptr[positions], lengths)
    return Csr(bounds(lengths), rows.indices[entries], rows.data[entries], rows.dimension)


def _norms(squares: Array, values: Callable[[np.intp], Array]) -> Array:
    """Return the roots of the rows' sums of squares; where those left the range of a float, start over with scaling."""
    norms = np.sqrt(squares)
    for r in np.flatnonzero(~((squares > _TINY) & (squares < math.inf))):
        row = values(r)
        top = float(np.max(np.abs(row), initial=0.0))
        if top == 0.0 or not math.isfinite(top):
            norms[r] = top
        else:
            scaled = row / top
            norms[r] = top * math.sqrt(float(np.dot(scaled, scaled)))
    return norms
