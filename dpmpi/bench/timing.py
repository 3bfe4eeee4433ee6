"""Rounds of several kinds, timed in turns, and the ratios between them."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from dpmpi.bench.rows import Many
from dpmpi.transport.mpi import MpiTransport

RATIOS: dict[str, tuple[str, ...]] = {
    "mix / bare exchange": ("mix", "bare exchange"),
    "dda / bare parts": ("dda", "bare exchange", "bare gradient"),
    "dp-dda / bare parts": ("dp-dda", "bare exchange", "bare gradient", "bare noise"),
    "sparse dp-dda / bare parts": ("sparse dp-dda", "bare exchange", "bare sparse gradient", "bare noise"),
    "sealed mix / mix": ("sealed mix", "mix"),
    "sealed mix / mix + AES-GCM": ("sealed mix", "mix + AES-GCM"),
    "sealed dp-dda / dp-dda": ("sealed dp-dda", "dp-dda"),
    "expanded sum / sum": ("expanded sum", "sum"),
    "full sum / sum": ("full sum", "sum"),
}
"""What dpmpi adds to the bare parts, and secrecy to plain messages: the first over the sum of the others."""


def measure(transport: MpiTransport, kinds: dict[str, Many], turns: int, target: float) -> dict[str, list[float]]:
    """Return the seconds of one round of each kind in each turn of about `target` seconds, the slowest rank's."""
    counts = {name: _rounds_for(transport, run, target) for name, run in kinds.items()}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(turns):
        for name in list(kinds) if turn % 2 == 0 else reversed(kinds):
            seconds[name].append(_timed(transport, kinds[name], counts[name]) / counts[name])
    return seconds


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    """Return those of `RATIOS` that can be formed."""
    return {
        name: seconds[top] / sum(seconds[part] for part in parts)
        for name, (top, *parts) in RATIOS.items()
        if {top, *parts} <= seconds.keys()
    }


def condense(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return the medians over the turns: of the seconds, and of the ratios within a turn."""
    turns = [dict(zip(seconds, values, strict=True)) for values in zip(*seconds.values(), strict=True)]
    each = [ratios(turn) for turn in turns]
    return {
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "ratios": {name: statistics.median(one[name] for one in each) for name in each[0]},
    }


def _timed(transport: MpiTransport, run: Many, count: int) -> float:
    """Return the seconds until the last rank is through."""
    transport.barrier()
    begin = time.perf_counter()
    run(count)
    transport.barrier()
    return time.perf_counter() - begin


def _rounds_for(transport: MpiTransport, run: Many, target: float) -> int:
    """Return how many rounds take about `target` seconds, the same number on every rank."""
    run(2)
    seconds = np.array([_timed(transport, run, 5) / 5])
    transport.total(seconds)
    return max(1, int(target * transport.size / seconds[0]))
