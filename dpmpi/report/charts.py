"""From results to what a figure shows: curves with their spread over the repetitions. No drawing here.

A curve's line is the middle of the repetitions, point by point, and its band their spread (`results.Spread`). Over
rounds, seconds, bytes or epsilon a point is an evaluation: the repetitions are evaluated after the same rounds, so the
k-th evaluations belong together, and their horizontal position is their middle too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.privacy.mixtures import gamma_reduction
from dpmpi.privacy.theorems import local_gamma
from dpmpi.report.plots import csv_text
from dpmpi.results import QUANTILES, RANGE, REPETITION, Group, Run, Spread, SweepResult, common_name
from dpmpi.sweep.file import Plot

LABELS = {
    "round": "round",
    "seconds": "time (s)",
    "bytes": "bytes sent by all ranks",
    "messages": "messages of all ranks",
    "epsilon": "certified epsilon so far, largest rank",
    "objective": "objective F(x)",
    "suboptimality": "suboptimality F(x) - F*",
    "accuracy": "accuracy on held-out rows",
    "consensus_error": "consensus error, rms distance to the mean model",
    "error": "error |x - x*|^2 / |x*|^2",
    "rank_error": "error of a rank, mean of |x_i - x*|^2 / |x*|^2",
    "privacy.epsilon": "certified epsilon",
    "privacy.epsilon_theorem": "epsilon by the paper's theorem",
    "communication.bytes": "bytes sent by all ranks",
    "wall_seconds": "time (s)",
    "rounds_per_second": "rounds per second",
    "graph.beta": "beta of the mixing matrix",
}
PRIVACY = frozenset({"epsilon", "noise", "budget"})
"""Settings by which runs on one line of privacy against utility may differ."""
ABOUT = 1.05
"""Epsilons no further apart than this are the same price."""
BYTES = ("bytes", "communication.bytes", "communication.payload_bytes")


@dataclass(frozen=True)
class Curve:
    """One line: `style` is the position of its series, the same in all figures. A flat one has no x of its own."""

    label: str
    style: int
    x: Array
    low: Array
    middle: Array
    high: Array
    repetitions: int
    flat: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes; all panels of a chart share their vertical range."""

    title: str
    x: str
    x_label: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Chart:
    """One figure: panels, axes, and, if x is text, the ticks."""

    name: str
    title: str
    y: str
    y_label: str
    panels: tuple[Panel, ...]
    log: str = ""
    ticks: tuple[str, ...] = ()
    points: bool = False
    note: str = ""
    """Instead of the caption that says how many runs there are."""
    spread: Spread = QUANTILES


def over_time_curve(
    label: str, style: int, runs: Sequence[Run], x: str, y: str, spread: Spread = QUANTILES
) -> Curve | None:
    """Return the middle curve of runs that were evaluated after the same rounds; None if one lacks a figure."""
    if not runs or any(x not in run.curves or y not in run.curves for run in runs):
        return None
    length = min(len(run.curves["round"]) for run in runs)
    xs = spread.of(np.array([run.curves[x][:length] for run in runs]))[1]
    ys = np.array([run.curves[y][:length] for run in runs])
    keep = ~np.isnan(xs) & ~np.isnan(ys).any(axis=0)
    if not keep.any():
        return None
    low, middle, high = spread.of(ys[:, keep])
    return Curve(label, style, xs[keep], low, middle, high, len(runs))


