"""The sections of a report: functions from results to a heading and HTML. Drawings and CSV go to files on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dpmpi.costs import predicted_rows
from dpmpi.report import figures, page
from dpmpi.report.axes import by_thousands
from dpmpi.report.charts import Chart, Curve, Panel, chart_csv
from dpmpi.report.network import MOST_NODES, draw_traffic, edge_bytes
from dpmpi.report.page import Section
from dpmpi.report.plots import Files, Picture, Plots, csv_text
from dpmpi.report.timeline import draw_waits, longest
from dpmpi.results import Group, Run, read_waits

MOST_RUNS = 6
"""Of how many groups of runs a page draws what each rank did."""
LONGEST = 5
WIDE = 5.0
"""Seconds further apart than this are shown on a logarithmic axis."""


def chart_figure(chart: Chart, plots: Plots) -> str:
    """Return a chart as HTML; its panels and numbers go to files."""
    if not chart.panels:
        return page.paragraph(chart.note, "warn")
    drawings, files = [], Files([plots.write(f"{chart.name}.csv", chart_csv(chart))])
    for position, panel in enumerate(chart.panels):
        name = chart.name if len(chart.panels) == 1 else f"{chart.name}-{position + 1}"
        plots.draw(name, figures.draw_panel(chart, panel), files)
        label = ", ".join(filter(None, (chart.title, panel.title, f"against {panel.x_label}")))
        drawings.append(("", figures.draw_panel(chart, panel, legend=False).inline(label)))
    entries = figures.legend_entries(chart)
    return page.figure(drawings, _caption(chart), files, entries if len(entries) > 1 else [])


def chart_section(chart: Chart, plots: Plots) -> Section:
    """Return a section with one chart."""
    return Section(chart.title, (chart_figure(chart, plots),), wide=len(chart.panels) > 1)


def rank_section(
    heading: str, name: str, groups: Sequence[Group], plots: Plots, caption: str, draw: Callable[[Run], Picture | None],
    below: Callable[[Run, str], list[str]] | None = None,
) -> Section | None:  # fmt: skip
    """Return a section with one drawing per group, of its first run; None if no run has such figures."""
    drawings, files, rows, more = [], Files(), [], []
    columns: tuple[str, ...] = ()
    for position, group in enumerate(groups[:MOST_RUNS]):
        run, several = group.runs[0], len(groups) > 1
        picture = draw(run)
        if picture is not None:
            drawings.append((group.label if several else "", picture.drawing.inline(f"{heading}: {group.label}")))
            plots.draw(f"{name}-{position + 1}" if several else name, picture.drawing, files)
            columns = max(columns, picture.heading, key=len)
            rows += [(group.label, *row) for row in picture.rows]
            more += below(run, group.label if several else "") if below is not None else []
    if not drawings:
        return None
    files.csv.append(plots.write(f"{name}.csv", csv_text(("run", *columns), rows)))
    if any(len(group.runs) > 1 for group in groups):
        caption += " Of repetitions the first is shown."
    if len(groups) > MOST_RUNS:
        caption += f" The first {MOST_RUNS} of {len(groups)} are shown: name the others alone to see theirs."
    return Section(heading, (page.figure(drawings, caption, files), *more), wide=len(drawings) > 1)


def epsilon_section(groups: Sequence[Group], plots: Plots) -> Section | None:
    """Return what every rank has spent, next to its budget; None if nothing is certified."""
    caption = (
        "Points: what the ledger charged, as a certified upper bound on epsilon. Short lines: what the rank may spend."
    )
    told = [group.runs[0].summary["privacy"] for group in groups]
    if any(privacy["epsilon"] is not None and privacy["epsilon_theorem"] is not None for privacy in told):
        caption += " Dashed: what the paper's theorem claims for the same noise, to compare with; it is not relied on."

    def draw(run: Run) -> Picture | None:
        privacy = run.summary["privacy"]
        claim, target = privacy["epsilon_theorem"], privacy["budget"]
        return figures.draw_epsilons(run.summary["per_rank"], target, privacy["delta"], claim)

    return rank_section("Privacy spent by each rank", "epsilon", groups, plots, caption, draw)


def time_section(groups: Sequence[Group], plots: Plots) -> Section | None:
    """Return where every rank's time went."""
    caption = "Training only. Waiting is the time in which a rank had nothing to do but wait for its neighbours."
    if any(group.runs[0].in_one_process for group in groups):
        caption += " Ranks on loopback share one process, in which nobody waits: each shows the time of all."

    def draw(run: Run) -> Picture:
        return figures.draw_times(run.summary["per_rank"])

    return rank_section("Where the time went", "time", groups, plots, caption, draw)


def waits_section(groups: Sequence[Group], plots: Plots) -> Section | None:
    """Return who waited for whom, and when; None if no run has a time line in which somebody waited."""
    caption = (
        "The fuller the colour, the more of that time the rank spent waiting; a pointer on it shows for whom most. "
        "Times are by the ranks' own clocks."
    )

    def draw(run: Run) -> Picture | None:
        return None if run.in_one_process else draw_waits(read_waits(run.path))

    def below(run: Run, label: str) -> list[str]:
        pairs = longest(run.summary["per_rank"], LONGEST)
        rows = [
            [page.cell(f"rank {who}"), page.cell(f"rank {whom}"), f"{seconds:.3g}", f"{share:.0%}"]
            for who, whom, seconds, share in pairs
        ]
        title = f"The longest waits{f' of {label}' if label else ''}"
        return [page.fold(title, page.table(["who", "for whom", "seconds", "of its training"], rows))]

    return rank_section("Who waited for whom", "waits", groups, plots, caption, draw, below)


