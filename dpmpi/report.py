"""Figures and one self-contained page about runs or sweeps: `python -m dpmpi report RUN_OR_SWEEP [...]`.

A report is a list of sections (`dpmpi.sections`). Drawings and the numbers behind them (CSV) are also written to
`plots/` beside the page.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpmpi import figures, page
from dpmpi.charts import gamma_chart, plot_chart, runs_charts
from dpmpi.config import Parser
from dpmpi.errors import ConfigError
from dpmpi.page import Section
from dpmpi.results import Run, SweepResult, read_run, read_sweep_directory
from dpmpi.sections import (
    Plots,
    chart_figure,
    epsilon_section,
    repeat_section,
    results_of_runs,
    results_of_sweep,
    settings_section,
    time_section,
    traffic_section,
)
from dpmpi.sweepfile import Plot


def run_sections(runs: Sequence[Run], labels: Sequence[str], plots: Plots) -> list[Section]:
    """Return everything about plain runs."""
    sections: list[Section | None] = [results_of_runs(runs, labels)]
    sections += [Section(chart.title, (chart_figure(chart, plots),)) for chart in runs_charts(runs, labels)]
    sections.append(epsilon_section(runs, labels, plots))
    sections.append(time_section(runs, labels, plots))
    sections.append(traffic_section(runs, labels, plots))
    sections.append(settings_section(runs, labels))
    commands = [
        f"mpirun -n {run.summary['ranks']} python -m dpmpi.run --config {shlex.quote(str(run.path / 'config.toml'))} "
        "--out runs/again" for run in runs
    ]  # fmt: skip
    checks = [f"python -m dpmpi verify {shlex.quote(str(run.path))}" for run in runs]
    sections.append(repeat_section([*commands, *checks]))
    return [section for section in sections if section is not None]


def sweep_sections(sweep: SweepResult, plots: Plots) -> list[Section]:
    """Return everything about a sweep: the figures of its file, the results, the settings."""
    index, sections = sweep.index, []
    for position, table in enumerate(index["plots"]):
        plot = Plot(**table)
        chart = plot_chart(sweep, plot, f"{index['name']}-{position + 1}")
        sections.append(Section(chart.title, (chart_figure(chart, plots),), wide=len(chart.panels) > 1))
    sections.append(results_of_sweep(sweep, plots))
    firsts: dict[str, Run] = {}
    for group in sweep.groups:
        if group.runs:
            firsts.setdefault(group.label, group.runs[0])
    sections.append(settings_section(list(firsts.values()), list(firsts), list(index["grid"])))
    command = ["python -m dpmpi sweep", shlex.quote(index["file"]), *(["--quick"] if index["quick"] else [])]
    command += ["--out", shlex.quote(str(sweep.path.parent)), "--repeat", str(index["repetitions"])]
    command += ["--launcher", shlex.quote(index["launcher"])] if index["launcher"] else []
    sections.append(repeat_section([" ".join(command), f"python -m dpmpi report {shlex.quote(str(sweep.path))}"]))
    return sections


def write_report(paths: Sequence[Path], out: Path | None) -> Path:
    """Write the page about runs and sweeps, and its plots; return where."""
    sweeps = [read_sweep_directory(path) for path in paths if (path / "sweep.json").is_file()]
    runs = [read_run(path) for path in paths if not (path / "sweep.json").is_file()]
    if out is None:
        out = paths[0] / "report.html" if len(paths) == 1 else Path("report.html")
    plots = Plots(out.parent / "plots", "" if out.stem == "report" else f"{out.stem}-")
    try:
        plots.folder.mkdir(parents=True, exist_ok=True)
        sections: list[Section] = []
        lead: list[str] = []
        for sweep in sweeps:
            more = sweep_sections(sweep, plots)
            if len(sweeps) > 1 or runs:
                first = Section(sweep.index["title"], tuple(_sweep_lead(sweep)))
                sections += [first, *more]
            else:
                lead, sections = _sweep_lead(sweep), more
        if runs:
            sections += run_sections(runs, _labels(runs), plots)
        title = sweeps[0].index["title"] if len(sweeps) == 1 and not runs else _title(runs, sweeps)
        out.write_text(page.page(title, lead, sections, figures.LIGHT, figures.DARK), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the report {out}: {error.strerror}") from error
    return out


def write_figure(out: Path) -> Path:
    """Write the page with the figure that needs no runs, `charts.gamma_chart`, and its plots; return where."""
    plots, chart = Plots(out.parent / "plots"), gamma_chart()
    try:
        plots.folder.mkdir(parents=True, exist_ok=True)
        section = Section("Against the width of the weights", (chart_figure(chart, plots),), wide=True)
        out.write_text(page.page(chart.title, [], [section], figures.LIGHT, figures.DARK), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the report {out}: {error.strerror}") from error
    return out


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = Parser(
        prog="python -m dpmpi report", allow_abbrev=False,
        description="Draw runs or sweeps: plots/ and one HTML page that needs nothing else.",
        epilog="example: python -m dpmpi report runs/demo runs/other --out comparison.html",
    )  # fmt: skip
    parser.add_argument("paths", nargs="*", type=Path, metavar="RUN_OR_SWEEP", help="a run or sweep directory")
    parser.add_argument("--figure", choices=("gamma",), help="instead of runs: what the weights of ldp-admm hide")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="(default: report.html in it; here, for several)")
    flags = parser.parse_args(argv)
    if flags.out is not None and flags.out.suffix != ".html":
        raise ConfigError(f"--out is the page's name and ends with .html, got {flags.out}")
    if bool(flags.paths) == bool(flags.figure):
        raise ConfigError("expected a run or sweep directory, or --figure gamma without one: name one of them")
    _say(write_figure(flags.out or Path("gamma.html")) if flags.figure else write_report(flags.paths, flags.out))
    return 0


def _sweep_lead(sweep: SweepResult) -> list[str]:
    index = sweep.index
    source = ", ".join(filter(None, (index["paper"], f"figure {index['figure']}" if index["figure"] else "")))
    total, where = len(index["runs"]), index["launcher"] or "loopback, all ranks in one process"
    facts = f"{sweep.done} of {total} runs, {index['ranks']} ranks, {index['repetitions']} repetitions, on {where}."
    if index["launcher"] is None:
        facts += " Loopback sends the bytes that MPI would; its seconds are those of one process."
    paragraphs = [page.paragraph(text) for text in index["text"].split("\n\n") if text]
    return [*([page.paragraph(source, "soft")] if source else []), *paragraphs, page.paragraph(facts, "soft")]


def _labels(runs: Sequence[Run]) -> list[str]:
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _title(runs: Sequence[Run], sweeps: Sequence[SweepResult]) -> str:
    if len(runs) == 1 and not sweeps:
        summary = runs[0].summary
        return f"{summary['algorithm']} on {summary['ranks']} ranks: {_labels(runs)[0]}"
    return f"{len(runs)} runs" if not sweeps else f"{len(sweeps)} sweeps" + (f" and {len(runs)} runs" if runs else "")


def _say(text: object, stream: Any = None) -> None:
    print(text, file=stream or sys.stdout, flush=True)
