"""What is said on the terminal. Nobody may be there to read it, and that is no reason to end what is under way."""

from __future__ import annotations

import os
import stat
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from dpmpi.network.launcher import launcher_process

MARKING = ("output", "tag-output", "timestamp-output", "merge-stderr", "xml", "xterm", "prepend", "errfile")
"""How the flags of launchers begin that mark every line of a rank, or write it to files."""
_callers = [0]
"""How many callers from Python want a log instead of lines on the terminal."""


@contextmanager
def logged() -> Iterator[None]:
    """Send what is said to the log `dpmpi`, what is for standard error as a warning: libraries do not print."""
    _callers[0] += 1
    try:
        yield
    finally:
        _callers[0] -= 1


def say(text: object, stream: TextIO | None = None) -> None:
    """Print a line, to standard output by default. If it cannot be written, it and all that follows is dropped."""
    if _callers[0]:
        import logging  # noqa: PLC0415 - a rank of the command line has none

        level = logging.INFO if stream is None else logging.WARNING
        logging.getLogger("dpmpi").log(level, "%s", str(text).removeprefix("dpmpi: "))
        return
    shout(text, stream)


def shout(text: object, stream: TextIO | None = None) -> None:
    """Print a line whoever has called: the last one of a process that ends."""
    out = stream or sys.stdout
    try:
        try:
            print(text, file=out, flush=True)
        except UnicodeEncodeError:
            print(str(text).encode("ascii", "backslashreplace").decode(), file=out, flush=True)
    except OSError:  # the reader has gone, or the disk is full
        hush(out)


def hush(stream: TextIO) -> None:
    """Let a stream that cannot be written lead nowhere, also when Python empties it at the end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Terminal:
    """A terminal that is not this process's own, for a line that is drawn anew. What it does not take is dropped."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.encoding = sys.stderr.encoding or "ascii"

    def write(self, text: str) -> None:
        """Write at once; a terminal that was stopped (Ctrl-S) or closed holds up no run."""
        with suppress(OSError):
            os.write(self._number, text.encode(self.encoding, "replace"))

    def flush(self) -> None:
        """Do nothing: all is written."""

    def fileno(self) -> int:
        """Return the file's number, by which its width is found."""
        return self._number

    def isatty(self) -> bool:
        """Return that it is one."""
        return True


def launcher_terminal() -> Terminal | None:
    """Return the terminal on which the launcher shows what ranks say on standard error; None if there is none here.

    Open MPI holds back what does not end a line, so a line that is drawn anew must go there directly.
    """
    if (pid := launcher_process()) is None:
        return None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
        marked = any(word.startswith("-") and word.lstrip("-").startswith(MARKING) for word in words)
        if marked or stat.S_ISREG(os.fstat(2).st_mode):  # or a wrapper has sent it to a file
            return None
        number = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not termios.tcgetattr(number)[3] & termios.TOSTOP:  # else it stops whoever writes from the background
            return Terminal(number)
    except termios.error:  # a file or a pipe
        pass
    os.close(number)
    return None
