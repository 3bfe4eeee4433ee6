"""Codebooks: public rules, agreed on before anybody looks at data, that turn the cells of a table into numbers.

A codebook (TOML) has a rule for each column. With v the cell of a record, public numbers low < high, and [s, t]
one of [0, 1] and [-1, 1],

    number:    s + (t - s) (min(max(v, low), high) - low) / (high - low)                                            (1)
    category:  one column each, 1 in that of the record's own and 0 in the others; if asked for, one for the rest   (2)
    missing:   if asked for, one column that is 1, and 0 in those of (1) or (2); else the record is left out        (3)
    label:     -1 and +1 for two classes, 0 ... K-1 for K, a number of a range by (1), a count up to a bound        (4)
    person:    of the records with the same cell the first `most` of the table, the others are left out             (5)

Privacy: ranges, categories and what missing values become are constants that no record can move, so that (1) to (4)
look at one record at a time, and every party has the same columns. (5) looks at whose the records before it are, not
at what else they hold: it decides by the order of the table alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import astuple
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dpmpi.core.files import parse_toml, read_text
from dpmpi.core.frozen import frozen
from dpmpi.core.tables import TomlTable
from dpmpi.data.file_reading import MOST_FEATURES
from dpmpi.errors import ConfigError, nearest
from dpmpi.problem.task import MOST_CLASSES, Task

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
DECIMALS = {"point": ".", "comma": ","}

EXAMPLE = """\
example of a codebook:
  missing-words = ["", "NA"]         # how a missing value looks (default: an empty cell)
  bias = true                        # a last column that is always 1 (default: false)

  [label]
  column = "readmitted"
  classes = ["no", "yes"]            # or more classes; range = [0, 30] for numbers; most = 20 for counts 0, 1, ...
  missing = "drop"                   # leave the record out (default: missing values are an error)

  [person]                           # if a person can have several records (default: one each)
  column = "patient"                 # whose the record is: read, never coded
  most = 3                           # the first 3 of each are kept, and the noise covers all 3 at once

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
_DIGITS = 15  # more would not be a float64 exactly
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def read_number(cell: str, decimal: str) -> float | None:
    """Return the number that a cell holds; None if it holds none."""
    text = cell if decimal == "." else cell.translate({44: ".", 46: ","})
    return float(text) if _NUMBER.fullmatch(text) else None


@frozen
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
        if (value := read_number(cell, decimal)) is None:
            other = "comma" if decimal == "." and "," in cell else "point" if decimal == "," and "." in cell else None
            raise ValueError("expected a number" + (f" (--decimal {other} if it is one)" if other else ""))
        part = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return 0, self.scale[0] + (self.scale[1] - self.scale[0]) * part  # (1)


@frozen
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


@frozen
class Classes:
    """A label with two or more values, (4)."""

    column: str
    classes: tuple[str, ...]
    missing: Missing

    @property
    def task(self) -> Task:
        """What it is to predict."""
        return Task("binary" if len(self.classes) == 2 else "multiclass", self.classes)

    def code(self, cell: str, decimal: str) -> tuple[int, float]:
        """Return 0 and the label; raise `ValueError` that says what was expected."""
        if cell not in self.classes:
            first = " or ".join(map(repr, self.classes[:3])) + (" ..." if len(self.classes) > 3 else "")
            raise ValueError(f"expected {first}")
        code = float(self.classes.index(cell))
        return 0, 2.0 * code - 1.0 if len(self.classes) == 2 else code  # (4)


@frozen
class Count:
    """A label that counts, (4)."""

    column: str
    most: int
    missing: Missing

    @property
    def task(self) -> Task:
        """What it is to predict."""
        return Task("counts", (), 0.0, float(self.most))

    def code(self, cell: str, decimal: str) -> tuple[int, float]:
        """Return 0 and the label; raise `ValueError` that says what was expected."""
        if not (cell.isascii() and cell.isdigit()):
            raise ValueError("expected a count 0, 1, 2 ...")
        return 0, float(min(int(cell[-_DIGITS:]) if len(cell) <= _DIGITS else self.most, self.most))  # (4)


@frozen
class Person:
    """The column that says whose a record is, (5)."""

    column: str
    most: int
    """The most records of one person."""


MOST_RECORDS = 1000
"""Of one person: noise for more drowns everything."""

Label: TypeAlias = Classes | Count | Number
Column: TypeAlias = Classes | Count | Number | Category


