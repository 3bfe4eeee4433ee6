"""A rank that is killed when it begins to wait in an agreement of all ranks: dies_waiting.py RANK WHEN -- FLAGS.

WHEN counts these waits from 1; 0 kills nobody, and the first rank says how many there were.
"""

import os
import signal
import sys
from itertools import count

from dpmpi.network.mpi_collectives import MpiCollectives
from dpmpi.run import main

victim, when, flags = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:]
rank, waits, usual = int(os.environ["OMPI_COMM_WORLD_RANK"]), count(1), MpiCollectives._finish


def wait(self, request, what):
    if next(waits) == when and rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return usual(self, request, what)


MpiCollectives._finish = wait
code = main(flags)
if rank == 0:
    print("waits", next(waits) - 1, flush=True)
sys.exit(code)
