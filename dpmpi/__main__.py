"""`dpmpi COMMAND ...`, or `python -m dpmpi COMMAND ...`."""

import os
import sys

# See dpmpi.run: one thread per rank, said before numpy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[_name] = "1"

from dpmpi.commands.dispatch import main

if __name__ == "__main__":
    sys.exit(main())
