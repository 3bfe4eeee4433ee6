"""A report as one HTML page that needs nothing else: no network, no script, light and dark, wide and narrow screens.

A page is a title, a lead and a list of sections; a section is a heading and pieces of HTML, made by the functions here.
Text is escaped by the functions that take text; what they return is HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

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
.warn{border-left:4px solid var(--s1);padding:2px 0 2px 12px}
.scroll{overflow-x:auto;margin:12px 0}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:6px 7px;border-bottom:1px solid var(--grid);vertical-align:top;white-space:nowrap}
th{font-weight:600;color:var(--soft);font-size:.85rem;white-space:normal;vertical-align:bottom}
th:first-child,td:first-child{text-align:left;padding-left:0;white-space:normal;min-width:9em;overflow-wrap:anywhere}
th:first-child,td:first-child{position:sticky;left:0;background:var(--paper)}
td:first-child small{white-space:normal}
.sections{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr));gap:0 24px}
section{min-width:0}
.wide{grid-column:1/-1}
figure{margin:12px 0 16px}
figcaption{font-size:.9rem;max-width:80ch}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr));gap:16px 24px}
.three{grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr))}
.panels>div{min-width:0}
svg{display:block;width:100%;max-width:480px;height:auto}
svg text{font-family:inherit!important}
.keyed{position:relative;padding-left:1.3em}
.key{position:absolute;left:0;top:.35em;width:.8em;height:.8em;border-radius:2px}
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
        f"<title>{escape(title)}</title>\n<style>\n:root{{--paper:#fff;{_variables(light)}}}\n"
        "@media (prefers-color-scheme:dark){"
        f":root{{--paper:#0d1117;{_variables(dark)}}}}}\n{STYLE.strip()}\n</style>\n"
        f"</head>\n<body>\n<main>\n{content}\n</main>\n</body>\n</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph; `kind` is a class of the style sheet: soft, warn."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def cell(value: str, range_: str = "", style: int | None = None) -> str:
    """Return the inside of a table's cell: a value, its range in small, and a series' colour."""
    inside = escape(value) + (f"<br><small>{escape(range_)}</small>" if range_ else "")
    if style is None:
        return inside
    return f'<div class="keyed"><span class="key" style="background:var(--s{style})"></span>{inside}</div>'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that scrolls sideways where it is too wide; the cells are HTML."""
    top = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = "\n".join("<tr>" + "".join(f"<td>{inside}</td>" for inside in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>'


def figure(drawings: Sequence[tuple[str, str]], caption: str, links: Sequence[tuple[str, str]] = ()) -> str:
    """Return drawings (heading, SVG) side by side with one caption, and links to their files (text, address)."""
    panels = "\n".join(
        f"<div>{f'<h3>{escape(heading)}</h3>' if heading else ''}{svg}</div>" for heading, svg in drawings
    )
    files = ", ".join(f'<a href="{escape(address)}">{escape(text)}</a>' for text, address in links)
    below = escape(caption) + (f" Files: {files}." if files else "")
    kind = "panels three" if len(drawings) > 4 or len(drawings) == 3 else "panels"
    return f'<figure>\n<div class="{kind}">\n{panels}\n</div>\n<figcaption>{below}</figcaption>\n</figure>'


def code(text: str) -> str:
    """Return lines as they are."""
    return f"<pre><code>{escape(text)}</code></pre>"


def fold(summary: str, content: str) -> str:
    """Return HTML that is folded away until it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"


def _variables(theme: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in theme.items())
