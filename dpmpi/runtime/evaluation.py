"""How good the model is: objective, accuracy and agreement, over all ranks.

With x_i the model of rank i and x = (1/n) sum_i x_i,

    objective        F(x) = (1/n) sum_i f_i(x) + h(x)                      (1)
    accuracy         share of all held-out rows whose label is the sign of the score; a score of 0 is -1
    rank accuracy    the same, where each rank's held-out rows are scored by its own x_i
    consensus error  sqrt( (1/n) sum_i |x_i - x|^2 )                       (2)
    error            |x - x*|^2 / |x*|^2, if the optimum x* is known       (3)
    rank error       (1/n) sum_i |x_i - x*|^2 / |x*|^2                     (4)

Sums whose summands are hidden are sums of integers modulo 2^64: a number v is three words,

    floor(v),   floor(r),   rint(2^40 (r - floor(r)))   with   r = 2^40 (v - floor(v))         (5)

so that sums of up to 2^22 ranks are exact on a grid of 2^-80, the same on every transport. Numbers beyond 2^50 count as
2^50: a run that diverges so far has nothing to tell.

This reads private data without noise. It is a diagnostic for experiments, outside of the guarantee; the ledger's header
and the summary say whether it was on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmpi.core import Array, Penalty
from dpmpi.core.frozen import frozen
from dpmpi.problem.intercept import WithConstant
from dpmpi.problem.local_problem import accuracy_counts
from dpmpi.problem.rows import Rows
from dpmpi.problem.task import Task
from dpmpi.rng import Words
from dpmpi.runtime.engine import Engine
from dpmpi.runtime.quality import quality, ranks_quality


@frozen
class Evaluation:
    """The figures of one evaluation, the same on every rank."""

    round: int
    objective: float | None
    """None where the mean model is outside the domain of the penalty."""
    accuracy: float | None
    rank_accuracy: float | None
    consensus_error: float
    error: float | None
    rank_error: float | None

    def above(self, optimum: float | None) -> float | None:
        """Return how far the objective is above the optimum, if both are known."""
        return None if optimum is None or self.objective is None else self.objective - optimum


WORDS, FRACTION_BITS = 3, 40
LARGEST = 2.0**50


def in_words(values: Array) -> Words:
    """Return (5), one row for each of the words."""
    bounded = np.clip(np.nan_to_num(values, nan=LARGEST, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)
    whole = np.floor(bounded)
    rest = (bounded - whole) * 2.0**FRACTION_BITS
    parts = np.stack([whole, np.floor(rest), np.rint((rest - np.floor(rest)) * 2.0**FRACTION_BITS)])
    return parts.astype(np.int64).view(np.uint64)


def from_words(words: Words) -> Array:
    """Return the numbers that (5) or a sum of them stands for."""
    whole, coarse, fine = words.view(np.int64)
    found: Array = whole + (coarse + fine * 2.0**-FRACTION_BITS) * 2.0**-FRACTION_BITS
    return found


class Evaluator:
    """Evaluates the models of an engine's agents on their shards."""

    def __init__(
        self,
        engine: Engine,
        tests: Sequence[tuple[Rows | WithConstant, Array]] | None,
        penalty: Penalty,
        optimum: Array | None,
        *,
        task: Task | None = None,
        hide: bool = False,
    ) -> None:
        """Evaluate `engine`; `tests` are the held-out rows and labels of the ranks here, None if there are no scores.

        `hide`: by sums of which no rank sees another's summand.
        """
        self._engine = engine
        self._tests = tests
        self._penalty = penalty
        self._task = task or Task()
        self._optimum = optimum
        self._models = [np.zeros(seat.agent.dimension) for seat in engine.seats]
        self._mean = np.zeros_like(self._models[0])
        self._hide = hide

    def mean_model(self) -> tuple[Array, list[Array]]:
        """Return x and the models of the ranks in this process; the arrays are overwritten by the next call."""
        for seat, model in zip(self._engine.seats, self._models, strict=True):
            self._engine.model(seat, model)
        np.divide(self._summed(self._models), self._engine.transport.size, out=self._mean)
        return self._mean, self._models

    def quality(self, link: str, *, wanted: bool = True) -> dict[str, Any] | None:
        """Return all metrics of the models after the completed rounds; None without held-out rows, or scores.

        Where they are not `wanted` those of ranks' own models are missing: to make them takes a while if many ranks do.
        """
        if self._tests is None:
            return None
        x, models = self.mean_model()
        found = quality(self._task, link, self._tests, self._summed, x, self._optimum)
        if found is not None and not self._hide:
            own = [(seat.agent.rank, model) for seat, model in zip(self._engine.seats, models, strict=True)]
            size = self._engine.transport.size
            mean, worst = ranks_quality(self._task, link, self._tests, self._summed, own, size, wanted=wanted)
            found |= {"ranks_mean": mean, "ranks_worst": worst}
        return found

    def _summed(self, values: Sequence[Array]) -> Array:
        """Return the sum over all ranks of a vector, given those of the ranks here."""
        transport = self._engine.transport
        if not self._hide:
            total = np.zeros_like(values[0])
            for value in values:
                total += value
            transport.total(total)
            return total
        words = np.zeros((WORDS, values[0].size), np.uint64)
        for value in values:
            words += in_words(value)
        flat = words.reshape(-1)
        transport.add_up(flat)
        return from_words(flat.reshape(WORDS, -1))

    def evaluate(self) -> Evaluation:
        """Return (1), (2) and the accuracy after the completed rounds; all processes call this together."""
        engine = self._engine
        x, models = self.mean_model()
        each = []
        for k, (seat, model) in enumerate(zip(engine.seats, models, strict=True)):
            right = own = rows = 0
            if self._tests is not None and self._task.classifies:
                right, rows = accuracy_counts(*self._tests[k], x)
                own, _ = accuracy_counts(*self._tests[k], model)
            np.subtract(model, x, out=model)
            each.append(np.array([seat.agent.problem.value(x), float(model @ model), right, own, rows]))
        sums = self._summed(each)
        n = engine.transport.size
        spread, best = float(sums[1]) / n, self._optimum
        scale = 0.0 if best is None else float(best @ best)
        apart = float(np.sum((x - best) ** 2)) if best is not None and scale > 0.0 else None
        objective = float(sums[0]) / n + self._penalty.value(x)
        return Evaluation(
            engine.completed,
            objective=objective if math.isfinite(objective) else None,
            accuracy=float(sums[2] / sums[4]) if sums[4] else None,
            rank_accuracy=float(sums[3] / sums[4]) if sums[4] else None,
            consensus_error=math.sqrt(spread),
            error=None if apart is None else apart / scale,
            rank_error=None if apart is None else (apart + spread) / scale,  # x is the mean of the x_i
        )
