"""Codebooks: what the parties agree on before anybody looks at data, and what a cell of a table becomes by it.

A codebook (TOML) says what becomes of which column. With v the cell of a record, public numbers low < high, and [s, t]
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
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dpmpi.data.streams import MOST_FEATURES
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
        """The names of the columns that it becomes."""
        return (self.column, *((f"{self.column} is missing",) if self.missing == "column" else ()))

    def code(self, cell: str, decimal: str) -> tuple[int, float]:
        """Return in which of its columns which value stands; raise `ValueError` with what was expected."""
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
        """The names of the columns that it becomes."""
        more = (*(("is another",) if self.other else ()), *(("is missing",) if self.missing == "column" else ()))
        return (*(f"{self.column}={word}" for word in self.categories), *(f"{self.column} {text}" for text in more))

    def code(self, cell: str, decimal: str) -> tuple[int, float]:
        """Return in which of its columns which value stands; raise `ValueError` with what was expected."""
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
        """Return 0 and the label; raise `ValueError` with what was expected."""
        if cell not in self.classes:
            raise ValueError(f"expected {self.classes[0]!r} or {self.classes[1]!r}")
        return 0, 1.0 if cell == self.classes[1] else -1.0  # (4)


@dataclass(frozen=True, slots=True)
class Codebook:
    """What becomes of a table; `separator` (None: as its header tells) and `decimal` say how it is written."""

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
        """Return 16 hexadecimal digits that are the same for codebooks that code alike."""
        parts = [(type(one).__name__, astuple(one)) for one in self.all]
        text = json.dumps([parts, sorted(set(self.missing_words)), self.bias])
        digits = hashlib.sha256(text.encode()).hexdigest()
        return " ".join(digits[k : k + 4] for k in range(0, 16, 4))

    @property
    def sparse(self) -> bool:
        """Whether so few of its columns are not 0 for a record that rows are stored sparse."""
        return len(self.features) > _SPARSE_FROM * (len(self.columns) + self.bias)

    @property
    def all(self) -> tuple[Classes | Number | Category, ...]:
        """The label and the columns."""
        return (self.label, *self.columns)


def read_codebook(path: Path) -> Codebook:
    """Read a codebook; raise `ConfigError` for one that does not say all, or says something unknown."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the codebook {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error!s:.200}") from error
    try:
        codebook = _codebook(table)
    except ValueError as error:  # ours, or Python's, which does not print integers of thousands of digits
        raise ConfigError(f"{path}: {error}") from error
    return codebook


def _codebook(table: Mapping[str, Any]) -> Codebook:
    known = ("label", "columns", "missing-words", "bias", "separator", "decimal")
    _check_keys("the codebook", table, known)
    words = table.get("missing-words", [""])
    if not _are_words(words):
        raise ConfigError(f'expected missing-words = ["", "NA"] or other words, found {words!r:.80}')
    if not isinstance(bias := table.get("bias", False), bool):
        raise ConfigError(f"expected bias = true or false, found {bias!r:.80}")
    separator, decimal = table.get("separator"), table.get("decimal", "point")
    _check_writing(separator, decimal)
    label, columns = table.get("label"), table.get("columns")
    if not isinstance(label, dict) or not _are_words([label.get("column")]):
        raise ConfigError('expected a table [label] with column = "NAME", found none')
    if not isinstance(columns, dict) or not _are_words(list(columns)):
        raise ConfigError(
            "expected a table [columns.NAME] for every column to learn from, found none or a strange name"
        )
    name = label["column"]
    if name in columns:
        raise ConfigError(f"column {name} is the label: a model must not learn from it, leave [columns.{name}] out")
    others = tuple(_column(f"[columns.{key}]", key, keys) for key, keys in columns.items())
    found = Codebook(_label(name, label), others, tuple(words), bias, separator, decimal)
    for one in found.all:
        for word in set(words) & set(getattr(one, "categories", getattr(one, "classes", ()))):
            raise ConfigError(f"column {one.column}: {word!r} is among its values and among missing-words: decide")
    if len(found.features) > MOST_FEATURES:
        raise ConfigError(f"expected at most {MOST_FEATURES} columns, found {len(found.features)}")
    return found


