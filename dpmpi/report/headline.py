"""What a reader must see first: warnings, headline numbers as tiles, and the table of several runs or of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpmpi.report import page
from dpmpi.report.axes import by_thousands
from dpmpi.report.charts import BYTES
from dpmpi.report.drawing import colour, marker
from dpmpi.report.figures import spent
from dpmpi.report.page import Section, Tile
from dpmpi.report.plots import Plots, csv_text
from dpmpi.results import COLUMNS, QUANTILES, RANGE, Group, Run, Spread, SweepResult, table_columns

MORE = (
    ("relative error", "error", ".3g"),
    ("consensus error", "consensus_error", ".3g"),
    ("beta of the mixing matrix", "graph.beta", ".4g"),
    ("messages", "communication.messages", ",.0f"),
    ("bytes of numbers", "communication.payload_bytes", ",.0f"),
    ("bytes of shares", "communication.share_bytes", ",.0f"),
    ("bytes of seals", "communication.tag_bytes", ",.0f"),
    ("bytes of trailers", "communication.trailer_bytes", ",.0f"),
)
"""Further numbers of one run: what it is called, its key in summary.json, and its form."""


def warnings_of_runs(groups: Sequence[Group]) -> list[str]:
    """Return as HTML what must be known about the privacy of runs before anything else."""
    lines = []
    for group in groups:
        for text in dict.fromkeys(filter(None, map(_privacy_warning, group.runs))):
            count = sum(_privacy_warning(run) == text for run in group.runs)
            who = group.label if count == len(group.runs) else f"{group.label}, {count} of {len(group.runs)} runs"
            lines.append(page.paragraph(f"{who}: {text}", "alert" if text.startswith("NOT") else "warn"))
        for run in group.runs:
            lines += [page.paragraph(f"{group.label}: {text}", "warn") for text in _loss_warning(run)]
        stopped = [r["rank"] for run in group.runs for r in run.summary["per_rank"] if r.get("stopped") is not None]
        if stopped:
            said = f"{group.label}: the budget of {_count(len(set(stopped)), 'rank')} was spent before the end."
            lines.append(page.paragraph(f"{said} They went on without their data.", "warn"))
    return lines + _evaluation_warning([run for group in groups for run in group.runs])


def warnings_of_sweep(sweep: SweepResult) -> list[str]:
    """Return as HTML what must be known about a sweep: what is missing, and what is not private."""
    lines = []
    failed = [one for one in sweep.index["runs"] if one["state"] == "failed"]
    if failed:
        said = f"{_count(len(failed), 'run')} failed, the first ({failed[0]['path']}): {failed[0]['error']}"
        lines.append(page.paragraph(said, "alert"))
    waiting = sum(one["state"] == "waiting" for one in sweep.index["runs"])
    if waiting:
        verb = "is" if waiting == 1 else "are"
        said = f"{_count(waiting, 'run')} {verb} still to be made: the sweep goes on with the same command."
        lines.append(page.paragraph(said, "warn"))
    runs = [run for group in sweep.groups for run in group.runs]
    if any(run.summary["privacy"]["insecure_noise"] for run in runs):
        said = "NOT PRIVATE: the noise of some runs is repeatable (insecure-noise-seed)."
        lines.append(page.paragraph(said, "alert"))
    return lines + _evaluation_warning(runs)


def tiles(run: Run) -> str:
    """Return the headline numbers of one run."""
    summary, privacy = run.summary, run.summary["privacy"]
    shown: list[Tile] = []
    if summary["suboptimality"] is not None:
        below = f"objective {summary['objective']:.4g}, optimum {summary['optimum']:.4g}"
        shown.append(Tile("suboptimality", f"{summary['suboptimality']:.3g}", below))
    elif summary["objective"] is not None:
        shown.append(Tile("objective", f"{summary['objective']:.4g}", "no optimum to compare with (--reference)"))
    if summary["accuracy"] is not None:
        shown.append(Tile("accuracy", f"{summary['accuracy']:.2%}", "on held-out rows"))
    if privacy["epsilon"] is None or privacy["insecure_noise"]:
        shown.append(Tile("certified epsilon", "none", "NOT PRIVATE", alert=True))
    else:
        worst = max(summary["per_rank"], key=spent)
        allowed = privacy["budget"] if worst["budget"] is None else worst["budget"]
        budget = "" if allowed is None else f" of {allowed:g}"
        below = f"worst rank, at delta = {privacy['delta']:g}"
        epsilon = privacy["epsilon"]
        if spent(worst) > epsilon:
            below = f"worst rank, earlier runs included; {epsilon:.3g} in this one; at delta = {privacy['delta']:g}"
        shown.append(Tile("certified epsilon", f"{max(epsilon, spent(worst)):.3g}{budget}", below))
    sent = summary["communication"]
    below = f"{sent['messages']:,} messages; {by_thousands(sent['bytes'] / summary['ranks'], 'B')} a rank"
    shown.append(Tile("bytes sent", by_thousands(sent["bytes"], "B"), below))
    training = summary["rounds"] / summary["rounds_per_second"]
    below = f"training {training:.3g} s, {summary['rounds_per_second']:.3g} rounds a second"
    shown.append(Tile("time", f"{summary['wall_seconds']:.3g} s", below))
    return page.tiles(shown)


def results_of_run(run: Run) -> list[str]:
    """Return the tiles of one run, and its further numbers folded below them."""
    rows = [[page.cell(name), page.cell(_text(run.number(key), form))] for name, key, form in MORE if run.number(key)]
    privacy = run.summary["privacy"]
    if privacy["epsilon_theorem"] is not None:
        rows.append([page.cell("epsilon by the paper's theorem"), page.cell(f"{privacy['epsilon_theorem']:.4g}")])
    for name, value in (privacy.get("laplace") or {}).items():
        if value is not None:
            rows.append([page.cell(f"epsilon of Laplace noise, by {name}"), page.cell(f"{value:.4g}")])
    return [tiles(run), page.fold("Further numbers", page.table(["number", "value"], rows))]


def results_of_groups(groups: Sequence[Group]) -> Section:
    """Return the table of several runs: a line for each group of repetitions."""
    runs = [run for group in groups for run in group.runs]
    rows = []
    for style, group in enumerate(groups):
        summary = group.runs[0].summary
        facts = f"{summary['algorithm']}, {summary['ranks']} ranks, {summary['graph']['name']}"
        name = page.cell(group.label, facts, (colour(style), marker(style)))
        rows.append([name, str(len(group.runs)), f"{summary['rounds']:,}", *_cells(group.runs, runs, RANGE)])
    headings = ["run", "runs", "rounds", *(heading for _, heading, _ in table_columns(runs))]
    note = "Means over the repetitions, smallest to largest below where they differ."
    more = [] if len(groups) == len(runs) else [page.paragraph(note, "soft")]
    return Section("Results", (page.table(headings, rows), *more))


def results_of_sweep(sweep: SweepResult, plots: Plots) -> Section:
    """Return the table of a sweep: a line per series and point of the grid."""
    runs = [run for group in sweep.groups for run in group.runs]
    keys = list(sweep.index["grid"])
    styles = {one["name"]: position for position, one in enumerate(sweep.index["series"])}
    rows = []
    for group in sweep.groups:
        where = [page.cell(str(group.grid.get(key, "-"))) for key in keys]
        style = styles[group.series]
        name = page.cell(group.label, key=(colour(style), marker(style)))
        rows.append([name, *where, str(len(group.runs)), *_cells(group.runs, runs, QUANTILES)])
    headings = ["series", *keys, "runs", *(heading for _, heading, _ in table_columns(runs))]
    address = plots.write(f"{sweep.index['name']}-results.csv", _results_csv(sweep))
    note = "Medians over the repetitions, the 10% to 90% quantiles below where they differ. "
    if sweep.index["repetitions"] == 1:
        note = ""
    below = f'<p class="soft">{note}Every run: {page.links("results.csv", [address])}.</p>'
    return Section("Results", (page.table(headings, rows), below))


def _cells(runs: Sequence[Run], every: Sequence[Run], spread: Spread) -> list[str]:
    cells = []
    for key, _, form in table_columns(every):
        found = spread.numbers([run.number(key) for run in runs])
        if found is None:
            cells.append(page.cell("-"))
        else:
            low, middle, high = (by_thousands(v, "B") if key in BYTES else format(v, form) for v in found)
            cells.append(page.cell(middle, f"{low} to {high}" if low != high else ""))
    return cells


def _privacy_warning(run: Run) -> str:
    privacy = run.summary["privacy"]
    if privacy["insecure_noise"]:
        return "NOT PRIVATE: its noise is repeatable (--insecure-noise-seed)."
    if not privacy["private"]:
        return "NOT PRIVATE: no finite epsilon is certified for it."
    if privacy["calibration"] == "theorem":
        claim = f"the paper's theorem claims epsilon {_text(privacy['epsilon_theorem'], '.4g')}"
        return f"{claim}, certified is {privacy['epsilon']:.4g}. Rely on the latter."
    return ""


def _loss_warning(run: Run) -> list[str]:
    lost = run.summary.get("lost") or []
    who = f"rank {', '.join(map(str, lost))}"
    return [f"{who} was lost on the way, and the others went on."] if lost else []


def _evaluation_warning(runs: Sequence[Run]) -> list[str]:
    if not any(run.summary["privacy"]["evaluation_outside_guarantee"] for run in runs):
        return []
    said = "Objective and accuracy read private data without noise: they are outside of the guarantee."
    return [page.paragraph(said, "warn")]


def _results_csv(sweep: SweepResult) -> str:
    keys = list(sweep.index["grid"])
    names = [*(key for key, _, _ in COLUMNS), "consensus_error", "communication.messages"]
    rows: list[list[Any]] = []
    for group in sweep.groups:
        for run in group.runs:
            numbers = ["" if run.number(key) is None else run.number(key) for key in names]
            place = run.path.relative_to(sweep.path)
            rows.append([group.series, *(group.grid.get(key, "") for key in keys), place, *numbers])
    return csv_text(["series", *keys, "run", *names], rows)


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
