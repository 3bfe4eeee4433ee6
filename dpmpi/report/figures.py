"""Figures: functions from results to one drawing. Panels of charts, and what each rank spent: privacy and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpmpi.core import Array
from dpmpi.report.axes import Axis, Frame, Tick, blocks, draw_frame, limits
from dpmpi.report.charts import BYTES, Chart, Curve, Panel
from dpmpi.report.drawing import Drawing, colour, draw_legend, marker
from dpmpi.report.plots import Picture

HEIGHT = 210.0
"""Of a plot between its axes; titles, labels and legend come on top of it."""
ALL_TICKS = 8
MARKS = 6
"""How many markers a long line has."""
DODGE, DODGE_ALL = 0.12, 0.8
MOST_BARS = 160
MOST_DOTS = 400
WIDE_RATIO = 30.0
"""Epsilons further apart than this are shown on a logarithmic axis."""
PARTS = (("compute", "s0"), ("noise", "s4"), ("crypto", "s3"), ("ledger", "s1"), ("wait", "mute"))
"""What a rank's seconds are spent on, and the colour of it."""

Entry = tuple[str, str, str, str]


def draw_panel(chart: Chart, panel: Panel, *, legend: bool = True) -> Drawing:
    """Return the drawing of one panel; its vertical range covers all panels of the chart."""
    drawing = Drawing(0)
    log_x, log_y = "x" in chart.log and not chart.ticks, "y" in chart.log
    every = [v for one in chart.panels for curve in one.curves for v in (curve.low, curve.middle, curve.high)]
    across = limits([curve.x for curve in panel.curves if not curve.flat], log_x, 0.03)
    if chart.ticks:
        across = (-0.5, len(chart.ticks) - 0.5)
    x = Axis(across, panel.x_label, log_x, "B" if panel.x in BYTES else "", _point_ticks(chart, panel))
    y = Axis(limits(every, log_y, 0.05), chart.y_label, log_y, "B" if chart.y in BYTES else "")
    frame = draw_frame(drawing, panel.title, x, y, HEIGHT)
    step = min(DODGE, DODGE_ALL / len(panel.curves))
    for position, curve in enumerate(panel.curves):
        # Names leave room between them: series that agree stand side by side instead of hiding each other.
        aside = step * (position - (len(panel.curves) - 1) / 2) if chart.ticks else 0.0
        _draw_curve(drawing, frame, curve, chart, aside, alone=len(panel.curves) == 1)
    if legend and len(panel.curves) > 1:
        drawing.height = draw_legend(drawing, legend_entries(chart), frame.bottom + 4)
    return drawing


def legend_entries(chart: Chart) -> list[Entry]:
    """Return what a legend of all panels says: label, colour, marker and kind of line of each series."""
    entries: dict[str, Entry] = {}
    for panel in chart.panels:
        for curve in panel.curves:
            apart = chart.ticks or (chart.points and len(curve.x) == 1)
            kind = "dashed" if curve.flat or curve.dashed else "points" if apart else "line"
            entries.setdefault(curve.label, (curve.label, colour(curve.style), marker(curve.style), kind))
    return list(entries.values())


def spent(record: Mapping[str, Any]) -> float:
    """Return what a rank has spent of its budget: earlier runs count if they are in the same ledger."""
    total = record.get("epsilon_with_earlier_runs")
    fits = isinstance(total, int | float) and math.isfinite(total)
    return float(total if fits and total is not None else record["epsilon"])


