"""The figures of a bench as Markdown tables and as drawings; everything here is made from the JSON that it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.errors import ConfigError

DRAWN = ("bare exchange", "mix", "sealed mix", "Iallreduce", "sum", "expanded sum", "dp-dda", "sparse dp-dda")
BEGIN, END = "<!-- begin of what bench wrote -->", "<!-- end of what bench wrote -->"
FIXED_DIMENSION = 2000
FIXED_RANKS = 20
MACHINE = "{cores} cores ({processor}), {mpi}, Python {python}, numpy {numpy}; load of the machine before: {load:.2f}."
CROWD = (
    "{ranks} ranks, {rounds} rounds of dp-dda on a ring, m = {dimension}: {wall_seconds:.1f} s "
    "({rounds_per_second:,.0f} rounds/s) after {startup_seconds:.1f} s of starting."
)


def tables(result: dict[str, Any]) -> str:
    """Return all sections of a result."""
    parts = [MACHINE.format(**result["machine"])]
    for name, section in SECTIONS.items():
        parts += section(result[name]) if name in result else []
    return "\n\n".join(parts) + "\n"


def put(page: str, text: str) -> str:
    """Return a page with `text` between its marks, instead of what was there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"expected a page with the lines {BEGIN} and {END}, found none: add them where tables belong")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def draw(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write how rounds a second fall with the dimension and with the ranks, as SVG; return the files."""
    from dpmpi.commands.report.charts import Chart, Curve, Panel, draw_panel  # noqa: PLC0415 - only who draws needs them
    from dpmpi.commands.report.drawing import render  # noqa: PLC0415

    def panel(title: str, x: str, label: str, points: Sequence[tuple[int, dict[str, Any]]]) -> Panel:
        curves = []
        for style, kind in enumerate(DRAWN):
            known = [(at, 1.0 / found["seconds"][kind]) for at, found in points if kind in found["seconds"]]
            if known:
                at, y = np.array(sorted(known), dtype=np.float64).T
                curves.append(Curve(kind, style, at, y, y, y, 1))
        return Panel(title, x, label, tuple(curves))

    runs = {run["ranks"]: run["dimensions"] for run in result["runs"]}
    ranks = FIXED_RANKS if FIXED_RANKS in runs else max(runs)
    dimensions = sorted({int(m) for found in runs.values() for m in found})
    m = FIXED_DIMENSION if FIXED_DIMENSION in dimensions else dimensions[0]
    over_m = [(int(at), found) for at, found in runs[ranks].items()]
    over_n = [(n, found[str(m)]) for n, found in runs.items() if str(m) in found]
    panels = {
        "growth-dimension": panel(f"{ranks} ranks on a ring", "dimension", "features m", over_m),
        "growth-ranks": panel(f"m = {m}, ring", "ranks", "ranks n", over_n),
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, one in panels.items():
        chart = Chart(name, "Rounds a second", "rounds_per_second", "rounds a second", (one,), "xy", points=True)
        paths.append(folder / f"{name}.svg")
        paths[-1].write_bytes(*render(draw_panel(chart, one), name, ("svg",)))
    return paths


def _targets(targets: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for one in targets:
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.2f}"
        rows.append([one["name"], ratio, f"{one['bound']} {one['limit']:g}", one["verdict"]])
    return [table(("ratio", "measured", "target", ""), rows)]


def _rounds(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return tables for each dimension: microseconds, ratios, vectors sent; a column for each number of ranks."""
    parts = []
    for m in sorted({int(m) for run in runs for m in run["dimensions"]}):
        columns = [(run["ranks"], run["dimensions"][str(m)]) for run in runs if str(m) in run["dimensions"]]
        head = [f"{n} ranks" for n, _ in columns]
        kinds = (("seconds", "us a round", 1e6, ".1f"), ("ratios", "ratio", 1.0, ".2f"))
        for key, title, scale, form in (*kinds, ("vectors", "m words sent by a rank, at most", 1.0, ".2f")):
            each = [found.get(key, {}) for _, found in columns]
            names = list(dict.fromkeys(name for one in each for name in one))
            rows = [[name, *(format(one[name] * scale, form) if name in one else "" for one in each)] for name in names]
            parts += [table((f"m = {m}, {title}", *head), rows)] if rows else []
    return parts


def _alone(parts: dict[str, Any]) -> list[str]:
    """Return the figures of one process alone."""
    grad, small = [], []
    for m, found in parts.items():
        for kind, one in found["gradient"].items():
            us = (f"{one[name] * 1e6:.0f}" for name in ("seconds", "bare_seconds"))
            grad.append([f"m = {m}, {kind}", f"{one['shard_bytes'] / 1e6:.0f} MB", *us, f"{one['speed_of_bare']:.2f}"])
        noise = (f"{value:.1f}" for value in found["noise_ns"].values())
        small.append([f"m = {m}", *noise, *(f"{value:.2f}" for value in found["sealing_gb_per_second"].values())])
    return [
        table(("full-batch gradient", "shard", "us", "us of BLAS or scipy alone", "speed of it"), grad),
        table(("", "exact noise, ns a coordinate", "PCG64 normals", "sealing, GB/s", "AESGCM alone"), small),
    ]


def _startup(starts: Sequence[dict[str, Any]] | dict[str, Any]) -> list[str]:
    if isinstance(starts, dict):  # of earlier benches: one number of ranks
        starts = [{**starts, "ratios": {"ratio": starts["ratio"]}}]
    names = [*starts[0]["seconds"], *starts[0]["ratios"]]
    rows = [[name, *(f"{(one['seconds'] | one['ratios'])[name]:.2f}" for one in starts)] for name in names]
    return [table(("seconds from mpirun on", *(f"{one['ranks']} ranks" for one in starts)), rows)]


def _peer(compared: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for one in compared:
        s, r = one["seconds"], one["ratios"]
        rounds = [f"{s[name] * 1e6:.0f}" for name in ("DISROPT round", "mix")] + [f"{r['DISROPT round / mix']:.1f}"]
        starts = [f"{s[name]:.2f}" for name in ("DISROPT start", "start")] + [f"{r['DISROPT start / start']:.1f}"]
        rows.append([f"{one['ranks']}, m = {one['dimension']}", *rounds, *starts])
    head = ("ranks", "DISROPT, us a round", "mix", "ratio", "DISROPT, s to the first round", "dpmpi", "ratio")
    return [table(head, rows)]


def _memory(found: dict[str, Any]) -> list[str]:
    c, m, degrees, error = (found[key] for key in ("c_bytes", "dimensions", "degrees", "largest_error"))
    return [
        f"Memory of a rank beside its shard: ({found['a']:.1f} + {found['b']:.2f} degree) 8 m bytes "
        f"{'+' if c >= 0 else '-'} {abs(c) / 1e6:.1f} MB, largest error of the fit {100 * error:.0f} % "
        f"(m from {m[0]} to {m[-1]}, degrees {degrees[0]} to {degrees[-1]})."
    ]


SECTIONS: dict[str, Callable[[Any], list[str]]] = {
    "targets": _targets,
    "runs": _rounds,
    "parts": _alone,
    "startup": _startup,
    "peer": _peer,
    "memory": _memory,
    "crowd": lambda found: [CROWD.format(**found)],
}
"""What a result may hold, in the order of the page."""
