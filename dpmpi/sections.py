"""The sections of a report: functions from results to a heading and HTML. Drawings and CSV go to files on the way."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpmpi import figures, page
from dpmpi.charts import Chart, chart_csv
from dpmpi.page import Section
from dpmpi.results import COLUMNS, Run, SweepResult, spread, table_columns


@dataclass(frozen=True)
class Plots:
    """The folder of the drawings; `prefix` keeps the files of several pages in one folder apart."""

    folder: Path
    prefix: str = ""

    def write(self, name: str, text: str) -> str:
        """Write a file; return its address, relative to the page."""
        file = f"{self.prefix}{name}"
        (self.folder / file).write_text(text, encoding="utf-8")
        return f"{self.folder.name}/{file}"


def results_of_runs(runs: Sequence[Run], labels: Sequence[str]) -> Section:
    """Return the headline table of plain runs, and what must be known about their privacy."""
    columns = table_columns(runs)
    rows = []
    for style, (run, label) in enumerate(zip(runs, labels, strict=True)):
        values = [run.number(key) for key, _, _ in columns]
        cells = [_format(value, form) for value, (_, _, form) in zip(values, columns, strict=True)]
        facts = f"{run.summary['algorithm']}, {run.summary['ranks']} ranks, {run.summary['graph']['name']}"
        rows.append([page.cell(label, facts, _style(style)), f"{run.summary['rounds']:,}", *cells])
    headings = ["run", "rounds", *(heading for _, heading, _ in columns)]
    warnings = [page.paragraph(text, "warn") for text in _warnings(runs, labels)]
    return Section("Results", (page.table(headings, rows), *warnings))


def results_of_sweep(sweep: SweepResult, plots: Plots) -> Section:
    """Return the table of a sweep: a line per series and point of the grid."""
    runs = [run for group in sweep.groups for run in group.runs]
    columns, keys = table_columns(runs), list(sweep.index["grid"])
    styles = {one["name"]: position for position, one in enumerate(sweep.index["series"])}
    rows = []
    for group in sweep.groups:
        cells = [_spread_cell([run.number(key) for run in group.runs], form) for key, _, form in columns]
        where = [page.cell(str(group.grid.get(key, "-"))) for key in keys]
        rows.append([page.cell(group.label, style=_style(styles[group.series])), *where, str(len(group.runs)), *cells])
    headings = ["series", *keys, "runs", *(heading for _, heading, _ in columns)]
    address = plots.write(f"{sweep.index['name']}-results.csv", _results_csv(sweep))
    note = "Medians over the repetitions, the 10% to 90% quantiles below where they differ. "
    return Section("Results", (
        page.table(headings, rows), f'<p class="soft">{note}Every run: <a href="{address}">results.csv</a>.</p>',
        *(page.paragraph(text, "warn") for text in _sweep_warnings(sweep)),
    ))  # fmt: skip


def chart_figure(chart: Chart, plots: Plots) -> str:
    """Return a chart as HTML; its panels and numbers go to files."""
    if not chart.panels:
        return page.paragraph(chart.note, "warn")
    drawings, links = [], [("CSV", plots.write(f"{chart.name}.csv", chart_csv(chart)))]
    for position, panel in enumerate(chart.panels):
        svg = figures.draw_panel(chart, panel)
        name = chart.name if len(chart.panels) == 1 else f"{chart.name}-{position + 1}"
        links.append(
            (
                f"SVG {position + 1}" if len(chart.panels) > 1 else "SVG",
                plots.write(f"{name}.svg", figures.standalone(svg)),
            )
        )
        label = ", ".join(filter(None, (chart.title, panel.title, f"against {panel.x_label}")))
        drawings.append(("", figures.inline(svg, label)))
    return page.figure(drawings, _caption(chart), links)


def rank_section(
    heading: str, name: str, runs: Sequence[Run], labels: Sequence[str], plots: Plots, caption: str,
    draw: Callable[[Run], str | None],
) -> Section | None:  # fmt: skip
    """Return a section with one drawing per run; None if no run has such figures."""
    drawings, links = [], []
    for position, (run, label) in enumerate(zip(runs, labels, strict=True)):
        svg = draw(run)
        if svg is not None:
            title = label if len(runs) > 1 else ""
            drawings.append((title, figures.inline(svg, f"{heading}: {label}")))
            file = f"{name}.svg" if len(runs) == 1 else f"{name}-{position + 1}.svg"
            links.append((label if len(runs) > 1 else "SVG", plots.write(file, figures.standalone(svg))))
    return Section(heading, (page.figure(drawings, caption, links),), wide=len(drawings) > 1) if drawings else None


def epsilon_section(runs: Sequence[Run], labels: Sequence[str], plots: Plots) -> Section | None:
    """Return what every rank has spent, next to its budget; None if nothing is certified."""
    caption = "Points: what the ledger charged, as an upper bound on epsilon. Lines: what the rank may spend."
    return rank_section("Privacy spent by each rank", "epsilon", runs, labels, plots, caption, _draw_epsilons)


def time_section(runs: Sequence[Run], labels: Sequence[str], plots: Plots) -> Section | None:
    """Return where every rank's time went."""
    caption = "Training only. Waiting is the time in which a rank had nothing to do but wait for its neighbours."
    if any(not any(record["wait_seconds"] for record in run.summary["per_rank"]) for run in runs):
        caption += " Ranks on loopback share one process, in which nobody waits: each shows the time of all."

    def draw(run: Run) -> str:
        return figures.draw_times(run.summary["per_rank"])

    return rank_section("Where the time went", "time", runs, labels, plots, caption, draw)


