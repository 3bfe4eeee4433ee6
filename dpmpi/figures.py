"""Charts as SVG, by matplotlib: small functions from numbers to one pair of axes.

A drawing is made once and comes in two forms. As a file (`standalone`) it has the light colours on white. Inside a
page (`inline`) its colours are CSS variables (`--ink`, `--grid`, `--s0` ...), so that the page's light and dark themes
hold for it too, and text stays text. The palette of the series is Okabe and Ito's, moved a little so that it stands out
from both papers and stays apart for people who see no red or no green; a series has its marker as well.
"""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from dpmpi.charts import BYTES, Chart, Curve, Panel
from dpmpi.core import Array
from dpmpi.errors import ConfigError

LIGHT = {
    "ink": "#1f2328", "soft": "#59636e", "mute": "#b8c0c9", "grid": "#dfe3e8", "s0": "#0061b9", "s1": "#c04a01",
    "s2": "#00a273", "s3": "#b75799", "s4": "#c18700", "s5": "#4596d3", "s6": "#5b6068",
}  # fmt: skip
DARK = {
    "ink": "#e6edf3", "soft": "#9aa4af", "mute": "#555d66", "grid": "#30363d", "s0": "#598cf2", "s1": "#ff8b43",
    "s2": "#2cc997", "s3": "#e28acf", "s4": "#ebb51a", "s5": "#8fcdff", "s6": "#b3b8bf",
}  # fmt: skip
PALETTE = 7
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
SIZE = (4.4, 3.1)
"""Inches: no wider than what a telephone can show without shrinking the text beyond reading."""
LEGEND_LINES, LEGEND_LINE, LEGEND_LETTERS = 4, 0.22, 42
DIRECT_LABELS = 5
DIRECT_LETTERS = 16
LABEL_GAP = 0.085
"""The height of a line of text as a fraction of the axes."""
ALL_TICKS = 8
DODGE = 0.12
LARGEST_LOG = 230.0
"""Beyond 1e100 a logarithmic axis is cut: a run that diverges gets there, and the axes cannot follow it."""

Paint = Callable[[Any, Any], None]


def colour(style: int) -> str:
    """Return the light colour of a series by its position."""
    return LIGHT[f"s{style % PALETTE}"]


def draw(paint: Paint, size: tuple[float, float] = SIZE) -> str:
    """Return the SVG of one pair of axes, painted by `paint(figure, axes)`; raise `ConfigError` without matplotlib."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - slow, and an extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise ConfigError("figures need matplotlib, which is not installed: pip install 'dpmpi[report]'") from None
    soft, grid = LIGHT["soft"], LIGHT["grid"]
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "dpmpi", "font.family": "sans-serif", "font.size": 10,
        "axes.edgecolor": soft, "axes.labelcolor": soft, "axes.titlecolor": soft, "text.color": LIGHT["ink"],
        "xtick.color": soft, "ytick.color": soft, "axes.grid": True, "grid.color": grid, "grid.linewidth": 0.8,
        "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8,
        "axes.titlesize": 10, "axes.titlelocation": "left", "axes.unicode_minus": False, "legend.frameon": False,
        "savefig.transparent": True,
    }  # fmt: skip
    with mpl.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure, figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def standalone(svg: str) -> str:
    """Return a drawing for a file of its own: on white."""
    return re.sub(r"(<svg[^>]*>)", r'\1\n <rect width="100%" height="100%" fill="#ffffff"/>', svg, count=1)


def inline(svg: str, label: str) -> str:
    """Return a drawing for the inside of a page: named for those who do not see it, with CSS variables as colours."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    for name, value in LIGHT.items():
        body = body.replace(value, f"var(--{name})")
    mark = f"f{zlib.crc32((label + body).encode()):08x}"  # identifiers must differ between the drawings of a page
    body = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{mark}-", body)
    box = re.search(r'viewBox="[^"]*"', body)
    opening = f'<svg role="img" aria-label="{escape(label)}" {box.group() if box else ""}>'
    return re.sub(r"<svg[^>]*>", lambda _: opening, body, count=1)


