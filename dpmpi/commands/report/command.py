"""Figures and one self-contained page about runs or sweeps: `python -m dpmpi report RUN_OR_SWEEP [...]`.

A report is a list of sections (`sections.py`). Drawings and the numbers behind them (CSV) are also written to
`plots/` beside the page.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dpmpi.commands.report import charts, curious, headline, model, page, sections
from dpmpi.commands.report.drawing import Plots, need_matplotlib
from dpmpi.commands.report.page import Section
from dpmpi.commands.sweep.file import Plot
from dpmpi.errors import ConfigError, DataError, DpmpiError, shown
from dpmpi.runtime.flag_parser import Parser
from dpmpi.runtime.output.console import say
from dpmpi.runtime.output.results import Run, SweepResult, group_runs, read_run, read_sweep_directory


def run_sections(runs: Sequence[Run], plots: Plots, who: str | None = None) -> tuple[list[str], list[Section]]:
    """Return everything about plain runs: what stands above the parts, and these; `who` names curious ranks."""
    labels = _labels(runs)
    groups = group_runs(runs, labels)
    lead, parts = headline.warnings_of_runs(groups), []
    if len(runs) == 1:
        lead = [page.paragraph(_about(runs[0]), "soft"), *lead, *headline.results_of_run(runs[0])]
    else:
        parts.append(headline.results_of_groups(groups))
    parts += [sections.chart_section(chart, plots) for chart in charts.utility_charts(groups)]
    parts += sections.progress_sections(charts.runs_charts(groups), plots)
    parts += model.model_sections(groups[0].runs[0], plots) if len(groups) == 1 else []
    parts += sections.rank_sections(groups, plots)
    parts += curious.curious_sections(groups[0].runs[0], plots, who) if len(groups) == 1 else []
    parts += sections.cost_sections(groups[0], plots) if len(groups) == 1 else []
    parts.append(sections.settings_section({group.label: group.runs[0] for group in groups}))
    commands = [_command(run, label) for run, label in zip(runs, labels, strict=True)]
    commands += [f"python -m dpmpi verify {shlex.quote(str(run.path))}" for run in runs]
    exact = all(run.summary["privacy"]["insecure_noise"] for run in runs)
    return lead, [*parts, sections.repeat_section(commands, exact=exact)]


def sweep_sections(sweep: SweepResult, plots: Plots) -> tuple[list[str], list[Section]]:
    """Return everything about a sweep: what stands above, the figures of its file, the results, the settings."""
    index, parts = sweep.index, []
    for position, table in enumerate(index["plots"], 1):
        chart = charts.plot_chart(sweep, Plot(**table), f"{index['name']}-{position}")
        parts.append(sections.chart_section(chart, plots))
    parts.append(headline.results_of_sweep(sweep, plots))
    firsts: dict[str, Run] = {}
    for group in sweep.groups:
        if group.runs:
            firsts.setdefault(group.label, group.runs[0])
    parts.append(sections.settings_section(firsts, list(index["grid"])))
    command = ["python -m dpmpi sweep", shlex.quote(index["file"]), *(["--quick"] if index["quick"] else [])]
    command += ["--out", shlex.quote(str(sweep.path.parent)), "--repeat", str(index["repetitions"])]
    command += ["--launcher", shlex.quote(index["launcher"])] if index["launcher"] else []
    parts.append(sections.repeat_section([" ".join(command), f"python -m dpmpi report {shlex.quote(str(sweep.path))}"]))
    return _sweep_lead(sweep), parts


def write_report(paths: Sequence[Path], out: Path | None, who: str | None = None) -> Path:
    """Write the page about runs and sweeps, and its plots; return where. Raise `DataError` for damaged results."""
    try:
        return _write_report(paths, out, who)
    except DpmpiError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        where, why = ", ".join(map(str, paths)), shown(f"{type(error).__name__}: {error}")
        raise DataError(f"the results in {where} are damaged, or of another version ({why}): repeat the run") from error


def _write_report(paths: Sequence[Path], out: Path | None, who: str | None) -> Path:
    sweeps = [read_sweep_directory(path) for path in paths if (path / "sweep.json").is_file()]
    runs = [read_run(path) for path in paths if not (path / "sweep.json").is_file()]
    if out is None:
        out = paths[0] / "report.html" if len(paths) == 1 else Path("report.html")
    with _writing(out, "" if out.stem == "report" else f"{out.stem}-") as plots:
        chapters = [(sweep.index["title"], *sweep_sections(sweep, plots)) for sweep in sweeps]
        if runs:
            chapters.append((_title(runs), *run_sections(runs, plots, who)))
        if len(chapters) == 1:
            title, lead, parts = chapters[0]
        else:
            title, lead, parts = f"{len(sweeps)} sweeps" + (f" and {len(runs)} runs" if runs else ""), [], []
            for heading, above, more in chapters:
                parts += [*([Section(heading, "", tuple(above))] if above else []), *more]
        out.write_text(page.page(title, lead, parts), encoding="utf-8")
    return out


def write_figure(out: Path) -> Path:
    """Write the page with the figure that needs no runs, `charts.gamma_chart`, and its plots; return where."""
    chart = charts.gamma_chart()
    with _writing(out, "") as plots:
        named = replace(sections.chart_section(chart, plots), heading="Against the width of the weights")
        out.write_text(page.page(chart.title, [], [named]), encoding="utf-8")
    return out


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    example = "example: python -m dpmpi report runs/demo runs/other --out comparison.html"
    about = "Draw runs or sweeps: plots/ and one HTML page that needs nothing else."
    parser = Parser(prog="python -m dpmpi report", allow_abbrev=False, description=about, epilog=example)
    parser.add_argument("paths", nargs="*", type=Path, metavar="RUN_OR_SWEEP", help="a run or sweep directory")
    parser.add_argument("--figure", choices=("gamma",), help="instead of runs: what the weights of ldp-admm hide")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="(default: report.html in it; here, for several)")
    text = "of one run: what ranks 3 and 4 together learn of the others, beside every single rank"
    parser.add_argument("--curious", metavar="3,4", help=text)
    flags = parser.parse_args(argv)
    if flags.out is not None and flags.out.suffix != ".html":
        raise ConfigError(f"--out is the page's name and ends with .html, got {flags.out}")
    if bool(flags.paths) == bool(flags.figure):
        raise ConfigError("expected a run or sweep directory, or --figure gamma without one: name one of them")
    if flags.curious is not None and len(flags.paths) != 1:
        raise ConfigError(f"expected one run with --curious, found {len(flags.paths)} paths: name that run alone")
    say(
        write_figure(flags.out or Path("gamma.html"))
        if flags.figure
        else write_report(flags.paths, flags.out, flags.curious)
    )
    return 0


@contextmanager
def _writing(out: Path, prefix: str) -> Iterator[Plots]:
    need_matplotlib()
    try:
        (out.parent / "plots").mkdir(parents=True, exist_ok=True)
        yield Plots(out.parent / "plots", prefix)
    except OSError as error:
        raise ConfigError(f"cannot write the report {out}: {error.strerror}") from error


def _command(run: Run, label: str) -> str:
    ranks = run.summary.get("ranks_at_start") or run.summary["ranks"]
    config, out = shlex.quote(str(run.path / "config.toml")), shlex.quote(f"runs/again/{label.lstrip('/')}")
    if run.settings.get("data") == "arrays":
        return f"# {label}: run the Python program again that handed over its arrays, with the settings of {config}"
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
    said = [(source, "soft"), *((text, "") for text in index["text"].split("\n\n")), (facts, "soft")]
    return [*(page.paragraph(text, kind) for text, kind in said if text), *headline.warnings_of_sweep(sweep)]


def _labels(runs: Sequence[Run]) -> list[str]:
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _title(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs"
    return f"{runs[0].summary['algorithm']} on {runs[0].summary['ranks']} ranks: {_labels(runs)[0]}"
