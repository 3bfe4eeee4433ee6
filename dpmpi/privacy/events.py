"""What happened: frozen, serialisable records of releases. What they cost is the accountants' business."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from dpmpi.core import Sampling
from dpmpi.errors import LedgerError

Noise: TypeAlias = Literal["none", "gaussian", "laplace", "spherical-laplace", "discrete-gaussian", "objective"]
ReadRows: TypeAlias = Literal["all", "training", "held-out"]
PARTS: tuple[ReadRows, ...] = ("training", "held-out")
"""The parts of a shard: every row is in one of them, by its position."""


@dataclass(frozen=True, slots=True)
class ReleaseEvent:
    """One release: the noise that was added, and how far one record could move the value under it.

    `scale` is the noise's own parameter: the standard deviation (gaussian; discrete-gaussian, of parts that have 64
    steps of the grid to their deviation at least, as discrete_gaussian.py demands; objective), the scale b of
    exp(-|x|/b) per coordinate (laplace) or of exp(-|x|_2/b) (spherical-laplace); 0 for `none`, which costs infinity.
    `objective` is Gaussian noise inside an objective (objective_noise.py), `extra` the loss of its determinant.
    `sensitivity` is the replace-one bound for a record that takes part: L1 for laplace, L2 for all others. Where the L2
    sensitivity of laplace is known too, `coordinates` says so: it is at most sensitivity/sqrt(coordinates), as it is
    for a shift that is spread evenly over so many coordinates.
    `dimension` is the length of a vector under spherical-laplace noise that moves by a fixed vector; 0 if it is not
    known, or if the shift depends on the noise, as it does inside an objective. Other noise does not need it.
    `rows` says which part of the shard was read: what one part is charged for costs the other nothing (spending.py).
    """

    noise: Noise
    scale: float
    sensitivity: float
    sampling: Sampling
    coordinates: int = 1
    dimension: int = 0
    extra: float = 0.0
    rows: ReadRows = "all"

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-ready values."""
        s = self.sampling
        fields: dict[str, Any] = {"noise": self.noise, "scale": self.scale, "sensitivity": self.sensitivity}
        fields |= {"sampling": s.kind, "expected": s.expected, "records": s.records}
        fields |= {"coordinates": self.coordinates} if self.coordinates != 1 else {}
        fields |= {"dimension": self.dimension} if self.dimension else {}
        fields |= {"rows": self.rows} if self.rows != "all" else {}
        return fields | ({"extra": self.extra} if self.extra else {})

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ReleaseEvent:
        """Return the event that `to_dict` described; raise `LedgerError` for anything else."""
        try:
            noise, kind, rows = fields["noise"], fields["sampling"], fields.get("rows", "all")
            if noise not in get_args(Noise) or kind not in ("full", "poisson", "fixed"):
                raise LedgerError(f"expected a known kind of release, found {noise} with {kind} sampling")
            if rows not in get_args(ReadRows):
                raise LedgerError(f"expected a release over training or held-out rows, found {rows!r:.40}")
            sampling = Sampling(kind, float(fields["expected"]), int(fields["records"]))
            coordinates, dimension = int(fields.get("coordinates", 1)), int(fields.get("dimension", 0))
            scale, sensitivity, extra = float(fields["scale"]), float(fields["sensitivity"]), fields.get("extra", 0.0)
            event = cls(noise, scale, sensitivity, sampling, coordinates, dimension, float(extra), rows)
            sizes = (event.scale, event.sensitivity, event.extra, sampling.expected)
            possible = 0 < sampling.expected <= sampling.records and coordinates >= 1 and dimension >= 0
            if not all(0 <= size < math.inf for size in sizes) or not possible:
                raise LedgerError(f"expected possible sizes in a release, found {fields!r}")
            return event
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise LedgerError(f"expected a release event, found {fields!r} ({error})") from error


def to_list(spending: Mapping[Any, int]) -> list[Any]:
    """Return how often each event was charged, as JSON-ready values."""
    return [[event.to_dict(), count] for event, count in spending.items()]


def from_list(told: list[Any]) -> Counter[ReleaseEvent]:
    """Return the spending that `to_list` described."""
    return Counter({ReleaseEvent.from_dict(event): count for event, count in told})
