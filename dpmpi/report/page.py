"""A report as one HTML page that needs nothing else: no network, no script, light and dark, wide and narrow screens.

A page is a title, a lead and a list of sections; a section is a heading and pieces of HTML, made by the functions here.
Text is escaped by the functions that take text; what they return is HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from dpmpi.report.drawing import sample
from dpmpi.report.plots import Files

STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,"Segoe UI",Roboto,sans-serif}
main{max-width:1160px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:1.6rem;line-height:1.25;margin:8px 0}
h2{font-size:1.2rem;margin:40px 0 8px;padding-top:12px;border-top:1px solid var(--grid)}
h3{font-size:1rem;margin:20px 0 4px}
p{max-width:72ch;margin:8px 0}
.soft,figcaption,small{color:var(--soft)}
small{font-size:.8rem;white-space:nowrap}
.warn{border-left:4px solid var(--s4);padding:2px 0 2px 12px}
.alert{border:2px solid var(--alarm);border-left-width:10px;border-radius:6px;padding:8px 12px;font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:16px 0}
.tile{border:1px solid var(--grid);border-radius:8px;padding:10px 14px;min-width:0}
.tile span,.tile small{display:block;white-space:normal}
.tile span{font-size:.85rem;color:var(--soft)}
.tile b{display:block;font-size:1.5rem;line-height:1.3;font-weight:600;font-variant-numeric:tabular-nums}
.tile.bad{border:2px solid var(--alarm)}
.tile.bad b,.tile.bad small{color:var(--alarm);font-weight:600}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 18px;margin:4px 0 8px;padding:0;font-size:.9rem}
.legend li{display:flex;align-items:center;gap:6px;overflow-wrap:anywhere}
svg.sample{flex:none;width:26px;height:14px}
.scroll{overflow-x:auto;margin:12px 0}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:6px 7px;border-bottom:1px solid var(--grid);vertical-align:top;white-space:nowrap}
th{font-weight:600;color:var(--soft);font-size:.85rem;white-space:normal;vertical-align:bottom}
th:first-child,td:first-child{text-align:left;padding-left:0;white-space:normal;min-width:9em;overflow-wrap:anywhere}
th:first-child,td:first-child{position:sticky;left:0;background:var(--paper)}
td:first-child small{white-space:normal}
.narrow th:first-child,.narrow td:first-child{min-width:0}
.sections{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr));gap:0 24px}
section{min-width:0}
.wide{grid-column:1/-1}
figure{margin:12px 0 16px}
figcaption{font-size:.9rem;max-width:80ch;margin-top:8px}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr));gap:16px 24px}
.three{grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))}
.panels>div{min-width:0}
svg{display:block;width:100%;max-width:500px;height:auto}
.keyed{position:relative;padding-left:1.6em}
.keyed svg.sample{position:absolute;left:-2px;top:.3em}
pre{overflow-x:auto;padding:12px;border:1px solid var(--grid);border-radius:6px;font-size:.85rem;line-height:1.45}
code{font-size:.9em;overflow-wrap:anywhere}
pre code{overflow-wrap:normal}
summary{cursor:pointer;padding:4px 0}
a{color:var(--s0);white-space:nowrap}
"""


@dataclass(frozen=True)
class Section:
    """A heading and the HTML below it; two that are not wide stand side by side where there is room."""

    heading: str
    pieces: tuple[str, ...]
    wide: bool = True


@dataclass(frozen=True)
class Tile:
    """A headline number: what it is, the number, and a few words about it."""

    name: str
    value: str
    below: str = ""
    alert: bool = False


def page(
    title: str, lead: Sequence[str], sections: Sequence[Section], light: Mapping[str, str], dark: Mapping[str, str]
) -> str:
    """Return the whole page; `light` and `dark` are the themes' CSS variables, `lead` is HTML."""
    body = [f"<h1>{escape(title)}</h1>", *lead, '<div class="sections">']
    for section in sections:
        kind = ' class="wide"' if section.wide else ""
        body += [f"<section{kind}><h2>{escape(section.heading)}</h2>", *section.pieces, "</section>"]
    content = "\n".join([*body, "</div>"])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n:root{{--paper:#fff;--alarm:#b3261e;{_variables(light)}}}\n"
        "@media (prefers-color-scheme:dark){"
        f":root{{--paper:#0d1117;--alarm:#ff7b72;{_variables(dark)}}}}}\n{STYLE.strip()}\n</style>\n"
        f"</head>\n<body>\n<main>\n{content}\n</main>\n</body>\n</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; `kind` is a class of the style sheet: soft, warn, alert."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def tiles(shown: Sequence[Tile]) -> str:
    """Return headline numbers, side by side as far as there is room."""
    inside = "\n".join(
        f'<div class="tile{" bad" if tile.alert else ""}"><span>{escape(tile.name)}</span>'
        f"<b>{escape(tile.value)}</b><small>{escape(tile.below)}</small></div>"
        for tile in shown
    )
    return f'<div class="tiles">\n{inside}\n</div>'


def cell(value: str, range_: str = "", key: tuple[str, str] | None = None) -> str:
    """Return the inside of a table's cell: a value, its range in small, and a series' colour and marker."""
    inside = escape(value) + (f"<br><small>{escape(range_)}</small>" if range_ else "")
    return inside if key is None else f'<div class="keyed">{sample(*key, "points")}{inside}</div>'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, narrow: bool = False) -> str:
    """Return a table that scrolls sideways where it is too wide; the cells are HTML, those of the first column names.

    A narrow one has no names there, but numbers.
    """
    kind = ' class="narrow"' if narrow else ""
    top = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = "\n".join("<tr>" + "".join(f"<td>{inside}</td>" for inside in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table{kind}>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>'


def figure(
    drawings: Sequence[tuple[str, str]], caption: str, files: Files, legend: Sequence[tuple[str, str, str, str]] = ()
) -> str:
    """Return drawings (heading, SVG) side by side with one legend and caption, and links to their files."""
    panels = "\n".join(
        f"<div>{f'<h3>{escape(heading)}</h3>' if heading else ''}{svg}</div>" for heading, svg in drawings
    )
    items = "".join(f"<li>{sample(*look)}{escape(label)}</li>" for label, *look in legend)
    keys = f'<ul class="legend">{items}</ul>\n' if legend else ""
    kinds = filter(None, (links("CSV", files.csv), links("SVG", files.svg), links("PNG", files.png)))
    below = f"{escape(caption)} Files: {'; '.join(kinds)}.".strip()
    kind = "panels three" if len(drawings) > 4 or len(drawings) == 3 else "panels"
    return f'<figure>\n<div class="{kind}">\n{panels}\n</div>\n{keys}<figcaption>{below}</figcaption>\n</figure>'


def code(text: str) -> str:
    """Return lines as they are."""
    return f"<pre><code>{escape(text)}</code></pre>"


def fold(summary: str, content: str, *, unfolded: bool = False) -> str:
    """Return HTML that can be folded away, and is until it is asked for."""
    state = " open" if unfolded else ""
    return f"<details{state}><summary>{escape(summary)}</summary>\n{content}\n</details>"


def _variables(theme: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in theme.items())


def links(kind: str, addresses: Sequence[str]) -> str:
    """Return links to files of one kind, counted if there are several."""
    texts = (
        [kind] if len(addresses) == 1 else [f"{kind} {i + 1}" if i == 0 else f"{i + 1}" for i in range(len(addresses))]
    )
    return ", ".join(f'<a href="{escape(a)}">{escape(text)}</a>' for a, text in zip(addresses, texts, strict=True))
