"""Columns of values as a table in a file, CSV or Parquet by its name, for its owner alone."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import IO, Any

from dpmpi.core.files import write_file
from dpmpi.data.parquet import SUFFIXES, write_parquet
from dpmpi.errors import ConfigError, DataError


def check_name(path: Path, flag: str) -> None:
    """Raise `ConfigError` unless the name of a file says which kind of table it is to be."""
    if path.suffix not in (".csv", *SUFFIXES):
        raise ConfigError(f"expected {flag} with a name that ends with .csv or .parquet, found {str(path)!r}")


def write_columns(path: Path, columns: dict[str, list[Any]]) -> None:
    """Write columns of equal length as a table; None is a missing value."""
    if path.suffix in SUFFIXES:
        write_parquet(path, columns)
        return
    text = io.StringIO(newline="")
    put_csv(text, columns)
    write_file(path, text.getvalue(), private=True, error=DataError)


def put_csv(stream: IO[str], columns: dict[str, list[Any]]) -> None:
    """Write columns of equal length to a stream."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow(["" if value is None else repr(value) if isinstance(value, float) else value for value in row])
