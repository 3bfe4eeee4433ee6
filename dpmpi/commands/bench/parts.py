"""Parts of a round that one process times alone, each next to the library call it is measured against.

noise      a coordinate of exact noise, and of PCG64's normals
sealing    a sealed message, and the library's AES-256-GCM
gradient   a full-batch gradient, and its two products in BLAS, or in scipy if the rows are sparse
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from timeit import timeit
from typing import Any, TypeAlias

import numpy as np

from dpmpi.commands.bench.rows import SIGMA, bare_gradient, condense, dense_data, sparse_data
from dpmpi.core import Array
from dpmpi.crypto.sealing_speed import sealing_seconds
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.rng import PrivateStream, fresh_key
from dpmpi.runtime.config import Config
from dpmpi.runtime.settings import Settings

PART_SECONDS = 0.05
"""How long a part runs at a time."""
Steps: TypeAlias = dict[str, Callable[[], Any]]


def alternate(steps: Steps, turns: int, seconds: float = PART_SECONDS) -> dict[str, Array]:
    """Return the seconds of one call of each step in each turn; the steps take turns."""
    repeats = {}
    for name, step in steps.items():
        step()
        repeats[name] = max(1, int(seconds / max(timeit(step, number=1), 1e-7)))
    found = [[timeit(step, number=repeats[name]) / repeats[name] for name, step in steps.items()] for _ in range(turns)]
    return dict(zip(steps, np.array(found).T, strict=True))


def alone(dimension: int, data_mb: float, turns: int) -> dict[str, Any]:
    """Return one process's seconds for gradients, noise and sealing."""
    return {
        "gradient": gradient(dimension, data_mb, turns),
        "noise_ns": noise(dimension, turns),
        "sealing_gb_per_second": sealing(dimension, turns),
    }


def noise(dimension: int, turns: int) -> dict[str, float]:
    """Return the nanoseconds of a coordinate of exact noise and of PCG64's normals."""
    exact, plain = make_mechanism("gaussian", SIGMA, fresh_key(), dimension), np.random.default_rng()
    buffer = np.zeros(dimension)
    steps: Steps = {"exact noise": lambda: exact.perturb(buffer)}
    steps["PCG64 normals"] = lambda: plain.standard_normal(out=buffer)
    return {name: float(np.median(taken)) / dimension * 1e9 for name, taken in alternate(steps, turns).items()}


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
        data = make(0, dimension, shard_mb)
        settings = Settings.of(Config(lipschitz=1.0, intercept="none"))
        problem = settings.problem(data.rows, data.labels, PrivateStream(bytes(32), "batch"))
        x = np.random.default_rng(1).standard_normal(dimension)
        steps: Steps = {"gradient": partial(problem.subgradient, x), "bare": bare_gradient(data)}
        found = condense(alternate(steps, turns), {"speed_of_bare": ("bare", "gradient")})
        seconds = {"seconds": found["seconds"]["gradient"], "bare_seconds": found["seconds"]["bare"]}
        result[name] = {**seconds, **found["ratios"], "shard_bytes": float(data.rows.nbytes)}
    return result
