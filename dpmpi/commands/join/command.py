"""Start this party's ranks and let them join the others: `dpmpi join --rank 1 --of 3 --meet tcp://host:7000 ...`.

This process starts `mpiexec` of MPICH with this party's own ranks alone; they find the others by
`network/rendezvous.py`.
What they write is passed on, but for the frame that mpiexec draws around a rank that failed: the rank has said why.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TextIO

from dpmpi.commands.join.flags import Joining, parse
from dpmpi.errors import ConfigError
from dpmpi.network.launcher import PARTY_VARIABLE, Launcher, start
from dpmpi.runtime.output.console import say

FRAME = (
    "=",
    "YOUR APPLICATION TERMINATED",
    "This typically refers",
    "Please see the FAQ",
    "[mpiexec@",
    "[proxy:",
    "Press Ctrl-C",
)
"""How lines begin that mpiexec adds when a rank fails or is interrupted."""
LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"


def main(argv: Sequence[str]) -> int:
    """Run `dpmpi join`."""
    joining = parse(argv)
    for number in range(joining.ranks):
        joining.papers(number)  # what is wrong with keys and roster is said before anything is started
    _check_library()
    with TemporaryDirectory(prefix="dpmpi-join-") as folder:
        return _run(joining, argv, Path(folder))


def _check_library() -> None:
    """Raise `ConfigError` unless the MPI of this environment lets processes meet that were started apart."""
    done = Launcher("").run(1, [sys.executable, "-c", LIBRARY], limit=60)
    found = (done.out.splitlines() or ["none"])[0].partition(",")[0].strip() if done.code == 0 else "none"
    if not found.startswith(("MPICH", "Intel(R) MPI")):
        raise ConfigError(
            f"expected MPICH, which lets parties meet that started apart, found {found[:60]}: make an environment with "
            "pip install 'dpmpi[mpich]'"
        )


def environment_of(joining: Joining, folder: Path) -> dict[str, str]:
    """Return the environment variables of a party's ranks, without those that the user has set."""
    # Of MPICH's two networks, UCX crashes a survivor now and then when a party dies.
    wanted = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "HYDRA_LAUNCHER": "fork"}
    if joining.interface is not None:
        wanted["FI_TCP_IFACE"] = joining.interface
    if joining.ports is not None:
        wanted["FI_TCP_PORT_LOW_RANGE"], _, wanted["FI_TCP_PORT_HIGH_RANGE"] = joining.ports.partition("-")
    found = {name: value for name, value in wanted.items() if name not in os.environ}
    return found | {PARTY_VARIABLE: f"{joining.rank} of {joining.of}", "DPMPI_JOIN": str(folder)}


def _run(joining: Joining, argv: Sequence[str], folder: Path) -> int:
    """Start the ranks, pass on what they say and what this process is told, and return their exit code."""
    import subprocess  # noqa: PLC0415 - slow, and refused starts do not need it

    beside = Path(sys.executable).with_name("mpiexec")
    launcher = str(beside) if beside.exists() else "mpiexec"
    command = [launcher, "-n", str(joining.ranks), sys.executable, "-m", "dpmpi.commands.join.rank", *argv]
    process = start(command, environment_of(joining, folder), (subprocess.PIPE, subprocess.PIPE))

    def pass_on(number: int, _: FrameType | None) -> None:
        for file in folder.glob("*.pid"):
            try:
                os.kill(int(file.name.removesuffix(".pid")), number)
            except (OSError, ValueError):
                continue

    before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)}
    try:
        pairs = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        threads = [threading.Thread(target=_copy, args=pair, daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        code = process.wait()
        for thread in threads:
            thread.join(5)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
    return 128 - code if code < 0 else code


def _copy(source: TextIO, target: TextIO) -> None:
    """Copy lines, without those that mpiexec adds."""
    for line in source:
        if line.strip() and not line.startswith(FRAME):
            say(line.rstrip("\n"), target)
