"""Tables of records (CSV, Parquet) as shards, coded by a codebook that all parties agreed on beforehand.

The cells of a record become numbers by (1) to (4) of `codebook.py`, laid side by side in the order of the codebook, and

    row:  a / max(1, |a|), where a may end with a column that is always 1 (bias)                                    (6)

Privacy: (6) looks at one record at a time too. Whether rows are stored dense or sparse follows from the codebook. How
many records were left out for a missing value shows in the number of rows, which is public: the promise is for the
records that are kept.

A message about a wrong cell shows what stands there: it is for the one who has the table.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.data.codebook import DECIMALS, SEPARATORS, Classes, Codebook, Column, Count
from dpmpi.data.file_reading import numbered_lines
from dpmpi.data.libsvm import to_dense
from dpmpi.data.parquet import SUFFIXES, parquet_records
from dpmpi.data.shards import read_npz
from dpmpi.data.source import record_bytes
from dpmpi.errors import DataError, nearest, shown
from dpmpi.problem.rows import Csr, Positions, Rows, scale_rows


@frozen
class Coded:
    """A coded table."""

    rows: Rows
    labels: Array
    """NaN if the table has none: a run refuses such a shard."""
    left_out: tuple[tuple[str, str], ...]
    """What errors call each record that was left out, and why."""
    unused: tuple[str, ...]
    """The columns of the table that the codebook does not name."""
    persons: Positions | None = None
    """Whose each record is, as numbers from 0 on; None if the codebook has no persons."""
    beyond: int = 0
    """How many of those were left out because their persons had enough records."""

    @property
    def dropped(self) -> int:
        """How many records were left out for a missing value."""
        return len(self.left_out) - self.beyond


def code_table(path: Path, codebook: Codebook, *, labelled: bool = True) -> Coded:
    """Code all records of a table, plain or compressed; raise `DataError` that names line and column.

    Without labels the label's column need not be there, and is not looked at.
    """
    wanted = codebook.all if labelled else codebook.columns
    person = [codebook.person.column] if labelled and codebook.person is not None else []
    lines = read_records(path, codebook, [*(one.column for one in wanted), *person])
    header = next(lines)[1]
    records = ((f"{path}:{line}", cells) for line, cells in lines)
    return code_records(header, records, codebook, str(path), labelled=labelled)


def code_records(
    header: Sequence[str],
    records: Iterable[tuple[str, Sequence[str]]],
    codebook: Codebook,
    what: str,
    *,
    labelled: bool = True,
) -> Coded:
    """Code records, each with what errors call it; `what` is what they call the table."""
    wanted = codebook.all if labelled else codebook.columns
    places = [(one, where_in(what, header, one.column)) for one in wanted]
    labels, built, left_out = array("d"), _Built(codebook), list[tuple[str, str]]()
    person = codebook.person if labelled else None
    whose = -1 if person is None else where_in(what, header, person.column)
    names: dict[str, int] = {}
    counts, persons, beyond = array("q"), array("q"), 0
    for where, cells in records:
        coded = _code(where, codebook, [(one, cells[place]) for one, place in places])
        if isinstance(coded, str):
            left_out.append((where, coded))
            continue
        if person is not None:
            if cells[whose] in codebook.missing_words:
                raise DataError(f"{where}: column {person.column}: expected whose the record is, found none")
            number = names.setdefault(cells[whose], len(names))
            if number == len(counts):
                counts.append(0)
            if counts[number] == person.most:
                beyond += 1
                left_out.append((where, f"its person had {person.most} records before"))
                continue  # (5)
            counts[number] += 1
            persons.append(number)
        labels.append(coded.pop(0)[1] if labelled else math.nan)
        built.add(coded)
    if not labels:
        raise DataError(
            f"{what}: expected records below the header, found none without missing values ({len(left_out)} with)"
        )
    rows = built.rows()
    scale_rows(rows, 1.0)  # (6)
    known = [one.column for one in codebook.all] + ([] if codebook.person is None else [codebook.person.column])
    unused = tuple(name for name in header if name not in known)
    numbers = None if person is None else np.asarray(persons, np.intp)
    return Coded(rows, np.asarray(labels), tuple(left_out), unused, numbers, beyond)


@frozen
class Asked:
    """A table of records to predict for: every record is there, those that cannot be coded with the reason."""

    names: list[str]
    """Of each record: the cell of the column that names it, or its line."""
    problems: list[str]
    """Of each record: why it cannot be coded; empty if it can."""
    rows: Rows
    """Those that can, in order, not cut to norm 1 yet."""
    labels: Array
    """Of the same: the codes of their labels, NaN where there is none."""


def code_asked(path: Path, codebook: Codebook, name: str | None = None) -> Asked:
    """Code the records of a table to predict for, by whatever order of columns; labels need not be there.

    `name` is the column that names the records.
    """
    wanted = [*(one.column for one in codebook.all), *([] if name is None else [name])]
    records = read_records(path, codebook, wanted, ragged=True)
    header = next(records)[1]
    places = [(one, where_in(path, header, one.column)) for one in codebook.columns]
    named = None if name is None else where_in(path, header, name)
    label = header.index(codebook.label.column) if header.count(codebook.label.column) == 1 else None
    names, problems, built, labels = [], [], _Built(codebook), array("d")
    for line, cells in records:
        names.append(str(line) if named is None else cells[named] if named < len(cells) else "")
        try:
            if len(cells) != len(header):
                raise DataError(f"expected {len(header)} cells as in the header, found {len(cells)}")
            coded = [_asked_cell(codebook, one, cells[place]) for one, place in places]
        except DataError as error:
            problems.append(str(error))
            continue
        problems.append("")
        built.add(coded)
        labels.append(math.nan if label is None else _asked_label(codebook, cells[label]))
    return Asked(names, problems, built.rows(), np.asarray(labels))


def _asked_cell(codebook: Codebook, column: Column, cell: str) -> tuple[int, float]:
    """Return the code of a cell; raise `DataError` that says why there is none."""
    if cell in codebook.missing_words:
        if column.missing != "column" or isinstance(column, Classes | Count):
            raise DataError(f"column {column.column}: expected a value, found none")
        return len(column.features) - 1, 1.0
    try:
        return column.code(cell, DECIMALS[codebook.decimal])
    except ValueError as error:
        raise DataError(f"column {column.column}: {error}, found {shown(cell, 40)}") from None


def _asked_label(codebook: Codebook, cell: str) -> float:
    """Return the code of a label, NaN if it has none."""
    try:
        return codebook.label.code(cell, DECIMALS[codebook.decimal])[1]
    except ValueError:
        return math.nan


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


class _Built:
    """Rows in the making, one record after the other."""

    def __init__(self, codebook: Codebook) -> None:
        self._codebook = codebook
        self._ends, self._indices, self._values = array("q", [0]), array("q"), array("d")

    def add(self, coded: Sequence[tuple[int, float]]) -> None:
        """Add a record: for each column where in its own columns which value stands."""
        start = 0
        for column, (offset, value) in zip(self._codebook.columns, coded, strict=True):
            self._indices.append(start + offset)
            self._values.append(value)
            start += len(column.features)
        if self._codebook.bias:
            self._indices.append(start)
            self._values.append(1.0)
        self._ends.append(len(self._indices))

    def rows(self) -> Rows:
        """Return the rows, dense or sparse as the codebook says."""
        ends, indices, values = map(np.asarray, (self._ends, self._indices, self._values))
        made = Csr(ends, indices, values, len(self._codebook.features))
        return made if self._codebook.sparse else to_dense(made)


# --- records ---------------------------------------------------------------------------------------------------------


def _code(where: str, codebook: Codebook, cells: Sequence[tuple[Column, str]]) -> list[tuple[int, float]] | str:
    """Return where in each column's own columns which value stands; or why a record is to be left out."""
    found: list[tuple[int, float]] = []
    absent, decimal = [], DECIMALS[codebook.decimal]
    for column, cell in cells:
        what = f"{where}: column {column.column}"
        if cell not in codebook.missing_words:
            try:
                found.append(column.code(cell, decimal))
            except ValueError as error:
                raise DataError(f"{what}: {error}, found {cell[:40]!r}: mend the table") from None
        elif column.missing == "column" and not isinstance(column, Classes | Count):
            found.append((len(column.features) - 1, 1.0))  # (3)
        elif column.missing == "drop":
            absent.append(column.column)  # the other cells must be right all the same
        else:
            expected = 'expected missing = "drop" or "column" in the codebook, or no missing values'
            raise DataError(f"{what}: {expected}, found one")
    return f"missing: {', '.join(absent)}" if absent else found


def read_records(
    path: Path, codebook: Codebook, wanted: Sequence[str], *, ragged: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) for the header and every record; unless `ragged`, as many cells as the header has."""
    if path.suffix in SUFFIXES:
        yield from parquet_records(path, codebook, wanted)
        return
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
        elif len(cells) != width and not ragged:
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


def where_in(what: str | Path, header: Sequence[str], column: str) -> int:
    """Return the place of a column in the header; raise `DataError` unless it is there once."""
    if header.count(column) == 1:
        return header.index(column)
    near = nearest(column, filter(str.isprintable, header))
    found = f"{header.count(column)} of them" if column in header else f"none{near}"
    raise DataError(f"{what}:1: expected a column {column!r} in the header, found {found}: compare with the codebook")
