"""What a rank's memory grows by when it trains, fitted over dimensions and degrees.

A rank of degree d with m features keeps, beside its shard,

    growth = (a + b d) 8 m + c   bytes                                                    (1)

a vectors of its own (state, noise drawn ahead, outgoing messages) and b for each neighbour. `measure` runs a few rounds
of dp-dda on graphs of several degrees and takes what the process's resident memory grew by, less the shard; `fit`
solves (1) in the sense of least squares.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpmpi.algorithms.dual_averaging import DualAveraging
from dpmpi.bench.rows import SIGMA, Stage, sparse_data
from dpmpi.core import Array
from dpmpi.errors import ConfigError
from dpmpi.transport.mpi import MpiTransport, open_world

DIMENSIONS = (50_000, 100_000, 200_000)
GRAPHS = ("ring", "star", "grid", "complete")
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Makes glibc give back what was freed, so that the next measurement does not find it still there."""
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM."""
    if not _STATM.exists():
        raise ConfigError("bench --memory reads /proc/self/statm, which this system does not have: use Linux")
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(transport: MpiTransport, dimensions: Sequence[int], folder: Path) -> Array | None:
    """Return rows (m, degree, growth in bytes) of all ranks on the first one, None elsewhere."""
    rows = []
    for turn in range(2):  # the first brings what is made once: MPI's pools, modules
        for number, graph in enumerate(GRAPHS):
            for m in dimensions if turn else dimensions[:1]:
                rows.append(_growth(graph, m, folder / f"{turn}-{number}"))
                gc.collect()
    measured = np.array(rows[len(GRAPHS) :])
    gathered = transport.gather(measured.reshape(-1))
    return None if gathered is None else gathered.reshape(-1, 3)


def _growth(graph: str, dimension: int, folder: Path) -> tuple[float, float, float]:
    """Run a few rounds; return (m, degree, growth less the shard)."""
    folder.mkdir(exist_ok=True)
    before = resident_bytes()
    transport = open_world()
    data = sparse_data(transport.rank, dimension, 0.0)
    stage = Stage(transport, graph, dimension, folder)
    run = stage.rounds("memory", DualAveraging(), data, sigma=SIGMA)
    run(3)
    transport.close()
    transport.barrier()
    growth = resident_bytes() - before - data.rows.nbytes
    del run  # until here, or it would not count
    return float(dimension), float(len(stage.schedule.neighbourhood(transport.rank).peers)), float(growth)


def fit(rows: Array) -> dict[str, float]:
    """Return a, b, c of (1), and the largest error of the fit as a share of what was measured."""
    m, degree, growth = rows.T
    design = np.stack((8 * m, 8 * m * degree, np.ones_like(m)), axis=1)
    (a, b, c), *_ = np.linalg.lstsq(design, growth, rcond=None)
    error = np.abs(design @ (a, b, c) - growth) / growth
    return {"a": float(a), "b": float(b), "c_bytes": float(c), "largest_error": float(error.max())}
