"""From results to charts, curves with their spread over the repetitions, and from a chart's panel to a drawing.

A curve's line is the middle of the repetitions, point by point, and its band their spread (`results.Spread`). Over
rounds, seconds, bytes or epsilon a point is an evaluation: the repetitions are evaluated after the same rounds, so the
k-th evaluations belong together, and their horizontal position is their middle too.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dpmpi.commands.report import drawing
from dpmpi.commands.report.drawing import LETTERS, LIGHT, Axes, Drawing, Entry, limits, series, set_scale
from dpmpi.commands.sweep.file import Plot
from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.privacy.random_weights import gamma_reduction
from dpmpi.privacy.theorems import local_gamma
from dpmpi.runtime.output.results import QUANTILES, RANGE, REPETITION, Group, Run, Spread, SweepResult, common_name

LABELS = {
    "round": "round",
    "seconds": "time (s)",
    "bytes": "bytes sent by all ranks",
    "messages": "messages of all ranks",
    "epsilon": "certified epsilon so far, largest rank",
    "objective": "objective F(x)",
    "suboptimality": "suboptimality F(x) - F*",
    "accuracy": "accuracy on held-out rows",
    "consensus_error": "consensus error, rms distance to the mean",
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
ALL_TICKS = 8
DODGE, DODGE_ALL = 0.12, 0.8
MARKS = 6
"""How many markers a long line has, at other places than those of other series."""
BYTES = ("bytes", "communication.bytes", "communication.payload_bytes")


@frozen
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


@frozen
class Panel:
    """One pair of axes; all panels of a chart share their vertical range."""

    title: str
    x: str
    x_label: str
    curves: tuple[Curve, ...]


@frozen
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


def group_numbers(group: Group, key: str, spread: Spread) -> tuple[float, float, float] | None:
    """Return a number of the summaries of a group: low, middle and high; None if no run has it."""
    return spread.numbers([run.number(key) for run in group.runs])


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


def points_curve(
    label: str, style: int, groups: Sequence[Group], points: Iterable[tuple[float | None, Any]], *, flat: bool = False
) -> Curve | None:
    """Return the curve through a point for each group, (x, (low, middle, high)); None if there is no whole one."""
    whole = [(x, *found, len(group.runs)) for group, (x, found) in zip(groups, points, strict=True) if found]
    placed = sorted(point for point in whole if point[0] is not None)
    if not placed:
        return None
    x, low, middle, high, repetitions = np.array(placed).T
    return Curve(label, style, x, low, middle, high, int(repetitions.max()), flat)


def runs_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return how good plain runs are, against rounds, seconds and bytes; every group of repetitions is a line."""
    known = all("suboptimality" in run.curves for group in groups for run in group.runs)
    charts = []
    for y in ("accuracy", "suboptimality" if known else "objective", "consensus_error"):
        panels = []
        for x in ("round", "seconds", "bytes"):
            lines = (over_time_curve(group.label, i, group.runs, x, y, RANGE) for i, group in enumerate(groups))
            if curves := tuple(line for line in lines if line is not None):
                panels.append(Panel("", x, LABELS[x], curves))
        if panels:
            title = f"{capital(y.replace('_', ' '))} against rounds, time and bytes"
            positive = all((curve.low > 0).all() for panel in panels for curve in panel.curves)
            log = "y" if y in ("suboptimality", "consensus_error") and positive else ""
            charts.append(Chart(y.replace("_", "-"), title, y, LABELS[y], tuple(panels), log, spread=RANGE))
    return charts


