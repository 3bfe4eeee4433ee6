"""How a run ends before its time: who speaks, who waits, and how the processes go.

| what happened                             | who speaks                      | how a process ends              |
|-------------------------------------------|---------------------------------|---------------------------------|
| refused before MPI starts                 | the first rank, or one a host   | exit code 2, the others later   |
| refused while starting, known to all      | the first rank                  | exit code of the error          |
| told to stop, with a checkpoint           | the first rank                  | exit code 75                    |
| failed on one rank while starting         | that rank                       | all are told, then MPI aborts   |
| failed on one rank in a round             | whoever writes ended.txt first  | all are told, then MPI aborts   |
| a neighbour silent while starting         | the ranks in turns              | MPI aborts                      |
| a neighbour silent in a round             | whoever writes ended.txt first  | MPI aborts; ULFM: mpirun ends   |
| interrupted while starting                | the first rank                  | each process, exit code 130     |
| interrupted in a round (Ctrl-C, SIGTERM)  | whoever writes ended.txt first  | each process, exit code 130     |
| cut off from most of the others           | this rank                       | the process alone               |

A launcher ends all ranks when one fails, so whoever does not speak waits until the speaker has. With ULFM one process
that fails is enough, and Open MPI's mpirun may lock up after many: only the speaker has a failing exit code there.

`ending` decides, from the error and where the run was; `Ending` is the decision; `end_run` carries it out.
"""

from __future__ import annotations

import enum
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from dpmpi.core.frozen import frozen
from dpmpi.errors import (
    INTERRUPTED,
    CheckpointError,
    ConfigError,
    CutOff,
    DataError,
    DpmpiError,
    LedgerError,
    NeighbourSilent,
    Preempted,
    ProtocolError,
    RankLost,
    SealBroken,
)
from dpmpi.network.channel import World
from dpmpi.network.collective import fail_together
from dpmpi.network.launcher import fault_tolerant, first_on_host, launcher_process, process_age
from dpmpi.network.launcher import speaks as speaks_for
from dpmpi.runtime.output.console import say, shout
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.plugin_source import last_line, one_line
from dpmpi.runtime.plugins import user_line

PUBLIC = (ConfigError, LedgerError, CheckpointError, ProtocolError, SealBroken, Preempted)
"""Errors whose words depend on no record, so that other ranks may hear them."""
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


class Speaker(enum.Enum):
    """Who says why the run ended."""

    FIRST = "the first rank"
    ITSELF = "every rank that fails"
    IN_TURN = "the ranks in turns, until one has ended the others"
    WRITER = "whoever writes ended.txt first"


class Way(enum.Enum):
    """How a process ends."""

    RETURN = "by its exit code: all processes know and end alike"
    ALONE = "at once and alone: the others were told by the same signal"
    ABORT = "by MPI, which ends all ranks"
    TELL_AND_ABORT = "the same after the others were told, who would take it for dead where MPI is fault tolerant"
    LAUNCHER = "by the launcher, which ends all ranks: a silent one that lives cannot be left out"


@frozen
class Place:
    """Where a run was when it ended."""

    when: str
    """As messages say it, e.g. `while starting`, `round 17`."""
    begun: bool = False
    """Whether there is a run directory, in which ended.txt settles who speaks."""
    tolerant: bool = False
    """Whether survivors of a death go on (ULFM)."""
    alone: bool = False
    """Whether the process is one rank of many; on loopback it is all of them."""
    others_know: bool = False
    """Whether this rank ends because another one told it to."""
    public: bool = False
    """Whether the records are public, and with them what a foreign error may say of them."""
    rank: int | None = None
    """On loopback: the agent that failed, if it is known."""


@frozen
class Ending:
    """What a process does when a run ends early."""

    speaker: Speaker
    way: Way
    code: int


def ending(error: BaseException, place: Place) -> Ending:
    """Decide how a process ends, by the table above; a pure function."""
    code = exit_code(error)
    if isinstance(error, Preempted) or (not place.begun and known_to_all(error)):
        return Ending(Speaker.FIRST, Way.RETURN, code)
    if isinstance(error, KeyboardInterrupt):
        speaker, way = Speaker.FIRST, Way.ALONE if place.alone else Way.RETURN
    elif isinstance(error, NeighbourSilent):
        speaker, way = Speaker.IN_TURN, Way.LAUNCHER if place.tolerant else Way.ABORT
    else:
        speaker, way = Speaker.ITSELF, Way.ABORT
        if place.tolerant and not place.others_know:
            way = Way.TELL_AND_ABORT
    return Ending(Speaker.WRITER if place.begun else speaker, way, code)


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, DpmpiError) else 1


