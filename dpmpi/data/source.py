"""Where records come from. A rank reads or generates its own rows and no others.

A source is asked in two steps. `survey()` runs on one rank, whose answer everybody gets; `load(survey, rank, size)`
runs on every rank. Which rows are held out, and the global order of the others, depends on the shared seed and not on
the rank count. `dealing` says which training rows fall to which rank; test rows are dealt out evenly.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.data.dealing import EVEN, Deal, Part, evenly, pick
from dpmpi.errors import ConfigError, DataError, nearest
from dpmpi.problem.rows import Csr, Dense, Positions, Rows
from dpmpi.problem.task import Declared, Task
from dpmpi.rng import public_generator


@dataclass
class Shard:
    """The training and test records of one rank."""

    rows: Rows
    labels: Array
    test_rows: Rows
    test_labels: Array
    continues: bool = False
    """Whether it was coded from a table that shares records with an earlier one (`data table --continues`)."""
    codebook: str = ""
    """The text of the codebook, public, by which it was coded from a table; empty if it was not."""
    task: Task | None = None
    """What its labels are coded for; None for what the settings say."""
    persons: Positions | None = None
    """Whose each training record is, as numbers from 0 on; None if every record is a person of its own."""
    most: int = 1
    """The most records of one person, held-out ones included: those of a person are all held out, or none."""
    whole: str | None = None
    """The fingerprint of the shard before rows were held out; None if none were, or none is kept."""

    def row_bytes(self) -> Iterator[bytes]:
        """Yield every record, held out or not, as bytes that do not depend on the others."""
        for rows, labels in ((self.rows, self.labels), (self.test_rows, self.test_labels)):
            yield from record_bytes(rows, labels)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the training rows and labels, in hex."""
        return fingerprint(self.rows, self.labels)

    @property
    def identity(self) -> str:
        """The fingerprint of all rows: the same whichever of them are held out."""
        return self.whole or self.fingerprint


def fingerprint(rows: Rows, labels: Array) -> str:
    """Return the SHA-256 of rows and labels, in hex."""
    arrays = [rows.matrix] if isinstance(rows, Dense) else [rows.indptr, rows.indices, rows.data]
    h = hashlib.sha256(f"{type(rows).__name__} {rows.count} {rows.dimension}".encode())
    for array in (*arrays, labels):
        h.update(array.dtype.str.encode())
        h.update(array.data.cast("B") if array.size else b"")
    return h.hexdigest()


