"""Starts ranks, and says what the launcher and the host announced to one of them.

`Launcher.run` starts ranks and waits for their end; `Launcher.start` and `finish` are for those who act meanwhile.
Whatever is started has a session of its own, so that all of it can be ended, and none of it outlives the one who
started it. A rank asks `launched_as`, `local_ranks`, `fault_tolerant` and their like; `advice` is what Open MPI is told
before it starts.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpmpi.errors import ConfigError, interrupt

if TYPE_CHECKING:
    from subprocess import Popen

Environment: TypeAlias = Mapping[str, str]

LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE")
LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
ANNOUNCERS = {"OMPI_COMM_WORLD": "mpirun of Open MPI", "PMI": "mpiexec of MPICH"}
"""Whose variables NAME_SIZE and NAME_RANK are: only ranks have them. Slurm's SLURM_NTASKS is also that of a script."""
LAUNCHERS = ("mpirun", "mpiexec", "prterun", "prted")
BRIEF_BYTES = 1 << 15
"""Up to this length a message gets through while its sender computes."""

GRACE_SECONDS = 5.0
"""How long those who are asked to end may take before they are killed."""
LAPTOP = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
"""More ranks than cores are asked for on purpose: what Open MPI 5 and 4 need to be told."""
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""In a container one is often root, which Open MPI refuses by default."""


THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
ONE_THREAD = dict.fromkeys(THREADS, "1")
"""Ranks are what fills the cores."""


class OutOfTime(ConfigError):
    """What was started took longer than its limit, and was ended."""

    def __init__(self, limit: float, out: str, err: str) -> None:
        super().__init__(f"expected an end within {limit:g} s, ended it: raise the limit")
        self.out, self.err = out, err


@dataclass(frozen=True)
class Finished:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str
    seconds: float

    def own_lines(self) -> list[str]:
        """Return dpmpi's own lines on standard error; launchers add text of their own when a rank fails."""
        return own_lines(self.err)

    @property
    def complaint(self) -> str:
        """The line that says most about a failure."""
        return f"{complaint(self.err) or 'it said nothing'} (exit code {self.code})"


@dataclass(frozen=True)
class Launcher:
    """The command that starts ranks."""

    template: str
    """Such as `mpirun -n {ranks}`; empty for a program that is its own launcher."""

    @classmethod
    def make(cls, template: str | None = None, *, tolerant: bool = False) -> Launcher:
        """Return the launcher of a template; if there is none, mpirun beside this interpreter, or else of the path.

        `tolerant`: survivors of a death can go on (Open MPI 5).
        """
        if template is None:
            beside = Path(sys.executable).with_name("mpirun")
            name = shlex.quote(str(beside)) if beside.exists() else "mpirun"
            template = f"{name}{' --with-ft ulfm' if tolerant else ''} -n {{ranks}}"
        try:
            shlex.split(template)
        except ValueError as error:
            raise ConfigError(f"--launcher: expected a command, found {template} ({error}): mend its quotes") from None
        return cls(template)

    def command(self, ranks: int, program: Sequence[str]) -> list[str]:
        """Return the words of the command that starts `ranks` ranks of a program."""
        return [*(word.replace("{ranks}", str(ranks)) for word in shlex.split(self.template)), *program]

    def start(
        self, ranks: int, program: Sequence[str], environment: Environment | None = None, streams: Any = None
    ) -> Popen[str]:
        """Start the ranks, of which there may be more than cores; `environment` and `streams` as in `start`."""
        crowd = {"OMPI_MCA_mpi_yield_when_idle": "1"} if ranks > usable_cores() else {}
        defaults = LAPTOP | crowd | (ROOT if os.geteuid() == 0 else {})
        told = {name: value for name, value in defaults.items() if name not in os.environ}
        return start(self.command(ranks, program), told | dict(environment or {}), streams)

    def run(
        self,
        ranks: int,
        program: Sequence[str],
        limit: float | None = None,
        environment: Environment | None = None,
        streams: Any = None,
    ) -> Finished:
        """Start the ranks and wait for their end; raise `OutOfTime` after `limit` seconds."""
        with _interruptible() as listen:
            return finish(self.start(ranks, program, environment, streams), limit, listen)


