"""Waiting for messages: poll and yield the core, then nap, so that whoever computes gets it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

YIELDING_SECONDS = 100e-6
"""How long to yield the core between polls before napping.

Where no other rank wants the core, a yield takes no time, and a nap takes longer than most messages.
"""
POLLS, SUM_POLLS = 12, 400
"""How often to poll first, with nothing else in between than to yield the core; and in sums, in which everybody waits
for everybody: whoever naps holds up all others when it is its turn.
"""
SHORTEST_NAP, LONGEST_NAP = 25e-6, 1e-3
"""Seconds. Who only yields stays in the run queue and takes its share of the core from those who compute."""
SLOW_SHARE = 8
"""A wait of this fraction of the deadline is worth a word."""
SLACK = 10e-3
"""Seconds by which a nap of a patient rank may be longer: see `patient`."""
_TIMERS = Path("/proc/self/timerslack_ns")


def nap_until(ready: Callable[[], bool], deadline: float, slow: Callable[[], None] | None = None) -> bool:
    """Poll and yield, then nap, longer each time; return False if it is not ready by the deadline, in seconds.

    If it takes a good part of that, call `slow`, once.
    """
    begin, nap = time.monotonic(), SHORTEST_NAP
    while not ready():
        waited = time.monotonic() - begin
        if waited < YIELDING_SECONDS:
            os.sched_yield()
            continue
        if waited > deadline:
            return False
        if slow is not None and waited > deadline / SLOW_SHARE:
            slow()
            slow = None
        time.sleep(nap)
        nap = min(2 * nap, LONGEST_NAP)
    return True


@contextmanager
def patient() -> Iterator[None]:
    """Let the naps of this thread last longer meanwhile, on Linux.

    Open MPI's ranks wait for each other at the start in naps of 0.1 ms. A hundred on a core wake so often that they
    keep it from those they wait for: 200 ranks on two cores start in 27 s, and patient ones in 19 s. Threads that MPI
    starts here stay patient; they wait for messages, not for time.
    """
    changed = False
    with suppress(OSError):
        _TIMERS.write_text(f"{SLACK * 1e9:.0f}")
        changed = True
    try:
        yield
    finally:
        if changed:
            with suppress(OSError):
                _TIMERS.write_text("0")  # what it was
