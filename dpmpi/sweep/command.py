"""Run a family of runs, one after the other: `python -m dpmpi sweep FILE.toml`.

    OUT/NAME/SERIES/GRID-POINT/rep-0   the run directories (no GRID-POINT without a grid)
    OUT/NAME/sweep.json                what the sweep is, and how each of its runs stands

A run is done when its directory holds the summary of a run with the same settings and as many ranks; it is then not run
again, so the same command goes on where it was interrupted. Each run is a process of its own: on loopback, or under the
launcher that is given.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpmpi.config import Parser, from_values
from dpmpi.errors import INTERRUPTED, ConfigError, DpmpiError, interrupt, nearest
from dpmpi.launched import complaint
from dpmpi.results import read_sweep_directory, text_table
from dpmpi.rundir import RunDirectory
from dpmpi.speech import say
from dpmpi.sweep.file import Sweep, read_sweep
from dpmpi.sweep.plan import PlannedRun, plan_runs

END_SECONDS = 20.0
"""How long an interrupted run may take to end before it is killed."""


@dataclass
class Standing:
    """How a run of the sweep stands: `waiting`, `done` or `failed`."""

    run: PlannedRun
    state: str = "waiting"
    error: str | None = None


def is_done(path: Path, run: PlannedRun, ranks: int) -> bool:
    """Return whether a directory holds the finished result of this very run."""
    try:
        found = json.loads((path / "summary.json").read_text(encoding="utf-8"))["ranks"]
        return bool(found == ranks and from_values({"config": path / "config.toml"}).digest() == run.config.digest())
    except (OSError, ValueError, KeyError, TypeError, DpmpiError):
        return False


def command_of(run: PlannedRun, ranks: int, launcher: str | None, out: Path) -> list[str]:
    """Return the command that makes a run."""
    program = [sys.executable, "-m", "dpmpi.run", *run.flags, f"--out={out}"]
    if launcher is None:
        return [*program, f"--loopback={ranks}"]
    return [*shlex.split(launcher.replace("{ranks}", str(ranks))), *program, f"--ranks={ranks}"]


def execute(command: Sequence[str]) -> str | None:
    """Run a command to its end; return None, or one line that says why it failed."""
    try:
        process = subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"cannot start {command[0]}: {error.strerror}; is the launcher installed?") from error
    try:
        _, said = process.communicate()
    except BaseException:
        process.send_signal(signal.SIGINT)  # a Ctrl-C has reached it already; a SIGTERM to us alone has not
        try:
            process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    if process.returncode == 0:
        return None
    return f"{complaint(said) or 'it said nothing'} (exit code {process.returncode})"


class Line:
    """One line that shows how many runs are done: tqdm on a terminal, plain lines elsewhere."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._begin = total, 0, time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm  # noqa: PLC0415 - only where there is somebody to look

            form = "{n_fmt}/{total_fmt} runs |{bar}| {elapsed}, {remaining} left{postfix}"
            self._bar = tqdm(total=total, dynamic_ncols=True, leave=False, bar_format=form)

    def begins(self, name: str) -> None:
        """Name the run that is under way."""
        if self._bar is not None:
            self._bar.set_postfix_str(name)

    def ended(self, name: str, error: str | None) -> None:
        """Count a run, and say what went wrong if something did."""
        self._done += 1
        seconds = time.monotonic() - self._begin
        left = seconds / self._done * (self._total - self._done)
        if self._bar is not None:
            if error is not None:
                self._bar.write(f"failed: {name}: {error}", file=sys.stderr)
            self._bar.update()
        elif error is not None:
            say(f"{self._done}/{self._total} runs  failed: {name}: {error}", sys.stderr)
        else:
            say(f"{self._done}/{self._total} runs  {seconds:.0f} s  {left:.0f} s left  {name}", sys.stderr)

    def close(self) -> None:
        """Leave the terminal's line."""
        if self._bar is not None:
            self._bar.close()


