"""Train: `mpirun -n RANKS python -m dpmpi.run ...`, or `--loopback N` in one process."""

from __future__ import annotations

import os

# One thread per rank: ranks are what fills the cores, and the bits of a product must not depend on how many there are.
# This must be said before numpy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[_name] = "1"

import signal
from types import FrameType

_told: list[int] = []
"""The signals that asked this process to stop where it can be resumed."""


def _note(signal_: int, _frame: FrameType | None) -> None:
    _told.append(signal_)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while the modules load: 20 ranks end without 20 tracebacks
    signal.signal(signal.SIGUSR1, _note)  # a warning that comes while the modules load would kill the rank

import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpmpi.agreement import agreed, everyone
from dpmpi.assembly import Past, assemble
from dpmpi.config import Config, flags_of, from_values
from dpmpi.errors import INTERRUPTED, ConfigError, CutOff, DpmpiError, NeighbourSilent, Preempted, RankLost, interrupt
from dpmpi.launched import fault_tolerant, first_on_host, launched_as, launcher_process, process_age
from dpmpi.resuming import regroup, resume
from dpmpi.rundir import RunDirectory
from dpmpi.speech import say
from dpmpi.stalls import Wait, explain, read_waits, write_wait
from dpmpi.training import Trainer
from dpmpi.transport.mpi import MpiTransport, open_world
from dpmpi.wire import Transport

