"""Everything that dpmpi raises on purpose.

DpmpiError
 +-- ConfigError (ValueError)        an impossible setting: flag, key, graph, or combination
 +-- DataError (ValueError)          a file or row that cannot be used
 +-- LeakError (TypeError)           something that is neither a release nor public was handed to an exchange
 +-- BudgetExceeded (RuntimeError)   the next charge does not fit into the rank's budget
 +-- LedgerError (RuntimeError)      a ledger that cannot be written, or whose chain is broken
 +-- ProtocolError (RuntimeError)    a neighbour said something else than the schedule foresees
 |    +-- NeighbourSilent            a neighbour said nothing within the deadline
 |    +-- RankLost                   a rank has died, and MPI could tell
 |    +-- CutOff                     this rank is in the smaller part of a network that was cut
 +-- SealBroken (RuntimeError)       an encrypted message did not open
 +-- CheckpointError (RuntimeError)  a checkpoint that cannot be used
 +-- Preempted (RuntimeError)        told to stop, with a checkpoint to go on from; exit code 75

A message is one line: what was expected, what was found, what to do. `ConfigError` and `DataError` end the program
with exit code 2, the others, if nothing is said above, with exit code 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType

INTERRUPTED = 130
"""The exit code of an interrupted program, as a shell has it for Ctrl-C."""


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM as Ctrl-C is handled."""
    raise KeyboardInterrupt


def nearest(word: object, known: Iterable[str]) -> str:
    """Return ` (did you mean X?)` for an error message if one of the known words is close, else nothing."""
    import difflib  # noqa: PLC0415 - where nothing is wrong, nobody needs it

    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def shown(value: object, most: int = 80) -> str:
    """Return a value for a message: on one line, without control characters, and at most about `most` long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}..."


class DpmpiError(Exception):
    """Base of all errors that dpmpi raises on purpose."""

    exit_code = 1
    told = False
    """Whether all ranks were told, and raise it together."""
    speaker: bool | None = None
    """Where a script of many ranks gets it, all of them together: whether this rank is the first; else None."""

    def __str__(self) -> str:
        """Return the message on one line: what it quotes (a path, a word of a file) may hold control characters."""
        text = super().__str__()
        return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class ConfigError(DpmpiError, ValueError):
    """An impossible setting: flag, key, graph, or combination."""

    exit_code = 2


class DataError(DpmpiError, ValueError):
    """A file or a row that cannot be used."""

    exit_code = 2
    public = False
    """Whether it depends on no record, so that others may hear of a private file."""


class LeakError(DpmpiError, TypeError):
    """Something that is neither a release nor public was handed to an exchange."""


class BudgetExceeded(DpmpiError, RuntimeError):
    """The next charge does not fit into the rank's budget."""


class LedgerError(DpmpiError, RuntimeError):
    """A ledger that cannot be written, or whose chain is broken."""


class ProtocolError(DpmpiError, RuntimeError):
    """A neighbour sent something else than the schedule foresees."""


class NeighbourSilent(ProtocolError):
    """A neighbour sent nothing within the deadline."""

    round = hop = 0
    waits_for: tuple[int, ...] = ()
    """The neighbours that are missing; none for an operation of all ranks."""


class RankLost(ProtocolError):
    """A rank has died, and MPI could tell."""


class CutOff(ProtocolError):
    """The network was cut, and this rank is in its smaller part."""


class CheckpointError(DpmpiError, RuntimeError):
    """A checkpoint that cannot be used."""


class Preempted(DpmpiError, RuntimeError):
    """Told to stop; there is a checkpoint to go on from."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: try again later


class SealBroken(DpmpiError, RuntimeError):
    """An encrypted message did not open."""
