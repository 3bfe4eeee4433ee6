"""Train: `mpirun -n RANKS python -m dpmpi.run ...`, or `--loopback N` in one process."""

from __future__ import annotations

import gc
import os

# One thread per rank: ranks are what fills the cores, and the bits of a product must not depend on how many there are.
# This must be said before numpy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[_name] = "1"

from dpmpi.runtime.signals import Signals

_signals = Signals()
if __name__ == "__main__":
    _signals.while_loading()
    gc.disable()  # what modules make stays: to search it for garbage is a tenth of loading them

import sys
from collections.abc import Sequence

from dpmpi.runtime.process import Attend, Wrap, train


def main(argv: Sequence[str] | None = None, wrap: Wrap | None = None, attend: Attend | None = None) -> int:
    """Run the command line; return the exit code, with the signal handlers as they were.

    `wrap` may put a transport of its own around the one that the run opens, and `attend` sees every job before it
    trains: for experiments.
    """
    signals = _signals if argv is None else Signals()
    with signals.restored():
        return train(sys.argv[1:] if argv is None else argv, signals, wrap, attend)


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    _code = main()
    _signals.after_the_end()
    gc.freeze()  # nor is it searched again at the end
    sys.exit(_code)