def utility_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return how good runs are against the epsilon that is certified for them, a line for each method.

    A line joins the groups whose settings differ in nothing but how much noise was asked for. Groups without a finite
    epsilon are horizontal lines. No charts if all certified epsilons are about the same.
    """
    epsilons = [group_numbers(group, "privacy.epsilon", RANGE) for group in groups]
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
    for y in ("accuracy", "suboptimality" if known else "objective"):
        drawn = []
        for name, members in zip(names, lines.values(), strict=True):
            flat, joined = epsilons[members[0]] is None, [groups[i] for i in members]
            at = [(found[1] if found else 0.0) for found in (epsilons[i] for i in members)]
            points = zip(at, (group_numbers(group, y, RANGE) for group in joined), strict=True)
            label = f"{name} (not private)" if flat else name
            drawn.append(points_curve(label, members[0], joined, points, flat=flat))
        if curves := tuple(curve for curve in drawn if curve is not None):
            panel = Panel("", "privacy.epsilon", LABELS["privacy.epsilon"], curves)
            title = f"{capital(y)} against the price in privacy"
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

    def place(group: Group) -> float | None:
        if on_grid:
            value = group.grid.get(plot.x, 0.0)
            return float(grid[plot.x].index(value) if words and plot.x in group.grid else value)
        found = group_numbers(group, plot.x, QUANTILES)
        return None if found is None else found[1]

    def curve(groups: Sequence[Group]) -> Curve | None:
        label, style = groups[0].label, styles[groups[0].series]
        if over_time:
            return over_time_curve(label, style, [run for group in groups for run in group.runs], plot.x, plot.y)
        points = ((place(group), group_numbers(group, plot.y, QUANTILES)) for group in groups)
        flat = on_grid and any(plot.x not in group.grid for group in groups)
        return points_curve(label, style, groups, points, flat=flat)

    x_label = LABELS.get(plot.x, plot.x)
    if on_grid:
        x_label = "epsilon asked for" if plot.x == "epsilon" else plot.x.replace("-", " ")
    panels = []
    for values in itertools.product(*split.values()):
        point = dict(zip(split, values, strict=True))
        found: dict[str, list[Group]] = {}
        for group in sweep.groups:  # one without a key of the grid lies at all its values
            if group.runs and all(group.grid.get(key, value) == value for key, value in point.items()):
                found.setdefault(group.series, []).append(group)
        drawn = [curve(groups) for groups in found.values()]
        title = ", ".join(f"{key} = {value}" for key, value in point.items())
        if curves := tuple(one for one in drawn if one is not None):
            panels.append(Panel(title, plot.x, x_label, curves))
    ticks = tuple(str(value) for value in grid[plot.x]) if words else ()
    y_label = LABELS.get(plot.y, plot.y.replace("_", " ").replace(".", ", "))
    title = plot.title or capital(f"{y_label} against {x_label}")
    note = "" if panels else f"No run that is done has {plot.y} against {plot.x}."
    return Chart(name, title, plot.y, y_label, tuple(panels), plot.log, ticks, not over_time, note)


def capital(text: str) -> str:
    """Return a text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def gamma_chart() -> Chart:
    """Return the curves of gamma of [XYD] against the width omega, by Theorem 2.3 and exactly.

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
    names, rows = chart.spread, []
    for panel in chart.panels:
        for curve in panel.curves:
            points = zip(*(one.tolist() for one in (curve.x, curve.middle, curve.low, curve.high)), strict=True)
            for x, *numbers in points:
                at: Any = "" if curve.flat else chart.ticks[int(x)] if chart.ticks else x
                rows.append([panel.title, curve.label, panel.x, at, chart.y, *numbers, curve.repetitions])
    heading = ["panel", "series", "x_name", "x", "y_name", names.middle, names.low, names.high, "repetitions"]
    return drawing.csv_text(heading, rows)


def draw_panel(chart: Chart, panel: Panel, *, legend: bool = True) -> Drawing:
    """Return the drawing of one panel; its vertical range covers all panels of the chart."""
    log_x, log_y = "x" in chart.log and not chart.ticks, "y" in chart.log
    every = [v for one in chart.panels for curve in one.curves for v in (curve.low, curve.middle, curve.high)]
    x_ends = limits([curve.x for curve in panel.curves if not curve.flat], log_x, 0.03)
    x_ends, y_ends = (-0.5, len(chart.ticks) - 0.5) if chart.ticks else x_ends, limits(every, log_y, 0.05)
    places, labels = _point_ticks(chart, panel, x_ends, log_x)

    def paint(axes: Axes) -> None:
        axes.set(xlabel=textwrap.fill(panel.x_label, LETTERS), title=textwrap.fill(chart.y_label, LETTERS))
        if panel.title:
            axes.get_figure().suptitle(textwrap.fill(panel.title, LETTERS), x=0.01, ha="left", weight="bold")
        set_scale(axes, "x", x_ends, log=log_x, unit="B" if panel.x in BYTES else "")
        set_scale(axes, "y", y_ends, log=log_y, unit="B" if chart.y in BYTES else "")
        if places:
            axes.set_xticks(places, labels)
        step = min(DODGE, DODGE_ALL / len(panel.curves)) if chart.ticks else 0.0
        for position, curve in enumerate(panel.curves):
            # Names leave room between them: series that agree stand side by side instead of hiding each other.
            _draw_curve(axes, curve, chart, step * (position - (len(panel.curves) - 1) / 2), len(panel.curves) == 1)
        drawing.draw_legend(axes, legend_entries(chart) if legend and len(panel.curves) > 1 else [])

    lines = max((label.count("\n") for label in labels), default=0) + bool(panel.title)
    return Drawing(paint, drawing.HEIGHT + drawing.LINE * lines)


def legend_entries(chart: Chart) -> list[Entry]:
    """Return the legend of all panels; a single series needs none."""
    entries: dict[str, Entry] = {}
    for panel in chart.panels:
        for curve in panel.curves:
            apart = chart.ticks or (chart.points and len(curve.x) == 1)
            line = "--" if curve.flat or curve.dashed else "" if apart else "-"
            entries.setdefault(curve.label, series(curve.style, curve.label, line))
    return list(entries.values()) if len(entries) > 1 else []


def _line_labels(lines: Sequence[Sequence[Group]]) -> list[str]:
    """Return names of lines of groups: their methods, if these differ, or what the groups are called."""
    methods = [line[0].label if len(line) == 1 else str(line[0].runs[0].summary["algorithm"]) for line in lines]
    prefixes = [common_name([group.label for group in line]) for line in lines]
    firsts = [line[0].label for line in lines]
    return next((names for names in (methods, prefixes) if len(set(names)) == len(lines)), firsts)


def _draw_curve(axes: Axes, curve: Curve, chart: Chart, aside: float, alone: bool) -> None:
    look, several = series(curve.style), curve.repetitions > 1
    tone, ends = LIGHT[look.tone], axes.get_ylim()
    low, middle, high = (_inside(ends, one, "y" in chart.log) for one in (curve.low, curve.middle, curve.high))
    if curve.flat:
        if several:
            axes.axhspan(low[0], high[0], color=tone, alpha=0.15, linewidth=0)
        axes.axhline(middle[0], color=tone, linestyle="--")
        return
    xs = _inside(axes.get_xlim(), curve.x + aside, "x" in chart.log and not chart.ticks)
    if several and (chart.points or len(xs) == 1):
        axes.vlines(xs, low, high, tone, linewidth=1.1)
    elif several:
        axes.fill_between(xs, low, high, color=tone, alpha=0.15, linewidth=0)
    if not chart.ticks:  # there is nothing between two names
        marked = not chart.points and (len(xs) == 1 or not (alone or curve.dashed))
        line, shape, step = "--" if curve.dashed else "-", look.marker if marked else "", max(1, len(xs) // MARKS)
        axes.plot(xs, middle, line, color=tone, marker=shape, markevery=(int(0.31 * curve.style % 1 * step), step))
    for x, y, value in zip(xs, middle, curve.middle, strict=True) if chart.points else ():
        axes.plot(x, y, look.marker, color=tone, gid=drawing.tip(f"{curve.label}: {value:.4g}"))


def _inside(ends: tuple[float, float], values: Array, log: bool) -> Array:
    """Return values on the border if they lie outside; NaN for what has no place on a logarithmic axis."""
    inside: Array = np.clip(np.where(values > 0, values, np.nan) if log else values, *ends)
    return inside


def _point_ticks(chart: Chart, panel: Panel, ends: tuple[float, float], log: bool) -> tuple[list[float], list[str]]:
    """Return ticks where the points are, as long as they are few; none: the axis finds its own.

    Their labels are dealt out over as many lines as keep each apart from its neighbours.
    """
    every = {float(x) for curve in panel.curves if not curve.flat for x in curve.x}
    places = sorted(x for x in every if ends[0] <= x <= ends[1])  # others would widen the axis
    named = len(places) <= ALL_TICKS and panel.x not in BYTES and "." not in panel.x
    labels = [f"{place:g}" for place in places if chart.points and named]
    if chart.ticks:
        places, labels = [float(i) for i in range(len(chart.ticks))], list(chart.ticks)
    if not labels:
        return [], []
    on = np.log10 if log else np.asarray
    shares = np.interp(on(places), on(ends), [0.0, 1.0]).tolist()
    ticks, rows = list(zip(shares, map(len, labels), strict=True)), 1

    def touch(one: tuple[float, int], other: tuple[float, int]) -> bool:
        return LETTERS * (other[0] - one[0]) < (one[1] + other[1]) / 2 + 2

    while rows < len(ticks) and any(touch(*pair) for pair in zip(ticks, ticks[rows:], strict=False)):
        rows += 1
    return places, ["\n" * (i % rows) + label for i, label in enumerate(labels)]
