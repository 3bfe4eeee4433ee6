"""The files beside a page: every drawing as SVG and PNG, and the numbers behind it as CSV.

PNGs are rendered from the SVGs by resvg, an extra. Without it, or without a font that it could write with, they are
left out, and `Plots.without_png` says why.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpmpi.report.drawing import Drawing

ZOOM = 2
"""Pixels of a PNG for a unit of its drawing."""

Render = Callable[[str], bytes]


@dataclass(frozen=True)
class Picture:
    """A drawing together with its numbers: a heading and rows."""

    drawing: Drawing
    heading: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Files:
    """The addresses of a figure's files, by kind, relative to the page."""

    csv: list[str] = field(default_factory=list)
    svg: list[str] = field(default_factory=list)
    png: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plots:
    """The folder of the drawings; `prefix` keeps the files of several pages in one folder apart."""

    folder: Path
    prefix: str = ""
    render: Render | None = None

    def write(self, name: str, content: str | bytes) -> str:
        """Write a file; return its address, relative to the page."""
        file = f"{self.prefix}{name}"
        (self.folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
        return f"{self.folder.name}/{file}"

    def draw(self, name: str, drawing: Drawing, files: Files) -> None:
        """Write a drawing as SVG and, if that can be done, PNG; note the addresses in `files`."""
        svg = drawing.standalone()
        files.svg.append(self.write(f"{name}.svg", svg))
        if self.render is not None:
            files.png.append(self.write(f"{name}.png", self.render(svg)))


def csv_text(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    return out.getvalue()


def png_renderer() -> tuple[Render | None, str]:
    """Return what makes a PNG of an SVG, or None and one line that says why there is none."""
    try:
        from resvg_py import svg_to_bytes  # noqa: PLC0415 - an extra
    except ImportError:
        return None, "PNGs are left out: pip install 'dpmpi[report]' gives them"

    def render(svg: str) -> bytes:
        return bytes(svg_to_bytes(svg_string=svg, zoom=ZOOM))

    empty, word = Drawing(20, 20), Drawing(20, 20)
    word.text(2, 16, "W")
    if render(empty.standalone()) == render(word.standalone()):
        return None, "PNGs are left out: no font was found, expected DejaVu Sans, Liberation Sans or another sans-serif"
    return render, ""
