"""What a raw table holds, as one histogram for each column over cells that were fixed before anybody looked at it.

A schema is a codebook with generous ranges in which the label may be missing. Of each record, a column has one cell,

    number:    below the range, one of the steps between public edges, above it, missing, or no number          (1)
    category:  one of the declared words, another one, or missing                                               (2)

so that a record is one 1 in each of the C histograms. The edges in a range [low, high] are low, high, and in between

    multiples of s, the smallest of 1, 2, 5 x 10^k with at least 1/60 of the range                              (3)
    between -s and s also -+ 1, 2, 5 x 10^k down to s / 10^4: long tails have their bulk there                  (4)

Sensitivity: to replace one record takes 1 from a cell and adds 1 to another in each histogram, in L2 at most

    sqrt(2 C)                                                                                                   (5)

With noise of deviation d in every cell, and the public number of rows N, the cells of a column are moved by the same
amount until they add up to N. Then a sum a'c of its K cells has the deviation

    d |a - mean(a)|                                                                                             (6)

Quantiles: with n the present numbers (missing and no numbers left out), F(e) those below the edge e, the p-quantile
lies where F crosses p n. F(e) - p n is a sum of cells, with the deviation b(e) of (6). Its ends are

    low   the last edge up to which F + 2 b < p n at all edges                                                  (7)
    high  the first edge from which on F - 2 b > p n at all edges                                               (8)

For the true quantile to lie below (7), the noise at one edge, the first one above it, must be below -2 b: each end is
wrong with a chance of 2.3%. If nothing is told from noise, they are the ends of the range.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.core.files import parse_toml, read_text
from dpmpi.core.frozen import frozen
from dpmpi.data.codebook import DECIMALS, Category, Classes, Codebook, Column, Count, build_codebook, read_number
from dpmpi.data.table import read_records, where_in
from dpmpi.data.table_schema import table_schema_content
from dpmpi.errors import DataError

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
STEPS = 60
"""The most steps of (3) in a range."""
_NO_LABEL = "(no label)"
_FINEST = 4  # powers of ten below s, (4)


@frozen
class Histogram:
    """The cells of one column, (1) or (2)."""

    column: str
    words: tuple[str, ...] = ()
    """The categories; empty for numbers."""
    edges: tuple[float, ...] = ()
    """The edges of the steps; empty for categories."""

    @property
    def width(self) -> int:
        """The number of cells."""
        return len(self.edges) + 3 if self.edges else len(self.words) + 2

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def cell(self, text: str, missing_words: tuple[str, ...], decimal: str) -> int:
        """Return the cell of a record with this text: every text has one."""
        if not self.edges:
            return self.width - 1 if text in missing_words else self._places.get(text, len(self.words))  # (2)
        if text in missing_words:
            return self.width - 2
        value = read_number(text, decimal)
        if value is None:
            return self.width - 1
        return len(self.edges) - 1 if value == self.edges[-1] else bisect_right(self.edges, value)  # (1)


@frozen
class Schema:
    """What is public of a table before it is described: its columns, and how their cells are written."""

    codebook: Codebook
    labelled: bool
    """Whether it declares a label, which is described as the other columns are."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are described."""
        return self.codebook.all if self.labelled else self.codebook.columns

    @cached_property
    def histograms(self) -> tuple[Histogram, ...]:
        """One for each column."""
        return tuple(_histogram(one) for one in self.columns)

    @property
    def width(self) -> int:
        """The number of cells of all columns."""
        return sum(one.width for one in self.histograms)

    @property
    def sensitivity(self) -> float:
        """How far replacing one record moves all cells, in L2: (5)."""
        return math.sqrt(2.0 * len(self.histograms))

    @property
    def most(self) -> int:
        """The most records of one person."""
        return 1 if self.codebook.person is None else self.codebook.person.most

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that are the same for equivalent schemas."""
        return self.codebook.digest

    def split(self, cells: Array) -> list[Array]:
        """Return the cells of each column."""
        return np.split(cells, np.cumsum([one.width for one in self.histograms])[:-1])


def read_schema(path: Path) -> Schema:
    """Read a schema: a codebook with or without a label, or a Table Schema (.json)."""
    if path.suffix == ".json":
        content = table_schema_content(path).book
    else:
        content = parse_toml(read_text(path, "the schema"), f"the schema {path}")
    labelled = "label" in content
    if not labelled:
        content["label"] = {"column": _NO_LABEL, "most": 1}
    return Schema(build_codebook(content, str(path)), labelled)


def _histogram(column: Column) -> Histogram:
    if isinstance(column, Category | Classes):
        return Histogram(column.column, column.categories if isinstance(column, Category) else column.classes)
    low, high = (0.0, float(column.most)) if isinstance(column, Count) else (column.low, column.high)
    return Histogram(column.column, edges=grid(low, high))


def grid(low: float, high: float) -> tuple[float, ...]:
    """Return the edges (3) and (4) of a range."""
    exponent = math.floor(math.log10((high - low) / STEPS))
    step, power = next(
        (digit, k) for k in (exponent, exponent + 1) for digit in (1, 2, 5) if digit * 10.0**k * STEPS >= high - low
    )
    multiples = range(math.floor(low / (step * 10.0**power)), math.ceil(high / (step * 10.0**power)) + 1)
    found = {_decimal(m * step, power) for m in multiples}
    fine = {_decimal(d, k) for k in range(power - _FINEST, power + 1) for d in (1, 2, 5) if (d < step or k < power)}
    found |= fine | {-edge for edge in fine}
    return (low, *sorted(edge for edge in found if low < edge < high), high)


def _decimal(digits: int, power: int) -> float:
    """Return the float nearest to digits x 10^power, as people write it."""
    return float(f"{digits}e{power}")


@frozen
class Described:
    """The counts of one table, before noise: for its owner alone."""

    rows: int
    cells: Array
    identity: str
    """A hash of the table, by which its ledger knows it under a key."""


def count_cells(path: Path, schema: Schema) -> Described:
    """Count the records of a table in the cells of all columns; of persons only the first `most` records each."""
    book, person = schema.codebook, schema.codebook.person
    wanted = [one.column for one in schema.columns] + ([] if person is None else [person.column])
    records = read_records(path, book, wanted)
    header = next(records)[1]
    places = [where_in(path, header, one.column) for one in schema.columns]
    whose = None if person is None else where_in(path, header, person.column)
    counts = [np.zeros(one.width) for one in schema.histograms]
    seen: Counter[str] = Counter()
    rows, decimal, digest = 0, DECIMALS[book.decimal], hashlib.sha256()
    for line, cells in records:
        digest.update("\x1f".join(cells).encode() + b"\n")
        if whose is not None:
            if cells[whose] in book.missing_words:
                raise DataError(f"{path}:{line}: expected whose the record is in column {header[whose]}, found none")
            seen[cells[whose]] += 1
            if seen[cells[whose]] > schema.most:
                continue
        rows += 1
        for histogram, count, place in zip(schema.histograms, counts, places, strict=True):
            count[histogram.cell(cells[place], book.missing_words, decimal)] += 1.0
    if not rows:
        raise DataError(f"{path}: expected records below the header, found none")
    return Described(rows, np.concatenate(counts), digest.hexdigest())


# --- what follows from noisy cells -----------------------------------------------------------------------------------


def figures(schema: Schema, cells: Array, rows: int, deviation: float) -> list[dict[str, Any]]:
    """Return the figures of each column, JSON-ready, from noisy cells of `rows` rows with noise of this deviation."""
    found = []
    for histogram, noisy in zip(schema.histograms, schema.split(cells), strict=True):
        even = noisy + (rows - noisy.sum()) / histogram.width
        sums = _Sums(even, rows, deviation)
        found.append(_numbers(histogram, sums) if histogram.edges else _words(histogram, sums))
    return found


@frozen
class _Sums:
    """Sums over the cells of one column, which add up to the rows."""

    cells: Array
    rows: int
    deviation: float

    def rate(self, *places: int) -> dict[str, float]:
        """Return the share of the rows in some cells, clipped to [0, 1], with its deviation."""
        chosen = np.zeros(len(self.cells))
        chosen[list(places)] = 1.0
        value = min(max(float(chosen @ self.cells) / self.rows, 0.0), 1.0)
        return {"value": value, "error": self.spread(chosen) / self.rows}

    def spread(self, weights: Array) -> float:
        """Return the deviation of a sum of cells with these weights, (6)."""
        return self.deviation * float(np.linalg.norm(weights - weights.mean()))


def _words(histogram: Histogram, sums: _Sums) -> dict[str, Any]:
    last = histogram.width - 1
    error = sums.rate(last)["error"] * sums.rows
    counts = {word: float(count) for word, count in zip(histogram.words, sums.cells, strict=False)}
    return {
        "column": histogram.column,
        "kind": "category",
        "counts": counts,
        "count_error": error,
        "other": sums.rate(last - 1),
        "missing": sums.rate(last),
    }


def _numbers(histogram: Histogram, sums: _Sums) -> dict[str, Any]:
    last = histogram.width - 1
    return {
        "column": histogram.column,
        "kind": "number",
        "range": [histogram.edges[0], histogram.edges[-1]],
        "quantiles": [_quantile(histogram.edges, sums, p) for p in QUANTILES],
        "below": sums.rate(0),
        "above": sums.rate(last - 2),
        "missing": sums.rate(last - 1),
        "no_number": sums.rate(last),
    }


def _quantile(edges: tuple[float, ...], sums: _Sums, p: float) -> dict[str, float]:
    """Return the p-quantile with its ends (7), (8)."""
    present = np.ones(len(sums.cells))
    present[-2:] = 0.0
    over, spread = np.zeros(len(edges)), np.zeros(len(edges))
    for k in range(len(edges)):
        weights = (np.arange(len(sums.cells)) <= k) - p * present
        over[k], spread[k] = weights @ sums.cells, sums.spread(weights)
    surely_below, surely_above = over + 2.0 * spread < 0.0, over - 2.0 * spread > 0.0
    low = int(np.argmin(surely_below)) - 1 if not surely_below.all() else len(edges) - 1  # (7)
    high = len(edges) - int(np.argmin(surely_above[::-1])) if not surely_above.all() else 0  # (8)
    rising = 0.5 * (np.maximum.accumulate(over) + np.minimum.accumulate(over[::-1])[::-1])
    low_edge, high_edge = edges[max(low, 0)], edges[min(high, len(edges) - 1)]
    value = float(np.interp(0.0, rising, edges))
    return {"p": p, "value": min(max(value, low_edge), high_edge), "low": low_edge, "high": high_edge}