def write_index(directory: Path, sweep: Sweep, standings: Sequence[Standing], how: dict[str, Any] | None) -> None:
    """Write sweep.json."""
    index = {
        "name": sweep.name, "title": sweep.title, "paper": sweep.paper, "figure": sweep.figure, "text": sweep.text,
        "ranks": sweep.ranks, "repetitions": sweep.repetitions,
        "repeat": {"seed": "advance" if sweep.advance_seed else "keep"},
        "series": [{"name": one.name, "label": one.label, "without": one.without} for one in sweep.series],
        "grid": sweep.grid, "plots": [asdict(plot) for plot in sweep.plots], **(how or {}),
        "runs": [
            {
                "series": one.run.series, "grid": one.run.grid, "repetition": one.run.repetition, "path": one.run.path,
                "state": one.state, "error": one.error,
            }
            for one in standings
        ],
    }  # fmt: skip
    RunDirectory(directory).write_text("sweep.json", json.dumps(index, indent=1, allow_nan=False) + "\n")


def run_sweep(
    sweep: Sweep, runs: Sequence[PlannedRun], directory: Path, only: Sequence[str] = (), launcher: str | None = None,
    how: dict[str, Any] | None = None,
) -> int:  # fmt: skip
    """Run what is not done yet of the sweep, or only of some series; return the exit code. `how` goes to the index."""
    standings = [Standing(run) for run in runs]
    for one in standings:
        if is_done(directory / one.run.path, one.run, sweep.ranks):
            one.state = "done"
    chosen = [one for one in standings if not only or one.run.series in only]
    missing = [one for one in chosen if one.state != "done"]
    _make_directory(directory)
    write_index(directory, sweep, standings, how)
    if len(missing) < len(chosen):
        say(f"{len(chosen) - len(missing)} of {len(chosen)} runs are done already", sys.stderr)
    line = Line(len(missing))
    try:
        for one in missing:
            path = directory / one.run.path
            line.begins(one.run.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            one.error = execute(command_of(one.run, sweep.ranks, launcher, path))
            if one.error is None and not is_done(path, one.run, sweep.ranks):
                one.error = f"it left no result of its own in {path}"
            one.state = "done" if one.error is None else "failed"
            write_index(directory, sweep, standings, how)
            line.ended(one.run.path, one.error)
    except KeyboardInterrupt:
        line.close()
        done = sum(one.state == "done" for one in chosen)
        say(f"dpmpi: interrupted, {done} of {len(chosen)} runs are done: the same command goes on", sys.stderr)
        return INTERRUPTED
    finally:
        line.close()
    say(text_table(read_sweep_directory(directory)))
    failed = [one for one in chosen if one.state == "failed"]
    for error, count in Counter(one.error for one in failed).items():
        say(f"failed: {count} of {len(chosen)} runs: {error}", sys.stderr)
    say(f"\n{directory}; python -m dpmpi report {directory} draws the figures")
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = Parser(
        prog="python -m dpmpi sweep", allow_abbrev=False,
        description="Run a family of runs, one after the other; the same command goes on where it was interrupted.",
        epilog="example: python -m dpmpi sweep docs/experiments/NAME.toml --quick",
    )  # fmt: skip
    parser.add_argument("file", type=Path, help="the sweep file, see docs/experiments/README.md")
    parser.add_argument("--quick", action="store_true", help="with the file's [quick] settings, into NAME-quick")
    parser.add_argument("--out", type=Path, default=Path("runs/sweeps"), metavar="DIR", help="(default: runs/sweeps)")
    parser.add_argument("--launcher", metavar="COMMAND", help="'mpirun -n {ranks}' (default: all ranks in one process)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this series; may be repeated")
    parser.add_argument("--repeat", type=int, metavar="N", help="so many repetitions, instead of the file's")
    flags = parser.parse_args(argv)
    if flags.repeat is not None and flags.repeat < 1:
        raise ConfigError(f"--repeat must be at least 1, got {flags.repeat}")
    sweep = read_sweep(flags.file, quick=flags.quick, repeat=flags.repeat)
    names = [series.name for series in sweep.series]
    for name in flags.only:
        if name not in names:
            raise ConfigError(f"--only: no series {name!r}{nearest(name, names)}, {flags.file} has {', '.join(names)}")
    try:
        runs = plan_runs(sweep)
        shlex.split(flags.launcher or "")
    except ConfigError as error:
        raise ConfigError(f"{flags.file}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"--launcher is not a command: {error}, got {flags.launcher}") from None
    signal.signal(signal.SIGTERM, interrupt)
    how = {"file": str(flags.file), "quick": flags.quick, "launcher": flags.launcher}
    return run_sweep(sweep, runs, flags.out / sweep.name, flags.only, flags.launcher, how)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {path}: {error.strerror}") from error
