"""Consecutive pieces of a vector, such as the entries of sparse rows: their sums, places and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array

Numbers: TypeAlias = NDArray[np.intp]
"""Lengths of pieces, or places in a vector."""


class Segments:
    """Consecutive pieces of a vector, of which some may be empty; made once for many sums."""

    __slots__ = ("_filled", "_starts", "lengths")

    def __init__(self, lengths: Numbers) -> None:
        self.lengths = lengths
        filled, starts = lengths > 0, np.cumsum(lengths) - lengths
        self._filled = None if filled.all() else filled
        self._starts = starts if self._filled is None else starts[filled]

    def sums(self, values: Array) -> Array:
        """Return the sum of each piece."""
        if len(self._starts) == 0:
            return np.zeros(len(self.lengths))
        if self._filled is None:
            return np.add.reduceat(values, self._starts)
        sums = np.zeros(len(self.lengths))
        sums[self._filled] = np.add.reduceat(values, self._starts)
        return sums


def spread(starts: Numbers, lengths: Numbers) -> Numbers:
    """Return the numbers starts[0] ... starts[0] + lengths[0] - 1, then those of the next piece, and so on."""
    at = bounds(lengths)
    return np.arange(at[-1]) + np.repeat(starts - at[:-1], lengths)


def bounds(lengths: Numbers) -> Numbers:
    """Return where pieces of these lengths begin when they follow each other, and at last where they end."""
    at = np.zeros(len(lengths) + 1, np.intp)
    np.cumsum(lengths, out=at[1:])
    return at


def split(at: Numbers, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (lo, hi): pieces lo ... hi-1 have at most `limit` entries together, or it is a single longer one."""
    lo = 0
    while lo < len(at) - 1:
        hi = max(lo + 1, int(np.searchsorted(at, at[lo] + limit, side="right")) - 1)
        yield lo, hi
        lo = hi
