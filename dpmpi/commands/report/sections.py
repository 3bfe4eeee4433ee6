"""The sections of a report: functions from results to a heading, a sentence and HTML. Drawings and CSV go to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpmpi.commands.report import page
from dpmpi.commands.report.charts import Chart, Curve, Panel, capital, chart_csv, draw_panel, legend_entries
from dpmpi.commands.report.drawing import Drawing, Plots, by_thousands, csv_text, inline, render
from dpmpi.commands.report.page import Section
from dpmpi.commands.report.ranks import draw_epsilons, draw_pairs, draw_times, draw_traffic, draw_waits
from dpmpi.runtime.cost.model import predicted_rows
from dpmpi.runtime.output.results import Group, Run, read_waits

MOST_RUNS = 6
"""Of how many groups of runs a page draws what each rank did."""
WIDE = 5.0
"""Seconds further apart than this are shown on a logarithmic axis."""
CHOICES = {"round": "by rounds", "seconds": "by time", "bytes": "by bytes"}
SPENT = "What its ledger was charged, as a certified upper bound (points), and what it may spend (lines)"
WAITED = "The seconds that each rank waited for each neighbour: a slow rank stands out as a column"
RANKS = {
    "epsilon": ("Privacy spent by each rank", SPENT),
    "traffic": ("Bytes on each edge", "What each edge of the graph carried, both directions together"),
    "time": ("Where the time went", "What each rank did with the seconds of its training"),
    "waits-pairs": ("Who waited for whom", WAITED),
    "waits": ("When ranks waited", "The share of its time that each rank waited, by its own clock"),
}
"""Figures with a place for each rank, by the name of their files: heading, and what is seen."""


def chart_panels(chart: Chart, plots: Plots) -> list[str]:
    """Return the panels of a chart as HTML; they and their numbers go to files."""
    drawn, numbers = [], plots.write(f"{chart.name}.csv", chart_csv(chart))
    for position, panel in enumerate(chart.panels):
        name = chart.name if len(chart.panels) == 1 else f"{chart.name}-{position + 1}"
        svg, addresses = plots.draw(name, draw_panel(chart, panel))
        if len(panel.curves) > 1:  # the page has one legend for all panels
            svg = render(draw_panel(chart, panel, legend=False), name, ("svg",))[0].decode()
        label = ", ".join(filter(None, (chart.title, panel.title, f"against {panel.x_label}")))
        drawn.append(page.panel(inline(svg, label), [*addresses, numbers]))
    return drawn


def chart_section(chart: Chart, plots: Plots) -> Section:
    """Return a section with one chart."""
    if not chart.panels:
        return Section(chart.title, "", (page.paragraph(chart.note, "warn"),))
    about = f"{chart.y_label} against {chart.panels[0].x_label}{_repetitions(chart)}"
    if any(curve.flat for panel in chart.panels for curve in panel.curves):
        about += "; dashed: does not depend on the horizontal axis"
    content = page.figure(page.panels(chart_panels(chart, plots)), chart.note, legend_entries(chart))
    return Section(chart.title, f"{capital(about)}.", (content,), wide=len(chart.panels) > 1)


def progress_sections(charts: Sequence[Chart], plots: Plots) -> list[Section]:
    """Return how runs went on: a row of panels against rounds, time or bytes, as the reader chooses."""
    rows: dict[str, list[str]] = {}
    for chart in charts:
        for panel, drawn in zip(chart.panels, chart_panels(chart, plots), strict=True):
            rows.setdefault(CHOICES[panel.x], []).append(drawn)
    if not rows:
        return []
    about = "How good the model was at each evaluation, and how far the ranks were from agreeing on it"
    content = page.choice("progress", {label: page.panels(row) for label, row in rows.items()})
    content = page.figure(content, "", legend_entries(charts[0]))
    return [Section("Progress", f"{about}{_repetitions(charts[0])}.", (content,))]


def rank_sections(groups: Sequence[Group], plots: Plots) -> list[Section]:
    """Return the figures of each group's first run by rank: privacy, traffic, time and waiting, as far as known."""
    runs = [group.runs[0] for group in groups[:MOST_RUNS]]
    more = dict.fromkeys(RANKS, "")
    if any(None not in (run.number("privacy.epsilon"), run.number("privacy.epsilon_theorem")) for run in runs):
        more["epsilon"] = "; the paper's theorem (dashed) is not relied on"
    for run in [run for run in runs if _crowding(run)][:1]:
        share, cost = _crowding(run), run.summary["cost"]
        crowd = f"; {cost['ranks_per_host']} ranks share {page.counted(cost['cores_per_host'], 'core')}, so"
        more["time"] = f"{crowd} each has its turn {1 - share:.0%} of the time"
        more["waits"] = f"{crowd} shades begin at {share:.0%}, which is having no turn"
    if any(run.in_one_process for run in runs):
        more["time"] += "; on loopback, in one process, nobody waits and each shows the time of all"
    caption = "Of repetitions the first is shown." if any(len(group.runs) > 1 for group in groups) else ""
    if len(groups) > MOST_RUNS:
        caption += f" The first {MOST_RUNS} of {len(groups)} are shown: name the others alone to see theirs."
    sections = []
    for name, (heading, about) in RANKS.items():
        found = [(i, group.label, _draw(name, group.runs[0])) for i, group in enumerate(groups[:MOST_RUNS], 1)]
        drawings = [(i, label, drawing) for i, label, drawing in found if drawing is not None]
        if not drawings:
            continue
        columns = max((drawing.heading for _, _, drawing in drawings), key=len)
        rows = [(label, *row) for _, label, drawing in drawings for row in drawing.rows]
        numbers, panels = plots.write(f"{name}.csv", csv_text(("run", *columns), rows)), []
        for i, label, drawing in drawings:
            file, title = (f"{name}-{i}", label) if len(groups) > 1 else (name, "")
            svg, addresses = plots.draw(file, drawing)
            shown = inline(svg, f"{heading}: {label}")
            panels.append(page.panel(shown, [*addresses, numbers], title, drawing.note))
        content = page.figure(page.panels(panels), caption.strip())
        sections.append(Section(heading, f"{about}{more[name]}.", (content,), wide=len(panels) > 1))
    return sections


