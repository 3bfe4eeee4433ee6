"""Tables and codebooks: an accepted table is coded as its cells say; an accepted codebook codes within its bounds."""

from __future__ import annotations

import csv
import io
import math
import re

import numpy as np
import pytest
from hostile import attempt, damaged, examples
from hypothesis import given

from dpmpi.data.codebook import read_codebook
from dpmpi.data.libsvm import to_dense
from dpmpi.data.table import code_table
from dpmpi.errors import ConfigError, DataError

CODEBOOK = b"""\
missing-words = ["", "NA"]
bias = true
separator = "comma"

[label]
column = "again"
classes = ["no", "yes"]
missing = "drop"

[columns.age]
range = [18, 100]
scale = [-1, 1]

[columns.glucose]
range = [3, 20.5]
missing = "column"

[columns.ward]
categories = ["medicine", "surgery"]
other = true
"""
TABLE = b"""\
again,age,glucose,ward,note
yes,40,5.5,surgery,x
no,18,,medicine,"two, words"
NA,50,4,eye,
no,99.5,1e1,"surgery",y

yes,120,NA,eye,z
"""
DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def coded(text: str) -> list[list[float]]:
    """Return label and row of every record that is kept, cell by cell; raise for what the codebook does not foresee."""
    header, *records = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    names = [name.strip() for name in header]
    assert all(names.count(name) == 1 for name in ("again", "age", "glucose", "ward"))
    rows = []
    for record in records:
        cells = [cell.strip() for cell in record]
        if cells in ([], [""]):
            continue
        of = dict(zip(names, cells, strict=True))
        row = []
        for name, low, high, s in (("age", 18, 100, -1), ("glucose", 3, 20.5, 0)):
            missing = of[name] in ("", "NA")
            assert not missing or name == "glucose"
            assert missing or DECIMAL.fullmatch(of[name])
            value = None if missing else min(max(float(of[name]), low), high)
            row.append(0.0 if missing else s + (1 - s) * (value - low) / (high - low))
            row += [float(missing)] if name == "glucose" else []
        assert of["ward"] not in ("", "NA")
        row += [float(of["ward"] == word) for word in ("medicine", "surgery")]
        row += [float(of["ward"] not in ("medicine", "surgery")), 1.0]
        if of["again"] not in ("", "NA"):
            scale = max(1.0, math.sqrt(math.fsum(x * x for x in row)))
            rows.append([{"no": -1.0, "yes": 1.0}[of["again"]], *(x / scale for x in row)])
    return rows


@pytest.fixture(scope="module")
def codebook(tmp_path_factory):
    path = tmp_path_factory.mktemp("book") / "codebook.toml"
    path.write_bytes(CODEBOOK)
    return read_codebook(path)


@given(raw=damaged(TABLE))
@examples(150)
def test_table(raw, codebook, tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(raw)
    found = attempt("table", lambda: code_table(path, codebook))
    if not isinstance(found, DataError):
        rows = to_dense(found.rows).matrix
        expected = coded(raw.decode("utf-8-sig"))
        assert np.allclose(np.column_stack([found.labels, rows]), expected, rtol=1e-12, atol=0)


@given(raw=damaged(CODEBOOK))
@examples(150)
def test_codebook(raw, tmp_path):
    path = tmp_path / "codebook.toml"
    path.write_bytes(raw)
    book = attempt("codebook", lambda: read_codebook(path))
    if isinstance(book, ConfigError):
        return
    (tmp_path / "table.csv").write_bytes(TABLE)
    found = attempt("table by a damaged codebook", lambda: code_table(tmp_path / "table.csv", book))
    if not isinstance(found, DataError):
        assert np.isfinite(found.rows.norms).all()
        assert found.rows.norms.max() <= 1.0
        assert found.rows.dimension == len(book.features)
        assert np.isfinite(found.labels).all()
