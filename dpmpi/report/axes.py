"""Axes: from numbers to places in a drawing, ticks that a person would choose, and the frame around a plot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpmpi.core import Array
from dpmpi.report.drawing import LINE, Drawing, text_width, wrap

LARGEST_LOG = 100.0
"""Beyond 1e100 a logarithmic axis is cut: a run that diverges gets there, and the rest would be flat."""
NARROWEST = 1e-6
"""Of a range, beside its numbers: closer ones are equal to the eye, and would need endless labels."""
GAP = 10.0
"""Between two labels of an axis."""
BOLD = 0.88
"""How wide a line is beside a bold one of the same letters."""
LOG_TICKS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0))

Tick = tuple[float, str]


@dataclass(frozen=True)
class Scale:
    """A map from the range [low, high] of numbers, linear or logarithmic, to [start, end] of the drawing."""

    low: float
    high: float
    log: bool
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a number: on the border if it lies outside; NaN for what has no place."""
        if math.isnan(value) or (self.log and value <= 0):
            return math.nan
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(value) if self.log and math.isfinite(value) else value
        share = min(max((at - low) / (high - low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)


def limits(arrays: Iterable[Array], log: bool, margin: float) -> tuple[float, float]:
    """Return the range of what can be drawn, wider by a margin on both sides; something fit to draw if nothing can."""
    values = np.concatenate([*arrays, np.zeros(0)])
    if log:
        values = np.clip(np.log10(values[(values > 0) & np.isfinite(values)]), -LARGEST_LOG, LARGEST_LOG)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if low == high:
        more = max(0.05 * abs(high), 0.05 if log else 1e-3)
    else:  # halves keep the difference of huge numbers finite
        more = max(2 * margin * (high / 2 - low / 2), 1e-3 if log else NARROWEST * max(abs(low), abs(high)))
    return (10 ** (low - more), 10 ** (high + more)) if log else (max(low - more, -1e300), min(high + more, 1e300))


def ticks(low: float, high: float, log: bool, count: int, unit: str = "") -> list[Tick]:
    """Return at most `count` round numbers of a range, with their labels; at least one if the range has a round one."""
    values = _log_values(low, high, count) if log else []
    if len(values) < 2:
        values = _linear_values(low, high, count)
    return list(zip(values, labels(values, unit), strict=True))


def labels(values: Sequence[float], unit: str = "") -> list[str]:
    """Return numbers as text: with as many digits as tell them apart; with a unit, by thousands (kB, MB ...)."""
    if unit:
        return [by_thousands(value, unit) for value in values]
    near = min((abs(a - b) for a, b in pairwise(values)), default=0.0) / 100
    digits = 3
    while digits < 12 and any(abs(float(f"{value:.{digits}g}") - value) > near for value in values):
        digits += 1
    whole = all(abs(value) < 1e7 and value == round(value) for value in values)
    return [f"{value:,.0f}" if whole else f"{value:.{digits}g}" for value in values]


def by_thousands(value: float, unit: str) -> str:
    """Return a number with an SI prefix: 416 kB, 8.32 MB."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 0.9995 * 10**power:
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def blocks(count: int, most: int) -> list[range]:
    """Return 0 ... count - 1 cut into at most `most` blocks of neighbours that differ by one in length at most."""
    pieces = min(count, most)
    return [range(k * count // pieces, (k + 1) * count // pieces) for k in range(pieces)]


@dataclass(frozen=True)
class Axis:
    """One side of a plot: its range and how it is labelled; without ticks of its own it has round numbers."""

    range: tuple[float, float]
    label: str = ""
    log: bool = False
    unit: str = ""
    ticks: Sequence[Tick] | None = None
    grid: bool = True


@dataclass(frozen=True)
class Frame:
    """Where a plot lies in its drawing: its two scales, and where the text below it ends."""

    x: Scale
    y: Scale
    bottom: float


def draw_frame(drawing: Drawing, heading: str, x: Axis, y: Axis, height: float) -> Frame:
    """Draw heading, axes, ticks and grid around a plot of a certain height; return its scales.

    The label of the vertical axis stands above the plot, where it can be read.
    """
    top = 0.0
    for text, bold in ((heading, True), (y.label, False)):
        for line in wrap(text, drawing.width * (BOLD if bold else 1.0)):
            drawing.text(0, top + 12, line, "soft", bold=bold)
            top += LINE
    top += 8
    on_y = ticks(*y.range, y.log, 6, y.unit) if y.ticks is None else y.ticks
    left = max((text_width(label) for _, label in on_y), default=0) + 8
    right, bottom = drawing.width - 8, top + height
    scale_x, scale_y = Scale(*x.range, x.log, left, right), Scale(*y.range, y.log, bottom, top)
    for value, label in on_y:
        at = scale_y(value)
        if y.grid:
            drawing.line([(left, at), (right, at)], "grid")
        drawing.text(left - 6, at + 4, label, "soft", "end")
    on_x = _fitting(drawing, scale_x, x.unit) if x.ticks is None else x.ticks
    rows = _rows(drawing, scale_x, on_x)
    for position, (value, label) in enumerate(on_x):
        at, base = scale_x(value), bottom + 16 + LINE * (position % rows)
        if x.grid:
            drawing.line([(at, top), (at, bottom)], "grid")
        if position % rows:
            drawing.line([(at, bottom), (at, base - 12)], "grid")
        drawing.text(_inside(drawing, at, label), base, label, "soft", "middle")
    drawing.line([(left, top), (left, bottom), (right, bottom)], "soft")
    end = bottom + 20 + LINE * (rows - 1)
    for line in wrap(x.label, drawing.width):
        half = text_width(line) / 2
        drawing.text(min(max((left + right) / 2, half), drawing.width - half), end + 14, line, "soft", "middle")
        end += LINE
    drawing.height = end + 6
    return Frame(scale_x, scale_y, end + 6)


def _inside(drawing: Drawing, x: float, label: str) -> float:
    half = text_width(label) / 2
    return min(max(x, half), drawing.width - half)


def _overlap(drawing: Drawing, scale: Scale, some: Sequence[Tick]) -> bool:
    """Return whether two neighbours of some labels come closer than `GAP`."""
    ends = -math.inf
    for value, label in some:
        middle, half = _inside(drawing, scale(value), label), text_width(label) / 2
        if middle - half < ends + GAP:
            return True
        ends = middle + half
    return False


def _fitting(drawing: Drawing, scale: Scale, unit: str) -> list[Tick]:
    """Return as many ticks as have room side by side."""
    for count in (7, 6, 5, 4, 3):
        found = ticks(scale.low, scale.high, scale.log, count, unit)
        if not _overlap(drawing, scale, found):
            return found
    return found[:1]


def _rows(drawing: Drawing, scale: Scale, given: Sequence[Tick]) -> int:
    """Return over how many lines given labels must be dealt out so that none touches another."""
    count = 1
    while count < len(given) and any(_overlap(drawing, scale, given[k::count]) for k in range(count)):
        count += 1
    return count


def _linear_values(low: float, high: float, count: int) -> list[float]:
    rough = high / max(count, 1) - low / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (power, 2 * power, 5 * power, 10 * power, 20 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= count:
            return [k * step for k in range(first, last + 1)]
    return []


def _log_values(low: float, high: float, count: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    finest: list[float] = []
    for factors in LOG_TICKS:
        values = [f * 10.0**k for k in range(first, last + 1) for f in factors if low <= f * 10.0**k <= high]
        if len(values) <= count:
            finest = values
    if finest:
        return finest
    decades = [k for k in range(first, last + 1) if low <= 10.0**k <= high]
    step = math.ceil(len(decades) / count)
    return [10.0**k for k in decades if k % step == 0]
