"""Starts the ranks of a run to which something is to happen, and sees to it that none is left behind."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpmpi.bench.launch import CROWDED, default_template, launch_command, start
from dpmpi.chaos.faults import Plan, Record, record_file
from dpmpi.launched import complaint

MARK = "DPMPI_CHAOS"
"""The variable by which the processes of a start are known, whatever group or session they put themselves in."""
LINGER_SECONDS = 5.0
"""How long after their launcher processes may take to end."""
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Ended:
    """How a start ended."""

    code: int | None
    """The launcher's exit code; None if it had to be killed."""
    gone: float
    """When its last process had ended, in seconds since 1970."""
    left: tuple[int, ...]
    """The processes that were there long after the launcher had ended."""
    said: tuple[str, ...]
    """The lines that dpmpi itself wrote to the terminal."""
    last_words: str = ""
    """The last of them; if there is none, what else stands there and says most."""
    killed: bool = False
    """Whether everything was killed on purpose."""


def tolerant_template() -> str:
    """Return the launcher of this interpreter's environment, with survivors that can go on (Open MPI 5)."""
    return default_template().replace("-n {ranks}", "--with-ft ulfm -n {ranks}")


def processes(mark: str) -> list[int]:
    """Return the processes that have the mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def kill_all(mark: str) -> None:
    """Kill every process with the mark; those that it starts meanwhile too."""
    while alive := processes(mark):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def launch(
    template: str, plan: Plan, file: Path, flags: Sequence[str], limit: float,
    kill_now: Callable[[float, int], bool] = lambda _seconds, _round: False,
) -> Ended:  # fmt: skip
    """Run a start of a run to its end, or until `kill_now(seconds since the start, the furthest round)`.

    What the ranks say goes to files beside the plan.
    """
    plan.write(file)
    mark, begin = secrets.token_hex(8), time.monotonic()
    program = [sys.executable, "-m", "dpmpi.chaos.rank", str(file), "--", *flags]
    command = launch_command(template, len(plan.names), program)
    # A launcher that is killed leaves its files behind, and a later one with its number would stumble over them.
    with tempfile.TemporaryDirectory(prefix="dpmpi-", ignore_cleanup_errors=True) as folder:
        environment = CROWDED | dict(os.environ) | {MARK: mark, "TMPDIR": folder}
        with file.with_suffix(".out").open("wb") as out, file.with_suffix(".err").open("wb") as err:
            process = start(command, environment, stdout=out, stderr=err)
        records = [Record(record_file(file, name)) for name in plan.names]
        try:
            killed = False
            while process.poll() is None and time.monotonic() - begin < limit and not killed:
                time.sleep(POLL_SECONDS)
                killed = kill_now(time.monotonic() - begin, max(record.round for record in records))
            code = process.poll()
            end = time.monotonic() + LINGER_SECONDS
            while code is not None and (left := processes(mark)) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
            gone = time.time()
            left = [] if code is None else processes(mark)
        finally:
            kill_all(mark)
            process.wait()
    told = file.with_suffix(".err").read_text(encoding="utf-8", errors="replace")
    said = tuple(line for line in told.splitlines() if line.startswith("dpmpi:"))
    return Ended(code, gone, tuple(left), said, said[-1] if said else complaint(told), killed)
