"""Which records a query reads: all of them, a fixed number, or each with the same chance."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from dpmpi.core import Sampling
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.rows import Positions
from dpmpi.rng import PrivateStream


@frozen
class Batch:
    """How the records of a query are drawn: all, a fixed number without replacement, or each with the same chance."""

    kind: Literal["full", "fixed", "poisson"]
    size: int = 0
    """The number of records (fixed) or its expectation (poisson); 0 for full."""

    @classmethod
    def parse(cls, text: str) -> Batch:
        """Return the batch that `full`, `one`, `N`, `poisson:N` or `fixed:N` describes.

        A plain 1 is one uniformly drawn record, a plain N > 1 a Poisson batch of expected size N.
        """
        if text == "full":
            return cls("full")
        if text in ("one", "1"):
            return cls("fixed", 1)
        kind, number = text.split(":", 1) if ":" in text else ("poisson", text)
        if kind in ("fixed", "poisson") and number.isascii() and number.isdigit() and int(number) >= 1:
            return cls("fixed" if kind == "fixed" else "poisson", int(number))
        raise ConfigError(f"expected a batch full, one, N, poisson:N, fixed:N or auto with N >= 1, found {text!r}")

    def describe(self) -> str:
        """Return the batch as text that `parse` understands."""
        return "full" if self.kind == "full" else f"{self.kind}:{self.size}"

    def check(self, records: int) -> None:
        """Raise `ConfigError` if the batch is larger than a shard of `records` records."""
        if self.size > records:
            raise ConfigError(
                f"expected a batch of at most the {records} records of a rank, found {self.describe()}: "
                "use a smaller batch, or full"
            )

    def sampling(self, records: int) -> Sampling:
        """Return how a draw from `records` records is sampled, for the accountants."""
        return Sampling(self.kind, float(records if self.kind == "full" else self.size), records)


class BatchSampler:
    """Draws the records of a query from a shard that has them."""

    def __init__(self, batch: Batch, records: int, stream: PrivateStream, persons: Positions | None = None) -> None:
        """Draw from `records` records; `persons` says whose each is: a batch has all records of a person or none."""
        if records < 1:
            raise DataError("expected a shard with at least one record, found none: use fewer ranks or more data")
        batch.check(records)
        if persons is not None and batch.kind == "fixed":
            raise ConfigError(
                f"expected batches that persons enter with all their records, found {batch.describe()}: use full or "
                "poisson:N"
            )
        self.batch, self.records, self.stream, self.persons = batch, records, stream, persons

    def draw(self) -> Positions | None:
        """Return the positions of a batch, in increasing order; None for all records."""
        q, b = self.records, self.batch.size
        if self.batch.kind == "full" or b == q:
            return None
        if self.batch.kind == "poisson" and self.persons is not None:
            return rows_of_persons(poisson_positions(self.stream, int(self.persons.max()) + 1, b / q), self.persons)
        if self.batch.kind == "poisson":
            return poisson_positions(self.stream, q, b / q)
        return fixed_positions(self.stream, q, b)


def poisson_positions(stream: PrivateStream, records: int, rate: float) -> Positions:
    """Return positions in 0 ... records-1, each drawn independently with probability `rate` < 1.

    The gap to the next position is geometric, P(gap >= k) = (1 - rate)^k, hence floor(log u / log(1 - rate)) for a
    uniform u.
    """
    scale = 1.0 / math.log1p(-rate)
    expected = records * rate
    enough = int(expected + 6.0 * math.sqrt(expected)) + 16
    pieces: list[Positions] = []
    last = -1
    while last < records:
        gaps = np.floor(np.log(stream.uniforms(enough)) * scale)
        piece = last + np.cumsum(gaps.astype(np.intp) + 1)
        last = int(piece[-1])
        pieces.append(piece)
    positions = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
    return positions[: np.searchsorted(positions, records)]


def rows_of_persons(chosen: Positions, persons: Positions) -> Positions:
    """Return the positions of all records of the chosen persons, in increasing order."""
    takes_part = np.zeros(int(persons.max()) + 1, np.bool_)
    takes_part[chosen] = True
    return np.flatnonzero(takes_part[persons])


def fixed_positions(stream: PrivateStream, records: int, size: int) -> Positions:
    """Return a uniformly drawn set of `size` positions out of 0 ... records-1.

    Drawing with replacement until `size` different positions have come up treats all positions alike, hence also all
    sets. Above half of the records the complement is drawn, so that few draws are in vain.
    """
    if size == 1:
        return np.array([stream.integer(records)], np.intp)
    if 2 * size > records:
        keep = np.ones(records, np.bool_)
        if size < records:
            keep[fixed_positions(stream, records, records - size)] = False
        return np.flatnonzero(keep)
    last = np.uint64(2**64 - 2**64 % records - 1)  # words above it would favour small positions
    found = np.empty(0, np.intp)
    while len(found) < size:
        words = stream.words(size - len(found))
        found = np.union1d(found, (words[words <= last] % np.uint64(records)).astype(np.intp))
    return found