SPEAK_FIRST_SECONDS, SPEAK_FIRST_SHARE = 5.0, 5.0
"""How long the other ranks let the first one speak, at least, and in multiples of the time they took to get there: many
ranks on a busy machine start seconds apart."""
TELL_EACH_OTHER_SECONDS = 1.5
"""Ranks that are held up by the same one reach the deadline within a few rounds of each other."""
BEFORE_ABORT_SECONDS = 0.5
"""A launcher that is told to abort may drop what a rank has just said: give it time to pass the message on."""
TURN_SECONDS = 1.0
"""How much later than the rank before it a rank speaks where nothing else says who does."""
END_SECONDS = 5.0
"""How long a launcher may take to end all ranks."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, with the signal handlers as they were."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        return _run(argv)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _run(argv: Sequence[str] | None) -> int:
    rank, size = launched_as(os.environ)
    try:
        given = flags_of(sys.argv[1:] if argv is None else argv)
        path, past = given.pop("resume", None), None
        config = from_values({**given}) if path is None else resumable(given)
        if config.loopback is not None and size > 1:
            raise ConfigError(f"--loopback runs all agents in one process, found {size}: start it without mpirun")
        transport = open_transport(config)
    except DpmpiError as error:
        # All ranks find the same, unless a file is missing on one host only.
        speaker = rank == 0 or (isinstance(error.__cause__, OSError) and first_on_host(os.environ))
        if rank != 0 and _one_failure(2, speaker):  # a launcher ends all ranks when one fails: let the first one speak
            time.sleep(max(SPEAK_FIRST_SECONDS, SPEAK_FIRST_SHARE * process_age()))
        return _refuse(error, speaker)
    try:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, interrupt)  # what the ranks get when Open MPI's mpirun is interrupted
        signal.signal(signal.SIGUSR1, interrupt)
        if path is not None:
            config, past = resume(transport, Path(path), given)
            directory = RunDirectory(Path(path))
        else:
            directory = name_directory(config, transport)
    except BaseException as error:
        if _known_to_all(error):
            return _refuse(error, 0 in transport.ranks)
        return _end_all(transport, error, "while starting", None)
    if config.checkpoint_every is not None:
        signal.signal(signal.SIGTERM, _note)
        signal.signal(signal.SIGUSR1, _note)
    while True:
        again = run_once(config, transport, directory, past)
        if isinstance(again, int):
            return again
        transport, past = again


def run_once(
    config: Config, transport: Transport, directory: RunDirectory, past: Past | None
) -> int | tuple[Transport, Past]:
    """Run a job to its end and return the exit code; or return with whom, and from where, to go on after a death."""
    with ExitStack() as stack:
        ready = (lambda: create(directory, config, transport)) if past is None else lambda: go_on(directory, transport)
        trainer, code = None, 0
        try:
            job = assemble(config, transport, directory.ledger, stack, ready, past)
            trainer = Trainer(job, directory, lambda: bool(_told))
            if isinstance(transport, MpiTransport):
                transport.on_slow = _report_slow(job.names, transport.rank, directory)
            if past is not None and len(past.names) < past.origin:
                job.engine.regroup()
            return trainer.run()
        except BaseException as error:
            # Else nothing was released since the start: start, or resume, it again.
            begun = trainer is not None or (past is not None and past.shards is not None)
            if isinstance(error, RankLost) and begun and config.on_failure == "shrink":
                return _without_the_dead(config, trainer, past, transport, directory)
            if isinstance(error, Preempted) or (trainer is None and _known_to_all(error)):
                if isinstance(error, Preempted) and 0 in transport.ranks:
                    directory.note_end(str(error))
                code = _refuse(error, 0 in transport.ranks)
            elif trainer is None:
                code = _end_all(transport, error, "while starting", None)
            else:
                round_ = max(seat.agent.round for seat in trainer.job.engine.seats)
                code = _end_all(transport, error, f"round {round_}", directory, trainer.job.names)
        return code


def _without_the_dead(
    config: Config, trainer: Trainer | None, past: Past | None, transport: Any, directory: RunDirectory
) -> int | tuple[Transport, Past]:
    """Return the survivors' transport and past; or 0, for a rank that the others cannot reach any more.

    Before a trainer has begun, there is what the run brought with it.
    """
    kept = [] if past is None else list(past.snapshots.values())
    if trainer is not None:
        job = trainer.job
        kept += [one for one in trainer.kept[transport.rank] if one.round not in [other.round for other in kept]]
        past = Past(job.run, job.origin, tuple(job.names), 0, {}, job.shards, job.incarnation, job.most_charged())
    assert past is not None  # noqa: S101 - else the caller would not be here
    try:
        found = regroup(config, past, kept, transport)
    except CutOff as error:  # the run is the others' now: neither end it nor write to its directory
        say(f"dpmpi: rank {past.names[transport.rank]}: {error}", sys.stderr)
        os._exit(error.exit_code)
    except BaseException as error:
        _others_know.append(True)
        return _end_all(transport, error, "after a rank was lost", directory)
    if found is None:
        return 0
    survivors, ahead = found
    lost = sorted(set(past.names) - set(ahead.names))
    if trainer is None:  # while they assembled: the lost may have begun to repeat what they had planned before
        twice = {name: Counter(past.charged[name]) + Counter(past.charged[name]) for name in lost}
        ahead = replace(ahead, charged={**ahead.charged, **twice})
    if 0 in survivors.ranks:
        say(
            f"dpmpi: lost rank {', '.join(map(str, lost))}; {len(ahead.names)} ranks go on after round {ahead.round}",
            sys.stderr,
        )
    return survivors, ahead


def resumable(given: dict[str, Any]) -> Config:
    """Return what is needed of the settings before those of the run are read: how to start."""
    return Config(**{name: given[name] for name in ("deadline", "loopback") if name in given})


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


def go_on(directory: RunDirectory, transport: Transport) -> None:
    """Make sure, on the first rank, that nobody reads an end that was none."""
    if 0 in transport.ranks:
        stale = [directory.path / "ended.txt", directory.path / "slow.txt"]
        for path in (*stale, *(directory.path / "stall").glob("*.json")):
            path.unlink(missing_ok=True)


def create(directory: RunDirectory, config: Config, transport: Transport) -> None:
    """Make the run directory, on the first rank."""

    def make() -> None:
        if 0 in transport.ranks:
            kept = directory.create()
            if kept is not None:
                say(f"{directory.path} was there: kept as {kept}", sys.stderr)
            directory.write_text("config.toml", config.to_toml())

    agreed(transport, make)


def _known_to_all(error: BaseException) -> bool:
    """Return whether an error of a start was raised in all processes together: then all end alike."""
    return isinstance(error, DpmpiError) and not isinstance(error, RankLost | NeighbourSilent)


def _refuse(error: BaseException, speaker: bool) -> int:
    if speaker:
        say(f"dpmpi: {error}", sys.stderr)
    return _one_failure(error.exit_code if isinstance(error, DpmpiError) else 1, speaker)


def _one_failure(code: int, speaker: bool) -> int:
    """Return a rank's exit code: with ULFM one that fails is enough, and Open MPI's mpirun may lock up after many."""
    return code if speaker or not fault_tolerant(os.environ) else 0


def _report_slow(
    names: Sequence[int], rank: int, directory: RunDirectory
) -> Callable[[int, tuple[int, ...], float], None]:
    """Return what says, once a run and from one rank, that a neighbour is slow."""

    def report(round_: int, missing: tuple[int, ...], seconds: float) -> None:
        with suppress(OSError):  # another rank has said so
            (directory.path / "slow.txt").open("x").close()
            who = ", ".join(str(names[peer]) for peer in missing) or "(own sends)"
            say(f"dpmpi: rank {names[rank]} has waited {seconds:.3g} s for rank {who} in round {round_}", sys.stderr)

    return report


def _how_to_go_on(directory: RunDirectory | None) -> str:
    """Return how to resume, if there is something to resume from."""
    there = directory is not None and (directory.path / "checkpoint" / "manifest.json").exists()
    return f"; go on with --resume {directory.path}" if there and directory is not None else ""


def _end_all(
    transport: Transport, error: BaseException, when: str, directory: RunDirectory | None,
    names: Sequence[int] | None = None,
) -> int:  # fmt: skip
    """Say which rank failed, when and why, and end every rank."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another rank that fails may abort this one while it speaks
    interrupted = isinstance(error, KeyboardInterrupt)
    if interrupted and directory is None and 0 not in transport.ranks:
        os._exit(_one_failure(INTERRUPTED, False))  # the first rank speaks for all
    where = f"rank {transport.ranks[0]}" if len(transport.ranks) == 1 else "loopback"
    what = "interrupted" if interrupted else str(error)
    if not isinstance(error, DpmpiError | KeyboardInterrupt):
        what = f"{type(error).__name__}: {error}"
        if os.environ.get("DPMPI_TRACEBACK"):
            traceback.print_exception(error)
    text = f"{where}, {when}: {what}"
    if isinstance(error, NeighbourSilent) and directory is not None and names is not None:
        folder = directory.path / "stall"
        waits_for = tuple(names[peer] for peer in error.waits_for)
        write_wait(folder, Wait(names[transport.ranks[0]], error.round, error.hop, waits_for))
        time.sleep(TELL_EACH_OTHER_SECONDS)
        text = f"{text} {explain(read_waits(folder))}"
    elif isinstance(error, NeighbourSilent):  # all wait for the same: who speaks first ends the others
        time.sleep(transport.ranks[0] * TURN_SECONDS)
    text += _how_to_go_on(directory)
    # All ranks are interrupted, and a rank that fails takes the others down by signals: who writes first speaks.
    speaks = directory is None or directory.note_end(text)
    if speaks:
        say(f"dpmpi: {text}", sys.stderr)
        if interrupted and "OMPI_COMM_WORLD_RANK" in os.environ:
            _tell_terminal(f"dpmpi: {text}")
    code = INTERRUPTED if interrupted else error.exit_code if isinstance(error, DpmpiError) else 1
    if interrupted and len(transport.ranks) == 1:
        os._exit(_one_failure(code, speaks))
    if isinstance(transport, MpiTransport):
        if isinstance(error, NeighbourSilent) and transport.tolerant:
            _end_the_silent(speaks)
        else:
            _tell_the_others(transport, error)
        time.sleep(BEFORE_ABORT_SECONDS)
        transport.abort(_one_failure(code, speaks))
    return code


