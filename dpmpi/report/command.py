"""Figures and one self-contained page about runs or sweeps: `python -m dpmpi report RUN_OR_SWEEP [...]`.

A report is a list of sections (`dpmpi.report.sections`). Drawings and the numbers behind them (CSV) are also written to
`plots/` beside the page.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from dpmpi.config import Parser, shown
from dpmpi.errors import ConfigError, DataError, DpmpiError
from dpmpi.report import page
from dpmpi.report.charts import gamma_chart, plot_chart, runs_charts, utility_charts
from dpmpi.report.drawing import DARK, LIGHT
from dpmpi.report.headline import (
    results_of_groups,
    results_of_run,
    results_of_sweep,
    warnings_of_runs,
    warnings_of_sweep,
)
from dpmpi.report.page import Section
from dpmpi.report.plots import Plots, png_renderer
from dpmpi.report.sections import (
    chart_section,
    cost_sections,
    epsilon_section,
    repeat_section,
    settings_section,
    time_section,
    traffic_section,
    waits_section,
)
from dpmpi.results import Run, SweepResult, group_runs, read_run, read_sweep_directory
from dpmpi.speech import say
from dpmpi.sweep.file import Plot


def run_sections(runs: Sequence[Run], labels: Sequence[str], plots: Plots) -> tuple[list[str], list[Section]]:
    """Return everything about plain runs: what stands above the sections, and these."""
    groups = group_runs(runs, labels)
    lead = warnings_of_runs(groups)
    sections: list[Section | None] = []
    if len(runs) == 1:
        lead += results_of_run(runs[0])
    else:
        sections.append(results_of_groups(groups))
    sections += [chart_section(chart, plots) for chart in (*utility_charts(groups), *runs_charts(groups))]
    sections += [
        make(groups, plots) for make in (epsilon_section, traffic_section, time_section, waits_section)
    ]  # fmt: skip
    if len(groups) == 1:
        sections += cost_sections(groups[0], plots)
    sections.append(settings_section([group.runs[0] for group in groups], [group.label for group in groups]))
    commands = [_command(run, label) for run, label in zip(runs, labels, strict=True)]
    checks = [f"python -m dpmpi verify {shlex.quote(str(run.path))}" for run in runs]
    exact = all(run.summary["privacy"]["insecure_noise"] for run in runs)
    sections.append(repeat_section([*commands, *checks], exact=exact))
    return lead, [section for section in sections if section is not None]


def sweep_sections(sweep: SweepResult, plots: Plots) -> list[Section]:
    """Return everything about a sweep: the figures of its file, the results, the settings."""
    index, sections = sweep.index, []
    for position, table in enumerate(index["plots"]):
        plot = Plot(**table)
        sections.append(chart_section(plot_chart(sweep, plot, f"{index['name']}-{position + 1}"), plots))
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
    """Write the page about runs and sweeps, and its plots; return where. Raise `DataError` for damaged results."""
    try:
        return _write_report(paths, out)
    except (KeyError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        if isinstance(error, DpmpiError):
            raise
        where, why = ", ".join(map(str, paths)), shown(f"{type(error).__name__}: {error}")
        raise DataError(f"the results in {where} are damaged, or of another version ({why}): repeat the run") from error


def _write_report(paths: Sequence[Path], out: Path | None) -> Path:
    sweeps = [read_sweep_directory(path) for path in paths if (path / "sweep.json").is_file()]
    runs = [read_run(path) for path in paths if not (path / "sweep.json").is_file()]
    if out is None:
        out = paths[0] / "report.html" if len(paths) == 1 else Path("report.html")
    try:
        plots = _open_plots(out, "" if out.stem == "report" else f"{out.stem}-")
        sections: list[Section] = []
        lead: list[str] = []
        for sweep in sweeps:
            above, more = _sweep_lead(sweep), sweep_sections(sweep, plots)
            if len(sweeps) > 1 or runs:
                sections += [Section(sweep.index["title"], tuple(above)), *more]
            else:
                lead, sections = above, more
        if runs:
            above, more = run_sections(runs, _labels(runs), plots)
            if sweeps:
                sections += [Section(_title(runs, []), tuple(above))] if above else []
            else:
                lead = [page.paragraph(_about(runs[0]), "soft"), *above] if len(runs) == 1 else above
            sections += more
        title = sweeps[0].index["title"] if len(sweeps) == 1 and not runs else _title(runs, sweeps)
        out.write_text(page.page(title, lead, sections, LIGHT, DARK), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the report {out}: {error.strerror}") from error
    return out


def write_figure(out: Path) -> Path:
    """Write the page with the figure that needs no runs, `charts.gamma_chart`, and its plots; return where."""
    chart = gamma_chart()
    try:
        section = chart_section(chart, _open_plots(out, ""))
        named = Section("Against the width of the weights", section.pieces)
        out.write_text(page.page(chart.title, [], [named], LIGHT, DARK), encoding="utf-8")
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
    say(write_figure(flags.out or Path("gamma.html")) if flags.figure else write_report(flags.paths, flags.out))
    return 0


def _open_plots(out: Path, prefix: str) -> Plots:
    render, why_not = png_renderer()
    if why_not:
        say(f"dpmpi: {why_not}", sys.stderr)
    plots = Plots(out.parent / "plots", prefix, render)
    plots.folder.mkdir(parents=True, exist_ok=True)
    return plots


def _command(run: Run, label: str) -> str:
    ranks = run.summary.get("ranks_at_start") or run.summary["ranks"]
    config, out = shlex.quote(str(run.path / "config.toml")), shlex.quote(f"runs/again/{label.lstrip('/')}")
    launcher, flag = ("", f" --loopback {ranks}") if run.in_one_process else (f"mpirun -n {ranks} ", "")
    return f"{launcher}python -m dpmpi.run --config {config}{flag} --out {out}"


def _about(run: Run) -> str:
    summary = run.summary
    where = "loopback, all ranks in one process" if run.in_one_process else "MPI"
    return (
        f"{summary['algorithm']}, {summary['ranks']} ranks on the graph {summary['graph']['name']} "
        f"({summary['graph']['edges']} edges), {summary['rounds']:,} rounds, dimension {summary['dimension']:,}, "
        f"data {run.settings['data']}, {summary['secrecy']['exchange']} exchange, on {where}."
    )


def _sweep_lead(sweep: SweepResult) -> list[str]:
    index = sweep.index
    source = ", ".join(filter(None, (index["paper"], f"figure {index['figure']}" if index["figure"] else "")))
    total, where = len(index["runs"]), index["launcher"] or "loopback, all ranks in one process"
    many = "one repetition" if index["repetitions"] == 1 else f"{index['repetitions']} repetitions"
    facts = f"{sweep.done} of {total} runs, {index['ranks']} ranks, {many}, on {where}."
    if index["launcher"] is None:
        facts += " Loopback sends the bytes that MPI would; its seconds are those of one process."
    paragraphs = [page.paragraph(text) for text in index["text"].split("\n\n") if text]
    paragraphs.append(page.paragraph(facts, "soft"))
    return [*([page.paragraph(source, "soft")] if source else []), *paragraphs, *warnings_of_sweep(sweep)]


def _labels(runs: Sequence[Run]) -> list[str]:
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _title(runs: Sequence[Run], sweeps: Sequence[SweepResult]) -> str:
    if len(runs) == 1 and not sweeps:
        summary = runs[0].summary
        return f"{summary['algorithm']} on {summary['ranks']} ranks: {_labels(runs)[0]}"
    return f"{len(runs)} runs" if not sweeps else f"{len(sweeps)} sweeps" + (f" and {len(runs)} runs" if runs else "")
