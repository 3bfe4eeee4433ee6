"""The section of a report about what curious ranks learn: a square of shades and tables, or why it is as the wire."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpmpi.commands.report import drawing, page
from dpmpi.commands.report.drawing import LIGHT, Axes, Drawing, Entry, Plots, csv_text, inline, set_ranks, tip
from dpmpi.commands.report.page import Section
from dpmpi.errors import ConfigError
from dpmpi.runtime.curious import curious_figures, parse_curious
from dpmpi.runtime.flags import from_text
from dpmpi.runtime.output.results import Run
from dpmpi.runtime.plan import Plan, make_plan
from dpmpi.runtime.settings import Settings

HEADING = "What a curious rank learns"
MOST_RANKS = 50
"""Of more ranks all pairs would take long, and nobody could tell them apart."""
SHADES = 10
"""Steps from nothing to as much as the wire."""
LIMIT = (
    "Proven for real numbers, under the conditions in docs/privacy.md. It is a report: the certificate of the run is "
    "the wire's, and the noise was made for that."
)


def curious_sections(run: Run, plots: Plots, given: str | None = None) -> list[Section]:
    """Return a section on what each rank, and a given set of them, learns of others; none if nothing is certified."""
    summary = run.summary
    if not summary["privacy"]["private"]:
        return []
    ranks = summary["ranks"]
    chosen = [parse_curious(given, ranks)] if given is not None else []
    why = _accidents(summary)
    found: dict[str, Any] = {"reasons": why}
    if not why:
        try:
            plan, sigmas = _plan(run), [record["sigma"] for record in summary["per_rank"]]
            singles = [(rank,) for rank in range(ranks)] if ranks <= MOST_RANKS else []
            found = curious_figures(plan, sigmas, [*chosen, *singles])
        except ConfigError as error:
            found = {"reasons": [str(error)]}
    if found["reasons"]:
        return [_refusal(found["reasons"], summary["privacy"], found.get("unproven"))]
    return [_section(found, found["sets"][: len(chosen)], found["sets"][len(chosen) :], plots)]


def _accidents(summary: Mapping[str, Any]) -> list[str]:
    """Return the events of a run that its plan does not cover, in words."""
    checks = {
        "ranks were lost on the way, and the others mixed among themselves": not summary.get("lost"),
        "the run was resumed, so that some rounds were made twice": summary.get("starts", 1) == 1,
        "a rank whose budget was spent spoke without noise": all(
            record.get("stopped") is None for record in summary["per_rank"]
        ),
    }
    return [why for why, holds in checks.items() if not holds]


def _plan(run: Run) -> Plan:
    """Return the plan of a run, from its settings and the public facts of its summary."""
    if run.settings.get("plugin"):
        raise ConfigError("a plug-in made the messages, and a report does not run its code")
    text = (run.path / "config.toml").read_text(encoding="utf-8")
    settings = Settings.of(from_text(text, run.path / "config.toml", {"batch": str(run.summary["batch"])}))
    records = [record["samples"] for record in run.summary["per_rank"]]
    return make_plan(settings, settings.schedule(len(records)), records, run.summary["dimension"])


def _refusal(why: Sequence[str], privacy: Mapping[str, Any], unproven: str | None) -> Section:
    """Return a section that says why the figures are the wire's, or that there are none."""
    if unproven is not None:
        return Section(HEADING, f"{unproven[0].upper()}{unproven[1:]}.", (), wide=False)
    items = tuple(page.paragraph(f"{reason[0].upper()}{reason[1:]}.", "soft") for reason in why)
    epsilon = f"epsilon {privacy['epsilon']:.3g}"
    about = f"As far as is proven, as much as who hears every message, {epsilon}, for these reasons."
    return Section(HEADING, about, items, wide=False)


