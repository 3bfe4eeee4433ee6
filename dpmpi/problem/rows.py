"""A shard's records, dense or sparse, in float64.

Both kinds offer the same two passes over the records a_1 ... a_q in R^m:

    scores(x)  = (<a_1, x>, ..., <a_q, x>)                                          (1)
    fold(x, c) = sum over chosen r of c_r a_r,   c = coefficient(<a_r, x>, r)       (2)

(2) is a (sub)gradient of a sum of losses of linear scores. It works through blocks of rows that fit into the cache, so
that a block is read from memory once, although it is used twice: for its scores and for its share of the sum.

A model of K scores is a matrix X of m x K numbers. Then a row's scores are the K numbers X' a_r, its coefficients c_r
are K numbers too, and the sum of (2) is one of the matrices a_r c_r'.

The scratch is allocated once and belongs to the object: one `fold` at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.errors import ConfigError, DataError

Positions: TypeAlias = NDArray[np.intp]
"""Row numbers, counted from 0, in increasing order; or lengths and places of rows in a vector of entries."""

Coefficient: TypeAlias = Callable[[Array, slice | Positions], Array]
"""Takes the scores of a block of rows and their positions; returns one coefficient a row, or K, in the same shape."""

BLOCK_BYTES = 1 << 20
"""About half of a second-level cache: the second use of a block hits it, the calls' overhead is amortised."""

LEAST_ROWS = 16
"""Every block adds a vector of the dimension to the sum: few rows a block would add more than they save."""

ENTRY_BYTES = 32
"""What a sparse entry takes while it is worked on: column, value, product, coefficient."""

_LOOPS = "_sparsetools"
"""The module of scipy's loops over sparse rows."""

_TINY = 1e-280  # a sum of squares below it may have lost summands to underflow


class Dense:
    """Records as a C-contiguous float64 matrix, one row each; such a matrix is kept, not copied."""

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
        self._partial: Array | None = None

    @property
    def nbytes(self) -> int:
        """The bytes that the records take."""
        return self.matrix.nbytes

    @cached_property
    def norms(self) -> Array:
        """The L2 norm of every row."""
        return _norms(np.einsum("ij,ij->i", self.matrix, self.matrix), self._values)

    @cached_property
    def _gathered(self) -> Array:
        return np.empty((min(self._block_rows, self.count), self.dimension))

    def _spare(self, shape: tuple[int, ...]) -> Array:
        """Return a buffer for the sum over a block."""
        if self._partial is None or self._partial.shape != shape:
            self._partial = np.empty(shape)
        return self._partial

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
            target = out if lo == 0 else self._spare(out.shape)
            if c.ndim == 2:
                np.dot(block.T, c, out=target)
            elif hi - lo == 1:
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
        # With mode="raise" numpy would buffer the output.
        return np.take(self.matrix, positions, axis=0, out=self._gathered[: len(positions)], mode="clip")


@cache
def compiled_loops() -> tuple[Any, ...] | None:
    """Return scipy's products of sparse rows with a vector and of their transpose, and the same with a matrix.

    None where scipy does not have them.

    They are private: its public products are the same loops, but allocate their results. They are loaded from their
    own file, in a millisecond: to import scipy.sparse takes every rank 0.2 s. Without them numpy serves.
    """
    found = find_spec("scipy")
    folders = [Path(folder) / "sparse" for folder in found.submodule_search_locations or ()] if found else []
    files = [folder / f"{_LOOPS}{ending}" for folder in folders for ending in EXTENSION_SUFFIXES]
    path = next((file for file in files if file.exists()), None)
    spec = None if path is None else spec_from_file_location(_LOOPS, path)
    if spec is None or spec.loader is None:
        return None
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.csr_matvec, module.csc_matvec, module.csr_matvecs, module.csc_matvecs
    except (ImportError, AttributeError):
        return None


class Pieces:
    """Consecutive pieces of a vector, of which some may be empty; made once for many sums."""

    __slots__ = ("_filled", "_starts", "lengths")

    def __init__(self, lengths: Positions) -> None:
        self.lengths = lengths
        filled, starts = lengths > 0, np.cumsum(lengths) - lengths
        self._filled = None if filled.all() else filled
        self._starts = starts if self._filled is None else starts[filled]

    def sums(self, values: Array) -> Array:
        """Return the sum of each piece."""
        if len(self._starts) == 0:
            return np.zeros(len(self.lengths))
        if self._filled is None:
            return np.add.reduceat(values, self._starts)
        sums = np.zeros(len(self.lengths))
        sums[self._filled] = np.add.reduceat(values, self._starts)
        return sums


def entry_places(starts: Positions, lengths: Positions) -> Positions:
    """Return the numbers starts[0] ... starts[0] + lengths[0] - 1, then those of the next piece, and so on."""
    at = offsets(lengths)
    return np.arange(at[-1]) + np.repeat(starts - at[:-1], lengths)


def offsets(lengths: Positions) -> Positions:
    """Return where pieces of these lengths begin when they follow each other, and at last where they end."""
    at = np.zeros(len(lengths) + 1, np.intp)
    np.cumsum(lengths, out=at[1:])
    return at


