"""Run a family of runs, one after the other: `python -m dpmpi sweep FILE.toml`.

    OUT/NAME/SERIES/GRID-POINT/rep-0   the run directories (no GRID-POINT without a grid)
    OUT/NAME/sweep.json                what the sweep is, and how each of its runs stands

A run is done when its directory holds the summary of a run with the same settings and as many ranks; it is then not run
again, so the same command goes on where it was interrupted. Each run is a process of its own: on loopback, or under the
launcher that is given.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpmpi.commands.sweep.file import Sweep, read_sweep
from dpmpi.commands.sweep.runs import SweepRun, make_runs
from dpmpi.core.files import write_file
from dpmpi.errors import INTERRUPTED, ConfigError, DpmpiError, interrupt, nearest
from dpmpi.network.launcher import Launcher
from dpmpi.runtime.flag_parser import Parser
from dpmpi.runtime.flags import from_values
from dpmpi.runtime.output.console import say
from dpmpi.runtime.output.progress import RunsLine
from dpmpi.runtime.output.results import read_sweep_directory, text_table


def is_done(path: Path, run: SweepRun, ranks: int) -> bool:
    """Return whether a directory holds the finished result of this very run."""
    try:
        found = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        known = {found.get("asked"), from_values({"config": path / "config.toml"}).digest()}
        return bool(found["ranks"] == ranks and run.config.digest() in known)
    except (OSError, ValueError, KeyError, TypeError, DpmpiError):
        return False


def execute(run: SweepRun, ranks: int, launcher: Launcher | None, out: Path) -> str | None:
    """Make a run, in one process without a launcher; return None, or one line that says why it failed."""
    where = f"--loopback={ranks}" if launcher is None else f"--ranks={ranks}"
    program = [sys.executable, "-m", "dpmpi.run", *run.flags, f"--out={out}", where]
    done = (launcher or Launcher("")).run(ranks, program)
    return None if done.code == 0 else done.complaint


def write_index(directory: Path, sweep: Sweep, runs: Sequence[SweepRun], how: dict[str, Any]) -> None:
    """Write sweep.json."""
    columns = ("series", "grid", "repetition", "path", "state", "error")
    index = {"name": sweep.name, **sweep.about, "ranks": sweep.ranks, "repetitions": sweep.repetitions} | {
        "repeat": {"seed": "advance" if sweep.advance_seed else "keep"},
        "series": [{"name": one.name, "label": one.label, "without": one.without} for one in sweep.series],
        "grid": sweep.grid,
        "plots": [asdict(plot) for plot in sweep.plots],
        **how,
        "runs": [{name: getattr(run, name) for name in columns} for run in runs],
    }
    write_file(directory / "sweep.json", json.dumps(index, indent=1, allow_nan=False) + "\n")


def run_sweep(sweep: Sweep, runs: Sequence[SweepRun], only: Sequence[str], out: Path, how: dict[str, Any]) -> int:
    """Run what is not done yet, of all series or only some; return the exit code. `how` goes to the index."""
    launcher, directory = None if how["launcher"] is None else Launcher.make(how["launcher"]), out / sweep.name
    for run in runs:
        if is_done(directory / run.path, run, sweep.ranks):
            run.state = "done"
    chosen = [run for run in runs if not only or run.series in only]
    missing = [run for run in chosen if run.state != "done"]
    try:
        write_index(directory, sweep, runs, how)
    except OSError as error:
        raise ConfigError(f"cannot write to {directory}: {error.strerror}; give another --out") from error
    if len(missing) < len(chosen):
        say(f"{len(chosen) - len(missing)} of {len(chosen)} runs are done already", sys.stderr)
    try:
        with closing(RunsLine(len(missing))) as line:
            for run in missing:
                path = directory / run.path
                line.begins(run.path)
                path.parent.mkdir(parents=True, exist_ok=True)
                run.error = execute(run, sweep.ranks, launcher, path)
                if run.error is None and not is_done(path, run, sweep.ranks):
                    run.error = f"it left no result of its own in {path}"
                run.state = "done" if run.error is None else "failed"
                write_index(directory, sweep, runs, how)
                line.ended(run.path, run.error)
    except KeyboardInterrupt:
        done = sum(run.state == "done" for run in chosen)
        say(f"dpmpi: interrupted, {done} of {len(chosen)} runs are done: the same command goes on", sys.stderr)
        return INTERRUPTED
    say(text_table(read_sweep_directory(directory)))
    failed = [run for run in chosen if run.state == "failed"]
    for why, count in Counter(run.error for run in failed).items():
        say(f"failed: {count} of {len(chosen)} runs: {why}", sys.stderr)
    say(f"\n{directory}; python -m dpmpi report {directory} draws the figures")
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    text = "Run a family of runs, one after the other; the same command goes on where it was interrupted."
    example = "example: python -m dpmpi sweep docs/experiments/NAME.toml --quick"
    parser = Parser("python -m dpmpi sweep", description=text, epilog=example, allow_abbrev=False)
    add = parser.add_argument
    add("file", type=Path, help="the sweep file, see docs/experiments/README.md")
    add("--quick", action="store_true", help="with the file's [quick] settings, into NAME-quick")
    add("--out", type=Path, default=Path("runs/sweeps"), metavar="DIR", help="(default: runs/sweeps)")
    add("--launcher", metavar="COMMAND", help="'mpirun -n {ranks}' (default: all ranks in one process)")
    add("--only", action="append", default=[], metavar="NAME", help="only this series; may be repeated")
    add("--repeat", type=int, metavar="N", help="N repetitions, instead of the file's")
    flags = parser.parse_args(argv)
    if flags.repeat is not None and flags.repeat < 1:
        raise ConfigError(f"expected at least 1 for --repeat, found {flags.repeat}")
    sweep = read_sweep(flags.file, quick=flags.quick, repeat=flags.repeat)
    names = [series.name for series in sweep.series]
    for name in flags.only:
        if name not in names:
            known = f"expected a series of {flags.file} ({', '.join(names)})"
            raise ConfigError(f"--only: {known}, found {name!r}{nearest(name, names)}")
    try:
        runs = make_runs(sweep)
    except ConfigError as error:
        raise ConfigError(f"{flags.file}: {error}") from None
    signal.signal(signal.SIGTERM, interrupt)
    how = {"file": str(flags.file), "quick": flags.quick, "launcher": flags.launcher}
    return run_sweep(sweep, runs, flags.only, flags.out, how)
