"""Heartbeats of a rank that computes: MPI sends and hears them only while somebody calls it.

Open MPI has a thread for that, which sends before all ranks can receive: those that cannot yet jump to address 0
(5.0.11, a third of the starts of 20 ranks on two cores). The one here starts when MPI has.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

SECONDS = 0.25
"""Between two looks; Open MPI's own period is 3 s, and a shorter one is worth little below a second."""
CALLS = 8
"""Open MPI looks at its timers in every eighth call."""

_over = threading.Event()
_threads: list[threading.Thread] = []


def start(call: Callable[[], object]) -> None:
    """Call MPI from a thread of its own now and then, until `stop` or the end of the process.

    MPI must have been initialised for calls from several threads at once.
    """

    def beat() -> None:
        while not _over.wait(SECONDS):
            for _ in range(CALLS):
                call()

    _threads.append(threading.Thread(target=beat, name="heartbeat", daemon=True))
    _threads[-1].start()
    atexit.register(stop)


def stop() -> None:
    """Return when no thread calls MPI any more, so that it can be finalised."""
    _over.set()
    for thread in _threads:
        thread.join()
