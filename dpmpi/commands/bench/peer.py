"""DISROPT's consensus, timed: run by the interpreter that has it, as the text of this file, so without dpmpi.

    mpirun -n N PYTHON -c TEXT DIMENSION SECONDS

It averages vectors of DIMENSION float64 on a ring with Metropolis weights, as the one of `rows.py` does. The first
rank writes one line of JSON: when the first round was through (seconds since 1970), and the seconds of a round, the
median of three times.
"""

import importlib
import json
import sys
import time

import numpy as np


def main(dimension: int, target: float) -> None:
    """Time rounds for about `target` seconds."""
    agents, algorithms = importlib.import_module("disropt.agents"), importlib.import_module("disropt.algorithms")
    comm = agents.Agent([], []).communicator.comm
    size, rank = comm.Get_size(), comm.Get_rank()
    near = sorted({(rank - 1) % size, (rank + 1) % size} - {rank})
    weight = 1.0 / (1 + len(near))  # Metropolis: everybody on a ring has the same degree
    agent = agents.Agent(list(near), list(near), in_weights=dict.fromkeys(near, weight))
    consensus = algorithms.Consensus(agent, np.full(dimension, float(rank)))

    def timed(count: int) -> float:
        comm.Barrier()
        begin = time.perf_counter()
        consensus.run(iterations=count)
        comm.Barrier()
        return (time.perf_counter() - begin) / count

    timed(1)
    there = time.time()
    count = int(comm.bcast(max(5, int(target / timed(10)))))
    seconds = sorted(timed(count) for _ in range(3))[1]
    if rank == 0:
        sys.stdout.write(json.dumps({"there": there, "round": seconds, "rounds": count}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
