"""Starts ranks for the bench: mpirun with a time limit, and no process left behind.

What is measured here needs a new start for every figure: how long ranks take to get going, a peer's consensus, and a
crowd of ranks that get through a run at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from dpmpi.bench import peer as bench_peer
from dpmpi.errors import ConfigError
from dpmpi.launched import complaint, usable_cores

GRACE_SECONDS = 5.0
CROWDED = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
}  # fmt: skip
"""More ranks than cores are asked for on purpose: what Open MPI 5 and 4 need to be told."""
_BARRIER = "import time, numpy; from mpi4py import MPI; c = MPI.COMM_WORLD; c.Barrier(); c.rank or print(time.time())"


def launch_command(template: str, ranks: int, program: Sequence[str]) -> list[str]:
    """Return the words of the command that starts so many ranks of a program, by a template like `Launcher`'s."""
    return [*(word.replace("{ranks}", str(ranks)) for word in shlex.split(template)), *program]


def start(command: Sequence[str], environment: Mapping[str, str], **streams: Any) -> subprocess.Popen[Any]:
    """Start a launcher in a session of its own; raise `ConfigError` if it is not there."""
    try:
        return subprocess.Popen(  # noqa: S603 - the user's own launcher
            command, stdin=subprocess.DEVNULL, start_new_session=True, env=environment, **streams
        )
    except OSError as error:
        raise ConfigError(f"expected a launcher, cannot start {command[0]}: {error.strerror} (--launcher)") from None


@dataclass(frozen=True)
class Launcher:
    """How ranks are started, and how long they may take."""

    template: str
    """Such as `mpirun -n {ranks}`."""
    limit: float
    """Seconds."""
    say: Callable[[str], None]
    """Takes one line of progress."""

    def command(self, ranks: int, program: Sequence[str]) -> list[str]:
        """Return the words of the command that starts so many ranks of a program."""
        return launch_command(self.template, ranks, program)

    def run(self, ranks: int, program: Sequence[str], more: Mapping[str, str] | None = None) -> str:
        """Run the ranks to their end; return what they wrote. Raise `ConfigError` if they fail or take too long."""
        environment = CROWDED | dict(os.environ) | {"OPENBLAS_NUM_THREADS": "1"} | dict(more or {})
        if ranks > usable_cores():  # dpmpi tells Open MPI itself; a peer is to have it as good
            environment.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
        command = self.command(ranks, program)
        process: subprocess.Popen[str] = start(
            command, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            with _terminated_as_interrupted():
                out, err = process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"{ranks} ranks took longer than {self.limit:g} s: raise --limit") from None
        finally:
            end(process)
        if process.returncode:
            told = complaint(err) or f"exit code {process.returncode}"
            raise ConfigError(f"{shlex.join(command[:3])} ... failed: {told}")
        return out

    def version(self) -> str:
        """Return what the launcher calls itself; its name if it does not say."""
        program = self.command(2, [])[0]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(  # noqa: S603 - the user's own launcher
                [program, "--version"], check=False, capture_output=True, text=True, timeout=20
            )
            told = done.stdout.strip().splitlines()
            if told:
                return told[0]
        return Path(program).name

    def bench(self, ranks: int, *flags: str, more: Mapping[str, str] | None = None) -> Any:
        """Run `python -m dpmpi bench` with these flags under the launcher; return its figures."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "bench.json")
            self.run(ranks, [sys.executable, "-m", "dpmpi", "bench", *flags, "--json", str(path)], more)
            return json.loads(path.read_text(encoding="utf-8"))

    def rounds(self, ranks: int, dimension: int, *flags: str) -> Any:
        """Return the seconds and ratios of the rounds of so many ranks in one dimension."""
        found = self.bench(ranks, "--dimensions", str(dimension), "--no-parts", *flags)
        return found["runs"][0]["dimensions"][str(dimension)]


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that the ranks are ended too."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end(process: subprocess.Popen[str]) -> None:
    """End a process and its group: a launcher that is asked takes its ranks down; one that is deaf is killed."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, None)):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=seconds)


def default_template() -> str:
    """Return the launcher of this interpreter's environment, or else of the path."""
    beside = Path(sys.executable).with_name("mpirun")
    return f"{shlex.quote(str(beside)) if beside.exists() else 'mpirun'} -n {{ranks}}"


def start_bare(launcher: Launcher, ranks: int) -> float:
    """Return the seconds from the launcher to a barrier of ranks that import mpi4py and numpy alone."""
    begin = time.time()
    return float(launcher.run(ranks, [sys.executable, "-c", _BARRIER])) - begin


def start_run(launcher: Launcher, ranks: int) -> float:
    """Return the seconds from the launcher to the end of the first round of a run."""
    summary, begin = _run(launcher, ranks, "--rounds", "1", "--data", "synthetic:samples=2000,features=20")
    return float(summary["started"] + summary["wall_seconds"] - begin)


def startup(launcher: Launcher, ranks: int, turns: int) -> dict[str, Any]:
    """Return the seconds from mpirun to a barrier of bare ranks and to the first round of a run, and their ratio."""
    found: dict[str, list[float]] = {"bare ranks": [], "dpmpi": []}
    for turn in range(turns + 1):
        launcher.say(f"start of {ranks} ranks, turn {turn} of {turns}")
        pair = start_bare(launcher, ranks), start_run(launcher, ranks)
        if turn:  # the first fills the file cache
            for name, value in zip(found, pair, strict=True):
                found[name].append(value)
    seconds = {name: statistics.median(values) for name, values in found.items()}
    ratio = statistics.median(a / b for a, b in zip(found["dpmpi"], found["bare ranks"], strict=True))
    return {"ranks": ranks, "seconds": seconds, "ratio": ratio}


def crowd(launcher: Launcher, ranks: int, rounds: int = 1000) -> dict[str, Any]:
    """Return how long so many ranks take for a run of dp-dda on the ring with 50 features."""
    data = f"synthetic:samples={40 * ranks},features=50"
    summary, begin = _run(launcher, ranks, "--rounds", str(rounds), "--data", data, "--noise", "0.1")
    return {
        "ranks": ranks, "rounds": rounds, "dimension": 50, "startup_seconds": summary["started"] - begin,
        "wall_seconds": summary["wall_seconds"], "rounds_per_second": summary["rounds_per_second"],
    }  # fmt: skip


def consensus_of_peer(
    launcher: Launcher, python: str, ranks: int, dimension: int, seconds: float = 0.25
) -> tuple[float, float]:
    """Return of DISROPT the seconds from the launcher to the end of its first round, and those of a round."""
    text, begin = Path(bench_peer.__file__).read_text(encoding="utf-8"), time.time()
    told = launcher.run(ranks, [python, "-c", text, str(dimension), str(seconds)])
    found = json.loads(told.strip().splitlines()[-1])
    return found["there"] - begin, found["round"]


def _run(launcher: Launcher, ranks: int, *flags: str) -> tuple[dict[str, Any], float]:
    """Return the summary of a run of dp-dda on the ring, and when it was launched."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        program = [sys.executable, "-m", "dpmpi.run", "--algorithm", "dp-dda", "--graph", "ring", "--no-evaluate"]
        begin = time.time()
        launcher.run(ranks, [*program, *flags, "--out", str(out)])
        return json.loads((out / "summary.json").read_text(encoding="utf-8")), begin
