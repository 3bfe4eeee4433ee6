"""What is said on the terminal. Nobody may be there to read it, and that is no reason to end what is under way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

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
