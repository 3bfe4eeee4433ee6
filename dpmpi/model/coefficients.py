"""The table of coefficients: what each feature adds to the score, in coded and original units, and its noise.

With C, slope, offset of (2), (8) in `model.py`, u the label's unit (1 but for numbers) and sigma at most about the
standard deviation of the noise in each coefficient, a row has

    coefficient   u C_jk                                                          (1)
    per unit      u C_jk slope_j, for one unit of the original column             (2)
    noise         u sigma, and (1) over it                                        (3)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmpi.core.frozen import frozen

if TYPE_CHECKING:
    from dpmpi.model.model import Model

INTERCEPT = "(intercept)"
HEADINGS = ("feature", "class", "coefficient", "noise", "times noise", "per unit", "range")


@frozen
class Coefficient:
    """One row of the table."""

    feature: str
    label: str
    """The class that the score is for; of two classes the second; empty for numbers and counts."""
    value: float
    per_unit: float
    noise: float | None
    range: tuple[float, float] | None
    """The original numbers that the feature was coded from."""
    several: bool
    intercept: bool = False

    @property
    def key(self) -> Any:
        """The name of the feature, of several classes with that of the class."""
        return (self.feature, self.label) if self.several else self.feature

    @property
    def times_noise(self) -> float | None:
        """How many standard deviations of the noise the coefficient is long, (3)."""
        return abs(self.value) / self.noise if self.noise else None


def coefficient_table(model: Model) -> list[Coefficient]:
    """Return a row for each coefficient, in the order of the features, then for each intercept."""
    several, unit = model.task.kind == "multiclass", model.label_unit
    labels = model.task.classes if several else model.task.classes[1:] if model.task.kind == "binary" else ("",)
    slopes = np.ones(len(model.features)) if model.scaling is None else model.scaling[:, 0]
    sigma, last = (None, None) if model.noise_std is None else (unit * std for std in model.noise_std)
    ranges, found = model.units, []
    for name, values, slope in zip(model.features, (unit * model.coefficients).tolist(), slopes.tolist(), strict=True):
        for label, value in zip(labels, values, strict=True):
            found.append(Coefficient(name, label, value, value * slope, sigma, ranges[name], several))
    mine = model.intercept
    for label, value in mine.items() if isinstance(mine, dict) else [(labels[0], mine)]:
        found.append(Coefficient(INTERCEPT, label, value, value, last, None, several, intercept=True))
    return found


def by_size(rows: Sequence[Coefficient]) -> list[Coefficient]:
    """Return the rows of the features with the largest coefficients first, then the intercepts."""
    return sorted(rows, key=lambda row: (row.intercept, -abs(row.value)))


def cells(row: Coefficient) -> list[str]:
    """Return a row as text, for people."""
    times, between = row.times_noise, "" if row.range is None else f"{row.range[0]:g} to {row.range[1]:g}"
    noise = "not known" if row.noise is None else f"{row.noise:.3g}"
    shown = [f"{row.value:+.4g}", noise, "" if times is None else f"{times:.2g}", f"{row.per_unit:+.4g}", between]
    return [row.feature, row.label, *shown]


def coefficient_csv(model: Model) -> str:
    """Return the whole table as CSV, largest first, with all digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("feature", "class", "coefficient", "noise", "per_unit", "low", "high"))
    for row in by_size(coefficient_table(model)):
        low, high = row.range or ("", "")
        noise = "" if row.noise is None else repr(row.noise)
        writer.writerow((row.feature, row.label, repr(row.value), noise, repr(row.per_unit), low, high))
    return text.getvalue()
