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
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.algorithms.dda import DpDda
from dpmpi.commands.bench.rows import PLAIN, SIGMA, Stage, sparse_data
from dpmpi.core import Array
from dpmpi.errors import ConfigError
from dpmpi.network.graph import make_graph
from dpmpi.network.transport.mpi import MpiTransport, open_world

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


def measure(transport: MpiTransport, folder: Path) -> Array | None:
    """Return rows (m, degree, growth in bytes) of all ranks on the first one, None elsewhere."""
    rows = []
    for turn in range(2):  # the first brings what is made once: MPI's pools, modules
        for number, graph in enumerate(GRAPHS):
            for m in DIMENSIONS if turn else DIMENSIONS[:1]:
                rows.append(_growth(graph, m, folder / f"{turn}-{number}"))
                gc.collect()
    gathered = transport.gather(np.array(rows[len(GRAPHS) :]).reshape(-1), (0,))
    return None if gathered is None else gathered.reshape(-1, 3)


def _growth(graph: str, dimension: int, folder: Path) -> tuple[float, float, float]:
    """Run a few rounds; return (m, degree, growth less the shard)."""
    folder.mkdir(exist_ok=True)
    before = resident_bytes()
    transport = open_world()
    data = sparse_data(transport.rank, dimension, 0.0)
    run = Stage(transport, dimension, folder).rounds("memory", DpDda(), data, PLAIN, SIGMA, graph)
    run(3)
    transport.close()
    transport.barrier()
    growth = resident_bytes() - before - data.rows.nbytes
    del run  # until here, or it would not count
    degree = make_graph(graph, transport.size, 0).degrees[transport.rank]
    return float(dimension), float(degree), float(growth)


def fit(rows: Array) -> dict[str, Any]:
    """Return a, b, c of (1), the largest error of the fit as a share of what was measured, and over what it is."""
    m, degree, growth = rows.T
    design = np.stack((8 * m, 8 * m * degree, np.ones_like(m)), axis=1)
    (a, b, c), *_ = np.linalg.lstsq(design, growth, rcond=None)
    error = np.abs(design @ (a, b, c) - growth) / growth
    found = {"a": float(a), "b": float(b), "c_bytes": float(c), "largest_error": float(error.max())}
    return found | {"dimensions": np.unique(m).astype(int).tolist(), "degrees": np.unique(degree).astype(int).tolist()}
