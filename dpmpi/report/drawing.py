"""Drawings as SVG: lines, areas, markers and text in a flat list, in the colours of two themes.

A drawing is made once and comes in two forms. Inside a page (`Drawing.inline`) its colours are CSS variables (`--ink`,
`--grid`, `--s0` ...), so that the page's light and dark themes hold for it too. As a file (`Drawing.standalone`) it has
the light colours on white. Text stays text.

The first seven colours of the series are Okabe and Ito's, moved a little so that they stand out from both papers; the
other five were searched for. All twelve stay apart for people who see no red or no green, and a series has its marker
as well: eleven of them, so that colour and marker together repeat after 132 series.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from html import escape

LIGHT = {
    "ink": "#1f2328", "soft": "#59636e", "mute": "#b8c0c9", "grid": "#dfe3e8", "s0": "#0061b9", "s1": "#c04a01",
    "s2": "#00a273", "s3": "#b75799", "s4": "#c18700", "s5": "#4596d3", "s6": "#5b6068", "s7": "#502060",
    "s8": "#f04058", "s9": "#586030", "s10": "#004838", "s11": "#900800",
}  # fmt: skip
DARK = {
    "ink": "#e6edf3", "soft": "#9aa4af", "mute": "#555d66", "grid": "#30363d", "s0": "#598cf2", "s1": "#ff8b43",
    "s2": "#2cc997", "s3": "#e28acf", "s4": "#ebb51a", "s5": "#8fcdff", "s6": "#b3b8bf", "s7": "#a850a8",
    "s8": "#e06858", "s9": "#d0f098", "s10": "#208078", "s11": "#c05010",
}  # fmt: skip
COLOURS = 12
MARKERS = ("circle", "square", "up", "diamond", "down", "plus", "cross", "star", "left", "right", "pentagon")
WIDTH = 380.0
"""Units of a drawing's width: what a telephone shows without shrinking the text beyond reading."""
FONT = 12.0
LINE = 16.0
"""The height of a line of text."""
FAMILIES = "'DejaVu Sans','Liberation Sans','Noto Sans',Roboto,'Segoe UI',Arial,Helvetica,sans-serif"

# Hundredths of the font's size, from the blank to the tilde: DejaVu Sans, wider than what most systems show.
_WIDTHS = (
    32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 34, 34, 84,
    84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75, 79, 60, 79, 69, 63, 61, 73, 68, 99, 69, 61,
    69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35, 63, 63, 28, 28, 58, 28, 97, 63, 61, 63, 63, 41, 52, 39, 63, 59,
    82, 59, 59, 52, 64, 34, 64, 84,
)  # fmt: skip

Point = tuple[float, float]


def colour(style: int) -> str:
    """Return the name of a series' colour by its position."""
    return f"s{style % COLOURS}"


def marker(style: int) -> str:
    """Return the name of a series' marker by its position."""
    return MARKERS[style % len(MARKERS)]


def text_width(text: str, size: float = FONT) -> float:
    """Return how wide a line of text is at most; a character beyond ASCII counts as a whole square."""
    return sum(_WIDTHS[ord(c) - 32] if " " <= c <= "~" else 100 for c in text) * size / 100


def wrap(text: str, width: float, size: float = FONT) -> list[str]:
    """Return lines no wider than `width`, broken between words; a word that is wider than that stands alone."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


class Drawing:
    """A picture that is being made. Units are a page's pixels when it is `WIDTH` wide; y points down."""

    def __init__(self, height: float, width: float = WIDTH) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def line(self, points: Iterable[Point], tone: str, width: float = 1.0, dashes: str = "", **more: object) -> None:
        """Draw a line through points; it is broken where one is not a number."""
        for piece in _unbroken(points):
            dash = f' stroke-dasharray="{dashes}"' if dashes else ""
            shape = f'fill="none" stroke="var(--{tone})" stroke-width="{_n(width)}"{dash}'
            self._add("polyline", f'points="{_points(piece)}" {shape}', **more)

    def area(self, points: Iterable[Point], tone: str, **more: object) -> None:
        """Fill a polygon."""
        self._add("polygon", f'points="{_points(points)}" fill="var(--{tone})"', **more)

    def rect(self, x: float, y: float, width: float, height: float, tone: str, **more: object) -> None:
        """Fill a rectangle."""
        box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self._add("rect", f'{box} fill="var(--{tone})"', **more)

    def mark(self, kind: str, x: float, y: float, tone: str, radius: float = 4.0, **more: object) -> None:
        """Draw a marker; all kinds look about as large."""
        if math.isnan(x) or math.isnan(y):
            return
        if kind == "circle":
            self._add("circle", f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" fill="var(--{tone})"', **more)
        else:
            self.area([(x + radius * a, y + radius * b) for a, b in _SHAPES[kind]], tone, **more)

    def text(self, x: float, y: float, text: str, tone: str = "ink", anchor: str = "start", bold: bool = False) -> None:
        """Write a line whose base is at y; `anchor` is what lies at x: its start, middle or end."""
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"{weight} fill="var(--{tone})"'
        self._parts.append(f"<text {place}>{escape(text)}</text>")

    def inline(self, label: str) -> str:
        """Return the drawing for the inside of a page: named for those who do not see it, CSS variables as colours."""
        top = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}" font-size="{_n(FONT)}"'
        return "\n".join([f'<svg role="img" aria-label="{escape(label)}" {top}>', *self._parts, "</svg>"])

    def standalone(self) -> str:
        """Return the drawing for a file of its own: light, on white."""
        size = f'width="{_n(self.width)}" height="{_n(self.height)}" viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        top = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="{_n(FONT)}" font-family="{FAMILIES}">'
        paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
        body = re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found.group(1)], "\n".join(self._parts))
        return "\n".join([top, paper, body, "</svg>", ""])

    def _add(self, name: str, attributes: str, title: object = "", opacity: object = 1.0) -> None:
        seen = f' opacity="{opacity:.2g}"' if opacity != 1.0 else ""
        end = f"><title>{escape(str(title))}</title></{name}>" if title else "/>"
        self._parts.append(f"<{name} {attributes}{seen}{end}")