@frozen
class Codebook:
    """The rules for a table; `separator` (None: detected from the header) and `decimal` describe its format."""

    label: Label
    columns: tuple[Number | Category, ...]
    missing_words: tuple[str, ...] = ("",)
    bias: bool = False
    separator: str | None = None
    decimal: str = "point"
    person: Person | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of a coded table, in order."""
        return (*chain.from_iterable(column.features for column in self.columns), *(("bias",) if self.bias else ()))

    @property
    def digest(self) -> str:
        """Return 16 hexadecimal digits that are the same for equivalent codebooks."""
        parts = [(type(one).__name__, astuple(one)) for one in self.all]
        person = [] if self.person is None else [astuple(self.person)]
        text = json.dumps([parts, sorted(set(self.missing_words)), self.bias, *person])
        digits = hashlib.sha256(text.encode()).hexdigest()
        return " ".join(digits[k : k + 4] for k in range(0, 16, 4))

    @property
    def task(self) -> Task:
        """What is to be predicted."""
        label = self.label
        if not isinstance(label, Number):
            return label.task
        width = label.high - label.low  # [0, 1] is the upper half of [-1, 1]
        return Task("regression", (), label.low - (width if label.scale[0] == 0.0 else 0.0), label.high)

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
    return parse_codebook(read_text(path, "the codebook"), str(path))


def parse_codebook(text: str, path: str) -> Codebook:
    """Return the codebook that a text describes, of the file `path`; raise `ConfigError` as `read_codebook`."""
    return build_codebook(parse_toml(text, f"the codebook {path}"), path)


def build_codebook(content: dict[str, Any], path: str) -> Codebook:
    """Return the codebook of a parsed text."""
    book = TomlTable(content, path)
    book.only("label", "columns", "missing-words", "bias", "separator", "decimal", "person")
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
        _person(book.table("person")) if "person" in book.content else None,
    )
    if codebook.person is not None and codebook.person.column in [one.column for one in codebook.all]:
        raise ConfigError(
            f"{path}: expected no feature or label that says whose a record is, found {codebook.person.column}: drop it"
        )
    for one in codebook.all:
        for word in set(words) & set(getattr(one, "categories", getattr(one, "classes", ()))):
            raise ConfigError(
                f"{path}: expected no value among missing-words, found {word!r} of column {one.column}: drop either"
            )
    if len(codebook.features) > MOST_FEATURES:
        raise ConfigError(f"{path}: expected at most {MOST_FEATURES} columns, found {len(codebook.features)}")
    return codebook


def _label(name: str, table: TomlTable) -> Label:
    """Return the label that the table [label] describes."""
    missing: Missing = table.get("missing", ("drop",), None)
    found = [key for key in ("range", "classes", "most") if key in table.content]
    if len(found) != 1:
        raise ConfigError(
            f"{table.where}: expected one of classes = [...], range = [low, high] and most = N (counts), found "
            f"{' and '.join(found) or 'none'}"
        )
    table.only("column", *found, *(("scale",) if found == ["range"] else ()), "missing")
    if found == ["range"]:
        return Number(name, *_range(table), _scale(table, (-1.0, 1.0)), missing)
    if found == ["most"]:
        most = table.get("most", int, expected="a whole number from 1", valid=lambda value: 1 <= value <= 10**9)
        return Count(name, most, missing)
    classes = _different_words(table, "classes")
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise ConfigError(f"{table.where}: expected 2 to {MOST_CLASSES} classes, found {len(classes)}")
    return Classes(name, classes, missing)


def _person(table: TomlTable) -> Person:
    """Return the column of persons that the table [person] describes."""
    table.only("column", "most")
    name = table.get("column", str, expected='"NAME"', valid=lambda name: _are_words([name]))
    expected = f"a whole number from 1 to {MOST_RECORDS}"
    return Person(name, table.get("most", int, expected=expected, valid=lambda most: 1 <= most <= MOST_RECORDS))


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
    return float(low) + 0.0, float(high) + 0.0  # -0.0 is 0.0: one codebook has one digest


def _scale(table: TomlTable, default: tuple[float, float]) -> tuple[float, float]:
    """Return one of the two intervals that a range is mapped to."""
    known = ([0, 1], [-1, 1])
    low, high = table.get("scale", list, default, expected="[0, 1] or [-1, 1]", valid=lambda found: found in known)
    return float(low), float(high)