def _end_the_silent(speaks: bool) -> None:
    """Let the launcher end all ranks where MPI is fault tolerant: a silent rank that lives cannot be left out."""
    time.sleep(BEFORE_ABORT_SECONDS)
    launcher = launcher_process()
    if speaks and launcher is not None:
        with suppress(OSError):
            os.kill(launcher, signal.SIGTERM)
    time.sleep(END_SECONDS)


def _tell_the_others(transport: MpiTransport, error: BaseException) -> None:
    """Let all ranks end where MPI is fault tolerant: it ends this one alone, and the others would take it for dead."""

    def fail() -> None:
        raise error if isinstance(error, DpmpiError) else DpmpiError(f"{type(error).__name__}: {error}")

    if transport.tolerant and not _others_know:
        with suppress(DpmpiError):
            agreed(transport.shrink()[0], fail)


def _tell_terminal(text: str) -> None:
    """Write to the terminal itself: Open MPI's mpirun drops what its ranks say once it is interrupted."""
    try:
        with open("/dev/tty", "w", encoding="utf-8") as terminal:
            terminal.write(f"\r{text}\n")
    except OSError:
        pass  # there is none


_others_know: list[bool] = []
"""Whether this rank ends because another one told it to."""


if __name__ == "__main__":
    _code = main()
    # Python takes its handlers off while it ends; a signal that comes late must not kill what has ended well.
    for _late in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(_late, signal.SIG_IGN)
    sys.exit(_code)
