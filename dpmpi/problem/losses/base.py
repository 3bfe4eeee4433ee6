"""What a loss is: a convex function of the scores of a record (a, y).

A model x gives a record the score s = <a, x>, or K scores s_k = <a, x_k>. A loss l(s, y) has a value and a slope
u = l'(s), or the K slopes; the record's (sub)gradient in x is u a, or the matrix a u'. `conjugate` is the Fenchel
conjugate in s,

    l*(u) = sup_s <u, s> - l(s),   infinite outside its domain                                                     (1)

For every u and s, l(s) + l*(u) >= <u, s> (Fenchel-Young), with equality iff u is a subgradient at s: that turns the
slopes of any x into a dual certificate. Every loss here has the infimum 0 over all s, so that l*(0) = 0.

A loss of one's own needs `kinds`, `value` and `slope`; the rest makes it faster, or usable by more methods.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError, DataError
from dpmpi.problem.task import Task, TaskKind


class Loss:
    """A convex loss, elementwise over records: arrays of one score a record, or of one row of K scores."""

    kinds: ClassVar[tuple[TaskKind, ...]] = ("binary",)
    """The tasks that it is for; the first is meant if nobody says."""
    curvature: float | None = None
    """The Lipschitz constant of the slope; None if there is none."""
    steepest: float | None = None
    """The largest norm of a record's slopes, where it is known."""
    scores: int = 1
    """The scores of a record, K."""
    clip: float = 1.0
    """The norm L to which a record's gradient is clipped, if nobody says."""
    flow: float = 1.0
    """How far to go, as a part of what is derived for a logistic loss (`runtime/derived.py`)."""
    at_zero: float | None = None
    """The value at the scores 0, where it is the same for all labels."""

    @property
    def smooth(self) -> bool:
        """Whether l has a Lipschitz derivative."""
        return self.curvature is not None

    def smoothness(self, lipschitz: float) -> float | None:
        """Return the curvature of a record's clipped loss in x, for rows of norm at most 1; None if unbounded."""
        return self.curvature

    def for_task(self, task: Task) -> Self:
        """Return the loss for this task: its number of classes, or its largest count."""
        return self

    def value(self, scores: Array, labels: Array) -> Array:
        """Return l(s), one number a record."""
        raise NotImplementedError

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return l'(s), or a subgradient, of the shape of the scores."""
        raise NotImplementedError

    def to_slope(self, scores: Array, labels: Array) -> None:
        """Overwrite the scores with `slope`, to the last bit."""
        found = self.slope(scores, labels)
        if np.shape(found) != scores.shape:  # else one number would be spread over all records
            name = type(self).__name__
            raise ConfigError(f"expected a slope for every score of {name}, found another shape: return one for each")
        np.copyto(scores, found)

    kinked: bool = False
    """Whether `smoothed` is needed to minimise it."""

    def smoothed(self, mu: float) -> Loss:
        """Return a smooth loss that is at most mu/2 below it, with slopes in the domain of its conjugate."""
        return self

    @property
    def certifies(self) -> bool:
        """Whether there is a conjugate, so that an optimum can be proved."""
        return type(self).conjugate is not Loss.conjugate

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return l*(alpha) of (1), one number a record; infinity outside the domain."""
        raise NotImplementedError

    def link(self, scores: Array) -> Array:
        """Return the expected label: probabilities of classes, a number or a count; here the scores."""
        return scores

    def check_labels(self, labels: Array) -> None:
        """Raise `DataError` for a label that the loss does not take."""
        if "binary" in self.kinds:
            self._check(
                labels, np.abs(labels) == 1.0, "labels -1 and +1", ": recode the two classes, or use the squared loss"
            )
        self._check(labels, np.isfinite(labels), "finite labels")

    @staticmethod
    def _check(labels: Array, right: Array, expected: str, advice: str = "") -> None:
        wrong = np.flatnonzero(~right.astype(bool))
        if len(wrong):
            found = f"{labels[wrong[0]]:g} in row {wrong[0]} (counting from 0)"
            raise DataError(f"expected {expected}, found {found}{advice}")