def start(command: Sequence[str], environment: Environment | None = None, streams: Any = None) -> Popen[str]:
    """Start a command in a session of its own; `environment` is added to that of this process.

    `streams` are its standard output and error, as subprocess takes them; without them they are captured.
    """
    import subprocess  # noqa: PLC0415 - a rank starts nothing

    out, err = streams or (subprocess.PIPE, subprocess.PIPE)
    try:
        return subprocess.Popen(  # noqa: S603 - the user's own launcher
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    except OSError as error:
        reason = f"cannot start {command[0]} ({error.strerror})"
        raise ConfigError(f"expected a launcher, {reason}: install it, or give another --launcher") from None


def finish(process: Popen[str], limit: float | None = None, ready: Callable[[], None] = lambda: None) -> Finished:
    """Wait for the end of a command; raise `OutOfTime` after `limit` seconds. Nothing of its group is left.

    `ready` is called as soon as an exception ends the command.
    """
    from subprocess import TimeoutExpired  # noqa: PLC0415

    begin = time.monotonic()
    try:
        ready()
        out, err = process.communicate(timeout=limit)
    except TimeoutExpired:
        raise OutOfTime(limit or 0.0, *end(process)) from None
    finally:
        end(process)
    return Finished(process.returncode, out or "", err or "", time.monotonic() - begin)


def end(process: Popen[str]) -> tuple[str, str]:
    """End a process and its group, by SIGTERM and if need be by SIGKILL; return its output."""
    from subprocess import TimeoutExpired  # noqa: PLC0415

    said: tuple[str | None, str | None] = (None, None)
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = process.poll() is None
        if running or number == signal.SIGKILL:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        if running:
            with suppress(TimeoutExpired):
                said = process.communicate(timeout=GRACE_SECONDS)
    return said[0] or "", said[1] or ""


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Let signals that would end this process do what Ctrl-C does, and not before the function that is yielded.

    A signal that comes while ranks are started is kept until then: nobody could end them yet.
    """
    here = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if here else ()
    before = {n: handler for n in numbers if (handler := signal.getsignal(n)) not in (None, signal.SIG_IGN)}
    kept: list[int] = []
    for number in before:
        signal.signal(number, lambda number, _: kept.append(number))

    def listen() -> None:
        for number, handler in before.items():
            signal.signal(number, interrupt if handler is signal.SIG_DFL else handler)
        for told in kept:
            signal.raise_signal(told)

    try:
        yield listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def own_lines(said: str) -> list[str]:
    """Return the lines of a standard error that dpmpi itself wrote."""
    return [line for line in said.splitlines() if line.startswith("dpmpi:")]


def complaint(said: str) -> str:
    """Return the line of a failed launch's standard error that says most; nothing if there is none.

    Ours, else Python's, else the launcher's first, without the frame of dashes that mpirun draws.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip(" -\t")]
    own = [line.removeprefix("dpmpi: ") for line in own_lines(said)]
    return next(iter(own or [line for line in lines if "Error" in line] or lines), "")


def _announced(environment: Environment, names: Sequence[str], default: int) -> int:
    """Return the first number that the launcher has set among variables that mean the same."""
    return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), default)


def launched_as(environment: Environment) -> tuple[int, int]:
    """Return (rank, size) that the launcher announced, without initialising MPI; (0, 1) if there was none."""
    return _announced(environment, RANK_VARIABLES, 0), _announced(environment, SIZE_VARIABLES, 1)


def announcers(environment: Environment) -> dict[str, int]:
    """Return the launchers that say how many ranks they have started, and the numbers."""
    known = {name for name in ANNOUNCERS if environment.get(f"{name}_RANK", "").isdigit()}
    return {text: _announced(environment, [f"{name}_SIZE"], 1) for name, text in ANNOUNCERS.items() if name in known}


def check_together(environment: Environment, size: int, library: str) -> None:
    """Raise `ConfigError` if MPI has found `size` = 1 rank where every launcher around says that it started several.

    Then the launcher is of another MPI than `library`, and each process would train alone, in the same folder.
    """
    told = announcers(environment)
    if size > 1 or not told or min(told.values()) == 1:
        return
    launcher, ranks = next(iter(told.items()))
    other = "another " if launcher.endswith(library) else ""
    beside = Path(sys.executable).with_name("mpirun")
    right = f"{beside}, of the same environment" if beside.exists() else f"the mpirun of that {library}"
    error = ConfigError(
        f"expected {ranks} ranks, found {ranks} processes that each are alone: {launcher} started a mpi4py of "
        f"{other}{library}; start it with {right}"
    )
    error.speaker = launched_as(environment)[0] == 0
    raise error


PARTY_VARIABLE = "DPMPI_PARTY"


def party(environment: Environment) -> str:
    """Return the mark of the party whose rank this is; nothing where one launcher started all ranks."""
    return environment.get(PARTY_VARIABLE, "")


def speaks(environment: Environment, ranks: Sequence[int]) -> bool:
    """Return whether a process with these ranks speaks for the run: the first one, and the first of each party."""
    return 0 in ranks or (bool(party(environment)) and launched_as(environment)[0] == 0)


def first_on_host(environment: Environment) -> bool:
    """Return whether this is the first of the launcher's ranks on this host; so is one that it says nothing of."""
    return _announced(environment, LOCAL_RANK_VARIABLES, 0) == 0


def local_ranks(environment: Environment) -> int:
    """Return how many ranks the launcher put on this host; 1 if it does not say."""
    return _announced(environment, LOCAL_SIZE_VARIABLES, 1)


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


def usable_cores() -> int:
    """Return the cores this host gives to all its ranks together. A rank bound to one core sees the others too."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return bound if bound > 1 else os.cpu_count() or 1


def fault_tolerant(environment: Environment) -> bool:
    """Return whether this MPI was started such that the survivors of a death can go on (Open MPI's ULFM)."""
    return _on(environment, "mpi_ft_enable")


def heartbeats(environment: Environment) -> bool:
    """Return whether this MPI takes a rank for dead of which it hears nothing for some seconds."""
    return fault_tolerant(environment) and _on(environment, "mpi_ft_detector")


def _on(environment: Environment, name: str) -> bool:
    return environment.get(f"OMPI_MCA_{name}", "0") not in ("", "0", "false")


def advice(environment: Environment) -> dict[str, str]:
    """Return the settings for Open MPI before it starts, unless the user has made others."""
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
            # A silent host is missed by its heartbeats: see dpmpi/network/heartbeat.py.
            told |= {"mpi_ft_detector": "1", "mpi_ft_propagator_with_rbcast": "1"}
            told["mpi_add_procs_cutoff"] = "1000000"  # else a survivor asks a lost host who is who
    return {f"OMPI_MCA_{name}": value for name, value in told.items()}