def _check_writing(separator: object, decimal: object) -> None:
    for name, value, known in (("separator", separator, SEPARATORS), ("decimal", decimal, DECIMALS)):
        if value is not None and value not in list(known):
            raise ConfigError(f"expected {name} to be one of {', '.join(known)}, found {value!r:.80}")


def _label(name: str, keys: Mapping[str, Any]) -> Classes | Number:
    """Return the label for what stands in its table."""
    _check_kind("[label]", keys, "classes")
    missing = _missing("[label]", keys, ("drop",))
    if "range" in keys:
        _check_keys("[label]", keys, ("column", "range", "scale", "missing"))
        return Number(name, *_range("[label]", keys), _scale("[label]", keys, (-1.0, 1.0)), missing)
    _check_keys("[label]", keys, ("column", "classes", "missing"))
    classes = _words("[label]", "classes", keys)
    if len(classes) != 2:
        raise ConfigError(f"[label]: expected two classes, that of -1 and that of +1, found {len(classes)}")
    return Classes(name, (classes[0], classes[1]), missing)


def _column(where: str, name: str, keys: Any) -> Number | Category:
    """Return a column for what stands in its table."""
    _check_kind(where, keys, "categories")
    missing = _missing(where, keys, ("drop", "column"))
    if "range" in keys:
        _check_keys(where, keys, ("range", "scale", "missing"))
        return Number(name, *_range(where, keys), _scale(where, keys, (0.0, 1.0)), missing)
    _check_keys(where, keys, ("categories", "other", "missing"))
    if not isinstance(other := keys.get("other", False), bool):
        raise ConfigError(f"{where}: expected other = true or false, found {other!r:.80}")
    return Category(name, _words(where, "categories", keys), other, missing)


def _check_kind(where: str, keys: Any, words: str) -> None:
    if not isinstance(keys, dict) or ("range" in keys) == (words in keys):
        raise ConfigError(f"{where}: expected either range = [low, high] or {words} = [...], found both or neither")


def _check_keys(where: str, found: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key[:80]!r}, expected {', '.join(known)}{nearest(key, known)}")


def _missing(where: str, keys: Mapping[str, Any], known: Sequence[Missing]) -> Missing:
    for word in (None, *known):
        if keys.get("missing") == word:
            return word
    expected = " or ".join(f'"{word}"' for word in known)
    raise ConfigError(f"{where}: expected missing = {expected}, found {keys['missing']!r:.80}")


def _are_words(values: Any) -> bool:
    """Return whether cells could hold these values: words on one line, without space around them, and not too long."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return False
    return bool(values) and all(v.isprintable() and v == v.strip() and len(v) <= _LONGEST_WORD for v in values)


def _words(where: str, key: str, keys: Mapping[str, Any]) -> tuple[str, ...]:
    values = keys[key]
    if not _are_words(values) or len(set(values)) < len(values):
        raise ConfigError(f"{where}: expected {key} = [...] of different words in quotes, found {values!r:.80}")
    return tuple(values)


def _range(where: str, keys: Mapping[str, Any]) -> tuple[float, float]:
    """Return two numbers in order, near enough to each other for their distance to be a number."""
    values = keys["range"]
    if isinstance(values, list) and len(values) == 2 and {type(value) for value in values} <= {int, float}:
        try:
            low, high = map(float, values)
        except OverflowError:
            low = high = math.inf
        if low < high and math.isfinite(high - low):
            return low, high
    raise ConfigError(f"{where}: expected range = [low, high] with numbers low < high, found {values!r:.80}")


def _scale(where: str, keys: Mapping[str, Any], default: tuple[float, float]) -> tuple[float, float]:
    found = keys.get("scale", list(default))
    for known in ((0.0, 1.0), (-1.0, 1.0)):
        if found == list(known):
            return known
    raise ConfigError(f"{where}: expected scale = [0, 1] or [-1, 1], found {found!r:.80}")
