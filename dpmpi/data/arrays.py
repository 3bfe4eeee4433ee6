"""Records that a Python program hands over.

    X                                  y
    numpy matrix, or what becomes one  one label a row: a number, or the name of a class that `classes` declares
    scipy sparse matrix                the same
    pandas or pyarrow table            the same; or None: the codebook names the label's column

A table needs a codebook unless all its columns are numbers. Its cells are coded as those of a file are (`table.py`):
missing values (None, NaN) count as the codebook's missing words, whole floats as whole numbers.

`data = "arrays"` in config.toml says that the records were handed over; for a table without codebook a digest of the
columns' names follows, so that ranks with other columns refuse to begin. Nothing else of the records is there: whoever
goes on with such a run hands them over again. They are private, as `shards:` are, and there is no survey.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.data.codebook import Codebook, parse_codebook, read_codebook
from dpmpi.data.shards import check_labels, make_shard
from dpmpi.data.source import Shard, Source, SourceOptions, Survey
from dpmpi.data.table import Coded, code_records
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.rows import Csr, Dense, Positions, Rows, check_finite
from dpmpi.problem.task import Task


@frozen
class Records:
    """One rank's records as they were handed over; `test` are others to evaluate on."""

    X: Any
    y: Any = None
    test: tuple[Any, Any] | None = None


@frozen
class Arrays(Source):
    """`arrays`: records from Python, of all ranks or of the one in this process."""

    name = "arrays"
    private = True
    records: tuple[Records, ...] = ()
    codebook: str = ""
    """Its text; empty for none."""

    @classmethod
    def parse(cls, text: str, options: SourceOptions) -> Self:
        """Return the source without its records: enough for plans, and to check what was charged."""
        if not re.fullmatch(r"(columns=[0-9a-f]{16})?", text):
            raise ConfigError(f"expected arrays or arrays:columns=DIGEST, found arrays:{text[:40]}: call dpmpi.train")
        if options.samples is not None or options.deal.kind != "even":
            raise ConfigError("expected no --samples and no --deal for arrays, which are used whole: dpmpi.split deals")
        return cls(options)

    @property
    def spec(self) -> str:
        """How config.toml names it."""
        names = self.feature_names()
        if names is None:
            return self.name
        return f"{self.name}:columns={hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]}"

    def feature_names(self) -> tuple[str, ...] | None:
        """Return the names of a table's columns; None for a matrix, and where a codebook names them."""
        return None if self.codebook or not self.records else _names(self.records[0].X)

    def training_rows(self, survey: Survey) -> int:
        """Raise `ConfigError`: nobody looks at another rank's records."""
        raise ConfigError("expected data whose rows can be counted, found arrays, which their ranks alone know")

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Return the rank's own records; a process that was handed those of one rank alone is that rank."""
        if not self.records:
            raise ConfigError(
                "expected the arrays of this run, which a Python program hands over, found none: call dpmpi.train or "
                "dpmpi.simulate, with resume=RUN to go on"
            )
        part, what = self.records[rank if len(self.records) > 1 else 0], f"the arrays of rank {rank}"
        if (names := self.feature_names()) is not None and _names(part.X) != names:
            raise DataError(f"{what}: expected the columns {', '.join(names)[:80]}, found others: all need the same")
        book = parse_codebook(self.codebook, "the codebook") if self.codebook else None
        person = None if book is None else book.person
        if person is not None and not (part.y is None and part.test is None):
            raise ConfigError(
                f"{what}: expected a table with labels and no test arrays for a codebook with [person], found others: "
                "leave out y and test, and give test_fraction, which holds out whole persons"
            )
        rows, labels, persons = self._converted(part.X, part.y, what)
        said = book.task if book is not None and part.y is None else None
        tests = None if part.test is None else self._converted(*part.test, f"the test arrays of rank {rank}")[:2]
        if tests is not None and tests[0].dimension != rows.dimension:
            raise DataError(f"{what}: expected {rows.dimension} columns in the test arrays, found {tests[0].dimension}")
        shard = make_shard(rows, labels, rank, self.options, what, tests, said, persons=persons)
        return replace(shard, codebook=self.codebook, most=1 if person is None else person.most)

    def _converted(self, X: Any, y: Any, what: str) -> tuple[Rows, Array, Positions | None]:
        """Return rows and labels of their own, which may be changed, and whose each record is if a codebook says."""
        persons = None
        if self.codebook:
            book = parse_codebook(self.codebook, "the codebook")
            coded = code_object(X, book, what, labelled=y is None)
            if y is not None and coded.dropped:
                raise DataError(
                    f"{what}: expected labels in the table, or no record to be left out for a missing value, found "
                    f"{coded.dropped} of them"
                )
            rows, labels = coded.rows, coded.labels if y is None else self._labels(y, what)
            persons = coded.persons
        else:
            if y is None:
                raise DataError(
                    f"{what}: expected labels y, for simulate a pair (X, y) of each agent, or a codebook that names "
                    "their column, found none"
                )
            rows, labels = _rows(X, what), self._labels(y, what)
        try:
            check_finite(rows)
        except DataError as error:
            raise DataError(f"{what}: {error}") from None
        check_labels(labels, rows.count, what)
        return rows, labels, persons

    def _labels(self, y: Any, what: str) -> Array:
        """Return labels as numbers; names of classes become those that they stand for."""
        found = np.asarray(y)
        if found.ndim == 1 and found.dtype.kind in "OUT" and all(isinstance(label, str) for label in found.tolist()):
            return (self.options.declared.known() or Task()).written(found.tolist(), what)
        return _numbers(y, what)


