"""Starts mpirun for a test, with a time limit, and leaves no process behind: a wrapper around dpmpi's own launcher."""

import os
import re
import shutil
import sys
import time
from pathlib import Path

from dpmpi.network import launcher
from dpmpi.network.launcher import Launcher, OutOfTime

MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")


USUAL = ("--algorithm", "dp-dda", "--intercept", "none")
"""One message a round, of as many numbers as there are features: what a run is started with that names no method."""


def usual(arguments):
    """Return the flags of a run, `USUAL` first unless they name a method, a file or a run."""
    words = list(map(str, arguments))
    named = any(word.startswith(("--algorithm", "--config", "--resume", "--help")) for word in words)
    return words if named else [*USUAL, *words]


def start(ranks, *arguments, program=("-m", "dpmpi.run"), ulfm=False):
    """Start `mpirun -n ranks python -m dpmpi.run arguments` in a process group of its own."""
    given = usual(arguments) if tuple(program) == ("-m", "dpmpi.run") else map(str, arguments)
    words = [sys.executable, *map(str, program), *given]
    return Launcher.make(tolerant=ulfm).start(ranks, words, {"PYTHONUNBUFFERED": "1"})


def finish(process, limit):
    """Wait for the end; after `limit` seconds end the whole group and fail."""
    try:
        return launcher.finish(process, limit)
    except OutOfTime as error:
        raise AssertionError(f"not finished after {limit} s\n{error.out}\n{error.err}") from None


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


def process_of(marker, rank):
    """The process of a rank, among those that have `marker` on their command line."""
    for pid in survivors(marker):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if re.search(rb"(^|\0)(OMPI_COMM_WORLD_RANK|PMI_RANK)=%d\0" % rank, environment):
            return pid
    raise AssertionError(f"no process of rank {rank}")
