"""Codebooks: public rules, agreed on before anybody looks at data, that turn the cells of a table into numbers.

A codebook (TOML) has a rule for each column. With v the cell of a record, public numbers low < high, and [s, t]
one of [0, 1] and [-1, 1],

    number:    s + (t - s) (min(max(v, low), high) - low) / (high - low)                                            (1)
    category:  one column each, 1 in that of the record's own and 0 in the others; if asked for, one for the rest   (2)
    missing:   if asked for, one column that is 1, and 0 in those of (1) or (2); else the record is left out        (3)
    label:     -1 and +1 for two values, or a number by (1)                                                         (4)

Privacy: ranges, categories and what missing values become are constants that no record can move, so that (1) to (4)
look at one record at a time, and every party has the same columns.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dpmpi.core.files import read_toml
from dpmpi.core.tables import TomlTable
from dpmpi.data.file_reading import MOST_FEATURES
from dpmpi.errors import ConfigError, nearest

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
DECIMALS = {"point": ".", "comma": ","}

EXAMPLE = """\
example of a codebook:
  missing-words = ["", "NA"]         # how a missing value looks (default: an empty cell)
  bias = true                        # a last column that is always 1 (default: false)

  [label]
  column = "readmitted"
  classes = ["no", "yes"]            # -1 and +1; or range = [0, 30] for --loss squared
  missing = "drop"                   # leave the record out (default: missing values are an error)

  [columns.age]
  range = [18, 100]                  # clipped to it
  scale = [-1, 1]                    # where the range goes (default: [0, 1]; of a label: [-1, 1])

  [columns.glucose]
  range = [3, 20]
  missing = "column"                 # a column of its own, or "drop"

  [columns.ward]
  categories = ["medicine", "surgery", "cardiology"]
  other = true                       # one more column for all others (default: they are an error)
"""

Missing: TypeAlias = Literal["drop", "column"] | None
_SPARSE_FROM = 20  # columns for each number that a record has: there sparse rows are smaller and as fast
_LONGEST_WORD = 200
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Number:
    """A column of numbers, (1)."""

    column: str
    low: float
    high: float
    scale: tuple[float, float]
    missing: Missing

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its coded columns."""
        return (self.column, *((f"{self.column} is missing",) if self.missing == "column" else ()))

    def code(self, cell: str, decimal: str) -> tuple[int, float]:
        """Return (position among its columns, value); raise `ValueError` that says what was expected."""
        if not _NUMBER.fullmatch(text := cell if decimal == "." else cell.translate({44: ".", 46: ","})):
            other = "comma" if decimal == "." and "," in cell else "point" if decimal == "," and "." in cell else None
            raise ValueError("expected a number" + (f" (--decimal {other} if it is one)" if other else ""))
        part = (min(max(float(text), self.low), self.high) - self.low) / (self.high - self.low)
        return 0, self.scale[0] + (self.scale[1] - self.scale[0]) * part  # (1)


