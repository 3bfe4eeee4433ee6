"""Codebooks as TOML text, with remarks for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpmpi.data.codebook import Category, Classes, Codebook, Column, Count

Remarks = Mapping[str, Sequence[str]]
"""Lines of comment by the name of their column; those of "" stand at the top."""


def to_toml(book: Codebook, remarks: Remarks | None = None, *, labelled: bool = True) -> str:
    """Return a text that `parse_codebook` reads as this codebook; without its label it is to be completed."""
    remarks = remarks or {}
    said = [*_comments(remarks, ""), f"missing-words = {_toml(book.missing_words)}"]
    said += ["bias = true"] if book.bias else []
    said += [] if book.separator is None else [f"separator = {_toml(book.separator)}"]
    said += [] if book.decimal == "point" else [f"decimal = {_toml(book.decimal)}"]
    if labelled:
        said += ["", "[label]", *_comments(remarks, book.label.column), f"column = {_toml(book.label.column)}"]
        said += _rule(book.label)
    else:
        said += ["", "# [label] is missing: name the column to predict, with classes, range or most."]
    if book.person is not None:
        said += ["", "[person]", *_comments(remarks, book.person.column), f"column = {_toml(book.person.column)}"]
        said.append(f"most = {book.person.most}")
    for column in book.columns:
        said += ["", f"[columns.{_toml(column.column)}]", *_comments(remarks, column.column), *_rule(column)]
    return "\n".join(said) + "\n"


def _rule(column: Column) -> list[str]:
    """Return the lines of one column."""
    if isinstance(column, Category):
        said = [f"categories = {_toml(column.categories)}", *(["other = true"] if column.other else [])]
    elif isinstance(column, Classes):
        said = [f"classes = {_toml(column.classes)}"]
    elif isinstance(column, Count):
        said = [f"most = {column.most}"]
    else:
        said = [f"range = {_toml([plain(column.low), plain(column.high)])}"]
        said.append(f"scale = {_toml([int(end) for end in column.scale])}")
    return said + ([] if column.missing is None else [f"missing = {_toml(column.missing)}"])


def _comments(remarks: Remarks, column: str) -> list[str]:
    return [f"# {''.join(c if c.isprintable() else ' ' for c in remark)}" for remark in remarks.get(column, ())]


def plain(value: float) -> int | float:
    """Return a whole number as such."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _toml(value: Any) -> str:
    """Return strings, numbers and lists of them as TOML, which JSON is for these."""
    return json.dumps(value, ensure_ascii=False)
