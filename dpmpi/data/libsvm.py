"""Text files of records, one a line: `label index:value index:value ...  # comment`, indices from 1, ascending.

Files are read as streams, plain or compressed (.gz, .bz2, .xz). One rank's `survey` learns the sizes and the label
values. Every rank then reads the file once more and parses only the lines that are its own: the rows are numbered
0 ... N-1, permuted by the shared seed, cut to the first `samples`, and the last of these are held out. If labels decide
who gets which rows, a rank reads all labels first: one more pass, of which it keeps a number a row.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.data.file_reading import MOST_FEATURES, numbered_lines, shown_bytes
from dpmpi.data.source import FileSource, Shard, Survey
from dpmpi.errors import DataError
from dpmpi.problem.rows import Csr, Dense, Positions, Rows, scale_rows, take
from dpmpi.problem.task import MOST_CLASSES, Task

_MAX_INDEX = 2**31 - 1
_DENSE_FROM = 0.25  # a sparse number takes 16 bytes and an indirection, a dense one 8


@frozen
class LibsvmFile(FileSource):
    """`libsvm:PATH`: a file that every rank can read and of which it keeps its own rows only."""

    name = "libsvm"
    wanted = "the path of a file, as in libsvm:data/a9a.bz2"

    def survey(self) -> Survey:
        """Count rows, features, numbers and label values; numbers are parsed by the rank that keeps them."""
        rows = features = nonzeros = 0
        values: dict[bytes, float] = {}
        labels: set[float] = set()
        low, high = math.inf, -math.inf
        for number, line in data_lines(self.path):
            tokens = line.split(None, 1)
            text = tokens[0]
            if text not in values:
                if len(values) > 1000:  # real labels: remembering them all would be a copy of them
                    values.clear()
                values[text] = _label(self.path, number, text)
                low, high = min(low, values[text]), max(high, values[text])
                if len(labels) <= MOST_CLASSES:
                    labels.add(values[text])
            rows += 1
            if len(tokens) > 1 and not (rest := tokens[1]).isspace():
                nonzeros += rest.count(b":")
                last = rest.rsplit(None, 1)[-1]
                features = max(features, _pair(self.path, number, last)[0])
        _check_found(self.path, rows, features)
        span = (low, high) if len(labels) > MOST_CLASSES else None
        return Survey(rows, features, tuple(sorted(labels)), nonzeros, span)

    def load_many(self, survey: Survey | None, ranks: Sequence[int], size: int) -> list[Shard]:
        """Read the rows of all these ranks in one pass."""
        survey = survey or self.survey()
        dealt = list(self.deal(survey, ranks, size))
        wanted = np.unique(np.concatenate([mine for mine, _ in dealt]))
        found, labels = read_rows(self.path, survey, wanted.tolist())
        task = self.declared_task(survey) or Task()
        labels = task.coded(labels, self.title)
        dense = survey.nonzeros > _DENSE_FROM * survey.rows * survey.features

        def part(positions: Positions) -> tuple[Rows, Array]:
            at = np.searchsorted(wanted, positions)
            rows: Rows = take(found, at)
            if dense:
                rows = to_dense(rows)
            if self.options.normalize:
                scale_rows(rows, 1.0)
            return rows, labels[at]

        return [Shard(*part(mine[:n]), *part(mine[n:]), task=task) for mine, n in dealt]

    def file_labels(self, survey: Survey) -> Array:
        """Read the label of every line, and nothing else of it."""
        labels = array(
            "d", (_label(self.path, number, line.split(None, 1)[0]) for number, line in data_lines(self.path))
        )
        _check_unchanged(self.path, survey, len(labels))
        return np.asarray(labels)


def read_rows(path: Path, survey: Survey | None = None, wanted: Sequence[int] | None = None) -> tuple[Csr, Array]:
    """Return the rows numbered `wanted` (ascending; None for all), in the order of the file, and their labels.

    With a survey the rows have its dimension, and the file must have its number of rows; without one the dimension is
    the largest index found.
    """
    limit = survey.features if survey else _MAX_INDEX
    labels, ends, columns, values = array("d"), array("q", [0]), array("q"), array("d")
    upcoming = iter(wanted or ())
    following = next(upcoming, -1)
    row = -1
    for row, (number, line) in enumerate(data_lines(path)):
        if wanted is not None:
            if row != following:
                continue
            following = next(upcoming, -1)
        head, *tokens = line.split()
        labels.append(_label(path, number, head))
        indices, numbers = _pairs(path, number, tokens, limit)
        columns.extend(indices)
        values.extend(numbers)
        ends.append(len(columns))
    if survey:
        _check_unchanged(path, survey, row + 1)
    zero_based = np.asarray(columns)
    dimension = survey.features if survey else int(zero_based.max(initial=0))
    _check_found(path, row + 1, dimension)
    zero_based -= 1
    return Csr(np.asarray(ends), zero_based, np.asarray(values), dimension), np.asarray(labels)


def to_dense(rows: Rows) -> Dense:
    """Return the same rows as a matrix."""
    if isinstance(rows, Dense):
        return rows
    matrix = np.zeros((rows.count, rows.dimension))
    matrix[np.repeat(np.arange(rows.count), np.diff(rows.indptr)), rows.indices] = rows.data
    return Dense(matrix)


def _check_unchanged(path: Path, survey: Survey, rows: int) -> None:
    if rows != survey.rows:
        raise DataError(
            f"{path}: expected the {survey.rows} rows of the first pass, found {rows}: the file changed while in use"
        )


def _check_found(path: Path, rows: int, features: int) -> None:
    if rows == 0:
        raise DataError(f"{path}: expected lines of `label index:value ...`, found none")
    if features == 0:
        raise DataError(f"{path}: expected index:value in some of {rows} rows, found none")
    if features > MOST_FEATURES:
        raise DataError(f"{path}: expected at most {MOST_FEATURES} features, found index {features}: is it damaged?")


def data_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line) for every line that is more than a comment, with the comment removed."""
    for number, line in numbered_lines(path):
        if b"#" in line:
            line = line.partition(b"#")[0]  # noqa: PLW2901  what follows is not data
        if line and not line.isspace():
            yield number, line


