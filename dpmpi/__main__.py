"""`dpmpi COMMAND ...`, or `python -m dpmpi COMMAND ...`."""

import os
import signal
import sys

RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""RANK_VARIABLES of dpmpi.network.launcher, which may not be loaded yet when they are asked for."""


def _end_now(_signal: int, _frame: object) -> None:
    """End in one line, said by the first rank: while modules load, Ctrl-C would be a traceback of theirs."""
    try:
        if all(os.environ.get(name, "0") == "0" for name in RANKS):
            os.write(2, b"dpmpi: interrupted\n")
    finally:
        os._exit(130)


_heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _heeds:
    signal.signal(signal.SIGINT, _end_now)

# See dpmpi.run: one thread per rank, said before numpy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[_name] = "1"

from dpmpi.commands.dispatch import main as dispatch
from dpmpi.errors import INTERRUPTED
from dpmpi.runtime.output.console import hush


def main() -> int:
    """Run a command of the command line; return the exit code, unless it was interrupted: then end with it.

    Python itself would end by SIGINT where the interrupt came through an `exec`, such as that of a dataclass.
    """
    code = dispatch(loaded=_listen)
    if _heeds:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # too late: there is nothing left to interrupt
    if code == INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                hush(stream)
        os._exit(code)
    return code


def _listen() -> None:
    """Let Ctrl-C interrupt the command, which is loaded now and ends what it has begun."""
    if _heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
