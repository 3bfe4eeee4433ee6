"""Dealing out records that a Python program has to the agents of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmpi.data.dealing import Deal, Part, evenly, pick
from dpmpi.data.source import check_dealt
from dpmpi.errors import ConfigError
from dpmpi.rng import public_generator


def split(
    X: Any,
    y: Any = None,
    agents: int = 2,
    by: str = "even",
    *,
    sizes: Sequence[int] | None = None,
    alpha: float | None = None,
    column: Any = None,
    seed: int = 0,
) -> list[tuple[Any, Any]]:
    """Deal out records to agents: the (X, y) of each, for `simulate`.

    `by` is one of

        "even"       in shuffled order, as many for each
        "sizes"      in shuffled order, `sizes` for each
        "sorted"     sorted by label, as many for each
        "dirichlet"  label skew: the shares of each class are drawn from a Dirichlet distribution of `alpha`
        "column"     all records of one value of `column` to one agent: a column's name or number, or an array

    and `seed` decides the order, as `--seed` does for files; with "column" the order stays.
    """
    count = X.shape[0] if hasattr(X, "shape") else len(X)
    if y is not None and _count(y) != count:
        found = f"{y!r:.40}" if _count(y) is None else f"{_count(y)}"
        raise ConfigError(f"expected a label y for each of {count} records, found {found}: split(X, y, agents)")
    if not isinstance(agents, int | np.integer) or agents < 1:
        raise ConfigError(f"expected a number of agents from 1 on, found {agents!r:.40}: split(X, y, agents)")
    check_dealt(count, agents, "split")
    if by == "column":
        parts = _by_value(_column(X, column), agents)
    else:
        deal = _deal(by, sizes, alpha)
        if deal.by_label and y is None:
            raise ConfigError(f"expected labels y for by={by!r}, found none: give them, or deal by something else")
        order = public_generator(seed, "shuffle").permutation(count)
        labels = np.asarray(y)[order] if deal.by_label else None
        dealt = deal.parts(count, labels, agents, seed)
        parts = [pick(order, part) for part in dealt]
    return [(taken(X, part), None if y is None else taken(y, part)) for part in parts]


def _count(values: Any) -> int | None:
    """Return how many there are; None for something that has no length."""
    try:
        return int(values.shape[0]) if hasattr(values, "shape") else len(values)
    except (TypeError, IndexError):
        return None


def _deal(by: str, sizes: Sequence[int] | None, alpha: float | None) -> Deal:
    if by == "sizes" and sizes is not None:
        by = f"sizes:{','.join(map(str, sizes))}"
    if by == "dirichlet" and alpha is not None:
        by = f"dirichlet:{alpha}"
    return Deal.parse(by)


def _column(X: Any, column: Any) -> Any:
    """Return the values by which to deal."""
    if column is None:
        raise ConfigError("expected column=NAME, NUMBER or an array for by='column', found none")
    if isinstance(column, str):
        found = X[column]
        return np.asarray(found.to_pylist() if hasattr(found, "to_pylist") else found)
    if isinstance(column, int):
        found = X.iloc[:, column] if hasattr(X, "iloc") else X[:, column] if hasattr(X, "shape") else X.column(column)
        return np.asarray(found.toarray()).ravel() if hasattr(found, "toarray") else np.asarray(found)
    return np.asarray(column)


def _by_value(values: Any, agents: int) -> list[Any]:
    """Return the positions of each agent's records; agents have whole values, in order."""
    known, codes = np.unique(values, return_inverse=True)
    if len(known) < agents:
        raise ConfigError(f"expected at least {agents} values in the column, one an agent, found {len(known)}")
    parts: list[Part] = [evenly(len(known), agent, agents) for agent in range(agents)]
    return [np.flatnonzero(np.isin(codes, np.asarray(part))) for part in parts]


def taken(values: Any, positions: Any) -> Any:
    """Return the records at these positions, or in a slice, of the same type."""
    if hasattr(values, "iloc"):
        return values.iloc[positions]
    if hasattr(values, "take") and hasattr(values, "column_names"):
        at = positions
        return values.slice(at.start, at.stop - at.start) if isinstance(at, slice) else values.take(at)
    return values[positions] if hasattr(values, "shape") else np.asarray(values)[positions]
