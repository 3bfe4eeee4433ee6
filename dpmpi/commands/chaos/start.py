"""Start the ranks of a run to which something is to happen, and see to it that none is left behind."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from dpmpi.commands.chaos.faults import Start
from dpmpi.core.frozen import frozen
from dpmpi.network.launcher import Launcher, complaint, own_lines

MARK = "DPMPI_CHAOS"
"""The variable by which the processes of a start are known, whatever group or session they put themselves in."""
LINGER_SECONDS = 5.0
"""How long after their launcher processes may take to end."""
POLL_SECONDS = 0.01

Moment: TypeAlias = Callable[[float, int], bool]
"""Whether it is time, by the seconds since the start and the furthest round of a rank."""


@frozen
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


def run_start(
    launcher: Launcher, start: Start, flags: Sequence[str], limit: float, kill_now: Moment | None = None
) -> Ended:
    """Run a start of a run to its end, or until it is time to kill it; what its ranks say goes to files beside it."""
    start.write()
    mark, begin, file = secrets.token_hex(8), time.monotonic(), start.file
    program = [sys.executable, "-m", "dpmpi.commands.chaos.rank", str(file), "--", *flags]
    # A launcher that is killed leaves its files behind, and a later one with its number would stumble over them.
    with tempfile.TemporaryDirectory(prefix="dpmpi-", ignore_cleanup_errors=True) as folder:
        with file.with_suffix(".out").open("wb") as out, file.with_suffix(".err").open("wb") as err:
            process = launcher.start(len(start.names), program, {MARK: mark, "TMPDIR": folder}, (out, err))
        records = start.records().values()
        try:
            killed = False
            while process.poll() is None and time.monotonic() - begin < limit and not killed:
                time.sleep(POLL_SECONDS)
                furthest = max(record.round for record in records)
                killed = kill_now is not None and kill_now(time.monotonic() - begin, furthest)
            code = process.poll()
            end = time.monotonic() + LINGER_SECONDS
            while code is not None and processes(mark) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
            gone = time.time()
            left = [] if code is None else processes(mark)
        finally:
            kill_all(mark)
            process.wait()
    told = file.with_suffix(".err").read_text(encoding="utf-8", errors="replace")
    said = tuple(own_lines(told))
    return Ended(code, gone, tuple(left), said, said[-1] if said else complaint(told), killed)
