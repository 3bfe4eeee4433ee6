"""Persons of several records: their numbers, and the rows that are theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmpi.errors import DataError
from dpmpi.problem.rows import Positions


def numbered(persons: NDArray[Any]) -> Positions:
    """Return the persons as numbers 0, 1, 2 ... in the order in which they appear."""
    _, first, inverse = np.unique(persons, return_index=True, return_inverse=True)
    places = np.empty(len(first), np.intp)
    places[np.argsort(first)] = np.arange(len(first))
    return places[inverse.reshape(-1)]


def rows_of(chosen: Positions, persons: Positions, count: int) -> Positions:
    """Return the rows of the chosen ones of `count` persons, in the order in which they were chosen."""
    places = np.full(count, count, np.intp)
    places[chosen] = np.arange(len(chosen))
    order = np.argsort(places[persons], kind="stable")
    return order[: int(np.count_nonzero(places[persons] < count))]


def checked_persons(persons: NDArray[Any], most: NDArray[Any], count: int, what: str) -> tuple[Positions, int]:
    """Return whose each record is, and the most records of one; raise `DataError` unless the records keep to it."""
    if persons.dtype.kind not in "iu" or persons.shape != (count,) or most.dtype.kind not in "iu" or most.ndim:
        raise DataError(f"{what}: expected a whole number for each record in person, and one in most, found others")
    numbers = numbered(persons)
    if count and not 1 <= int(np.bincount(numbers).max()) <= int(most):
        raise DataError(f"{what}: expected at most {int(most)} records of each person, found more: code the table anew")
    return numbers, int(most)
