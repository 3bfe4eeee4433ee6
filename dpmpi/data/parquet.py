"""Tables as Parquet files, cell by cell as text: coded by a codebook as those of a CSV table are.

A whole number is written without a point even in a column of floats, as columns with missing values often are; a
missing value is written as the codebook writes it. It needs pyarrow (the extra `parquet`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpmpi.core.files import writing
from dpmpi.data.codebook import DECIMALS, Codebook
from dpmpi.errors import ConfigError, DataError

SUFFIXES = (".parquet", ".pq")


def parquet_records(path: Path, codebook: Codebook, wanted: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, cells) for the header, 1, and every record; cells of columns that are not wanted are empty."""
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - slow, and optional
    except ImportError as error:
        raise ConfigError(f"{path}: tables as Parquet need pyarrow: pip install 'dpmpi[parquet]'") from error

    if not path.is_file():
        raise DataError(f"cannot read {path}: no such file")
    try:
        with parquet.ParquetFile(path) as file:
            header = list(file.schema_arrow.names)
            yield 1, header
            read = [name for name in dict.fromkeys(header) if name in wanted]
            number = 1
            for batch in file.iter_batches(columns=read):
                for record in batch.to_pylist():
                    number += 1
                    yield number, [_text(record.get(name), codebook) if name in read else "" for name in header]
    except (ArrowException, OSError) as error:
        raise DataError(f"{path}: expected a table as Parquet, found none ({type(error).__name__})") from error


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    """Write columns as a Parquet file for its owner alone; None is a missing value."""
    try:
        import pyarrow  # noqa: PLC0415 - slow, and optional
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"{path}: tables as Parquet need pyarrow: pip install 'dpmpi[parquet]'") from error

    with writing(path, private=True, error=DataError) as stream:
        parquet.write_table(pyarrow.table(columns), stream)


def _text(value: Any, codebook: Codebook) -> str:
    """Return a cell as the codebook's format writes it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return codebook.missing_words[0]
    if isinstance(value, float):
        text = str(int(value)) if value.is_integer() else repr(value)
        return text.replace(".", DECIMALS[codebook.decimal])
    return str(value).strip()