def sample(tone: str, shape: str, kind: str) -> str:
    """Return a small picture of a series, for a legend in HTML; see `draw_sample`."""
    small = Drawing(14, 26)
    draw_sample(small, 0, 7, tone, shape, kind)
    body = small.inline("").replace(' role="img" aria-label=""', ' class="sample" aria-hidden="true"')
    return body.replace("\n", "")


def draw_sample(drawing: Drawing, x: float, y: float, tone: str, shape: str, kind: str) -> None:
    """Draw what a legend shows of a series, 26 units wide.

    Kinds: a `line` with its marker, `points`, or without a marker a `dashed` line, a `solid` one or a `bar`.
    """
    if kind == "bar":
        drawing.rect(x + 6, y - 6, 14, 12, tone)
        return
    if kind != "points":
        drawing.line([(x, y), (x + 26, y)], tone, 1.8, "5 3" if kind == "dashed" else "")
    if kind in ("line", "points"):
        drawing.mark(shape, x + 13, y, tone)


def draw_legend(drawing: Drawing, entries: Sequence[tuple[str, str, str, str]], top: float) -> float:
    """Draw entries (label, colour, marker, kind of sample) in as many lines as they need; return where they end."""
    texts = [wrap(label, drawing.width - 32) for label, *_ in entries]
    wide = [46 + max(map(text_width, lines), default=0) for lines in texts]
    columns = max(1, int((drawing.width + 14) / max(wide, default=1)))
    y = top
    for first in range(0, len(entries), columns):
        row = range(first, min(first + columns, len(entries)))
        for column, i in enumerate(row):
            x = column * (drawing.width + 14) / columns
            draw_sample(drawing, x, y + LINE / 2, *entries[i][1:])
            for position, line in enumerate(texts[i]):
                drawing.text(x + 32, y + 12 + position * LINE, line)
        y += LINE * max(len(texts[i]) for i in row) + 2
    return y


def _ring(corners: int, turn: float, inner: float = 0.0) -> list[Point]:
    """Return a regular polygon, or a star if there is an inner radius; the first corner lies at `turn` quarters."""
    count, outer = corners * (2 if inner else 1), 1.4 if corners == 3 else 1.2
    radii = [inner if inner and k % 2 else outer for k in range(count)]
    angles = [math.pi / 2 * turn + 2 * math.pi * k / count for k in range(count)]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]


def _turned(points: Sequence[Point]) -> list[Point]:
    half = math.sqrt(0.5)
    return [(half * (x - y), half * (x + y)) for x, y in points]


_QUARTERS = ((1.2, -0.4), (1.2, 0.4), (0.4, 0.4), (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4))
_PLUS = [(sign * x, sign * y) for sign in (1, -1) for x, y in _QUARTERS]
_SHAPES = {
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "up": _ring(3, -1), "down": _ring(3, 1), "left": _ring(3, 2), "right": _ring(3, 0),
    "diamond": _ring(4, 0), "pentagon": _ring(5, -1), "star": _ring(5, -1, 0.5), "plus": _PLUS, "cross": _turned(_PLUS),
}  # fmt: skip


def _unbroken(points: Iterable[Point]) -> list[list[Point]]:
    pieces: list[list[Point]] = [[]]
    for x, y in points:
        if math.isnan(x) or math.isnan(y):
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if len(piece) > 1]


def _points(points: Iterable[Point]) -> str:
    return " ".join(f"{_n(x)},{_n(y)}" for x, y in points)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