def runs_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return how good plain runs are, against rounds, seconds and bytes; every group of repetitions is a line."""
    known = all("suboptimality" in run.curves for group in groups for run in group.runs)
    charts = []
    for y in ("suboptimality" if known else "objective", "accuracy", "consensus_error"):
        panels = []
        for x in ("round", "seconds", "bytes"):
            lines = (over_time_curve(group.label, i, group.runs, x, y, RANGE) for i, group in enumerate(groups))
            curves = tuple(line for line in lines if line is not None)
            if curves:
                panels.append(Panel("", x, LABELS[x], curves))
        if panels:
            title = f"{_capital(y.replace('_', ' '))} against rounds, time and bytes"
            positive = all((curve.low > 0).all() for panel in panels for curve in panel.curves)
            log = "y" if y in ("suboptimality", "consensus_error") and positive else ""
            charts.append(Chart(y.replace("_", "-"), title, y, LABELS[y], tuple(panels), log, spread=RANGE))
    return charts


def utility_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return how good runs are against the epsilon that is certified for them, a line for each method.

    A line joins the groups whose settings differ in nothing but how much noise was asked for. Groups without a finite
    epsilon are horizontal lines. No charts if all certified epsilons are about the same.
    """
    epsilons = [RANGE.numbers([run.number("privacy.epsilon") for run in group.runs]) for group in groups]
    middles = [at[1] for at in epsilons if at is not None]
    if max(middles, default=0.0) <= ABOUT * min(middles, default=0.0):
        return []
    lines: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        same = {k: v for k, v in group.grid.items() if k not in REPETITION | PRIVACY} if epsilons[i] else i
        lines.setdefault(str((group.runs[0].summary["ranks"], same)), []).append(i)
    names = _line_labels([[groups[i] for i in members] for members in lines.values()])
    known = all(run.number("suboptimality") is not None for group in groups for run in group.runs)
    charts = []
    for y in ("suboptimality" if known else "objective", "accuracy"):
        curves = []
        for label, members in zip(names, lines.values(), strict=True):
            found = [(epsilons[i], RANGE.numbers([run.number(y) for run in groups[i].runs])) for i in members]
            points = sorted((at[1] if at else 0.0, *spread) for at, spread in found if spread is not None)
            if points:
                xs, low, middle, high = np.array(points).T
                many, flat = max(len(groups[i].runs) for i in members), epsilons[members[0]] is None
                name = f"{label} (not private)" if flat else label
                curves.append(Curve(name, members[0], xs, low, middle, high, many, flat))
        if curves:
            panel = Panel("", "privacy.epsilon", LABELS["privacy.epsilon"], tuple(curves))
            title = f"{_capital(y)} against the price in privacy"
            log = "xy" if y == "suboptimality" and all((curve.low > 0).all() for curve in curves) else "x"
            charts.append(Chart(f"privacy-{y}", title, y, LABELS[y], (panel,), log, points=True, spread=RANGE))
    return charts


def plot_chart(sweep: SweepResult, plot: Plot, name: str) -> Chart:
    """Return the figure that a sweep file asks for; it has no panels if no run has such figures."""
    grid: dict[str, list[Any]] = sweep.index["grid"]
    styles = {one["name"]: position for position, one in enumerate(sweep.index["series"])}
    over_time = plot.over_time(grid)
    on_grid = plot.x in grid and not over_time
    split: dict[str, list[Any]] = {}
    for key, every in grid.items() if over_time or on_grid else ():
        had = [value for value in every if any(key in one.grid and one.grid[key] == value for one in sweep.groups)]
        if key != plot.x and len(every) > 1 and had:
            split[key] = had
    words = on_grid and not all(isinstance(value, int | float) for value in grid[plot.x])
    x_label = _grid_label(plot.x) if on_grid else LABELS.get(plot.x, plot.x)
    panels = []
    for values in itertools.product(*split.values()):
        point = dict(zip(split, values, strict=True))
        curves: list[Curve] = []
        for series, groups in _by_series(sweep.groups, point):
            label, style = groups[0].label, styles[series]
            if over_time:
                drawn = over_time_curve(label, style, [run for group in groups for run in group.runs], plot.x, plot.y)
            else:
                drawn = _grid_curve(label, style, groups, plot, grid if on_grid else None, words)
            curves += [] if drawn is None else [drawn]
        title = ", ".join(f"{key} = {value}" for key, value in point.items())
        if curves:
            panels.append(Panel(title, plot.x, x_label, tuple(curves)))
    ticks = tuple(str(value) for value in grid[plot.x]) if words else ()
    y_label = LABELS.get(plot.y, plot.y.replace("_", " ").replace(".", ", "))
    title = plot.title or _capital(f"{y_label} against {x_label}")
    note = "" if panels else f"No run that is done has {plot.y} against {plot.x}."
    return Chart(name, title, plot.y, y_label, tuple(panels), plot.log, ticks, not over_time, note)