def draw_epsilons(
    ranks: Sequence[dict[str, Any]], target: float | None, delta: float, claim: float | None
) -> Picture | None:
    """Return every rank's certified epsilon next to what it may spend and to what a theorem claims of the same noise.

    None if nothing is certified. Of very many ranks the worst of each block of neighbouring numbers is shown.
    """
    if any(record["epsilon"] is None for record in ranks):
        return None
    own = any(record["budget"] is not None for record in ranks)
    allowed = [target if record["budget"] is None else record["budget"] for record in ranks]
    shown = [max(block, key=lambda i: spent(ranks[i])) for block in blocks(len(ranks), MOST_DOTS)]
    numbers = [*(spent(r) for r in ranks), *(a for a in allowed if a is not None), *([claim] if claim else [])]
    log = min(numbers) > 0 and max(numbers) / min(numbers) > WIDE_RATIO
    y_range = limits([np.array(numbers)], True, 0.1) if log else (0.0, 1.12 * max([*numbers, 1e-9]))
    drawing = Drawing(0)
    y = Axis(y_range, f"epsilon at delta = {delta:g}", log)
    frame = draw_frame(drawing, "", rank_axis(ranks), y, HEIGHT)
    earlier = any(spent(record) != record["epsilon"] for record in ranks)
    entries: list[Entry] = [("certified, with earlier runs" if earlier else "certified", "s0", "circle", "points")]
    half = min(7.0, 0.45 * (frame.x.end - frame.x.start) / len(shown))
    for i in shown:
        limit, x = allowed[i], frame.x(ranks[i]["rank"])
        if limit is not None:
            drawing.line([(x - half, frame.y(limit)), (x + half, frame.y(limit))], "ink", 1.6)
    if any(limit is not None for limit in allowed):
        entries.append(("budget" if own else "target (--epsilon)", "ink", "", "solid"))
    if claim is not None:
        drawing.line([(frame.x.start, frame.y(claim)), (frame.x.end, frame.y(claim))], "s1", 1.6, "5 3")
        entries.append((f"the paper's theorem: {claim:.3g}", "s1", "", "dashed"))
    for i in shown:
        limit, epsilon = allowed[i], spent(ranks[i])
        said = f"rank {ranks[i]['rank']}: epsilon {epsilon:.4g}" + (f" of {limit:g}" if limit is not None else "")
        drawing.mark("circle", frame.x(ranks[i]["rank"]), frame.y(epsilon), "s0", min(4.0, half), title=said)
    drawing.height = draw_legend(drawing, entries, frame.bottom + 4)
    rows = [(r["rank"], spent(r), "" if a is None else a, "" if claim is None else claim)
            for r, a in zip(ranks, allowed, strict=True)]  # fmt: skip
    return Picture(drawing, ("rank", "epsilon", "budget", "epsilon_theorem"), tuple(rows))


def draw_times(ranks: Sequence[dict[str, Any]]) -> Picture:
    """Return where every rank's seconds went, as stacked bars; of very many ranks the means of blocks of them."""
    table = np.array([[seconds(record)[part] for part, _ in PARTS] for record in ranks])
    groups = blocks(len(ranks), MOST_BARS)
    means = np.array([table[list(block)].mean(axis=0) for block in groups])
    drawing = Drawing(0)
    y = Axis((0.0, 1.05 * max(float(means.sum(axis=1).max()), 1e-9)), "seconds of training")
    frame = draw_frame(drawing, "", rank_axis(ranks), y, HEIGHT)
    wide = 0.72 * (frame.x.end - frame.x.start) / len(groups)
    for block, amounts in zip(groups, means, strict=True):
        first, last = ranks[block[0]]["rank"], ranks[block[-1]]["rank"]
        below = 0.0
        for (part, tone), amount in zip(PARTS, amounts, strict=True):
            if amount > 0:
                top, bottom = frame.y(below + amount), frame.y(below)
                name = f"rank {first}" if first == last else f"ranks {first} to {last}, mean"
                at = frame.x((first + last) / 2) - wide / 2
                drawing.rect(at, top, wide, bottom - top, tone, title=f"{name}: {part} {amount:.3g} s")
            below += amount
    spent = table.sum(axis=0)
    entries: list[Entry] = [
        (name, tone, "", "bar") for (name, tone), sum_ in zip(PARTS, spent, strict=True) if sum_ > 0
    ]
    drawing.height = draw_legend(drawing, entries, frame.bottom + 4)
    rows = [(record["rank"], *map(float, row)) for record, row in zip(ranks, table, strict=True)]
    return Picture(drawing, ("rank", *(f"{part}_seconds" for part, _ in PARTS)), tuple(rows))


