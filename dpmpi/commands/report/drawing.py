"""Drawings: matplotlib for pages and papers, in the colours of two themes.

A drawing is painted once, in the light colours on white, and saved as SVG, PNG and PDF. Inside of a page (`inline`) the
colours of its SVG become CSS variables (`--ink`, `--grid`, `--s0` ...), so that the page's light and dark themes hold
for it too. Text stays text, and what a pointer on a mark shows (`tip`) is its title.

The first seven colours of the series are Okabe and Ito's, moved a little so that they stand out from both papers; the
other five were searched for. All twelve stay apart for people who see no red or no green, and a series has its marker
as well: eleven of them, so that colour and marker together repeat after 132 series.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError

NAMES = ("paper", "ink", "soft", "mute", "grid", *(f"s{i}" for i in range(12)))
_LIGHT = "ffffff 1f2328 59636e b8c0c9 dfe3e8 0061b9 c04a01 00a273 b75799 c18700 4596d3 5b6068 502060 f04058 586030"
_DARK = "0d1117 e6edf3 9aa4af 555d66 30363d 598cf2 ff8b43 2cc997 e28acf ebb51a 8fcdff b3b8bf a850a8 e06858 d0f098"
LIGHT = {name: f"#{tone}" for name, tone in zip(NAMES, f"{_LIGHT} 004838 900800".split(), strict=True)}
DARK = {name: f"#{tone}" for name, tone in zip(NAMES, f"{_DARK} 208078 c05010".split(), strict=True)}
COLOURS = 12
MARKERS = "os^DvPX*<>p"
WIDTH = 285.0
"""Points: 380 pixels, which a telephone shows without shrinking the text beyond reading, and a column of a paper."""
HEIGHT = 205.0
LINE = 12.5
"""The height of a line of text."""
LETTERS = 46
"""How many letters have room side by side."""
FORMATS = ("svg", "png", "pdf")
LARGEST = 1e100
"""Beyond it, axes are cut: a run that diverges gets there, and the rest would be flat."""
NARROWEST = 1e-6
"""Of a range, beside its numbers: closer ones are equal to the eye, and would need endless labels."""
ZOOM = 2
"""Pixels of a PNG for a pixel of a page."""
_SOFT = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
_OFF = ("axes.spines.top", "axes.spines.right", "axes.formatter.useoffset", "legend.frameon", "text.parse_math")
STYLE: dict[str, Any] = {
    **dict.fromkeys(_SOFT, LIGHT["soft"]),
    **dict.fromkeys(_OFF, False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "legend.borderaxespad", "legend.borderpad"), 0),
    **dict.fromkeys(("font.size", "axes.titlesize"), 9),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "figure.facecolor": LIGHT["paper"],
    "font.sans-serif": ["DejaVu Sans"],
    "grid.color": LIGHT["grid"],
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "text.color": LIGHT["ink"],
}
"""Settings of matplotlib: its own font, which every machine has then, and text as text."""


class Entry(NamedTuple):
    """What a legend says: a label, and how that looks: the name of its colour, its marker and its line."""

    label: str
    tone: str
    marker: str = ""
    line: str = "-"
    width: float = 1.4
    alpha: float = 1.0


Axes: TypeAlias = Any
"""matplotlib's: not known to whom does not have it."""
Paint: TypeAlias = Callable[[Axes], None]


@frozen
class Drawing:
    """A picture to be painted on axes, a sentence about it, and its numbers: a heading and rows.

    `height` is in points, without the legend.
    """

    paint: Paint
    height: float = HEIGHT
    note: str = ""
    heading: tuple[str, ...] = ()
    rows: Sequence[tuple[Any, ...]] = ()


def series(style: int, label: str = "", line: str = "-") -> Entry:
    """Return how a series looks, by its position; a dashed line bears no marker."""
    return Entry(label, f"s{style % COLOURS}", "" if line == "--" else MARKERS[style % len(MARKERS)], line)


def need_matplotlib() -> None:
    """Raise `ConfigError` if there is nothing to draw with."""
    if find_spec("matplotlib") is None:
        raise ConfigError("expected matplotlib for the figures, found none: pip install 'dpmpi[report]'")


def lay_out(drawing: Drawing) -> Any:
    """Return a drawing as a matplotlib Figure, higher by its legend; for the inside of a context of `STYLE`."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure: Any = Figure(figsize=(WIDTH / 72, drawing.height / 72), layout="constrained")
    drawing.paint(figure.subplots())
    for legend in figure.legends:
        figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")  # once is enough for all formats
    return figure


def render(drawing: Drawing, name: str, formats: Sequence[str]) -> list[bytes]:
    """Return a drawing in several formats; `name` keeps the ids inside of its SVG apart from those of others."""
    need_matplotlib()
    from matplotlib import rc_context  # noqa: PLC0415 - an extra

    found, style = [], {**STYLE, "svg.hashsalt": name}
    with rc_context(cast("Any", style)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a letter that the font lacks is a box
        figure = lay_out(drawing)
        for kind in formats:
            out, undated = io.BytesIO(), {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            figure.savefig(out, format=kind, dpi=96 * ZOOM, metadata=undated)
            found.append(_trim(out.getvalue().decode()).encode() if kind == "svg" else out.getvalue())
    return found


def inline(svg: str, label: str) -> str:
    """Return an SVG for the inside of a page: named for those who do not see it, CSS variables as colours."""
    shape = re.search(r'viewBox="[^"]*"', svg)
    body = svg[svg.index("</defs>") + len("</defs>") :]
    for name, tone in LIGHT.items():
        body = body.replace(tone, f"var(--{name})")
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    return f'<svg role="img" aria-label="{escape(label)}" {shape[0] if shape else ""}>{body.strip()}'


def tip(text: str) -> str:
    """Return the `gid` of a mark of matplotlib's, on which a pointer shows a text."""
    return f"tip:{text}"