def traffic_section(groups: Sequence[Group], plots: Plots) -> Section | None:
    """Return the graphs with what their edges carried."""
    texts = [_traffic(group.runs[0], group.label if len(groups) > 1 else "") for group in groups[:MOST_RUNS]]
    caption = f"Both directions together: {'; '.join(texts)}."
    if any(group.runs[0].summary["ranks"] > MOST_NODES for group in groups[:MOST_RUNS]):
        caption += f" Of more than {MOST_NODES} ranks the distribution is shown instead of the graph."

    def draw(run: Run) -> Picture | None:
        return draw_traffic(run.summary["per_rank"])

    return rank_section("Bytes on each edge", "traffic", groups, plots, caption, draw)


def cost_sections(group: Group, plots: Plots) -> list[Section]:
    """Return what the run would cost with other numbers of ranks; nothing if it did not measure what that takes."""
    found = predicted_rows(group.runs[0].summary)
    if not found:
        return []
    forms = {"ranks": ",", "hosts": ",", "messages": ",", "bytes": "", "seconds": ".3g"}
    shown = [[_cost_cell(row[key], key, form) for key, form in forms.items()] for row in found]
    address = plots.write("cost.csv", csv_text(list(forms), [[row[key] for key in forms] for row in found]))
    note = (
        "Predicted from what the run measured of itself, for hosts as full as its own and as many records on every "
        "rank. Where a rank would have more or fewer peers than here, seconds need a measurement of this machine "
        f"(python -m dpmpi bench --fit). Files: {page.links('CSV', [address])}."
    )
    table = page.table(list(forms), shown, narrow=True)
    sections = [Section("Predicted cost", (table, f'<p class="soft">{note}</p>'), wide=False)]
    timed = [(float(row["ranks"]), float(row["seconds"])) for row in found if row["seconds"] is not None]
    if len({seconds for _, seconds in timed}) > 1:
        x, y = np.array(timed).T
        panel = Panel("", "ranks", "ranks", (Curve(group.label, 0, x, y, y, y, 1),))
        log, note = "xy" if y.max() > WIDE * y.min() else "x", "One prediction for each of the points."
        what = "seconds of training"
        sections.append(
            chart_section(Chart("cost-time", "Predicted time", what, what, (panel,), log, (), True, note), plots)
        )
    return sections


def settings_section(runs: Sequence[Run], labels: Sequence[str], varied: Sequence[str] = ()) -> Section:
    """Return how the runs' settings differ, and all of them; `varied` are those that each of the labels varies."""
    keys = sorted({key for run in runs for key in run.settings} - {"out", *varied})
    pieces = []
    if len(runs) > 1:
        differ = [key for key in keys if len({str(run.settings.get(key)) for run in runs}) > 1]
        rows = [[page.cell(key), *(page.cell(str(run.settings.get(key, "-"))) for run in runs)] for key in differ]
        if rows:
            few = len(runs) <= MOST_RUNS
            pieces.append(page.fold("Where the settings differ", page.table(["setting", *labels], rows), unfolded=few))
    for run, label in zip(runs, labels, strict=True):
        text = (run.path / "config.toml").read_text(encoding="utf-8")
        pieces.append(page.fold(f"All settings of {label}", page.code(text), unfolded=len(runs) == 1))
    return Section("Settings", tuple(pieces))


def repeat_section(lines: Sequence[str], *, exact: bool = False) -> Section:
    """Return the commands that make the results again."""
    note = "Noise is drawn anew in every run, so figures of private runs agree in distribution, not digit by digit."
    if exact:
        note = "The noise is repeatable, so the figures agree digit by digit, but for seconds."
    return Section("How to repeat it", (page.code("\n".join(lines)), page.paragraph(note, "soft")))


def _caption(chart: Chart) -> str:
    if chart.note:
        return chart.note
    counts = sorted({curve.repetitions for panel in chart.panels for curve in panel.curves})
    curves = [curve for panel in chart.panels for curve in panel.curves]
    what = "points" if chart.points else "lines"
    if counts == [1]:
        text = (
            ""
            if len({curve.label for curve in curves}) == 1 and not chart.points
            else f"One run for each of the {what}."
        )
    else:
        many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        band = "vertical bars" if chart.points else "bands"
        middle, range_ = chart.spread.words
        text = f"{what.capitalize()}: {middle} of {many} repetitions; {band}: {range_}."
    return text + (" Dashed: does not depend on the horizontal axis." if any(c.flat for c in curves) else "")


def _cost_cell(value: float | None, key: str, form: str) -> str:
    if value is None:
        return "-"
    return by_thousands(value, "B") if key == "bytes" else format(value, form)


def _traffic(run: Run, label: str) -> str:
    edges = edge_bytes(run.summary["per_rank"]).values()
    low, high = min(edges, default=0), max(edges, default=0)
    text = f"{low:,} bytes on every edge" if low == high else f"{low:,} to {high:,} bytes an edge"
    return f"{label}: {text}" if label else text
