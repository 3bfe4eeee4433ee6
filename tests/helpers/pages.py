"""Pages whose commands are copied and run: blocks after a mark, an HTML comment on a line of its own."""

import re


def blocks(page):
    """(mark, lines) of every marked block of the page, in order."""
    found = []
    for part in re.split(r"^<!-- ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        mark, _, rest = part.partition(" -->\n\n")
        lines = []
        for line in rest.splitlines():
            if line and not line.startswith("    "):
                break
            lines.append(line[4:])
        while lines and not lines[-1]:
            lines.pop()
        assert lines, f"nothing follows the mark {mark!r}"
        found.append((mark, lines))
    return found


def masked(line):
    """The line without its numbers and their signs."""
    return re.sub(r"[-+]?\d[\d.,]*(e-\d+)?", "#", re.sub(r"[0-9a-f]{64}", "#", line)).split()


def missing(shown, printed, form):
    """The first of the shown lines that is not printed, after the ones before it; None if all are there."""
    rest = iter([form(line) for line in printed])
    return next((line for line in shown if line.strip() not in ("", "...") and form(line) not in rest), None)
