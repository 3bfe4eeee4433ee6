"""Parts of a round that one process times alone, each next to the library call it is measured against.

noise      a coordinate of exact noise, and of PCG64's normals
sealing    a sealed message, and the library's AES-256-GCM
gradient   a full-batch gradient, and its two products in BLAS, or in scipy if the rows are sparse
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dpmpi.bench.rows import SIGMA, Data, bare_gradient, dense_data, sparse_data
from dpmpi.core import Array
from dpmpi.crypto.speed import sealing_seconds
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.rng import fresh_key

PART_SECONDS = 0.05
"""How long a part runs at a time."""


def alternate(steps: dict[str, Callable[[], Any]], turns: int, seconds: float = PART_SECONDS) -> dict[str, Array]:
    """Return the seconds of one call of each step in each turn; the steps take turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    repeats = {}
    for name, step in steps.items():
        step()
        repeats[name] = max(1, int(seconds / max(_seconds(step, 1), 1e-7)))
    for _ in range(turns):
        for name, step in steps.items():
            found[name].append(_seconds(step, repeats[name]))
    return {name: np.array(values) for name, values in found.items()}


def noise(dimension: int, turns: int) -> dict[str, float]:
    """Return the nanoseconds of a coordinate of exact noise and of PCG64's normals."""
    exact, plain = make_mechanism("gaussian", SIGMA, fresh_key(), dimension), np.random.default_rng()
    buffer = np.zeros(dimension)
    found = alternate(
        {"exact noise": lambda: exact.perturb(buffer), "PCG64 normals": lambda: plain.standard_normal(out=buffer)},
        turns,
    )
    return {name: float(np.median(seconds)) / dimension * 1e9 for name, seconds in found.items()}


def sealing(dimension: int, turns: int) -> dict[str, float]:
    """Return the gigabytes a second of sealed messages and of the library's AES-GCM."""
    length = 8 * dimension
    ours, library = sealing_seconds(length, turns, repeats=max(20, 20_000_000 // (length + 4000)))
    return {"seal": length / ours / 1e9, "AESGCM alone": length / library / 1e9}


def gradient(dimension: int, shard_mb: float, turns: int) -> dict[str, dict[str, float]]:
    """Return for dense and for sparse rows the seconds of a gradient and of its products alone, and their ratio.

    The ratio is the median over the turns of bare seconds over ours: 1 is the speed of the library.
    """
    result = {}
    for name, make in (("dense", dense_data), ("sparse", sparse_data)):
        result[name] = _gradient(make(0, dimension, shard_mb), turns)
    return result


def _gradient(data: Data, turns: int) -> dict[str, float]:
    problem, x = data.problem(bytes(32)), np.random.default_rng(1).standard_normal(data.rows.dimension)
    found = alternate({"gradient": lambda: problem.subgradient(x), "bare": bare_gradient(data)}, turns)
    return {
        "seconds": float(np.median(found["gradient"])),
        "bare_seconds": float(np.median(found["bare"])),
        "speed_of_bare": float(np.median(found["bare"] / found["gradient"])),
        "shard_bytes": float(data.rows.nbytes),
    }


def _seconds(step: Callable[[], Any], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - begin) / repeats


def median_ratio(one: Array | list[float], other: Array | list[float]) -> float:
    """Return the median over the turns of one over the other."""
    return float(np.median(np.divide(one, other)))
