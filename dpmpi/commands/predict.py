"""Predictions of a model for a table: `python -m dpmpi predict MODEL TABLE --id patient --out out.csv`.

Every record of the table is answered, under its name: with the class and the probabilities, or the number in the units
of the label; or with the reason why it could not be coded. If the table has the label's column too, it is said how good
the predictions are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.core.files import check_output
from dpmpi.data.codebook import DECIMALS, SEPARATORS, Codebook, parse_codebook, read_codebook
from dpmpi.data.columns import check_name, put_csv, write_columns
from dpmpi.data.libsvm import read_rows
from dpmpi.data.parquet import SUFFIXES
from dpmpi.data.shards import read_shard
from dpmpi.data.table import Asked, code_asked
from dpmpi.errors import ConfigError, DataError
from dpmpi.model import Model
from dpmpi.model.metrics import metrics
from dpmpi.problem.rows import Csr, Rows
from dpmpi.runtime.flag_parser import Parser

EPILOG = """\
examples:
  python -m dpmpi predict runs/demo next-month.csv --id patient --out predictions.csv
  python -m dpmpi predict model.npz people.parquet --codebook codebook.toml --out predictions.parquet
  python -m dpmpi predict runs/demo shard.npz
"""


def main(argv: Sequence[str]) -> int:
    """Run `python -m dpmpi predict`."""
    parser = Parser("python -m dpmpi predict", None, __doc__.splitlines()[0], EPILOG, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", type=Path, metavar="MODEL", help="a run directory, or its model.npz")
    kinds = "CSV (plain or .gz ...), Parquet, or coded rows: a shard (.npz) or LIBSVM text"
    parser.add_argument("table", type=Path, metavar="TABLE", help=kinds)
    parser.add_argument("--codebook", type=Path, metavar="FILE", help="how to code it (default: the model's own)")
    parser.add_argument("--id", metavar="COLUMN", help="the column that names the records (default: their lines)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=".csv or .parquet, for you alone (default: the screen)"
    )
    parser.add_argument("--separator", choices=SEPARATORS, help="(default: the codebook's, or what fits the header)")
    parser.add_argument("--decimal", choices=DECIMALS, help="comma for 37,5 (default: the codebook's, or point)")
    flags = parser.parse_args(argv)
    check_output(flags.out, flags.table, flags.model, flags.codebook)
    model = Model.load(flags.model)
    asked = _asked(flags, model)
    columns = answers(model, asked, flags.id or "row")
    _write(flags.out, columns)
    there, problems = len(asked.names), sum(map(bool, asked.problems))
    told = [f"{there - problems:,} of {there:,} records predicted" + (", the others say why" if problems else "")]
    told += [str(flags.out)] if flags.out is not None else []
    stream = sys.stdout if flags.out is not None else sys.stderr
    print(": ".join(told), file=stream)
    for line in _quality(model, asked):
        print(line, file=stream)
    return 0


def answers(model: Model, asked: Asked, name: str) -> dict[str, list[Any]]:
    """Return the columns of the answer, a value for each record; None where it could not be coded."""
    places = [place for place, problem in enumerate(asked.problems) if not problem]

    def spread(values: Any) -> list[Any]:
        column: list[Any] = [None] * len(asked.names)
        for place, value in zip(places, values, strict=True):
            column[place] = value
        return column

    found: dict[str, list[Any]] = {name: asked.names, "prediction": spread(model.predict(asked.rows).tolist())}
    labels = model.task.classes
    if model.has_probabilities:
        table = model.predict_proba(asked.rows)
        found |= {f"probability of {label}": spread(table[:, k].tolist()) for k, label in enumerate(labels)}
    elif model.task.classifies:
        scores = model.scores(asked.rows)
        headings = [f"score of {label}" for label in labels] if model.task.kind == "multiclass" else ["score"]
        found |= {heading: spread(scores[:, k].tolist()) for k, heading in enumerate(headings)}
    return found | {"problem": [problem or None for problem in asked.problems]}


def _asked(flags: argparse.Namespace, model: Model) -> Asked:
    """Return the records to predict for."""
    codebook = _codebook(flags, model)
    if flags.table.suffix == ".npz" or codebook is None:
        rows, labels = _coded(flags.table, model)
        if flags.id is not None:
            raise ConfigError(f"expected a table for --id {flags.id}, found coded rows, which have no names: drop it")
        lines = [str(row) for row in range(1, rows.count + 1)]
        return Asked(lines, [""] * rows.count, rows, labels)
    given = {name: getattr(flags, name) for name in ("separator", "decimal") if getattr(flags, name) is not None}
    return code_asked(flags.table, replace(codebook, **given), flags.id)


def _codebook(flags: argparse.Namespace, model: Model) -> Codebook | None:
    """Return the codebook that is given, or else the model's own; raise `ConfigError` if it cannot be the model's."""
    if flags.codebook is None:
        if not model.codebook and flags.table.suffix in (".csv", *SUFFIXES):
            raise ConfigError("expected --codebook FILE for a model that was not trained on coded tables, found none")
        return parse_codebook(model.codebook, "the model's codebook") if model.codebook else None
    codebook = read_codebook(flags.codebook)
    if model.codebook_digest and model.codebook_digest != codebook.digest:
        raise ConfigError(
            f"expected the codebook of the model ({model.codebook_digest}), found another ({codebook.digest}) in "
            f"{flags.codebook}: leave --codebook out, and the model's own is taken"
        )
    if len(codebook.features) != len(model.features):
        raise ConfigError(
            f"expected a codebook with the {len(model.features)} features of the model, found "
            f"{len(codebook.features)} in {flags.codebook}: it is another's"
        )
    return codebook


def _coded(path: Path, model: Model) -> tuple[Rows, Array]:
    """Return rows that are coded already, and their labels."""
    if path.suffix == ".npz":
        found = read_shard(path, labelled=False)
        return found.rows, found.labels
    if path.suffix in (".csv", *SUFFIXES):
        raise ConfigError(f"expected --codebook FILE to code {path}, found none")
    rows, _ = read_rows(path)
    if rows.dimension > len(model.features):
        raise DataError(f"{path}: expected {len(model.features)} features, found {rows.dimension}: it is another's")
    wide = Csr(rows.indptr, rows.indices, rows.data, len(model.features))
    return wide, np.full(rows.count, np.nan)


def _quality(model: Model, asked: Asked) -> list[str]:
    """Return how good the predictions are, for the records that have a label; nothing if none has."""
    known = np.isfinite(asked.labels)
    if not known.any():
        return []
    scores, labels = model.scores(asked.rows)[known], asked.labels[known]
    found = metrics(model.task, scores, labels, link=model.link)
    figures = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in found.items() if value is not None]
    return [f"of {int(known.sum()):,} with a label: {', '.join(figures)}"]


def _write(path: Path | None, columns: dict[str, list[Any]]) -> None:
    """Write the answer where it was asked for."""
    if path is None:
        put_csv(sys.stdout, columns)
    else:
        check_name(path, "--out")
        write_columns(path, columns)