def sample(entry: Entry) -> str:
    """Return a small picture of a series for a legend in HTML."""
    from matplotlib.markers import MarkerStyle  # noqa: PLC0415 - an extra

    inside = ""
    if entry.line:
        dashes = ' stroke-dasharray="5 3"' if entry.line == "--" else ""
        inside += f'<path d="M0 7H26" stroke="var(--{entry.tone})" stroke-width="1.8"{dashes}/>'
    if entry.marker:
        style = MarkerStyle(entry.marker)
        (corners,) = np.array(style.get_path().transformed(style.get_transform()).to_polygons())
        points = " ".join(f"{13 + 8 * x:.1f},{7 - 8 * y:.1f}" for x, y in corners)
        inside += f'<polygon points="{points}" fill="var(--{entry.tone})"/>'
    return f'<svg class="sample" aria-hidden="true" viewBox="0 0 26 14">{inside}</svg>'


def draw_legend(axes: Axes, entries: Sequence[Entry]) -> None:
    """Draw a legend below a plot, in as many columns as have room; nothing if it has no entries."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra

    if entries:
        texts = [textwrap.fill(entry.label, LETTERS - 6) for entry in entries]
        longest = max(len(line) for text in texts for line in text.splitlines() or [""])
        handles = [
            Line2D([], [], color=LIGHT[tone], marker=shape, ls=line, lw=width, alpha=alpha)
            for _, tone, shape, line, width, alpha in entries
        ]
        columns = max(1, (LETTERS + 6) // (longest + 8))
        axes.get_figure().legend(handles, texts, ncols=columns, loc="outside lower left")


def limits(arrays: Iterable[Array], log: bool, margin: float) -> tuple[float, float]:
    """Return the range of what can be drawn, wider by a margin on both sides; something fit to draw if nothing can."""
    values = np.concatenate([*arrays, np.zeros(0)])
    values = np.clip(values[np.isfinite(values) & ((values > 0) | (not log))], -LARGEST, LARGEST)
    ends = np.array([values.min(), values.max()]) if len(values) else np.array([1.0, 1.0])
    ends = np.log10(np.maximum(ends, 1 / LARGEST)) if log else ends
    least = 0.02 if log else max(NARROWEST * float(np.abs(ends).max()), 1e-12)
    more = max(margin * float(ends[1] - ends[0]), least)
    low, high = float(ends[0]) - more, float(ends[1]) + more
    return (10**low, 10**high) if log else (low, high)


def set_scale(axes: Axes, side: str, ends: tuple[float, float], *, log: bool = False, unit: str = "") -> None:
    """Give the axis of a side, x or y, its ends and a few round ticks; with a unit, by thousands (kB, MB ...)."""
    from matplotlib import ticker  # noqa: PLC0415 - an extra

    axis, decades = getattr(axes, f"{side}axis"), math.log10(ends[1] / ends[0]) if log else 0.0
    axes.set(**{f"{side}scale": "log" if log else "linear", f"{side}lim": ends})
    axis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
    if log:
        axis.set_minor_locator(ticker.NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if 1e3 <= value < 1e6 else f"{value:.4g}")
    if decades > 0.8:
        factors = (1.0,) if decades > 2.5 else (1.0, 3.0) if decades > 1.5 else (1.0, 2.0, 5.0)
        axis.set_major_locator(ticker.LogLocator(subs=factors, numticks=6))
    if unit:
        axis.set_major_formatter(lambda value, _: by_thousands(value, unit))


def set_ranks(axes: Axes, ranks: Sequence[int], side: str = "x") -> None:
    """Give an axis a place for each rank; those of the vertical one begin on top."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - an extra

    axis, ends = getattr(axes, f"{side}axis"), (ranks[0] - 0.6, ranks[-1] + 0.6)
    axes.set(**{f"{side}lim": ends if side == "x" else ends[::-1]})
    axis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
    axis.grid(False)


def blocks(count: int, most: int) -> list[range]:
    """Return 0 ... count - 1 cut into at most `most` blocks of neighbours that differ by one in length at most."""
    pieces = min(count, most)
    return [range(k * count // pieces, (k + 1) * count // pieces) for k in range(pieces)]


@frozen
class Plots:
    """The folder of the drawings; `prefix` keeps the files of several pages in one folder apart."""

    folder: Path
    prefix: str = ""

    def write(self, name: str, content: str | bytes) -> str:
        """Write a file; return its address, relative to the page."""
        file = f"{self.prefix}{name}"
        (self.folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
        return f"{self.folder.name}/{file}"

    def draw(self, name: str, drawing: Drawing) -> tuple[str, list[str]]:
        """Write a drawing in all formats, of which SVG is the first; return its SVG and the addresses."""
        found = render(drawing, name, FORMATS)
        addresses = [self.write(f"{name}.{kind}", content) for kind, content in zip(FORMATS, found, strict=True)]
        return found[0].decode(), addresses


def csv_text(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return out.getvalue()


def by_thousands(value: float, unit: str) -> str:
    """Return a number with an SI prefix: 416 kB, 8.32 MB."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 0.9995 * 10**power:
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _trim(svg: str) -> str:
    """Return matplotlib's SVG without metadata and unused ids, in fewer digits, and with its tips as titles."""
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<g id=([\"'])tip:(.*?)\1([^>]*)>", r"<g\3><title>\2</title>", svg)
    svg = re.sub(r"<g id=([\"']).*?\1", "<g", svg)
    svg = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", svg)
    svg = re.sub(r' (d|x|y)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+| ?\n", r"\1", found[0]), svg)
    return re.sub(r"\n\s+", "\n", svg)
