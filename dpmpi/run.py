"""Train: `mpirun -n RANKS python -m dpmpi.run ...`, or `--loopback N` in one process."""

from __future__ import annotations

import os

# One thread per rank: ranks are what fills the cores, and the bits of a product must not depend on how many there are.
# This must be said before numpy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[_name] = "1"

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the modules load: 20 ranks end without 20 tracebacks

import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from dpmpi.agreement import agreed, everyone
from dpmpi.assembly import assemble
from dpmpi.config import Config, parse
from dpmpi.errors import ConfigError, DpmpiError
from dpmpi.rundir import RunDirectory
from dpmpi.training import train
from dpmpi.transport.mpi import launched_as, open_world
from dpmpi.wire import Transport

INTERRUPTED = 130
SPEAK_FIRST_SECONDS = 5.0
BEFORE_ABORT_SECONDS = 0.5
"""A launcher that is told to abort may drop what a rank has just said: give it time to pass the message on."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    rank, size = launched_as(os.environ)
    try:
        config = parse(sys.argv[1:] if argv is None else argv)
        if config.loopback is not None and size > 1:
            raise ConfigError(f"--loopback runs all agents in one process, found {size}: start it without mpirun")
        transport = open_transport(config)
    except DpmpiError as error:
        if rank != 0:  # a launcher ends all ranks when one fails: let the first one speak before that
            time.sleep(SPEAK_FIRST_SECONDS)
        # All ranks find the same, unless a file is missing on one host only.
        return _refuse(error, rank == 0 or isinstance(error.__cause__, OSError))
    with ExitStack() as stack:
        try:
            signal.signal(signal.SIGINT, _stop)
            signal.signal(signal.SIGTERM, _stop)  # what the ranks get when Open MPI's mpirun is interrupted
            directory = name_directory(config, transport)
            job = assemble(config, transport, directory.ledger, stack, lambda: create(directory, config, transport))
        except DpmpiError as error:
            return _refuse(error, 0 in transport.ranks)
        except BaseException as error:
            return _end_all(transport, error, "while starting", None)
        try:
            return train(job, directory)
        except BaseException as error:
            round_ = max(seat.agent.round for seat in job.engine.seats)
            return _end_all(transport, error, f"round {round_}", directory)


def open_transport(config: Config) -> Transport:
    """Return the loopback transport if asked for, else MPI's."""
    if config.loopback is not None:
        from dpmpi.transport.loopback import LoopbackTransport  # noqa: PLC0415 - not under mpirun

        return LoopbackTransport(config.loopback)
    return open_world(config.deadline)


def name_directory(config: Config, transport: Transport) -> RunDirectory:
    """Return the run directory, not made yet; every rank gets the same path."""
    name = config.out or f"runs/{config.algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"
    told = everyone(transport, lambda: [(name, config.digest())] * len(transport.ranks))
    for rank, (_, digest) in enumerate(told):
        if digest != told[0][1]:
            raise ConfigError(f"all ranks must have the same settings, but rank {rank} has others than rank 0")
    return RunDirectory(Path(told[0][0]))


def create(directory: RunDirectory, config: Config, transport: Transport) -> None:
    """Make the run directory, on the first rank."""

    def make() -> None:
        if 0 in transport.ranks:
            kept = directory.create()
            if kept is not None:
                _say(f"{directory.path} was there: kept as {kept}")
            directory.write_text("config.toml", config.to_toml())

    agreed(transport, make)


def _refuse(error: DpmpiError, speaker: bool) -> int:
    if speaker:
        _say(f"dpmpi: {error}", sys.stderr)
    return error.exit_code


def _end_all(transport: Transport, error: BaseException, when: str, directory: RunDirectory | None) -> int:
    """Say which rank failed, when and why, and end every rank."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another rank that fails may abort this one while it speaks
    interrupted = isinstance(error, KeyboardInterrupt)
    if interrupted and directory is None and 0 not in transport.ranks:
        os._exit(INTERRUPTED)  # the first rank speaks for all
    where = f"rank {transport.ranks[0]}" if len(transport.ranks) == 1 else "loopback"
    what = "interrupted" if interrupted else str(error)
    if not isinstance(error, DpmpiError | KeyboardInterrupt):
        what = f"{type(error).__name__}: {error}"
        if os.environ.get("DPMPI_TRACEBACK"):
            traceback.print_exception(error)
    text = f"{where}, {when}: {what}"
    # All ranks are interrupted, and a rank that fails takes the others down by signals: who writes first speaks.
    if directory is None or directory.note_end(text):
        _say(f"dpmpi: {text}", sys.stderr)
        if interrupted and "OMPI_COMM_WORLD_RANK" in os.environ:
            _tell_terminal(f"dpmpi: {text}")
    code = INTERRUPTED if interrupted else error.exit_code if isinstance(error, DpmpiError) else 1
    if interrupted and len(transport.ranks) == 1:
        os._exit(code)
    abort = getattr(transport, "abort", None)
    if abort is not None:
        time.sleep(BEFORE_ABORT_SECONDS)
        abort(code)
    return code


def _tell_terminal(text: str) -> None:
    """Write to the terminal itself: Open MPI's mpirun drops what its ranks say once it is interrupted."""
    try:
        with open("/dev/tty", "w", encoding="utf-8") as terminal:
            terminal.write(f"\r{text}\n")
    except OSError:
        pass  # there is none


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str, stream: Any = None) -> None:
    print(text, file=stream or sys.stdout, flush=True)


if __name__ == "__main__":
    sys.exit(main())