def draw_panel(chart: Chart, panel: Panel) -> str:
    """Return the drawing of one panel; its vertical range covers all panels of the chart."""

    def paint(figure: Any, axes: Any) -> None:
        log_x, log_y = "x" in chart.log and not chart.ticks, "y" in chart.log
        every = [v for one in chart.panels for curve in one.curves for v in (curve.low, curve.middle, curve.high)]
        low, high = limits(every, log_y, 0.05)
        for position, curve in enumerate(panel.curves):
            # Names leave room between them: series that agree stand side by side instead of hiding each other.
            aside = DODGE * (position - (len(panel.curves) - 1) / 2) if chart.ticks else 0.0
            _draw_curve(axes, curve, chart, log_y, aside)
        axes.set_title("\n".join(filter(None, (panel.title, chart.y_label))))
        axes.set_xlabel(panel.x_label)
        axes.locator_params(nbins=6)
        axes.set_xlim(limits([curve.x for curve in panel.curves if not curve.flat], log_x, 0.03))
        axes.set_ylim(low, high)  # limits come before the scale: matplotlib must not look for its own
        _scale(axes.xaxis, axes.set_xscale, log_x, panel.x)
        _scale(axes.yaxis, axes.set_yscale, log_y, chart.y)
        if chart.points:
            _tick_points(axes, chart, panel)
        ends = [_fraction(float(curve.middle[-1]), low, high, log_y) for curve in panel.curves]
        if len(ends) > 1 and _can_label_directly(panel):
            for curve, height in zip(panel.curves, apart(ends, LABEL_GAP), strict=True):
                text = {"color": colour(curve.style), "va": "center", "transform": axes.transAxes}
                axes.text(1.02, height, curve.label, **text)
        elif len(ends) > 1:
            figure.legend(loc="outside lower left", ncols=columns, handlelength=1.8, columnspacing=1.4)

    letters = [len(curve.label) for curve in panel.curves]
    half = math.ceil(len(letters) / 2)
    columns = 2 if max(letters[:half]) + max(letters[half:], default=0) <= LEGEND_LETTERS else 1
    more = max(0, math.ceil(len(letters) / columns) - LEGEND_LINES)  # a long legend must not eat the axes
    return draw(paint, (SIZE[0], SIZE[1] + LEGEND_LINE * more))


def draw_epsilons(ranks: Sequence[dict[str, Any]], target: float | None, delta: float) -> str:
    """Return every rank's certified epsilon next to what it may spend."""

    def paint(_figure: Any, axes: Any) -> None:
        numbers = [record["rank"] for record in ranks]
        axes.plot(numbers, [record["epsilon"] for record in ranks], "o", color=LIGHT["s0"], ms=5, clip_on=False)
        budgets = [record["budget"] for record in ranks]
        name = "target" if all(budget is None for budget in budgets) else "budget"
        limits = [target if budget is None else budget for budget in budgets]
        shown = [(number, limit) for number, limit in zip(numbers, limits, strict=True) if limit is not None]
        for number, limit in shown:
            axes.plot([number - 0.4, number + 0.4], [limit, limit], color=LIGHT["ink"], lw=1.2)
        if shown:
            text = {"va": "center", "transform": axes.get_yaxis_transform()}
            axes.text(1.02, shown[-1][1], name, **text)
        axes.set_ylim(0, 1.12 * max([*(record["epsilon"] for record in ranks), *(limit for _, limit in shown), 1e-9]))
        axes.set_title(f"certified epsilon at delta = {delta:g}")
        axes.locator_params(axis="y", nbins=5)
        _rank_axis(axes, numbers)

    return draw(paint)


def draw_times(ranks: Sequence[dict[str, Any]]) -> str:
    """Return where every rank's time went: computing, and waiting for neighbours."""

    def paint(figure: Any, axes: Any) -> None:
        numbers = [record["rank"] for record in ranks]
        compute = [record["compute_seconds"] for record in ranks]
        axes.bar(numbers, compute, 0.7, color=LIGHT["soft"], label="computing")
        axes.bar(numbers, [r["wait_seconds"] for r in ranks], 0.7, bottom=compute, color=LIGHT["mute"], label="waiting")
        axes.set_title("seconds of training")
        axes.locator_params(axis="y", nbins=5)
        figure.legend(loc="outside lower left", ncols=2, handlelength=1.0)
        _rank_axis(axes, numbers)

    return draw(paint)


def draw_traffic(ranks: Sequence[dict[str, Any]]) -> str:
    """Return the graph on a circle; the width of an edge is the bytes that it carried in both directions."""
    edges = edge_bytes(ranks)
    most = max(edges.values(), default=0)

    def paint(_figure: Any, axes: Any) -> None:
        angles = [math.pi / 2 - 2 * math.pi * i / len(ranks) for i in range(len(ranks))]
        at = {r["rank"]: (math.cos(angle), math.sin(angle)) for r, angle in zip(ranks, angles, strict=True)}
        thickest = 4.0 if len(edges) <= 60 else 2.0
        for (one, other), count in edges.items():
            (x0, y0), (x1, y1) = at[one], at[other]
            width = max(thickest * count / most, 0.3) if most else 0.3
            axes.plot([x0, x1], [y0, y1], color=LIGHT["mute"], lw=width, zorder=1, solid_capstyle="round")
        for rank, (x, y) in at.items():
            axes.plot([x], [y], "o", color=LIGHT["s0"], ms=7, zorder=2)
            axes.text(1.14 * x, 1.14 * y, str(rank), ha="center", va="center")
        axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
        axes.axis("off")

    return draw(paint, (SIZE[1], SIZE[1]))