def traffic_section(runs: Sequence[Run], labels: Sequence[str], plots: Plots) -> Section | None:
    """Return the graphs with what their edges carried."""
    texts = [_traffic(run, label if len(runs) > 1 else "") for run, label in zip(runs, labels, strict=True)]
    caption = f"Both directions together: {'; '.join(texts)}."

    def draw(run: Run) -> str:
        return figures.draw_traffic(run.summary["per_rank"])

    return rank_section("Bytes on each edge", "traffic", runs, labels, plots, caption, draw)


def settings_section(runs: Sequence[Run], labels: Sequence[str], varied: Sequence[str] = ()) -> Section:
    """Return how the runs' settings differ, and all of them; `varied` are those that each of the labels varies."""
    keys = sorted({key for run in runs for key in run.settings} - {"out", *varied})
    pieces = []
    if len(runs) > 1:
        differ = [key for key in keys if len({str(run.settings.get(key)) for run in runs}) > 1]
        rows = [[page.cell(key), *(page.cell(str(run.settings.get(key, "-"))) for run in runs)] for key in differ]
        if rows:
            pieces += [page.paragraph("Where the settings differ:"), page.table(["setting", *labels], rows)]
    for run, label in zip(runs, labels, strict=True):
        text = (run.path / "config.toml").read_text(encoding="utf-8")
        pieces.append(page.fold(f"All settings of {label}", page.code(text)))
    return Section("Settings", tuple(pieces))


def repeat_section(lines: Sequence[str]) -> Section:
    """Return the commands that make the results again."""
    note = "Noise is drawn anew in every run, so figures of private runs agree in distribution, not digit by digit."
    return Section("How to repeat it", (page.code("\n".join(lines)), page.paragraph(note, "soft")))


def _style(position: int) -> int:
    return position % figures.PALETTE


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _spread_cell(values: Sequence[float | None], form: str) -> str:
    found = spread(values)
    if found is None:
        return page.cell("-")
    low, middle, high = (format(value, form) for value in found)
    return page.cell(middle, f"{low} to {high}" if low != high else "")


def _caption(chart: Chart) -> str:
    if chart.note:
        return chart.note
    counts = sorted({curve.repetitions for panel in chart.panels for curve in panel.curves})
    flat = any(curve.flat for panel in chart.panels for curve in panel.curves)
    what = "points" if chart.points else "lines"
    if counts == [1]:
        text = f"One run for each of the {what}."
    else:
        many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        band = "vertical bars" if chart.points else "bands"
        text = f"{what.capitalize()}: medians of {many} repetitions; {band}: 10% to 90% quantiles."
    return text + (" Dashed: does not depend on the horizontal axis." if flat else "")


def _traffic(run: Run, label: str) -> str:
    edges = figures.edge_bytes(run.summary["per_rank"]).values()
    low, high = min(edges, default=0), max(edges, default=0)
    text = f"{low:,} bytes on every edge" if low == high else f"{low:,} to {high:,} bytes an edge, by width"
    return f"{label}: {text}" if label else text


def _draw_epsilons(run: Run) -> str | None:
    ranks, privacy = run.summary["per_rank"], run.summary["privacy"]
    if any(record["epsilon"] is None for record in ranks):
        return None
    return figures.draw_epsilons(ranks, privacy["budget"], privacy["delta"])


def _warnings(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    lines = []
    for run, label in zip(runs, labels, strict=True):
        privacy = run.summary["privacy"]
        if privacy["insecure_noise"]:
            lines.append(f"{label} is NOT PRIVATE: its noise is repeatable (--insecure-noise-seed).")
        elif not privacy["private"]:
            lines.append(f"{label} is NOT PRIVATE: no finite epsilon is certified for it.")
        elif privacy["calibration"] == "theorem":
            claim = f"the paper's theorem claims {_format(privacy['epsilon_theorem'], '.4g')}"
            lines.append(f"{label}: {claim}, certified is {privacy['epsilon']:.4g}. Rely on the latter.")
    return lines + _evaluation_warning(runs)


def _evaluation_warning(runs: Sequence[Run]) -> list[str]:
    if not any(run.summary["privacy"]["evaluation_outside_guarantee"] for run in runs):
        return []
    return ["Objective and accuracy read private data without noise: they are outside of the guarantee."]


def _sweep_warnings(sweep: SweepResult) -> list[str]:
    lines = []
    failed = [one for one in sweep.index["runs"] if one["state"] == "failed"]
    if failed:
        lines.append(f"{len(failed)} runs failed, the first ({failed[0]['path']}): {failed[0]['error']}")
    waiting = sum(one["state"] == "waiting" for one in sweep.index["runs"])
    if waiting:
        lines.append(f"{waiting} runs are still to be made: the sweep goes on with the same command.")
    runs = [run for group in sweep.groups for run in group.runs]
    if any(run.summary["privacy"]["insecure_noise"] for run in runs):
        lines.append("NOT PRIVATE: the noise of some runs is repeatable (insecure-noise-seed).")
    return lines + _evaluation_warning(runs)


def _results_csv(sweep: SweepResult) -> str:
    keys, out = list(sweep.index["grid"]), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [*(key for key, _, _ in COLUMNS), "consensus_error", "communication.messages"]
    writer.writerow(["series", *keys, "run", *names])
    for group in sweep.groups:
        for run in group.runs:
            numbers = ["" if run.number(key) is None else run.number(key) for key in names]
            place = run.path.relative_to(sweep.path)
            writer.writerow([group.series, *(group.grid.get(key, "") for key in keys), place, *numbers])
    return out.getvalue()
