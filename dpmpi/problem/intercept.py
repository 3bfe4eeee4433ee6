"""An intercept: records with a constant beside their features."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.problem.rows import Coefficient, Positions, Rows


class WithConstant:
    """Records (a_r, c) / sqrt(1 + c^2), where a_r are other records: an intercept, inside of their norm bound.

    Nothing is copied. With s = 1 / sqrt(1 + c^2) and x = (v, u),

        <(a_r, c) s, (v, u)> = s <a_r, v> + s c u                                   (1)
    """

    def __init__(self, inside: Rows, constant: float) -> None:
        self.inside = inside
        self.count, self.dimension = inside.count, inside.dimension + 1
        self._scale = 1.0 / math.hypot(1.0, constant)
        self._last = constant * self._scale

    @property
    def nbytes(self) -> int:
        """The bytes that the records take."""
        return self.inside.nbytes

    @cached_property
    def norms(self) -> Array:
        """The L2 norm of every row."""
        return np.asarray(np.hypot(self._scale * self.inside.norms, self._last))

    def scores(self, x: Array) -> Array:
        """Return <a_r, x> for every row r, (1)."""
        return self._with_constant(self.inside.scores(x[:-1]), x)

    def fold(self, x: Array, chosen: Positions | None, coefficient: Coefficient, out: Array) -> None:
        """Write the sum of c_r a_r over the `chosen` rows (None: all) to `out`, (2) of `rows.py`."""
        total: Any = 0.0

        def scaled(scores: Array, positions: slice | Positions) -> Array:
            nonlocal total
            c = coefficient(self._with_constant(scores, x), positions)
            total += c.sum(axis=0)
            c *= self._scale
            return c

        self.inside.fold(x[:-1], chosen, scaled, out[:-1])
        out[-1] = self._last * total

    def _with_constant(self, scores: Array, x: Array) -> Array:
        """Turn scores of the other records into (1), in place."""
        scores *= self._scale
        scores += self._last * x[-1]
        return scores