def _section(
    found: Mapping[str, Any], chosen: Sequence[Mapping[str, Any]], singles: Sequence[Mapping[str, Any]], plots: Plots
) -> Section:
    key = "epsilon_of_messages" if found["models"] else "epsilon"
    about = "The proven epsilon of each rank's records against what one other rank hears in the rounds"
    about += (
        ", without the models at the end."
        if found["models"]
        else ", and against the models at the end, too, which the map shows."
    )
    pieces = []
    if found["models"]:
        pieces.append(page.paragraph(f"Not covered: {found['models']}.", "warn"))
    for one in chosen:
        names = ", ".join(map(str, one["curious"]))
        who = f"Rank {names} alone" if len(one["curious"]) == 1 else f"Ranks {names} together"
        pieces.append(page.fold(f"{who}, rank by rank", _by_rank(found, one), unfolded=True))
    if singles:
        rows = [
            (rank, one["curious"][0], away, found["wire"][rank], one["epsilon_of_messages"][rank], one["epsilon"][rank])
            for one in singles
            for rank, away in enumerate(one["hops"])
            if rank != one["curious"][0]
        ]
        heading = ("rank", "curious", "hops", "wire", "epsilon_of_messages", "epsilon")
        numbers = plots.write("curious.csv", csv_text(heading, rows))
        svg, addresses = plots.draw("curious", draw_curious(found, singles, key))
        label = f"{HEADING}: the epsilon of each rank's records against each other rank"
        square = page.panel(inline(svg, label), [*addresses, numbers])
        both = page.figure(page.panels([square, f"<div>{_by_hops(rows)}</div>"]), "")
        pieces.insert(1 if found["models"] else 0, both)
        ranks = range(len(singles))
        cells = [[str(rank), *(page.cell(_number(singles[who][key][rank])) for who in ranks)] for rank in ranks]
        everybody = page.table(["rank", *(f"to {who}" for who in ranks)], cells, names=False)
        pieces.append(page.fold("Every rank against every other", everybody))
    else:
        text = f"All pairs are shown for up to {MOST_RANKS} ranks; report --curious 3,4 and plan --curious 3 name some."
        pieces.append(page.paragraph(text, "soft"))
    return Section(HEADING, about, (*pieces, page.paragraph(LIMIT, "soft")))


def draw_curious(found: Mapping[str, Any], singles: Sequence[Mapping[str, Any]], key: str) -> Drawing:
    """Return a square: a row for each rank's records, a column for each curious rank, full where it learns most."""
    ranks = range(len(singles))
    most = max(epsilon for epsilon in found["wire"] if epsilon is not None)

    def paint(axes: Axes) -> None:
        from matplotlib.patches import Rectangle  # noqa: PLC0415 - an extra

        for side in "xy":
            set_ranks(axes, ranks, side)
        axes.set(aspect="equal", title="rank whose records", xlabel="curious rank")
        for who in ranks:
            for rank, epsilon in enumerate(singles[who][key]):
                if epsilon is None:
                    continue
                alpha = max(math.ceil(SHADES * min(epsilon / most, 1.0) - 0.01), 1) / SHADES
                said = tip(f"rank {rank} against rank {who}: epsilon {epsilon:.3g}, hops {singles[who]['hops'][rank]}")
                corner = (who - 0.5, rank - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, color=LIGHT["s0"], alpha=alpha, linewidth=0, gid=said))
        told = [(k, f"{k * most:.2g}") for k in (0.2, 0.5, 1.0)]
        drawing.draw_legend(axes, [Entry(f"epsilon {text}", "s0", width=7, alpha=k) for k, text in told])

    return Drawing(paint, drawing.WIDTH)


def _by_hops(rows: Sequence[tuple[Any, ...]]) -> str:
    """Return a table with a line for each number of hops: the pairs so far apart, and the largest figures of them."""
    away = sorted({row[2] for row in rows if row[2] is not None})
    lines = []
    for hops in away:
        those = [row for row in rows if row[2] == hops]
        worst = [max(row[k] for row in those) for k in (3, 4, 5)]
        lines.append([str(hops), str(len(those)), *map(_number, worst)])
    headings = ["hops", "pairs", "wire", "messages", "messages and models"]
    about = "The largest epsilon of all pairs of ranks that are so many hops apart:"
    return page.paragraph(about) + page.table(headings, lines, names=False)


def _by_rank(found: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """Return a table with a line for each rank that is not curious."""
    lines = [
        [
            str(rank),
            "-" if away is None else str(away),
            *map(_number, (found["wire"][rank], told, one["epsilon"][rank])),
        ]
        for rank, (away, told) in enumerate(zip(one["hops"], one["epsilon_of_messages"], strict=True))
        if rank not in one["curious"]
    ]
    return page.table(["rank", "hops", "wire", "messages", "messages and models"], lines, names=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