def edge_bytes(ranks: Sequence[dict[str, Any]]) -> dict[tuple[int, int], int]:
    """Return what each edge carried, both directions together, from the ranks' own counts of what they sent."""
    edges: dict[tuple[int, int], int] = {}
    for record in ranks:
        for peer, traffic in record["neighbours"].items():
            pair = (min(record["rank"], int(peer)), max(record["rank"], int(peer)))
            edges[pair] = edges.get(pair, 0) + traffic["bytes_sent"]
    return edges


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Return the heights moved as little as a sweep up and one down need, at least `gap` apart, in the same order."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = [heights[i] for i in order]
    for k in range(1, len(moved)):
        moved[k] = max(moved[k], moved[k - 1] + gap)
    ceiling = max(1.0, gap * (len(moved) - 1))
    for k in reversed(range(len(moved))):
        moved[k] = min(moved[k], ceiling if k == len(moved) - 1 else moved[k + 1] - gap)
    placed = [0.0] * len(heights)
    for k, i in enumerate(order):
        placed[i] = moved[k]
    return placed


def _draw_curve(axes: Any, curve: Curve, chart: Chart, log: bool, aside: float) -> None:
    tone, dashes = colour(curve.style), DASHES[curve.style // PALETTE % len(DASHES)]
    if chart.ticks:
        dashes = "none"  # there is nothing between two names
    low, middle, high = (np.where(v > 0, v, np.nan) if log else v for v in (curve.low, curve.middle, curve.high))
    several = curve.repetitions > 1
    if curve.flat:
        axes.axhline(middle[0], color=tone, lw=1.6, ls="--", label=curve.label)
        if several:
            axes.axhspan(low[0], high[0], color=tone, alpha=0.12, lw=0)
    elif chart.points:
        marker = MARKERS[curve.style % len(MARKERS)]
        axes.plot(curve.x + aside, middle, marker=marker, color=tone, lw=1.6, ls=dashes, ms=5.5, label=curve.label)
        if several:
            axes.vlines(curve.x + aside, low, high, color=tone, lw=1.2)
    else:
        axes.plot(curve.x, middle, color=tone, lw=1.8, ls=dashes, label=curve.label)
        if several:
            axes.fill_between(curve.x, low, high, color=tone, alpha=0.18, lw=0)


def limits(arrays: Sequence[Array], log: bool, margin: float) -> tuple[float, float]:
    """Return the range of what can be drawn, wider by a margin on both sides; something fit to draw if nothing can."""
    values = np.concatenate([*arrays, np.zeros(0)])
    values = np.log(values[(values > 0) & np.isfinite(values)]) if log else values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    more = margin * (high - low) or max(0.05 * abs(high), 1e-3)
    low, high = low - more, high + more
    return (math.exp(max(low, -LARGEST_LOG)), math.exp(min(high, LARGEST_LOG))) if log else (low, high)


def _fraction(value: float, low: float, high: float, log: bool) -> float:
    if log:
        value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _can_label_directly(panel: Panel) -> bool:
    """Return whether short labels at the right end of all lines tell which is which."""
    ends = [curve.x[-1] for curve in panel.curves if not curve.flat]
    short = max(len(curve.label) for curve in panel.curves) <= DIRECT_LETTERS and len(panel.curves) <= DIRECT_LABELS
    return short and (not ends or max(ends) - min(ends) <= 0.03 * abs(max(ends)))


def _scale(axis: Any, set_scale: Callable[[str], None], log: bool, name: str) -> None:
    from matplotlib import ticker  # noqa: PLC0415 - slow, and an extra

    if log:
        set_scale("log")
        low, high = axis.get_view_interval()
        few = math.log10(high) - math.log10(low) < 2
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=8))
        axis.set_minor_locator(ticker.NullLocator())
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    if name in BYTES:
        axis.set_major_formatter(ticker.EngFormatter(unit="B", sep=" "))
        if not log:
            axis.set_major_locator(ticker.MaxNLocator(4))


def _tick_points(axes: Any, chart: Chart, panel: Panel) -> None:
    """Put the ticks where the points are, as long as they are few."""
    from matplotlib import ticker  # noqa: PLC0415 - slow, and an extra

    if chart.ticks:
        crowded = sum(map(len, chart.ticks)) > 36
        turned = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axes.set_xticks(range(len(chart.ticks)), chart.ticks, **turned)
        axes.set_xlim(-0.4, len(chart.ticks) - 0.6)
        return
    places = sorted({float(x) for curve in panel.curves if not curve.flat for x in curve.x})
    if 0 < len(places) <= ALL_TICKS and panel.x not in BYTES and "." not in panel.x:
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xticks(places, [f"{place:g}" for place in places])


def _rank_axis(axes: Any, numbers: Sequence[int]) -> None:
    step = max(1, -(-len(numbers) // 10))
    axes.set_xticks(numbers[::step])
    axes.set_xlim(min(numbers) - 0.6, max(numbers) + 0.6)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("rank")