def _pairs(path: Path, number: int, tokens: list[bytes], limit: int) -> tuple[list[int], list[float]]:
    """Return the indices and values of a line; raise `DataError` for the first token that is wrong."""
    try:
        _no_underscore(b"".join(tokens))
        split = [token.split(b":") for token in tokens]
        indices, values = [int(index) for index, _ in split], [float(value) for _, value in split]
        ascending = all(map(operator.lt, indices, islice(indices, 1, None)))
        if not indices or (ascending and indices[0] > 0 and indices[-1] <= limit and all(map(math.isfinite, values))):
            return indices, values
    except ValueError:
        pass
    previous = 0
    for token in tokens:  # slow, to name the token
        index, _ = _pair(path, number, token)
        if index <= previous:
            raise DataError(f"{path}:{number}: expected ascending indices, found {index} after {previous}")
        previous = index
    raise DataError(
        f"{path}:{number}: expected indices up to {limit} as in the first pass, found {previous}: the file changed"
    )


def _pair(path: Path, number: int, token: bytes) -> tuple[int, float]:
    """Return one `index:value`; raise `DataError` that names what is wrong."""
    try:
        _no_underscore(token)
        index_text, value_text = token.split(b":")
        index, value = int(index_text), float(value_text)
    except ValueError:
        raise DataError(f"{path}:{number}: expected index:value, found {shown_bytes(token)}") from None
    if not 1 <= index <= _MAX_INDEX:
        raise DataError(f"{path}:{number}: expected an index from 1 to {_MAX_INDEX}, found {shown_bytes(token)}")
    if not math.isfinite(value):
        raise DataError(f"{path}:{number}: expected a finite value, found {shown_bytes(token)}")
    return index, value


def _label(path: Path, number: int, token: bytes) -> float:
    try:
        _no_underscore(token)
        label = float(token)
    except ValueError:
        label = math.nan
    if not math.isfinite(label):
        raise DataError(f"{path}:{number}: expected a number as label, found {shown_bytes(token)}")
    return label


def _no_underscore(text: bytes) -> None:
    """Raise `ValueError` for digits grouped as in 1_000, which Python takes for a number and other readers do not."""
    if b"_" in text:
        raise ValueError