@frozen
class Survey:
    """Public sizes from one pass over the data. `labels` holds the distinct values in order, as many as classes may be.

    If there are more, one more is there, and `span` has the smallest and the largest of all.
    """

    rows: int
    features: int
    labels: tuple[float, ...]
    nonzeros: int
    span: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the survey as JSON-ready values."""
        return asdict(self) | {"labels": list(self.labels), "span": None if self.span is None else list(self.span)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Survey:
        """Return the survey that `to_dict` described."""
        labels = tuple(float(label) for label in fields["labels"])
        span = None if fields["span"] is None else (float(fields["span"][0]), float(fields["span"][1]))
        return cls(int(fields["rows"]), int(fields["features"]), labels, int(fields["nonzeros"]), span)


UNDECLARED = Declared()


@frozen
class SourceOptions:
    """The options that all sources share."""

    samples: int | None = None
    """Use this many rows in total, over all ranks; None for what the source has."""
    normalize: bool = True
    """Scale every row down to norm 1 at most: public, and local to the record."""
    test_fraction: float = 0.0
    usual_tests: bool = False
    """Whether nobody said which rows are held out: a source may then hold out those that were published as such."""
    seed: int = 0
    loss: str | None = None
    """The loss, if it is given."""
    dimension: int | None = None
    """The number of features of shards that do not say it themselves."""
    deal: Deal = EVEN
    """Which training rows fall to which rank."""
    declared: Declared = UNDECLARED
    """What flags say about the labels; its kind may follow from the loss."""

    def check(self) -> None:
        """Raise `ConfigError` for values that no source can serve."""
        if self.samples is not None and self.samples < 1:
            raise ConfigError(f"expected at least 1 sample, found {self.samples}")
        if not 0.0 <= self.test_fraction < 1.0:
            raise ConfigError(f"expected a test fraction of at least 0 and below 1, found {self.test_fraction}")
        if self.deal.kind == "dirichlet" and self.declared.kind in ("regression", "counts"):
            kind = self.declared.kind
            raise ConfigError(f"expected classes for --deal dirichlet, found {kind}: take --deal sorted")


@frozen
class Source:
    """A place where records come from."""

    name: ClassVar[str]
    """How a specification begins."""
    private: ClassVar[bool] = False
    """Whether the rows are a rank's own secret, so that they are not evaluated without noise by default."""
    holds_out: ClassVar[bool] = False
    """Whether a part of the rows is held out for a private evaluation, if nobody says otherwise."""
    options: SourceOptions

    @classmethod
    def parse(cls, text: str, options: SourceOptions) -> Self:
        """Return the source for the text after the colon of a specification; raise `ConfigError`."""
        raise NotImplementedError

    def survey(self) -> Survey | None:
        """Return the survey that every rank needs for `load`, called on one rank; None where nobody may look."""
        return None

    @property
    def title(self) -> str:
        """What an error calls it."""
        return self.name

    def feature_names(self) -> tuple[str, ...] | None:
        """Return the names of the features; None where they are numbers from 1 on, or a codebook names them."""
        return None

    def declared_task(self, survey: Survey | None) -> Task | None:
        """Return the task of the labels; None if it is not known before the records are read."""
        return None if survey is None else self.options.declared.with_labels(survey.labels, survey.span, self.title)

    def training_rows(self, survey: Survey) -> int:
        """Return how many training rows there are to deal out."""
        raise NotImplementedError

    def training_labels(self, survey: Survey) -> Array:
        """Return the labels of all training rows in the global order, for deals by label."""
        raise NotImplementedError

    def parts(self, survey: Survey, size: int) -> list[Part]:
        """Return which training rows each of `size` ranks has, as positions in the global order."""
        count, deal = self.training_rows(survey), self.options.deal
        check_dealt(count, size, self.title)
        labels = self.training_labels(survey) if deal.by_label else None
        return deal.parts(count, labels, size, self.options.seed)

    def shard_sizes(self, survey: Survey, size: int) -> list[int]:
        """Return how many training rows each of `size` ranks has."""
        return [len(part) for part in self.parts(survey, size)]

    def test_rows(self, survey: Survey) -> int:
        """Return how many rows are held out."""
        return 0

    def test_sizes(self, survey: Survey, size: int) -> list[int]:
        """Return how many held-out rows each of `size` ranks has."""
        return [len(evenly(self.test_rows(survey), rank, size)) for rank in range(size)]

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Return the rows of `rank`."""
        raise NotImplementedError


@frozen
class GeneratedSource(Source):
    """Records that are made up, `samples` of them to train on."""

    samples: int

    @classmethod
    def parse(cls, text: str, options: SourceOptions) -> Self:
        """Return the source for `key=value,...`: keys are its fields, values of the types of their defaults."""
        known = {field.name: type(field.default) for field in fields(cls) if field.default is not MISSING}
        given: dict[str, Any] = {}
        for item in filter(None, text.split(",")):
            key, _, value = item.partition("=")
            if key not in known:
                expected = f"{cls.name}: expected some of {', '.join(known)}"
                raise ConfigError(f"{expected}, found the unknown option {key!r}{nearest(key, known)}")
            try:
                given[key] = known[key](value)
            except ValueError:
                raise ConfigError(f"{cls.name}: expected {key}=NUMBER, found {value!r}") from None
        if options.samples is not None:
            given["samples"] = options.samples
        cls.complete(given, options)
        source = cls(options, **given)
        source.check()
        return source

    @classmethod
    def complete(cls, given: dict[str, Any], options: SourceOptions) -> None:
        """Add the values that follow from others; raise `ConfigError` for values that do not go together."""

    def check(self) -> None:
        """Raise `ConfigError` for values that make no data."""

    def training_rows(self, survey: Survey) -> int:
        """Return `samples`: test rows come on top."""
        return self.samples


@frozen
class FileSource(Source):
    """Files that every rank can read, and of which it keeps its own records only."""

    wanted: ClassVar[str]
    """What a specification has after its colon, with an example."""
    unit: ClassVar[str] = "rows"
    path: Path

    @classmethod
    def parse(cls, text: str, options: SourceOptions) -> Self:
        """Return the source for a path."""
        if not text:
            raise ConfigError(f"expected {cls.wanted}, found nothing after {cls.name}:")
        return cls(options, Path(text))

    def training_rows(self, survey: Survey) -> int:
        """Return how many of the `samples` wanted are left when the held-out ones are gone."""
        total, found = self.options.samples or survey.rows, f"{self.path} has {survey.rows} {self.unit}"
        if total > survey.rows:
            raise ConfigError(f"expected at least the {total} samples asked for, found that {found}")
        return total - held_out(total, self.options.test_fraction)

    def test_rows(self, survey: Survey) -> int:
        """Return how many of the `samples` wanted are held out."""
        return (self.options.samples or survey.rows) - self.training_rows(survey)

    @property
    def title(self) -> str:
        """The path."""
        return str(self.path)

    def load(self, survey: Survey | None, rank: int, size: int) -> Shard:
        """Read the rows of `rank`."""
        [shard] = self.load_many(survey, [rank], size)
        return shard

    def load_many(self, survey: Survey | None, ranks: Sequence[int], size: int) -> list[Shard]:
        """Read the rows of several ranks of one process, with as few passes over the files as memory allows."""
        raise NotImplementedError

    def file_labels(self, survey: Survey) -> Array:
        """Return the labels of all rows in the order of the files."""
        raise NotImplementedError

    def training_labels(self, survey: Survey) -> Array:
        """Return the labels of all training rows in the global order; it takes one more pass over the files."""
        return self.file_labels(survey)[self._order(survey)[: self.training_rows(survey)]]

    def deal(self, survey: Survey, ranks: Sequence[int], size: int) -> list[tuple[Positions, int]]:
        """Return the positions of each rank's rows, training rows first, and how many of them are training rows.

        The rows of a file are permuted by the shared seed and cut to `samples`; the last of these are held out.
        """
        order, trains, parts = self._order(survey), self.training_rows(survey), self.parts(survey, size)
        tests = self.test_rows(survey)
        dealt = []
        for rank in ranks:
            test = evenly(tests, rank, size)
            mine = np.concatenate([pick(order, parts[rank]), order[trains + test.start : trains + test.stop]])
            dealt.append((mine, len(parts[rank])))
        return dealt

    def _order(self, survey: Survey) -> Positions:
        return public_generator(self.options.seed, "shuffle").permutation(survey.rows)


def check_dealt(count: int, size: int, what: str) -> None:
    """Raise `ConfigError` unless `count` training rows give every one of `size` ranks a row."""
    if count < size:
        raise ConfigError(
            f"{what}: expected a training row for each of {size} ranks, found {count}: use fewer ranks, more samples "
            "or a smaller test fraction"
        )


def held_out(count: int, test_fraction: float) -> int:
    """Return how many of `count` rows are test rows."""
    return round(test_fraction * count)


def widen(shard: Shard, dimension: int) -> Shard:
    """Return the shard with sparse rows of `dimension` columns, sharing its arrays; the new columns are empty."""

    def wide(rows: Rows) -> Rows:
        if rows.dimension == dimension:
            return rows
        if isinstance(rows, Dense) or rows.dimension > dimension:
            found = f"a {'dense' if isinstance(rows, Dense) else 'sparse'} shard of {rows.dimension}"
            raise DataError(
                f"expected {dimension} features, found {found}: all ranks' files must have the same columns"
            )
        return Csr(rows.indptr, rows.indices, rows.data, dimension)

    return replace(shard, rows=wide(shard.rows), test_rows=wide(shard.test_rows))


def record_bytes(rows: Rows, labels: Array) -> Iterator[bytes]:
    """Yield the bytes of each record: its label, and its nonzero columns with their values."""
    for k, label in enumerate(labels.astype(np.float64).tolist()):
        if isinstance(rows, Dense):
            columns, values = np.arange(rows.dimension), rows.matrix[k]
        else:
            part = slice(rows.indptr[k], rows.indptr[k + 1])
            columns, values = rows.indices[part], rows.data[part]
        kept = values != 0
        yield struct.pack("<d", label) + columns[kept].astype("<i8").tobytes() + values[kept].astype("<f8").tobytes()