def known_to_all(error: BaseException) -> bool:
    """Return whether an error of a start was raised in all processes together: then all end alike.

    Settings and files that cannot be used are found by all, or told to all. What a rank hears is its own affair, unless
    it was told.
    """
    return isinstance(error, DpmpiError) and (error.told or not isinstance(error, ProtocolError | SealBroken))


def own_exit_code(code: int, speaks: bool) -> int:
    """Return the exit code of one of many ranks that fail together: with ULFM the speaker's alone is a failure."""
    return code if speaks or not fault_tolerant(os.environ) else 0


def refuse_unstarted(error: DpmpiError, rank: int) -> int:
    """Say why a run is refused before MPI has started, on one rank; return the exit code when it has been said.

    All ranks find the same error, unless a file is missing on one host only.
    """
    speaks = rank == 0 or (isinstance(error.__cause__, OSError) and first_on_host(os.environ))
    if rank != 0 and own_exit_code(error.exit_code, speaks):  # a launcher ends all when one fails: the first one speaks
        time.sleep(max(SPEAK_FIRST_SECONDS, SPEAK_FIRST_SHARE * process_age()))
    if speaks:
        say(f"dpmpi: {error}", sys.stderr)
    return own_exit_code(error.exit_code, speaks)


def end_run(
    world: World,
    error: BaseException,
    place: Place,
    directory: RunDirectory | None = None,
    names: Sequence[int] | None = None,
) -> int:
    """Say why the run ended, and end this process and, where the others cannot know, every rank.

    `names` are the ranks by their first numbers. Return the exit code where the process ends by it.
    """
    decided, first = ending(error, place), speaks_for(os.environ, world.ranks)
    if decided.way is Way.RETURN and decided.speaker is Speaker.FIRST and not isinstance(error, KeyboardInterrupt):
        if first and isinstance(error, Preempted) and directory is not None:
            directory.note_end(str(error))
        if first:
            say(f"dpmpi: {error}", sys.stderr)
        return own_exit_code(decided.code, first)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another rank that fails may abort this one while it speaks
    if decided.speaker is Speaker.FIRST and not first:
        os._exit(own_exit_code(decided.code, False))
    if decided.speaker is Speaker.IN_TURN:
        time.sleep(world.ranks[0] * TURN_SECONDS)  # all wait for the same: who speaks first ends the others
    text = _told(world, error, place, directory, names)
    # All ranks are interrupted, and a rank that fails takes the others down by signals: who writes first speaks.
    speaks = directory is None or directory.note_end(text)
    if speaks:
        shout(f"dpmpi: {text}", sys.stderr)
        if isinstance(error, KeyboardInterrupt) and "OMPI_COMM_WORLD_RANK" in os.environ:
            _tell_terminal(f"dpmpi: {text}")
    if decided.way is Way.ALONE:
        os._exit(own_exit_code(decided.code, speaks))
    if decided.way is Way.LAUNCHER:
        _end_by_launcher(speaks)
    if decided.way is Way.TELL_AND_ABORT:
        _tell_the_others(world, error)
    if decided.way is not Way.RETURN and place.alone:
        time.sleep(BEFORE_ABORT_SECONDS)
        world.abort(own_exit_code(decided.code, speaks))
    return decided.code


def raise_where_known(
    world: World,
    error: BaseException,
    place: Place,
    directory: RunDirectory | None = None,
    names: Sequence[int] | None = None,
) -> int:
    """Raise the error where all ranks do, or this process is all of them; else end the run as `end_run` does.

    For callers from Python: they can catch what all ranks know, and nothing else. If they do not, one rank says it.
    """
    decided, everybody = ending(error, place), len(world.ranks) == world.size
    if everybody or (decided.way is Way.RETURN and not isinstance(error, KeyboardInterrupt)):
        if 0 in world.ranks and directory is not None:
            known = isinstance(error, Preempted)
            directory.note_end(str(error) if known else _told(world, error, place, directory, None))
        if isinstance(error, DpmpiError) and not everybody:
            error.speaker = 0 in world.ranks
            if sys.excepthook is sys.__excepthook__:
                sys.excepthook = _uncaught
        raise error
    return end_run(world, error, place, directory, names)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End a script that did not catch what all ranks raised as the command line ends: the first rank has one line."""
    if not isinstance(error, DpmpiError) or error.speaker is None or os.environ.get("DPMPI_TRACEBACK"):
        sys.__excepthook__(kind, error, trace)
        return
    if error.speaker:
        say(f"dpmpi: {error}", sys.stderr)
    sys.exit(own_exit_code(error.exit_code, error.speaker))  # what a hook raises: Python ends with its code


def leave_the_others(error: CutOff, name: int) -> NoReturn:
    """End a rank that is cut off: the run is the others' now, so neither end it nor write to its directory."""
    say(f"dpmpi: rank {name}: {error}", sys.stderr)
    os._exit(error.exit_code)


