"""A loss in which some classes count more than others, by public numbers.

With c_y > 0 the declared weight of class y and w_y = c_y / max_k c_k <= 1,

    l_w(s, y) = w_y l(s, y),   slope w_y u,   conjugate w_y l*(u / w_y)                                            (1)

Privacy: a record's weighted gradient is clipped to L as any other, so that the sensitivity is what it was, whatever the
weights. Since the largest is 1, neither the slopes nor the curvature outgrow those of l, and what is derived for l (L,
steps) fits l_w too. Only ratios of weights matter to the optimum without penalty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError
from dpmpi.problem.losses.base import Loss
from dpmpi.problem.task import Task, TaskKind


@dataclass(frozen=True)
class Weighted(Loss):
    """The loss (1)."""

    kinds: ClassVar[tuple[TaskKind, ...]] = ("binary", "multiclass")

    inside: Loss
    weights: tuple[float, ...]
    """w_y in the order of the classes' codes, the largest 1."""

    @property
    def curvature(self) -> float | None:  # type: ignore[override]
        """That of the loss."""
        return self.inside.curvature

    @property
    def kinked(self) -> bool:  # type: ignore[override]
        """Whether the loss is."""
        return self.inside.kinked

    def smoothed(self, mu: float) -> Weighted:
        """Return the weighted smooth loss."""
        return Weighted(self.inside.smoothed(mu), self.weights)

    @property
    def scores(self) -> int:  # type: ignore[override]
        """Those of the loss."""
        return self.inside.scores

    @property
    def steepest(self) -> float | None:  # type: ignore[override]
        """That of the loss."""
        return self.inside.steepest

    @property
    def clip(self) -> float:  # type: ignore[override]
        """That of the loss."""
        return self.inside.clip

    @property
    def flow(self) -> float:  # type: ignore[override]
        """That of the loss."""
        return self.inside.flow

    @property
    def certifies(self) -> bool:
        """Whether the loss does."""
        return self.inside.certifies

    def smoothness(self, lipschitz: float) -> float | None:
        """Return that of the loss."""
        return self.inside.smoothness(lipschitz)

    def value(self, scores: Array, labels: Array) -> Array:
        """Return w_y l(s)."""
        return self._of(labels) * self.inside.value(scores, labels)

    def slope(self, scores: Array, labels: Array) -> Array:
        """Return w_y u."""
        found = self.inside.slope(scores, labels)
        return found * self._shaped(found, labels)

    def to_slope(self, scores: Array, labels: Array) -> None:
        """Overwrite the scores with `slope`."""
        self.inside.to_slope(scores, labels)
        scores *= self._shaped(scores, labels)

    def conjugate(self, alpha: Array, labels: Array) -> Array:
        """Return w_y l*(alpha / w_y)."""
        return self._of(labels) * self.inside.conjugate(alpha / self._shaped(alpha, labels), labels)

    def link(self, scores: Array) -> Array:
        """Return that of the loss."""
        return self.inside.link(scores)

    def check_labels(self, labels: Array) -> None:
        """Raise `DataError` for a label that the loss does not take."""
        self.inside.check_labels(labels)

    def _of(self, labels: Array) -> Array:
        """Return the weight of each record."""
        codes = labels > 0.0 if len(self.weights) == 2 and self.scores == 1 else labels
        return np.asarray(self.weights)[codes.astype(np.intp)]

    def _shaped(self, slopes: Array, labels: Array) -> Array:
        weights = self._of(labels)
        return weights if slopes.ndim == 1 else weights[:, None]


def weighted(loss: Loss, weights: dict[str, float], task: Task) -> Weighted:
    """Return the loss with these weights by class name; classes that are not named have the weight 1."""
    if not task.classifies:
        raise ConfigError(f"expected --class-weights for classes only, found {task.kind}: leave them out")
    for name in weights:
        if name not in task.classes:
            raise ConfigError(f"expected --class-weights of {', '.join(task.classes)}, found {name!r}: name a class")
    each = [weights.get(name, 1.0) for name in task.classes]
    return Weighted(loss, tuple(weight / max(each) for weight in each))
