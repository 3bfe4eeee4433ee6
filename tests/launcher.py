"""Starts mpirun for a test, with a time limit, and leaves no process behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")


@dataclass
class Finished:
    code: int
    out: str
    err: str
    seconds: float

    def own_lines(self):
        """What dpmpi itself wrote to stderr; launchers add text of their own when a rank fails."""
        return [line for line in self.err.splitlines() if line.startswith("dpmpi:")]


def start(ranks, *arguments, program=("-m", "dpmpi.run")):
    """Start `mpirun -n ranks python -m dpmpi.run arguments` in a process group of its own."""
    command = [MPIRUN, "-n", str(ranks), sys.executable, *program, *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def finish(process, limit):
    """Wait for the end; after `limit` seconds kill the whole group and fail."""
    begin = time.monotonic()
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"not finished after {limit} s\n{out}\n{err}") from None
    return Finished(process.returncode, out, err, time.monotonic() - begin)


def mpirun(ranks, *arguments, limit=120, program=("-m", "dpmpi.run")):
    return finish(start(ranks, *arguments, program=program), limit)


def survivors(marker):
    """The processes that have `marker`, a path of this test, on their command line."""
    alive = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(marker).encode() in command:
                alive.append(int(entry.name))
    return alive


def wait_until(holds, seconds):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