def _draw(name: str, run: Run) -> Drawing | None:
    ranks, privacy = run.summary["per_rank"], run.summary["privacy"]
    if name == "epsilon":
        return draw_epsilons(ranks, privacy["budget"], privacy["delta"], privacy["epsilon_theorem"])
    if name == "traffic":
        return draw_traffic(ranks)
    if name == "time":
        return draw_times(ranks, _crowding(run))
    if run.in_one_process:
        return None
    return draw_pairs(ranks) if name == "waits-pairs" else draw_waits(read_waits(run.path), _crowding(run))


def cost_sections(group: Group, plots: Plots) -> list[Section]:
    """Return the cost of the run with other numbers of ranks; nothing if it did not measure what that takes."""
    found = predicted_rows(group.runs[0].summary)
    if not found:
        return []
    heading, keys = "Predicted cost", ("ranks", "hosts", "messages", "bytes", "seconds")
    files = page.files([plots.write("cost.csv", csv_text(keys, [[row[key] for key in keys] for row in found]))])
    timed = [(float(row["ranks"]), float(row["seconds"])) for row in found if row["seconds"] is not None]
    each, times = {row["bytes"] // row["ranks"] for row in found}, {seconds for _, seconds in timed}
    if len(each) == 1 and len(times) <= 1:
        last, takes = found[-1], "".join(f", and take {seconds:.3g} s as here" for seconds in times)
        hosts = f" on {last['hosts']:,} hosts as full as this one" if last["hosts"] else ""
        said = (
            f"The number of a rank's peers does not grow, so each sends {by_thousands(each.pop(), 'B')} as here: "
            f"{last['ranks']:,} ranks{hosts} send {by_thousands(last['bytes'], 'B')}{takes}."
        )
        return [Section(heading, said, (files,), wide=False)]
    known = [key for key in keys if any(row[key] is not None for row in found)]
    shown = [[_cost_cell(row[key], key) for key in known] for row in found]
    about = "What the run would cost with more ranks, as many records on each, on hosts as full as its own."
    fit = "Where a rank has more or fewer peers than here, seconds need a measurement (python -m dpmpi bench --fit)."
    notes = [page.paragraph(fit, "soft")] if len(timed) < len(found) else []
    pieces = (page.table(known, shown, names=False), *notes, files)
    sections = [Section(heading, about, pieces, wide=False)]
    if len(times) > 1:
        x, y = np.array(timed).T
        panel = Panel("", "ranks", "ranks", (Curve(group.label, 0, x, y, y, y, 1),))
        log, what = "xy" if y.max() > WIDE * y.min() else "x", "seconds of training"
        chart = Chart("cost-time", "Predicted time", what, what, (panel,), log, points=True)
        sections.append(chart_section(chart, plots))
    return sections


def settings_section(runs: Mapping[str, Run], varied: Sequence[str] = ()) -> Section:
    """Return how the settings of runs, by their labels, differ, and all of them; a label's runs vary in `varied`."""
    keys, pieces = sorted({key for run in runs.values() for key in run.settings} - {"out", *varied}), []
    rows = []
    for key in keys:
        texts = [str(run.settings.get(key, "-")) for run in runs.values()]
        if len(set(texts)) > 1:
            rows.append([page.cell(text) for text in (key, *texts)])
    if rows:
        table, few = page.table(["setting", *runs], rows), len(runs) <= MOST_RUNS
        pieces.append(page.fold("Where the settings differ", table, unfolded=few))
    for label, run in runs.items():
        text = (run.path / "config.toml").read_text(encoding="utf-8")
        pieces.append(page.fold(f"All settings of {label}", page.code(text)))
    return Section("Settings", "Every setting, those left at their defaults included.", tuple(pieces))


def repeat_section(lines: Sequence[str], *, exact: bool = False) -> Section:
    """Return the commands that make the results again."""
    anew = "Noise is drawn anew in every run, so figures of private runs agree in distribution, not digit by digit."
    same = "The noise is repeatable, so the figures agree digit by digit, but for seconds."
    return Section("How to repeat it", same if exact else anew, (page.code("\n".join(lines)),))


def _repetitions(chart: Chart) -> str:
    counts = sorted({curve.repetitions for panel in chart.panels for curve in panel.curves})
    many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    what, band = ("points", "vertical bars") if chart.points else ("lines", "bands")
    middle, range_ = chart.spread.words
    return f"; {what}: {middle} of {many} repetitions, {band}: {range_}" if counts[-1] > 1 else ""


def _crowding(run: Run) -> float:
    """Return the share of the time in which it is not a rank's turn, because a host has more ranks than cores."""
    cost = run.summary.get("cost") or {}
    ranks, cores = cost.get("ranks_per_host"), cost.get("cores_per_host")
    return max(0.0, 1 - cores / ranks) if ranks and cores else 0.0


def _cost_cell(value: float | None, key: str) -> str:
    if value is None:
        return "-"
    return by_thousands(value, "B") if key == "bytes" else f"{value:.3g}" if key == "seconds" else f"{value:,}"