def gamma_chart() -> Chart:
    """Return what random weights hide: gamma of [XYD] against the width omega, by Theorem 2.3 and exactly.

    gamma is the expected privacy loss of an output over its largest, for Laplace noise of rate beta on a uniform draw
    from an interval of width omega, which one record can move by `shift`. The first panel is Figure 1 of [XYD].

    [XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
    """
    omegas, panels = np.linspace(0.1, 1.0, 46), []
    for shift in (0.001, 0.05):
        curves = []
        for style, beta in enumerate((2.0, 6.0, 10.0)):
            for name, gamma in (("exact", gamma_reduction), ("theorem", local_gamma)):
                y = np.array([gamma(beta, omega, shift) for omega in omegas.tolist()])
                label, dashed = f"beta = {beta:g}, {name}", name == "theorem"
                curves.append(Curve(label, style, omegas, y, y, y, 1, dashed=dashed))
        panels.append(Panel(f"shift = {shift}", "omega", "width omega of the interval", tuple(curves)))
    note = "Where the dashed line lies below the solid one of its colour, Theorem 2.3 is no bound."
    title = "What random weights hide: expected privacy loss over its largest"
    return Chart("gamma", title, "gamma", "gamma", tuple(panels), note=note)


def chart_csv(chart: Chart) -> str:
    """Return the plotted numbers: one line per point."""
    names = chart.spread
    rows = []
    for panel in chart.panels:
        for curve in panel.curves:
            points = zip(*(one.tolist() for one in (curve.x, curve.middle, curve.low, curve.high)), strict=True)
            for x, *numbers in points:
                at: Any = "" if curve.flat else chart.ticks[int(x)] if chart.ticks else x
                rows.append([panel.title, curve.label, panel.x, at, chart.y, *numbers, curve.repetitions])
    heading = ["panel", "series", "x_name", "x", "y_name", names.middle, names.low, names.high, "repetitions"]
    return csv_text(heading, rows)


def _by_series(groups: Iterable[Group], point: Mapping[str, Any]) -> list[tuple[str, list[Group]]]:
    """Return the groups of every series that lie at a point; without a key, it lies at all its values."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        if group.runs and all(group.grid.get(key, value) == value for key, value in point.items()):
            found.setdefault(group.series, []).append(group)
    return list(found.items())


def _grid_curve(
    label: str, style: int, groups: Sequence[Group], plot: Plot, grid: Mapping[str, list[Any]] | None, words: bool
) -> Curve | None:
    """Return the points of a series over a grid key (`grid`) or over a number of the summary (None), by their x."""
    points: list[tuple[float, float, float, float]] = []
    repetitions, flat = 0, False
    for group in groups:
        found = QUANTILES.numbers([run.number(plot.y) for run in group.runs])
        at: float | None
        if grid is None:
            middle = QUANTILES.numbers([run.number(plot.x) for run in group.runs])
            at = None if middle is None else middle[1]
        elif plot.x not in group.grid:
            at, flat = 0.0, True
        else:
            value = group.grid[plot.x]
            at = float(grid[plot.x].index(value)) if words else float(value)
        if found is not None and at is not None:
            points.append((at, *found))
            repetitions = max(repetitions, len(group.runs))
    if not points:
        return None
    xs, low, middle_, high = np.array(sorted(points)).T
    return Curve(label, style, xs, low, middle_, high, repetitions, flat)


def _line_labels(lines: Sequence[Sequence[Group]]) -> list[str]:
    """Return names of lines of groups: their methods, if these differ, or what the groups are called."""
    methods = [line[0].label if len(line) == 1 else str(line[0].runs[0].summary["algorithm"]) for line in lines]
    prefixes = [common_name([group.label for group in line]) for line in lines]
    return next(
        (names for names in (methods, prefixes) if len(set(names)) == len(lines)), [line[0].label for line in lines]
    )


def _grid_label(key: str) -> str:
    return {"epsilon": "epsilon asked for"}.get(key, key.replace("-", " "))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