def cut_blocks(at: Positions, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (lo, hi): pieces lo ... hi-1 have at most `limit` entries together, or it is a single longer one."""
    lo = 0
    while lo < len(at) - 1:
        hi = max(lo + 1, int(np.searchsorted(at, at[lo] + limit, side="right")) - 1)
        yield lo, hi
        lo = hi


class Csr:
    """Records in compressed sparse rows: row r holds data[k] in column indices[k] for indptr[r] <= k < indptr[r+1].

    Columns are sorted within a row if they are not; a column that occurs twice in a row is refused, because the norm
    of such a row, and with it the clipping, would be wrong. Arrays of the right type are kept, not copied.
    """

    def __init__(self, indptr: Positions, indices: Positions, data: Array, dimension: int) -> None:
        self.indptr: Positions = np.ascontiguousarray(indptr, dtype=np.intp)
        self.indices: Positions = np.ascontiguousarray(indices, dtype=np.intp)
        self.data: Array = np.ascontiguousarray(data, dtype=np.float64)
        self.count, self.dimension = len(self.indptr) - 1, int(dimension)
        self._check_layout()

    @property
    def nbytes(self) -> int:
        """The bytes that the records take."""
        return self.indptr.nbytes + self.indices.nbytes + self.data.nbytes

    @cached_property
    def norms(self) -> Array:
        """The L2 norm of every row."""
        with np.errstate(over="ignore", invalid="ignore"):
            return _norms(Pieces(np.diff(self.indptr)).sums(self.data * self.data), self._values)

    def scores(self, x: Array) -> Array:
        """Return <a_r, x> for every row r, (1)."""
        out = np.empty((self.count, *x.shape[1:]))
        for rows, entries, pieces in self._blocks:
            out[rows] = self._block_scores(x, self.indices[entries], self.data[entries], pieces)
        return out

    def fold(self, x: Array, chosen: Positions | None, coefficient: Coefficient, out: Array) -> None:
        """Write the sum of c_r a_r over the `chosen` rows (None: all) to `out`, (2)."""
        out.fill(0.0)
        if chosen is None and (loops := compiled_loops()) is not None:
            arrays, scores = (self.indptr, self.indices, self.data), np.zeros((self.count, *x.shape[1:]))
            score, add_up = loops[:2] if x.ndim == 1 else loops[2:]
            score(self.count, self.dimension, *x.shape[1:], *arrays, x.reshape(-1), scores.reshape(-1))
            c = coefficient(scores, slice(0, self.count))
            # rows are the transpose's columns
            add_up(self.dimension, self.count, *x.shape[1:], *arrays, c.reshape(-1), out.reshape(-1))
            return
        for positions, entries, pieces in self._blocks if chosen is None else self._some_blocks(chosen):
            columns, values = self.indices[entries], self.data[entries]
            c = coefficient(self._block_scores(x, columns, values, pieces), positions)
            work = self._work[: len(columns)]
            for one, total in [(c, out)] if c.ndim == 1 else zip(c.T, out.T, strict=True):
                np.multiply(values, one[0] if len(one) == 1 else np.repeat(one, pieces.lengths), out=work)
                np.add.at(total, columns, work)

    def _block_scores(self, x: Array, columns: Positions, values: Array, pieces: Pieces) -> Array:
        """Return the scores of a block of rows."""
        if x.ndim == 1:
            return pieces.sums(self._products(x, columns, values))
        return np.stack([pieces.sums(self._products(one, columns, values)) for one in x.T], axis=1)

    def _values(self, row: np.intp) -> Array:
        return self.data[self.indptr[row] : self.indptr[row + 1]]

    def _some_blocks(self, chosen: Positions) -> Iterator[tuple[Positions, slice | Positions, Pieces]]:
        """Yield the positions of a block of rows, where their entries lie, and how long they are."""
        starts, lengths = self.indptr[chosen], self.indptr[chosen + 1] - self.indptr[chosen]
        for lo, hi in [(0, 1)] if len(chosen) == 1 else cut_blocks(offsets(lengths), BLOCK_BYTES // ENTRY_BYTES):
            one = hi - lo == 1
            entries = (
                slice(starts[lo], starts[lo] + lengths[lo]) if one else entry_places(starts[lo:hi], lengths[lo:hi])
            )
            yield chosen[lo:hi], entries, Pieces(lengths[lo:hi])

    def _products(self, x: Array, columns: Positions, values: Array) -> Array:
        """Return values * x[columns] in the block buffer."""
        work = np.take(x, columns, out=self._work[: len(columns)], mode="clip")
        work *= values
        return work

    @cached_property
    def _work(self) -> Array:
        longest = int(np.max(np.diff(self.indptr), initial=0))
        return np.empty(max(longest, min(BLOCK_BYTES // ENTRY_BYTES, len(self.data))))

    @cached_property
    def _blocks(self) -> list[tuple[slice, slice, Pieces]]:
        return [
            (slice(lo, hi), slice(*self.indptr[[lo, hi]]), Pieces(np.diff(self.indptr[lo : hi + 1])))
            for lo, hi in cut_blocks(self.indptr, BLOCK_BYTES // ENTRY_BYTES)
        ]

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
    del rows.norms  # they are computed again


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
    entries = entry_places(rows.indptr[positions], lengths)
    return Csr(offsets(lengths), rows.indices[entries], rows.data[entries], rows.dimension)


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
