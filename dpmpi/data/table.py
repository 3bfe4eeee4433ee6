"""Tables of records (CSV) as shards, coded by a codebook that all parties agreed on beforehand.

The cells of a record become numbers by (1) to (4) of `codebook.py`, laid side by side in the order of the codebook, and

    row:  a / max(1, |a|), where a may end with a column that is always 1 (bias)                                    (5)

Privacy: (5) looks at one record at a time too. Whether rows are stored dense or sparse follows from the codebook. How
many records were left out for a missing value shows in the number of rows, which is public: the promise is for the
records that are kept.

A message about a wrong cell shows what stands there: it is for the one who has the table.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from dpmpi.core import Array
from dpmpi.data.codebook import DECIMALS, SEPARATORS, Classes, Codebook, Column
from dpmpi.data.file_reading import numbered_lines
from dpmpi.data.libsvm import to_dense
from dpmpi.data.shards import read_npz
from dpmpi.data.source import record_bytes
from dpmpi.errors import DataError, nearest
from dpmpi.problem.rows import Csr, Rows, scale_rows


@dataclass(frozen=True)
class Coded:
    """A coded table."""

    rows: Rows
    labels: Array
    """NaN if the table has none: a run refuses such a shard."""
    dropped: int
    """How many records were left out for a missing value."""
    unused: tuple[str, ...]
    """The columns of the table that the codebook does not name."""


def code_table(path: Path, codebook: Codebook, *, labelled: bool = True) -> Coded:
    """Code all records of a table, plain or compressed; raise `DataError` that names line and column.

    Without labels the label's column need not be there, and is not looked at.
    """
    wanted = codebook.all if labelled else codebook.columns
    records = _records(path, codebook, [one.column for one in wanted])
    header = next(records)[1]
    places = [(one, _place(path, header, one.column)) for one in wanted]
    labels, ends, indices, values = array("d"), array("q", [0]), array("q"), array("d")
    dropped = 0
    for line, cells in records:
        coded = _code(f"{path}:{line}", codebook, [(one, cells[place]) for one, place in places])
        if coded is None:
            dropped += 1
            continue
        labels.append(coded.pop(0)[1] if labelled else math.nan)
        start = 0
        for column, (offset, value) in zip(codebook.columns, coded, strict=True):
            indices.append(start + offset)
            values.append(value)
            start += len(column.features)
        if codebook.bias:
            indices.append(start)
            values.append(1.0)
        ends.append(len(indices))
    if not labels:
        raise DataError(
            f"{path}: expected records below the header, found none without missing values ({dropped} with)"
        )
    rows: Rows = Csr(np.asarray(ends), np.asarray(indices), np.asarray(values), len(codebook.features))
    rows = rows if codebook.sparse else to_dense(rows)
    scale_rows(rows, 1.0)  # (5)
    unused = tuple(name for name in header if name not in [one.column for one in codebook.all])
    return Coded(rows, np.asarray(labels), dropped, unused)


def rows_that_stay(coded: Coded, old: Path) -> int:
    """Return how many records of a coded table are in an earlier shard; raise `DataError` if none is.

    A record is known by all that it was coded to. Where none stays, nothing could tell the ledger of the old table from
    anybody else's: the codebook has changed, or it is a table of other people.
    """
    rows, labels = read_npz(old)
    before = set(record_bytes(rows, labels))
    stay = sum(record in before for record in record_bytes(coded.rows, coded.labels))
    if not stay:
        raise DataError(
            f"expected records of {old} among those of the table, found none: code both by the same codebook, or leave "
            "--continues out if nobody is in both"
        )
    return stay


# --- records ---------------------------------------------------------------------------------------------------------


def _code(where: str, codebook: Codebook, cells: Sequence[tuple[Column, str]]) -> list[tuple[int, float]] | None:
    """Return where in each column's own columns which value stands; None for a record to be left out."""
    found: list[tuple[int, float]] = []
    complete, decimal = True, DECIMALS[codebook.decimal]
    for column, cell in cells:
        what = f"{where}: column {column.column}"
        if cell not in codebook.missing_words:
            try:
                found.append(column.code(cell, decimal))
            except ValueError as error:
                raise DataError(f"{what}: {error}, found {cell[:40]!r}: mend the table") from None
        elif column.missing == "column" and not isinstance(column, Classes):
            found.append((len(column.features) - 1, 1.0))  # (3)
        elif column.missing == "drop":
            complete = False  # the other cells must be right all the same
        else:
            expected = 'expected missing = "drop" or "column" in the codebook, or no missing values'
            raise DataError(f"{what}: {expected}, found one")
    return found if complete else None


def _records(path: Path, codebook: Codebook, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) for the header and every record; all have as many cells as the header."""
    lines = _text(path)
    first = next(lines, "")
    separator = _sniff(first, wanted) if codebook.separator is None else SEPARATORS[codebook.separator]
    reader = csv.reader(chain([first], lines), delimiter=separator, skipinitialspace=True, strict=True)
    width = None
    while True:
        line = reader.line_num + 1
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}:{line}: expected cells separated as declared, found another line: {error}"
            ) from error
        if width is None:
            width = len(cells)
        elif cells in ([], [""]) and width > 1:
            continue
        elif len(cells) != width:
            hint = "quote cells that hold the separator"
            raise DataError(f"{path}:{line}: expected {width} cells as in the header, found {len(cells)}: {hint}")
        yield line, cells


def _text(path: Path) -> Iterator[str]:
    for number, line in numbered_lines(path):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: expected UTF-8, found other bytes: save the table as UTF-8") from error


def _sniff(header: str, wanted: Sequence[str]) -> str:
    """Return the separator that gives most of the wanted columns; it is decided by the header, not by records."""

    def found(separator: str) -> int:
        try:
            cells = next(csv.reader([header], delimiter=separator, skipinitialspace=True, strict=True), [])
        except csv.Error:
            return 0
        return len({cell.strip() for cell in cells} & set(wanted))

    return max(SEPARATORS.values(), key=found)


def _place(path: Path, header: Sequence[str], column: str) -> int:
    if header.count(column) == 1:
        return header.index(column)
    near = nearest(column, filter(str.isprintable, header))
    found = f"{header.count(column)} of them" if column in header else f"none{near}"
    raise DataError(f"{path}:1: expected a column {column!r} in the header, found {found}: compare with the codebook")
