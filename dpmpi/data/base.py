"""Where records come from. A rank reads or generates its own rows and no others.

A source is asked in two steps. `survey()` runs on one rank, whose answer everybody gets; `load(survey, rank, size)`
runs on every rank. Which rows are held out, and in which order the rows are dealt out, depends on the shared seed and
not on the rank count: with n training rows and s ranks, rank i has the rows

    floor(i n / s) ... floor((i+1) n / s) - 1                                                                      (1)

of one global order, so that the shards laid end to end are the same data for every s. Test rows are dealt out alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError, DataError, nearest
from dpmpi.rng import public_generator
from dpmpi.rows import Csr, Dense, Positions, Rows


@dataclass
class Shard:
    """One rank's records: what it learns from, and what it is tested on."""

    rows: Rows
    labels: Array
    test_rows: Rows
    test_labels: Array

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the training rows and labels, in hex."""
        rows = self.rows
        arrays = [rows.matrix] if isinstance(rows, Dense) else [rows.indptr, rows.indices, rows.data]
        h = hashlib.sha256(f"{type(rows).__name__} {rows.count} {rows.dimension}".encode())
        for array in (*arrays, self.labels):
            h.update(array.dtype.str.encode())
            h.update(array.data.cast("B") if array.size else b"")
        return h.hexdigest()


@dataclass(frozen=True, slots=True)
class Survey:
    """What one pass over the data tells everybody. `labels` holds the distinct values in order, three at most."""

    rows: int
    features: int
    labels: tuple[float, ...]
    nonzeros: int

    def to_dict(self) -> dict[str, Any]:
        """Return the survey as JSON-ready values."""
        return {
            "rows": self.rows, "features": self.features, "labels": list(self.labels), "nonzeros": self.nonzeros,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Survey:
        """Return the survey that `to_dict` described."""
        labels = tuple(float(label) for label in fields["labels"])
        return cls(int(fields["rows"]), int(fields["features"]), labels, int(fields["nonzeros"]))


@dataclass(frozen=True, slots=True)
class Settings:
    """What all sources have in common."""

    samples: int | None = None
    """Use this many rows in total, over all ranks; None for what the source has."""
    normalize: bool = True
    """Scale every row down to norm 1 at most: public, and local to the record."""
    test_fraction: float = 0.0
    seed: int = 0
    loss: str = "hinge"
    dimension: int | None = None
    """The number of features of shards that do not say it themselves."""

    @property
    def binary(self) -> bool:
        """Whether labels are two classes, -1 and +1, and not real numbers."""
        return self.loss != "squared"

    def check(self) -> None:
        """Raise `ConfigError` for values that no source can serve."""
        if self.samples is not None and self.samples < 1:
            raise ConfigError(f"samples must be at least 1, got {self.samples}")
        if not 0.0 <= self.test_fraction < 1.0:
            raise ConfigError(f"the test fraction must be at least 0 and below 1, got {self.test_fraction}")


class Source(Protocol):
    """A place where records come from."""

    private: ClassVar[bool]
    """Whether the rows are a rank's own secret, so that evaluating the model on them is off by default."""

    @property
    def settings(self) -> Settings:
        """The settings that the source was made with."""
        ...

    @classmethod
    def parse(cls, text: str, settings: Settings) -> Self:
        """Return the source for what follows the colon of a specification; raise `ConfigError`."""
        ...

    def survey(self) -> Survey | None:
        """Return what every rank must know before `load`, or None; called on one rank."""
        ...

    def training_rows(self, survey: Survey) -> int:
        """Return how many training rows all ranks have together."""
        ...

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Return the rows of `rank`."""
        ...


def parse_options(what: str, text: str, known: Mapping[str, Callable[[str], object]]) -> dict[str, object]:
    """Return the `key=value` options of `text`, separated by commas, each made by the converter of its key."""
    options: dict[str, object] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in known:
            raise ConfigError(
                f"{what}: unknown option {key!r}, expected one of {', '.join(known)}{nearest(key, known)}"
            )
        try:
            options[key] = known[key](value)
        except ValueError:
            raise ConfigError(f"{what}: {key} takes a number, got {value!r}") from None
    return options


def deal(count: int, rank: int, size: int) -> range:
    """Return the positions (1) that fall to `rank`."""
    return range(rank * count // size, (rank + 1) * count // size)


def check_dealt(count: int, size: int, what: str) -> None:
    """Raise `ConfigError` unless `count` training rows give every one of `size` ranks a row."""
    if count < size:
        raise ConfigError(
            f"{what} has {count} training rows for {size} ranks, every rank needs at least one: "
            "use fewer ranks, more samples or a smaller test fraction"
        )


def held_out(count: int, test_fraction: float) -> int:
    """Return how many of `count` rows are test rows."""
    return round(test_fraction * count)


def training_rows(settings: Settings, rows: int, what: str) -> int:
    """Return how many of the `samples` wanted, out of `rows`, are left when the held-out ones are gone.

    `what` has the rows, for the message if they are too few.
    """
    total = settings.samples or rows
    if total > rows:
        raise ConfigError(f"{what}, fewer than the {total} samples asked for")
    return total - held_out(total, settings.test_fraction)


def deal_shuffled(settings: Settings, rows: int, trains: int, rank: int, size: int) -> tuple[Positions, int]:
    """Return the positions of a rank's rows, training rows first, and how many of them are training rows.

    The rows of a file are permuted by the shared seed and cut to `samples`; the last of these are held out.
    """
    tests = (settings.samples or rows) - trains
    order = public_generator(settings.seed, "shuffle").permutation(rows)
    train, test = deal(trains, rank, size), deal(tests, rank, size)
    mine = np.concatenate([order[train.start : train.stop], order[trains + test.start : trains + test.stop]])
    return mine, len(train)


def signs(labels: Array, values: tuple[float, ...], what: str) -> Array:
    """Map the two label values, in order, to -1 and +1; raise `DataError` unless there are two."""
    if len(values) != 2:
        found = ", ".join(f"{value:g}" for value in values) + (" and perhaps more" if len(values) > 2 else "")
        raise DataError(
            f"{what}: a classification loss needs exactly two label values, found {found}: "
            "choose another file, or --loss squared for real labels"
        )
    return np.where(labels == values[1], 1.0, -1.0)


def widen(shard: Shard, dimension: int) -> Shard:
    """Return the shard with sparse rows of `dimension` columns, sharing its arrays; the new columns are empty."""

    def wide(rows: Rows) -> Rows:
        if rows.dimension == dimension:
            return rows
        if isinstance(rows, Dense) or rows.dimension > dimension:
            kind = "dense" if isinstance(rows, Dense) else "sparse"
            raise DataError(
                f"a {kind} shard of {rows.dimension} features cannot be given {dimension}: "
                "all ranks' files must have the same columns"
            )
        return Csr(rows.indptr, rows.indices, rows.data, dimension)

    return Shard(wide(shard.rows), shard.labels, wide(shard.test_rows), shard.test_labels)
