"""How good the model is: objective, accuracy and agreement, over all ranks.

With x_i the model of rank i and x = (1/n) sum_i x_i,

    objective        F(x) = (1/n) sum_i f_i(x) + h(x)                      (1)
    accuracy         share of all held-out rows whose label is the sign of the score
    consensus error  sqrt( (1/n) sum_i |x_i - x|^2 )                       (2)
    error            |x - x*|^2 / |x*|^2, if the optimum x* is known       (3)
    rank error       (1/n) sum_i |x_i - x*|^2 / |x*|^2                     (4)

This reads private data without noise. It is a diagnostic for experiments, outside of the guarantee; the ledger's header
and the summary say whether it was on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpmpi.core import Array, Penalty
from dpmpi.data import Shard
from dpmpi.problem.local_problem import accuracy_counts
from dpmpi.runtime.engine import Engine


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of one evaluation, the same on every rank."""

    round: int
    objective: float
    accuracy: float | None
    consensus_error: float
    error: float | None
    rank_error: float | None


class Evaluator:
    """Evaluates the models of an engine's agents on their shards."""

    def __init__(
        self, engine: Engine, shards: Sequence[Shard], penalty: Penalty, optimum: Array | None, *, classify: bool
    ) -> None:
        self._engine = engine
        self._shards = shards
        self._penalty = penalty
        self._optimum = optimum
        self._classify = classify
        self._models = [np.zeros(seat.agent.dimension) for seat in engine.seats]
        self._mean = np.zeros_like(self._models[0])

    def mean_model(self) -> tuple[Array, list[Array]]:
        """Return x and the models of the ranks in this process; the arrays are overwritten by the next call."""
        transport = self._engine.transport
        np.multiply(self._mean, 0.0, out=self._mean)
        for seat, model in zip(self._engine.seats, self._models, strict=True):
            self._engine.model(seat, model)
            self._mean += model
        transport.total(self._mean)
        self._mean /= transport.size
        return self._mean, self._models

    def evaluate(self) -> Evaluation:
        """Return (1), (2) and the accuracy after the completed rounds; all processes call this together."""
        engine = self._engine
        x, models = self.mean_model()
        sums = np.zeros(4)
        for seat, shard, model in zip(engine.seats, self._shards, models, strict=True):
            sums[0] += seat.agent.problem.value(x)
            np.subtract(model, x, out=model)
            sums[1] += float(model @ model)
            if self._classify:
                sums[2:] += accuracy_counts(shard.test_rows, shard.test_labels, x)
        engine.transport.total(sums)
        n = engine.transport.size
        spread, best = float(sums[1]) / n, self._optimum
        scale = 0.0 if best is None else float(best @ best)
        apart = float(np.sum((x - best) ** 2)) if best is not None and scale > 0.0 else None
        return Evaluation(
            engine.completed,
            objective=float(sums[0]) / n + self._penalty.value(x),
            accuracy=float(sums[2] / sums[3]) if sums[3] else None,
            consensus_error=math.sqrt(spread),
            error=None if apart is None else apart / scale,
            rank_error=None if apart is None else (apart + spread) / scale,  # x is the mean of the x_i
        )
