"""A launcher of one MPI and an mpi4py of another: every process would be alone, and all would write to one folder."""

import sys
from pathlib import Path

import needs
from launcher import MPIRUN
from parties import python

from dpmpi.network.launcher import Launcher

FLAGS = ("--data", "synthetic:samples=60,features=3", "--rounds", "5", "--epsilon", "1")


@needs.open_mpi()
def test_mpiexec_of_mpich_and_python_of_open_mpi(tmp_path):
    mpiexec = Path(python()).with_name("mpiexec")
    program = [sys.executable, "-m", "dpmpi.run", *FLAGS, "--out", str(tmp_path / "run")]
    done = Launcher(f"{mpiexec} -n {{ranks}}").run(3, program, limit=90)
    assert done.code == 2
    assert done.own_lines() == [
        "dpmpi: expected 3 ranks, found 3 processes that each are alone: mpiexec of MPICH started a mpi4py of Open "
        f"MPI; start it with {Path(sys.executable).with_name('mpirun')}, of the same environment"
    ]
    assert "RuntimeWarning" not in done.err
    assert not (tmp_path / "run").exists()


@needs.open_mpi()
def test_mpirun_of_open_mpi_and_python_of_mpich(tmp_path):
    """MPICH itself ends before Python is asked; an older one leaves its processes alone, and we say so."""
    program = [python(), "-m", "dpmpi.run", *FLAGS, "--out", str(tmp_path / "run")]
    done = Launcher(f"{MPIRUN} -n {{ranks}}").run(2, program, limit=90)
    assert done.code != 0
    assert "unsupported PMI version PMIx" in done.err or "mpirun of Open MPI started a mpi4py of MPICH" in done.err
    assert not (tmp_path / "run").exists()
