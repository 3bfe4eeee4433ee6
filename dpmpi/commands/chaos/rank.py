"""A rank to which something happens: `mpirun ... python -m dpmpi.commands.chaos.rank START.json -- flags of a run`.

It is a rank as any other, on a transport with faults (`dpmpi.commands.chaos.transport`).
"""

from __future__ import annotations

from dpmpi.run import main as run  # isort: skip - before numpy: it sets the number of threads

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dpmpi.commands.chaos.faults import Fault, Start
from dpmpi.commands.chaos.transport import Injector
from dpmpi.network.launcher import fault_tolerant, launched_as

WATCH_SECONDS = 0.05


def pause_from_beside(fault: Fault, start: Start) -> None:
    """Fork a process that stops this one for some seconds, again and again, until it is gone.

    At the end of each pause it writes down in which round each rank is.
    """
    rank = os.getpid()
    if os.fork():
        return
    os.closerange(0, 256)  # a launcher waits for those who hold its pipes
    records = start.records()
    try:
        while _alive(rank, WATCH_SECONDS):
            if records[fault.rank].round < fault.round:
                continue
            os.kill(rank, signal.SIGSTOP)
            records[fault.rank].fires()
            stayed = _alive(rank, fault.seconds)
            line = {str(name): record.round for name, record in records.items()}
            os.kill(rank, signal.SIGCONT)
            with start.pauses_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            if not stayed or not _alive(rank, fault.every - fault.seconds):
                break
    except ProcessLookupError:
        pass  # it ended meanwhile
    os._exit(0)


def _alive(parent: int, seconds: float) -> bool:
    """Sleep, and return whether the parent is still there; False as soon as it is not."""
    end = time.monotonic() + seconds
    while os.getppid() == parent:
        left = end - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, WATCH_SECONDS))
    return False


def main(argv: Sequence[str]) -> int:
    """Run a rank of a run, disturbed."""
    file, separator, *flags = argv
    assert separator == "--", argv  # noqa: S101 - `dpmpi.commands.chaos.start` writes this line
    start = Start.read(Path(file))
    name = start.names[launched_as(os.environ)[0]]
    own = [fault for fault in start.faults if fault.rank == name]
    injector = Injector(start.record(name), own)
    injector.record.tolerant = fault_tolerant(os.environ)
    for fault in own:
        if fault.kind == "stop":
            pause_from_beside(fault, start)
    return run(flags, wrap=injector.wrap, attend=injector.attend)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
