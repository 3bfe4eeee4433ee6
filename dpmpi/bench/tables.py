"""The figures of a bench as Markdown tables and as drawings; everything here is made from the JSON that it writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.errors import ConfigError

DRAWN = ("bare exchange", "mix", "sealed mix", "sum", "expanded sum", "full sum", "dp-dda", "sparse dp-dda")
BEGIN, END = "<!-- begin of what bench wrote -->", "<!-- end of what bench wrote -->"
FIXED_DIMENSION = 2000
FIXED_RANKS = 20


def tables(result: dict[str, Any]) -> str:
    """Return all sections of a result."""
    parts = [_machine(result["machine"])]
    if "targets" in result:
        parts.append(_targets(result["targets"]))
    if "runs" in result:
        parts += _rounds(result["runs"])
    if "parts" in result:
        parts += _alone(result["parts"])
    if "startup" in result:
        parts.append(_startup(result["startup"]))
    if "peer" in result:
        parts.append(_peer(result["peer"]))
    if "memory" in result:
        parts.append(_memory(result["memory"]))
    if "crowd" in result:
        parts.append(_crowd(result["crowd"]))
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
    from dpmpi.report.charts import Chart, Panel  # noqa: PLC0415 - only who draws needs them
    from dpmpi.report.figures import draw_panel  # noqa: PLC0415

    runs = {run["ranks"]: run["dimensions"] for run in result["runs"]}
    ranks = FIXED_RANKS if FIXED_RANKS in runs else max(runs)
    dimensions = sorted({int(m) for found in runs.values() for m in found})
    m = FIXED_DIMENSION if FIXED_DIMENSION in dimensions else dimensions[0]
    over_m = _curves([(int(at), found["seconds"]) for at, found in runs[ranks].items()])
    over_n = _curves([(n, found[str(m)]["seconds"]) for n, found in runs.items() if str(m) in found])
    panels = {
        "growth-dimension": Panel(f"{ranks} ranks on a ring", "dimension", "features m", over_m),
        "growth-ranks": Panel(f"m = {m}, ring", "ranks", "ranks n", over_n),
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, panel in panels.items():
        chart = Chart(name, "Rounds a second", "rounds_per_second", "rounds a second", (panel,), "xy", points=True)
        paths.append(folder / f"{name}.svg")
        paths[-1].write_text(draw_panel(chart, panel).standalone(), encoding="utf-8")
    return paths


def _curves(points: Sequence[tuple[int, dict[str, float]]]) -> tuple[Any, ...]:
    from dpmpi.report.charts import Curve  # noqa: PLC0415 - only who draws needs it

    curves = []
    for style, kind in enumerate(DRAWN):
        known = sorted((at, 1.0 / seconds[kind]) for at, seconds in points if kind in seconds)
        if known:
            x, y = np.array(known, dtype=np.float64).T
            curves.append(Curve(kind, style, x, y, y, y, 1))
    return tuple(curves)


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['mpi']}, Python {machine['python']}, "
        f"numpy {machine['numpy']}; load of the machine before: {machine['load']:.2f}."
    )


def _targets(targets: Sequence[dict[str, Any]]) -> str:
    def row(one: dict[str, Any]) -> list[str]:
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.2f}"
        return [one["name"], ratio, f"{one['bound']} {one['limit']:g}", one["verdict"]]

    return table(("ratio", "measured", "target", ""), map(row, targets))


def _rounds(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return two tables for each dimension: microseconds of a round, and ratios; a column for each number of ranks."""
    parts = []
    for m in sorted({int(m) for run in runs for m in run["dimensions"]}):
        columns = [(run["ranks"], run["dimensions"][str(m)]) for run in runs if str(m) in run["dimensions"]]
        head = [f"{n} ranks" for n, _ in columns]
        for key, title, scale, form in (("seconds", "us a round", 1e6, ".1f"), ("ratios", "ratio", 1.0, ".2f")):
            names = list(dict.fromkeys(name for _, found in columns for name in found[key]))
            rows = [
                [name, *(format(found[key][name] * scale, form) if name in found[key] else "" for _, found in columns)]
                for name in names
            ]
            parts.append(table((f"m = {m}, {title}", *head), rows))
    return parts


def _alone(parts: dict[str, Any]) -> list[str]:
    """Return what one process alone takes."""
    grad = [
        [
            f"m = {m}, {kind}", f"{one['shard_bytes'] / 1e6:.0f} MB", f"{one['seconds'] * 1e6:.0f}",
            f"{one['bare_seconds'] * 1e6:.0f}", f"{one['speed_of_bare']:.2f}",
        ]
        for m, found in parts.items() for kind, one in found["gradient"].items()
    ]  # fmt: skip
    small = [
        [
            f"m = {m}", *(f"{value:.1f}" for value in found["noise_ns"].values()),
            *(f"{value:.2f}" for value in found["sealing_gb_per_second"].values()),
        ]
        for m, found in parts.items()
    ]  # fmt: skip
    return [
        table(("full-batch gradient", "shard", "us", "us of BLAS or scipy alone", "speed of it"), grad),
        table(("", "exact noise, ns a coordinate", "PCG64 normals", "sealing, GB/s", "AESGCM alone"), small),
    ]


def _startup(found: dict[str, Any]) -> str:
    rows = [[name, f"{value:.2f}"] for name, value in found["seconds"].items()]
    return table((f"{found['ranks']} ranks, from mpirun on", "seconds"), [*rows, ["ratio", f"{found['ratio']:.2f}"]])


def _peer(found: Sequence[dict[str, Any]]) -> str:
    def row(one: dict[str, Any]) -> list[str]:
        s, r = one["seconds"], one["ratios"]
        return [
            f"{one['ranks']}, m = {one['dimension']}", f"{s['DISROPT round'] * 1e6:.0f}", f"{s['mix'] * 1e6:.0f}",
            f"{r['DISROPT round / mix']:.1f}", f"{s['DISROPT start']:.2f}", f"{s['start']:.2f}",
            f"{r['DISROPT start / start']:.1f}",
        ]  # fmt: skip

    head = ("ranks", "DISROPT, us a round", "mix", "ratio", "DISROPT, s to the first round", "dpmpi", "ratio")
    return table(head, map(row, found))


def _memory(found: dict[str, Any]) -> str:
    return (
        f"Memory of a rank beside its shard: ({found['a']:.1f} + {found['b']:.2f} degree) 8 m bytes "
        f"{'+' if found['c_bytes'] >= 0 else '-'} {abs(found['c_bytes']) / 1e6:.1f} MB, "
        f"largest error of the fit {100 * found['largest_error']:.0f} % "
        f"(m from {found['dimensions'][0]} to {found['dimensions'][-1]}, degrees {found['degrees'][0]} to "
        f"{found['degrees'][-1]})."
    )


def _crowd(found: dict[str, Any]) -> str:
    return (
        f"{found['ranks']} ranks, {found['rounds']} rounds of dp-dda on a ring, m = {found['dimension']}: "
        f"{found['wall_seconds']:.1f} s ({found['rounds_per_second']:.0f} rounds/s) "
        f"after {found['startup_seconds']:.1f} s of starting."
    )