@dataclass(frozen=True)
class Category:
    """A column of words, (2)."""

    column: str
    categories: tuple[str, ...]
    other: bool
    missing: Missing

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its coded columns."""
        more = (*(("is another",) if self.other else ()), *(("is missing",) if self.missing == "column" else ()))
        return (*(f"{self.column}={word}" for word in self.categories), *(f"{self.column} {text}" for text in more))

    def code(self, cell: str, decimal: str) -> tuple[int, float]:
        """Return (position among its columns, value); raise `ValueError` that says what was expected."""
        if (place := self._places.get(cell)) is not None:
            return place, 1.0  # (2)
        if self.other:
            return len(self.categories), 1.0
        hint = nearest(cell[:_LONGEST_WORD], self.categories)
        raise ValueError(f"expected one of {len(self.categories)} categories of the codebook{hint}")

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.categories)}


@dataclass(frozen=True, slots=True)
class Classes:
    """A label with two values, (4)."""

    column: str
    classes: tuple[str, str]
    missing: Missing

    def code(self, cell: str, decimal: str) -> tuple[int, float]:
        """Return 0 and the label; raise `ValueError` that says what was expected."""
        if cell not in self.classes:
            raise ValueError(f"expected {self.classes[0]!r} or {self.classes[1]!r}")
        return 0, 1.0 if cell == self.classes[1] else -1.0  # (4)


Column: TypeAlias = Classes | Number | Category


@dataclass(frozen=True, slots=True)
class Codebook:
    """The rules for a table; `separator` (None: detected from the header) and `decimal` describe its format."""

    label: Classes | Number
    columns: tuple[Number | Category, ...]
    missing_words: tuple[str, ...] = ("",)
    bias: bool = False
    separator: str | None = None
    decimal: str = "point"

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of a coded table, in order."""
        return (*chain.from_iterable(column.features for column in self.columns), *(("bias",) if self.bias else ()))

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that are the same for equivalent codebooks."""
        parts = [(type(one).__name__, astuple(one)) for one in self.all]
        text = json.dumps([parts, sorted(set(self.missing_words)), self.bias])
        digits = hashlib.sha256(text.encode()).hexdigest()
        return " ".join(digits[k : k + 4] for k in range(0, 16, 4))

    @property
    def sparse(self) -> bool:
        """Whether rows are stored sparse, because few of the columns of a record are not 0."""
        return len(self.features) > _SPARSE_FROM * (len(self.columns) + self.bias)

    @property
    def all(self) -> tuple[Column, ...]:
        """The label and the columns."""
        return (self.label, *self.columns)


def read_codebook(path: Path) -> Codebook:
    """Read a codebook; raise `ConfigError` for a key that is missing, unknown or of the wrong type."""
    book = TomlTable(read_toml(path, "the codebook"), str(path))
    book.only("label", "columns", "missing-words", "bias", "separator", "decimal")
    words = book.get("missing-words", list, [""], expected='["", "NA"] or other words', valid=_are_words)
    label, columns = book.table("label"), book.table("columns")
    name = label.get("column", str, expected='"NAME"', valid=lambda name: _are_words([name]))
    if not _are_words([*columns.content]):
        raise ConfigError(f"{path}: expected a table [columns.NAME] for every feature, found none or a strange name")
    if name in columns.content:
        raise ConfigError(f"{path}: expected no feature that is the label, found [columns.{name}]: drop it")
    codebook = Codebook(
        _label(name, label),
        tuple(_column(key, columns.table(key)) for key in columns.content),
        tuple(words),
        book.get("bias", bool, False),
        book.get("separator", tuple(SEPARATORS), None),
        book.get("decimal", tuple(DECIMALS), "point"),
    )
    for one in codebook.all:
        for word in set(words) & set(getattr(one, "categories", getattr(one, "classes", ()))):
            raise ConfigError(
                f"{path}: expected no value among missing-words, found {word!r} of column {one.column}: drop either"
            )
    if len(codebook.features) > MOST_FEATURES:
        raise ConfigError(f"{path}: expected at most {MOST_FEATURES} columns, found {len(codebook.features)}")
    return codebook


def _label(name: str, table: TomlTable) -> Classes | Number:
    """Return the label that the table [label] describes."""
    if _is_number(table, "classes"):
        table.only("column", "range", "scale", "missing")
        return Number(name, *_range(table), _scale(table, (-1.0, 1.0)), table.get("missing", ("drop",), None))
    table.only("column", "classes", "missing")
    no, *yes = _different_words(table, "classes")
    if len(yes) != 1:
        raise ConfigError(f"{table.where}: expected two classes, that of -1 and that of +1, found {len(yes) + 1}")
    return Classes(name, (no, yes[0]), table.get("missing", ("drop",), None))


def _column(name: str, table: TomlTable) -> Number | Category:
    """Return the column that the table [columns.NAME] describes."""
    missing = table.get("missing", ("drop", "column"), None)
    if _is_number(table, "categories"):
        table.only("range", "scale", "missing")
        return Number(name, *_range(table), _scale(table, (0.0, 1.0)), missing)
    table.only("categories", "other", "missing")
    return Category(name, _different_words(table, "categories"), table.get("other", bool, False), missing)


def _is_number(table: TomlTable, words: str) -> bool:
    """Return whether a table has a range, and not words; raise `ConfigError` unless it has one of the two."""
    if ("range" in table.content) == (words in table.content):
        raise ConfigError(
            f"{table.where}: expected either range = [low, high] or {words} = [...], found both or neither"
        )
    return "range" in table.content


def _are_words(values: list[Any]) -> bool:
    """Return whether cells could hold these values: words on one line, without space around them, and not too long."""
    return bool(values) and all(
        isinstance(v, str) and v.isprintable() and v == v.strip() and len(v) <= _LONGEST_WORD for v in values
    )


def _different_words(table: TomlTable, key: str) -> tuple[str, ...]:
    """Return a list of words of which no two are the same."""
    words = table.get(key, list, expected="[...] of different words in quotes", valid=_are_words)
    if len(set(words)) < len(words):
        raise table.fault(key, "[...] of different words in quotes")
    return tuple(words)


def _range(table: TomlTable) -> tuple[float, float]:
    """Return two numbers in order, near enough to each other for their distance to be a number."""

    def valid(values: list[Any]) -> bool:
        if len(values) != 2 or not {type(value) for value in values} <= {int, float}:
            return False
        try:
            return values[0] < values[1] and math.isfinite(float(values[1]) - float(values[0]))
        except OverflowError:
            return False

    low, high = table.get("range", list, expected="[low, high] with numbers low < high", valid=valid)
    return float(low), float(high)


def _scale(table: TomlTable, default: tuple[float, float]) -> tuple[float, float]:
    """Return one of the two intervals that a range is mapped to."""
    known = ([0, 1], [-1, 1])
    low, high = table.get("scale", list, default, expected="[0, 1] or [-1, 1]", valid=lambda found: found in known)
    return float(low), float(high)
