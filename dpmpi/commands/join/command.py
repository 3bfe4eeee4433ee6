"""Start this party's ranks and let them join the others: `dpmpi join --rank 1 --of 3 --meet tcp://host:7000 ...`.

This process starts `mpiexec` of MPICH with this party's own ranks alone; they find the others by
`network/rendezvous`. What they write is passed on, but for the frame that mpiexec draws around a
rank that failed: the rank has said why.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from dpmpi.commands.join.flags import Joining, parse
from dpmpi.errors import ConfigError
from dpmpi.network.launcher import PARTY_VARIABLE, Launcher, start
from dpmpi.runtime.output.console import say
from dpmpi.runtime.settings import Settings

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
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
STACK = re.compile(r"(?:Abort\(\d+\)|\w+\(\d+\)\.*): ?(.*)")
"""A line of what MPICH says when it fails; the last one has the reason."""
LISTEN_SECONDS = 0.2
"""How late a signal may be passed on."""
LIBRARY = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"


def main(argv: Sequence[str]) -> int:
    """Run `dpmpi join`."""
    joining = parse(argv)
    for number in range(joining.ranks):
        joining.papers(number)  # what is wrong with keys and roster is said before anything is started
    _check_data(joining)
    _check_library()
    with TemporaryDirectory(prefix="dpmpi-join-") as folder:
        return _run(joining, argv, Path(folder))


def _check_data(joining: Joining) -> None:
    """Raise what is wrong with the records of this party before the others wait for it."""
    source = Settings.of(joining.config).source
    if not source.private:
        source.survey()
        return
    for number in range(joining.ranks):
        source.load(None, joining.rank + number, joining.of)


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
    told: list[int] = []
    before = {n: signal.signal(n, lambda number, _: told.append(number)) for n in PASSED_ON}
    process = None
    try:
        process = start(command, environment_of(joining, folder), (subprocess.PIPE, subprocess.PIPE))
        pairs = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        failures: list[str] = []
        threads = [threading.Thread(target=_copy, args=(*pair, failures), daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        while True:
            try:
                code = process.wait(LISTEN_SECONDS)
                break
            except subprocess.TimeoutExpired:
                _pass_on(told, folder, joining.ranks)
        for thread in threads:
            thread.join(5)
    finally:
        if process is not None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # all have ended, or are to end now
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    if failures and code:
        say(f"dpmpi: expected MPI to work, found: {failures[-1]}: check --interface and --ports", sys.stderr)
    if code < 0:
        say(f"dpmpi: expected mpiexec to end by itself, found it ended by signal {-code}: start again", sys.stderr)
    return 128 - code if code < 0 else code


def _pass_on(told: list[int], folder: Path, ranks: int) -> None:
    """Pass signals on to the ranks; raise `KeyboardInterrupt` for one that ends them before they listen."""
    listening = [int(file.name.removesuffix(".pid")) for file in folder.glob("*.pid")]
    if len(listening) < ranks:
        if any(number != signal.SIGUSR1 for number in told):
            raise KeyboardInterrupt
        return
    while told:
        number = told.pop(0)
        for pid in listening:
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM if number == signal.SIGHUP else number)


def _copy(source: TextIO, target: TextIO, failures: list[str]) -> None:
    """Copy lines, without those that mpiexec adds; keep the reasons that MPICH has for a failure."""
    for line in source:
        if found := STACK.fullmatch(line.strip()):
            failures += filter(None, found.groups())
        elif line.strip() and not line.startswith(FRAME):
            say(line.rstrip("\n"), target)