def _names(X: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of a table; None where they are numbers."""
    found: Any = getattr(X, "column_names", None)
    found = getattr(X, "columns", ()) if found is None else found
    return tuple(found) if len(found) and all(isinstance(name, str) for name in found) else None


def _rows(X: Any, what: str) -> Rows:
    if hasattr(X, "tocsr"):
        sparse = X.tocsr(copy=True)
        sparse.sum_duplicates()
        return Csr(sparse.indptr, sparse.indices, _numbers(sparse.data, what), sparse.shape[1])
    if hasattr(X, "column_names"):  # pyarrow
        X = np.column_stack([_numbers(column.to_pylist(), what) for column in X.columns])
    matrix = _numbers(X, what)
    if matrix.ndim != 2 or matrix.shape[1] < 1:
        raise DataError(f"{what}: expected a matrix with one record a row, found shape {matrix.shape}")
    return Dense(matrix)


def _numbers(values: Any, what: str) -> Array:
    """Return a new array of numbers."""
    try:
        found = np.asarray(values)
        if found.dtype.kind not in "fiubO":
            raise TypeError(str(found.dtype))
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large for a float64 becomes infinite
            return np.array(found, np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: expected numbers, found others ({error}): tables take a codebook") from None


# --- tables ----------------------------------------------------------------------------------------------------------


def code(table: Any, codebook: str | Path) -> tuple[Any, Array | None]:
    """Code a pandas or pyarrow table by the codebook of a file: a matrix X to predict from, and y.

    y is None if the table lacks the label's column. X is a scipy sparse array where few of its columns are not 0.
    """
    book = read_codebook(Path(codebook))
    labelled = book.label.column in (_names(table) or ())
    coded = code_object(table, book, "the table", labelled=labelled)
    X: Any = coded.rows.matrix if isinstance(coded.rows, Dense) else _scipy(coded.rows)
    return X, coded.labels if labelled else None


def _scipy(rows: Csr) -> Any:
    from scipy.sparse import csr_array  # noqa: PLC0415 - slow, and few tables are sparse

    return csr_array((rows.data, rows.indices, rows.indptr), (rows.count, rows.dimension))


def code_object(table: Any, codebook: Codebook, what: str, *, labelled: bool = True) -> Coded:
    """Code a pandas or pyarrow table as `code_table` codes a file."""
    if hasattr(table, "column_names"):  # pyarrow
        header, lines = list(table.column_names), zip(*(column.to_pylist() for column in table.columns), strict=True)
    elif hasattr(table, "itertuples"):  # pandas
        header, lines = list(map(str, table.columns)), table.itertuples(index=False, name=None)
    else:
        raise DataError(f"{what}: expected a pandas or pyarrow table for a codebook, found {type(table).__name__}")
    book, missing = replace(codebook, decimal="point"), codebook.missing_words[0]

    def records() -> Iterator[tuple[str, Sequence[str]]]:
        for number, line in enumerate(lines):
            yield f"{what}: record {number}", [_cell(value, missing) for value in line]

    return code_records(header, records(), book, what, labelled=labelled)


def _cell(value: Any, missing: str) -> str:
    """Return a value as the cell of a file."""
    if isinstance(value, str):
        return value.strip()
    if value is None or value != value or type(value).__name__ == "NAType":  # noqa: PLR0124 - NaN and NaT
        return missing
    if isinstance(value, float | np.floating) and math.isfinite(value) and float(value).is_integer():
        return str(int(value))
    return str(value.item() if isinstance(value, np.generic) else value)
