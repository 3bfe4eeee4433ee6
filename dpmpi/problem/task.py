"""What is predicted: classes, numbers or counts. Declared, never read from private labels.

    binary       two named classes, coded -1 and +1                     one score s
    multiclass   K named classes, coded 0 ... K-1                       K scores
    regression   a number in the declared range [low, high]             one score, of the scaled label
    counts       0, 1, 2 ... up to a declared bound                     one score, log of the expected count

A regression label y in original units is scaled to

    u = clip((2 y - low - high) / (high - low), -1, 1)                                                             (1)

and a score u is scaled back to ((high - low) u + low + high) / 2.
A model of K scores is a vector of (columns x K) numbers in C order, one row for each column of the records, the
intercept's last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError

TaskKind: TypeAlias = Literal["binary", "multiclass", "regression", "counts"]


@dataclass(frozen=True, slots=True)
class Task:
    """What is predicted, and in which units."""

    kind: TaskKind = "binary"
    classes: tuple[str, ...] = ("-1", "1")
    """The names of the classes in the order of their codes; empty for numbers and counts."""
    low: float = -1.0
    high: float = 1.0
    """The declared range of a number, or of a count (from 0), in original units."""

    def __post_init__(self) -> None:
        if self.kind == "binary" and len(self.classes) != 2:
            raise ConfigError(f"expected the names of two classes, found {len(self.classes)}: use --task multiclass")
        if self.kind == "multiclass" and len(self.classes) < 2:
            raise ConfigError(f"expected the names of two classes or more, found {len(self.classes)}: give --classes")
        if len(set(self.classes)) != len(self.classes):
            raise ConfigError(f"expected classes with different names, found {', '.join(self.classes)}")
        if not self.classifies and not -np.inf < self.low < self.high < np.inf:
            raise ConfigError(f"expected a label range low:high, found {self.low:g}:{self.high:g}: give --label-range")

    @property
    def classifies(self) -> bool:
        """Whether labels are classes."""
        return self.kind in ("binary", "multiclass")

    @property
    def scores(self) -> int:
        """The scores of a record, K."""
        return len(self.classes) if self.kind == "multiclass" else 1

    def scaled(self, labels: Array) -> Array:
        """Return numbers in original units as labels of the loss, (1); other labels as they are."""
        if self.kind != "regression":
            return labels
        return np.clip((2.0 * labels - self.low - self.high) / (self.high - self.low), -1.0, 1.0)

    def unscaled(self, scores: Array) -> Array:
        """Return labels or scores of the loss in original units."""
        if self.kind != "regression":
            return scores
        return 0.5 * ((self.high - self.low) * scores + self.low + self.high)
