"""What is said on the terminal. Nobody may be there to read it, and that is no reason to end what is under way."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


def say(text: object, stream: TextIO | None = None) -> None:
    """Print a line, to standard output by default. If it cannot be written, it and all that follows is dropped."""
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
