"""A report as one HTML page that needs nothing else: no network, no script, light and dark, wide and narrow screens.

A page is a title, a lead and a list of sections; a section is a heading and pieces of HTML, made by the functions here.
Text is escaped by the functions that take text; what they return is HTML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources

from dpmpi.commands.report.drawing import DARK, LIGHT, Entry, sample
from dpmpi.core.frozen import frozen

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]{1,30}(?![\w-])")
"""A flag in a sentence; what is longer has to be broken on a narrow screen."""


@frozen
class Section:
    """A heading, a sentence about it, and HTML; two that are not wide stand side by side where there is room."""

    heading: str
    about: str
    pieces: tuple[str, ...]
    wide: bool = True


def page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the whole page; `lead` is HTML."""
    body = [f"<h1>{escape(title)}</h1>", *lead, '<div class="sections">']
    for section in sections:
        kind = ' class="wide"' if section.wide else ""
        body += [f"<section{kind}><h2>{escape(section.heading)}</h2>"]
        body += [paragraph(section.about, "about")] if section.about else []
        body += [*section.pieces, "</section>"]
    content = "\n".join([*body, "</div>"])
    style = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8").strip()
    light, dark = (
        "".join(f"--{name}:{tone};" for name, tone in {"alarm": alarm, **theme}.items())
        for alarm, theme in (("#b3261e", LIGHT), ("#ff7b72", DARK))
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n:root{{{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{style}\n</style>\n"
        f"</head>\n<body>\n<main>\n{content}\n</main>\n</body>\n</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; `kind` is a class of the style sheet: soft, warn, alert."""
    return f'<p class="{kind}">{prose(text)}</p>' if kind else f"<p>{prose(text)}</p>"


def prose(text: str) -> str:
    """Return a text whose flags (--seal) are code, which no line breaks."""
    return FLAG.sub(r"<code>\g<0></code>", escape(text))


def counted(number: int, what: str) -> str:
    """Return a number of things: 1 rank, 2 ranks."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def tile(name: str, value: str, below: str, kind: str = "tile") -> str:
    """Return a headline number: what it is, the number, and a few words about it."""
    inside = f"<span>{escape(name)}</span><b>{escape(value)}</b><small>{prose(below)}</small>"
    return f'<div class="{kind}">{inside}</div>'


def tiles(shown: Sequence[str]) -> str:
    """Return the tiles side by side as far as there is room."""
    return "\n".join(['<div class="tiles">', *shown, "</div>"])


def cell(value: str, range_: str = "", key: Entry | None = None) -> str:
    """Return the inside of a table's cell: a value, its range in small, and a series' colour and marker."""
    inside = escape(value) + (f"<br><small>{escape(range_)}</small>" if range_ else "")
    return inside if key is None else f'<div class="keyed">{sample(key)}{inside}</div>'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, names: bool = True) -> str:
    """Return a table that scrolls sideways where it is too wide; the cells are HTML, those of the first column names.

    Without `names` the first column has numbers, which are never broken.
    """
    kind = ' class="names"' if names else ""
    top = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = "\n".join("<tr>" + "".join(f"<td>{inside}</td>" for inside in row) + "</tr>" for row in rows)
    inside = f"<table{kind}>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{lines}\n</tbody></table>"
    return f'<div class="scroll" tabindex="0">{inside}</div>'


def panel(svg: str, addresses: Sequence[str], heading: str = "", note: str = "") -> str:
    """Return a drawing with a note and links to its files below it."""
    top, said = f"<h3>{escape(heading)}</h3>" if heading else "", paragraph(note) if note else ""
    return f"<div>{top}{svg}{said}{files(addresses)}</div>"


def panels(drawn: Sequence[str]) -> str:
    """Return the panels side by side where there is room."""
    kind = "panels three" if len(drawn) > 4 or len(drawn) == 3 else "panels"
    return "\n".join([f'<div class="{kind}">', *drawn, "</div>"])


def choice(name: str, options: Mapping[str, str]) -> str:
    """Return HTML, each in a block of its own, of which a reader chooses one of three at most; the first is shown."""
    top = ""
    for position, label in enumerate(options):
        mark, state = f"{name}-{position}", " checked" if position == 0 else ""
        top += f'<input type="radio" name="{name}" id="{mark}"{state}/><label for="{mark}">{escape(label)}</label>\n'
    return f'<div class="choice">\n{top}{"".join(options.values())}</div>'


def figure(content: str, caption: str, legend: Sequence[Entry] = ()) -> str:
    """Return panels with one legend and caption."""
    items = "".join(f"<li>{sample(entry)}{escape(entry.label)}</li>" for entry in legend)
    keys = f'<ul class="legend">{items}</ul>\n' if legend else ""
    below = f"<figcaption>{escape(caption)}</figcaption>\n" if caption else ""
    return f"<figure>\n{content}\n{keys}{below}</figure>"


def files(addresses: Sequence[str]) -> str:
    """Return links to files, named by their kind."""
    links = " ".join(f'<a href="{escape(a)}">{escape(a.rpartition(".")[2].upper())}</a>' for a in addresses)
    return f'<p class="files">{links}</p>'


def code(text: str) -> str:
    """Return lines as they are."""
    return f"<pre><code>{escape(text)}</code></pre>"


def fold(summary: str, content: str, *, unfolded: bool = False) -> str:
    """Return HTML that can be folded away, and is until it is asked for."""
    state = " open" if unfolded else ""
    return f"<details{state}><summary>{escape(summary)}</summary>\n{content}\n</details>"
