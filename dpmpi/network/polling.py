"""Waiting for messages: poll and yield the core, then nap, so that whoever computes gets it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

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