def _told(
    world: World, error: BaseException, place: Place, directory: RunDirectory | None, names: Sequence[int] | None
) -> str:
    """Return the line that says which rank failed, when and why, and how to go on."""
    rank = world.ranks[0] if place.alone else place.rank
    where = "loopback" if rank is None else f"rank {rank if names is None else names[rank]}"
    what = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    if not isinstance(error, DpmpiError | KeyboardInterrupt) or _quotes_records(error, place):
        what = _foreign(error, place, directory, 0 if rank is None else rank if names is None else names[rank])
    text = f"{where}, {place.when}: {what}"
    if isinstance(error, NeighbourSilent) and directory is not None and names is not None:
        from dpmpi.network.stall import Stall, explain, read_stalls, write_stall  # noqa: PLC0415 - few runs stall

        folder = directory.path / "stall"
        waits_for = tuple(names[peer] for peer in error.waits_for)
        write_stall(folder, Stall(names[world.ranks[0]], error.round, error.hop, waits_for))
        time.sleep(TELL_EACH_OTHER_SECONDS)
        text = f"{text} {explain(read_stalls(folder))}"
    if directory is not None and (directory.path / "checkpoint" / "manifest.json").exists():
        text += f"; go on with --resume {directory.path}"
    return text


def _quotes_records(error: BaseException, place: Place) -> bool:
    """Return whether an error of ours may quote a private record, and nobody has looked at its words."""
    return isinstance(error, DataError) and not (error.public or error.told or place.public)


def _foreign(error: BaseException, place: Place, directory: RunDirectory | None, name: int) -> str:
    """Return the words for an error that may say anything: where it was raised, and what it says if that is public.

    It may quote records, and others read the terminal and ended.txt. All of it is in a file for the rank's owner.
    """
    if os.environ.get("DPMPI_TRACEBACK"):
        traceback.print_exception(error)
    said = one_line(error) if place.public else "failed"
    what = f"{user_line(error) or last_line(error) or 'unknown line'}: {said}"
    if directory is None or not place.begun:
        return what if place.public else f"{what}; DPMPI_TRACEBACK=1 shows more, which may quote records"
    kept = directory.write_failure(name, "".join(traceback.format_exception(error)))
    return what if kept is None else f"{what}; more in {kept}, for this rank's owner"


def _end_by_launcher(speaks: bool) -> None:
    """Let the launcher end all ranks where MPI is fault tolerant."""
    time.sleep(BEFORE_ABORT_SECONDS)
    launcher = launcher_process()
    if speaks and launcher is not None:
        with suppress(OSError):
            os.kill(launcher, signal.SIGTERM)
    time.sleep(END_SECONDS)


def _tell_the_others(world: World, error: BaseException) -> None:
    """Let all ranks end where MPI is fault tolerant: it ends this one alone, and the others would take it for dead."""

    def fail() -> None:
        if isinstance(error, PUBLIC) and not isinstance(error, RankLost):  # a loss is not told: all see it
            raise error
        told = str(error) if isinstance(error, RankLost) else "it says why on its own terminal"
        line = "" if isinstance(error, DpmpiError) else f" ({user_line(error) or last_line(error)})"
        raise DpmpiError(f"rank {world.ranks[0]} failed{line}: {told}")

    with suppress(DpmpiError):
        fail_together(world.shrink()[0], fail)


def _tell_terminal(text: str) -> None:
    """Write to the terminal itself: Open MPI's mpirun drops what its ranks say once it is interrupted."""
    try:
        with open("/dev/tty", "w", encoding="utf-8") as terminal:
            terminal.write(f"\r{text}\n")
    except OSError:
        pass  # there is none
