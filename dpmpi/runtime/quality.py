"""How good a finished model is: the metrics of the mean model, of the ranks' own models, and of the optimum.

Held-out rows of all ranks count together. Each figure is a function of sums over ranks (`dpmpi.model.metrics`), so that
nobody sees another's rows, nor, where sums are hidden, another's summand; AUC has the error that stands beside it. The
model of each rank is scored on all held-out rows, too: `ranks_mean` and `ranks_worst` are over these n sets of figures.
They are None where no rank sees another's model.

Like all evaluation it reads data without noise: for public data, outside of the guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from dpmpi.core import Array
from dpmpi.model.metrics import (
    LEAST_RANKING_BINS,
    NOT_OF_A_MODEL,
    RANKING_BINS,
    Metrics,
    Sums,
    figures,
    grid_of,
    moments,
    reliability,
    sums,
    worst,
)
from dpmpi.problem.intercept import WithConstant
from dpmpi.problem.rows import Rows
from dpmpi.problem.task import Task

Summed: TypeAlias = Callable[[Sequence[Array]], Array]
"""Returns the sum over all ranks of a vector, given those of the ranks in this process."""
Tests: TypeAlias = Sequence[tuple[Rows | WithConstant, Array]]
"""The held-out rows and labels of the ranks in this process."""

MOST_NUMBERS = 1 << 20
"""The most numbers that ranks add up at a time."""
MOST_SCORES = 1 << 16
"""The most scores of a rank that are worked on at a time; those of one model are."""
MOST_COUNTS = 1 << 17
"""The most that they count for the AUC of their own models; of more than 16 models each has fewer bins."""


def quality(
    task: Task, link: str, tests: Tests, summed: Summed, x: Array, best: Array | None = None
) -> dict[str, Any] | None:
    """Return the figures of the mean model, and of the optimum if it is known; None without held-out rows."""
    rows = round(float(summed([np.array([float(len(labels))]) for _, labels in tests])[0]))
    if not rows:
        return None
    given = np.stack([x] if best is None else [x, best])
    found = list(model_sums(task, link, tests, summed, given))
    told = [figures(task, one) for one in found]
    return {
        "rows": rows,
        "mean": told[0],
        "ranks_mean": None,
        "ranks_worst": None,
        "reference": None if best is None else told[1],
        "reliability": reliability(found[0]),
    }


def ranks_quality(
    task: Task,
    link: str,
    tests: Tests,
    summed: Summed,
    models: Sequence[tuple[int, Array]],
    size: int,
    *,
    wanted: bool = True,
) -> tuple[Metrics, Metrics]:
    """Return the mean and the worst of each figure over the models of all `size` ranks; `models` are those here.

    Where they are not `wanted`, a process adds to the sums alone, and they are empty.
    """
    dimension, told = models[0][1].size, []
    bins = max(LEAST_RANKING_BINS, min(RANKING_BINS, MOST_COUNTS // (2 * size)))
    step = max(1, MOST_NUMBERS // max(dimension, 2 * bins))
    for first in range(0, size, step):
        some = range(first, min(first + step, size))
        mine = []
        for rank, model in models:
            table = np.zeros((len(some), dimension))
            if rank in some:
                table[rank - first] = model
            mine.append(table.reshape(-1))
        theirs = summed(mine).reshape(len(some), dimension)
        found = model_sums(task, link, tests, summed, theirs, bins)
        told += [figures(task, one) for one in found] if wanted else []
    if not wanted:
        return {}, {}
    kept = [name for name in told[0] if name not in NOT_OF_A_MODEL]
    known = {name: [value for one in told if (value := one[name]) is not None] for name in kept}
    mean: Metrics = {name: float(np.mean(values)) if values else None for name, values in known.items()}
    return mean, {name: worst(name, values) if values else None for name, values in known.items()}


def model_sums(
    task: Task, link: str, tests: Tests, summed: Summed, models: Array, bins: int = RANKING_BINS
) -> Iterator[Sums]:
    """Return the sums over all ranks' held-out rows for each model, a row of `models`."""
    some = max(1, MOST_SCORES // max(1, task.scores * max(len(labels) for _, labels in tests)))
    parts = [models[first : first + some] for first in range(0, len(models), some)]
    scores = [[score_tables(rows, part, task.scores) for part in parts] for rows, _ in tests]
    grids: Sequence[Array | None] = [None] * len(parts)
    if task.classifies:
        each = [np.concatenate([moments(task, tables) for tables in mine]).reshape(-1) for mine in scores]
        found = grid_of(summed(each).reshape(len(models), -1))
        grids = [found[first : first + some] for first in range(0, len(models), some)]
    flat, shapes = [], {}
    for mine, (_, labels) in zip(scores, tests, strict=True):
        each = []
        for tables, grid in zip(mine, grids, strict=True):
            of_part = sums(task, link, tables, labels, grid, bins)
            shapes = {name: value.shape[1:] for name, value in of_part.items()}
            each.append(np.concatenate([value.reshape(len(tables), -1) for value in of_part.values()], axis=1))
        flat.append(np.concatenate(each).reshape(-1))
    return (_unflat(row, shapes) for row in summed(flat).reshape(len(models), -1))


def score_tables(rows: Rows | WithConstant, models: Array, K: int) -> Array:
    """Return the K scores of each row by each model."""
    return np.stack([score_table(rows, x, K) for x in models])


def score_table(rows: Rows | WithConstant, x: Array, K: int) -> Array:
    """Return the K scores of each row."""
    return np.stack([rows.scores(np.ascontiguousarray(column)) for column in x.reshape(-1, K).T], axis=1)


def _unflat(row: Array, shapes: dict[str, tuple[int, ...]]) -> Sums:
    found, start = {}, 0
    for name, shape in shapes.items():
        stop = start + int(np.prod(shape))
        found[name] = row[start:stop].reshape(shape)
        start = stop
    return found
