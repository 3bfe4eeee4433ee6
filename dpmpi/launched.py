"""What the launcher and the host say of this process or a launch, and what Open MPI is told before it starts."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE")
LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
LAUNCHERS = ("mpirun", "mpiexec", "prterun", "prted")
BRIEF_BYTES = 1 << 15
"""Up to this length a message gets through while its sender computes."""


def launched_as(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return (rank, size) that the launcher announced, without initialising MPI; (0, 1) if there was none."""

    def first(names: Sequence[str], default: int) -> int:
        return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), default)

    return first(RANK_VARIABLES, 0), first(SIZE_VARIABLES, 1)


def first_on_host(environment: Mapping[str, str]) -> bool:
    """Return whether this is the first of the launcher's ranks on this host; so is one that it says nothing of."""
    return next((environment[name] == "0" for name in LOCAL_RANK_VARIABLES if environment.get(name)), True)


def complaint(said: str) -> str:
    """Return the line of a failed launch's standard error that says most; nothing if there is none.

    Ours, else Python's, else the launcher's first, without the frame of dashes that mpirun draws.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip(" -\t")]
    own = [line.removeprefix("dpmpi: ") for line in lines if line.startswith("dpmpi:")]
    return next(iter(own or [line for line in lines if "Error" in line] or lines), "")


def launcher_process() -> int | None:
    """Return the process that started this one and can end all ranks: mpirun, or its daemon on this host."""
    pid = os.getppid()
    while pid > 1:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:
            return None
        if name.partition("(")[2] in LAUNCHERS:
            return pid
        pid = int(rest.split()[1])
    return None


def process_age() -> float:
    """Return the seconds since this process was started; 0 where the system does not say."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        started = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, LookupError, AttributeError):
        return 0.0


def local_ranks(environment: Mapping[str, str]) -> int:
    """Return how many ranks the launcher put on this host; 1 if it does not say."""
    for name in LOCAL_SIZE_VARIABLES:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return 1


def usable_cores() -> int:
    """Return the cores this host gives to all its ranks together. A rank bound to one core sees the others too."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return bound if bound > 1 else os.cpu_count() or 1


def fault_tolerant(environment: Mapping[str, str]) -> bool:
    """Return whether this MPI was started such that the survivors of a death can go on (Open MPI's ULFM)."""
    return _on(environment, "mpi_ft_enable")


def heartbeats(environment: Mapping[str, str]) -> bool:
    """Return whether this MPI takes a rank for dead of which it hears nothing for some seconds."""
    return fault_tolerant(environment) and _on(environment, "mpi_ft_detector")


def _on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(f"OMPI_MCA_{name}", "0") not in ("", "0", "false")


def advice(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what Open MPI should be told before it starts, unless the user has told it otherwise."""
    here, size = local_ranks(environment), launched_as(environment)[1]
    told = {"btl_sm_eager_limit": str(BRIEF_BYTES)}  # through memory that ranks share, without a word of the receiver
    if here > usable_cores():
        # A rank that polls without yielding keeps the core from the rank it waits for: measured, a round of 20 ranks on
        # 2 cores takes 100 ms instead of 2.
        told["mpi_yield_when_idle"] = "1"
    if here == size:  # all on one host, where memory is the network: 20 ranks that look for others take a second
        told |= {"pml": "ob1", "btl": "^ofi,uct"}
    if fault_tolerant(environment):  # else survivors of a death may wait for the dead when they finalise
        told["async_mpi_finalize"] = "1"
        if here < size:
            # A silent host is missed by its heartbeats: see dpmpi/heartbeat.py.
            told |= {"mpi_ft_detector": "1", "mpi_ft_propagator_with_rbcast": "1"}
            told["mpi_add_procs_cutoff"] = "1000000"  # else a survivor asks a lost host who is who
    return {f"OMPI_MCA_{name}": value for name, value in told.items()}