def seconds(record: dict[str, Any]) -> dict[str, float]:
    """Return what a rank's seconds of training went to; a run of an older version knows two parts alone."""
    old = {"compute": record["compute_seconds"], "wait": record["wait_seconds"]}
    return {part: 0.0 for part, _ in PARTS} | (record.get("seconds") or old)


def rank_axis(ranks: Sequence[dict[str, Any]]) -> Axis:
    """Return the axis of a figure with a place for each rank."""
    rough = max(len(ranks) / 10, 1.0)
    power = 10 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough)
    ticks = [(record["rank"], f"{record['rank']}") for record in ranks[::step]]
    return Axis((ranks[0]["rank"] - 0.6, ranks[-1]["rank"] + 0.6), "rank", ticks=ticks, grid=False)


def _draw_curve(drawing: Drawing, frame: Frame, curve: Curve, chart: Chart, aside: float, *, alone: bool) -> None:
    tone, shape, several = colour(curve.style), marker(curve.style), curve.repetitions > 1
    ys, lows, highs = ([frame.y(v) for v in one.tolist()] for one in (curve.middle, curve.low, curve.high))
    if curve.flat:
        if several and not math.isnan(lows[0]):
            drawing.rect(frame.x.start, highs[0], frame.x.end - frame.x.start, lows[0] - highs[0], tone, opacity=0.15)
        drawing.line([(frame.x.start, ys[0]), (frame.x.end, ys[0])], tone, 1.6, "5 3")
        return
    xs = [frame.x(v + aside) for v in curve.x.tolist()]
    bars = chart.points or len(xs) == 1
    if several and bars:
        for x, low, high in zip(xs, lows, highs, strict=True):
            drawing.line([(x, low), (x, high)], tone, 1.4)
    elif several:
        drawing.area(_band(xs, lows, highs), tone, opacity=0.15)
    if not chart.ticks:  # there is nothing between two names
        drawing.line(zip(xs, ys, strict=True), tone, 1.8, "5 3" if curve.dashed else "")
    if chart.points or len(xs) == 1 or not (alone or curve.dashed):
        for i in range(len(xs)) if chart.points else _marked(xs, curve.style):
            said = f"{curve.label}: {float(curve.middle[i]):.4g}"
            drawing.mark(shape, xs[i], ys[i], tone, title=said if chart.points else "")


def _band(xs: Sequence[float], lows: Sequence[float], highs: Sequence[float]) -> list[tuple[float, float]]:
    """Return the outline between two lines, where both can be drawn."""
    kept = [(x, low, high) for x, low, high in zip(xs, lows, highs, strict=True) if not math.isnan(low + high)]
    return [(x, high) for x, _, high in kept] + [(x, low) for x, low, _ in reversed(kept)]


def _marked(xs: Sequence[float], style: int) -> list[int]:
    """Return which points of a line bear its marker: a few, at other places than those of other series, and the end."""
    step = (xs[-1] - xs[0]) / MARKS if len(xs) > 1 else 0.0
    if step <= 0:
        return [len(xs) - 1]
    wanted = [xs[0] + step * (k + (0.31 * style) % 1) for k in range(MARKS)]
    places: Array = np.array(xs)
    return sorted({int(np.abs(places - at).argmin()) for at in wanted} | {len(xs) - 1})


def _point_ticks(chart: Chart, panel: Panel) -> list[Tick] | None:
    """Return ticks where the points are, as long as they are few; None: the axis finds its own."""
    if chart.ticks:
        return [(float(i), text) for i, text in enumerate(chart.ticks)]
    places = sorted({float(x) for curve in panel.curves if not curve.flat for x in curve.x})
    if chart.points and 0 < len(places) <= ALL_TICKS and panel.x not in BYTES and "." not in panel.x:
        return [(place, f"{place:g}") for place in places]
    return None
