"""Train: `dpmpi run -n 20 ...` starts 20 ranks on this machine, by mpirun with what a laptop needs.

Without -n this process is the only one, as `python -m dpmpi.run` is. The flags are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dpmpi.errors import ConfigError
from dpmpi.network.launcher import ONE_THREAD, Launcher
from dpmpi.runtime.flags import flags_of
from dpmpi.runtime.options import MOST_RANKS
from dpmpi.runtime.output.console import say
from dpmpi.runtime.output.directory import settings_of_run


def main(argv: Sequence[str]) -> int:
    """Run `dpmpi run`; return the exit code."""
    ranks, launcher, flags = started_by(argv)
    if ranks is None:
        from dpmpi.run import main as run  # noqa: PLC0415 - brings numpy

        return run(flags)
    given = flags_of(flags)  # a mistyped flag is said once, before anything is started
    if launcher is None and "resume" in given:
        settings_of_run(Path(given["resume"]))
    if sys.stderr.isatty() and "--quiet" not in flags:  # many ranks take seconds until they have something to say
        say("starting 1 rank ..." if ranks == 1 else f"starting {ranks} ranks ...", sys.stderr)
    program = [sys.executable, "-m", "dpmpi.run", *flags]
    return Launcher.make(launcher).run(ranks, program, environment=ONE_THREAD, streams=(None, None)).code


def started_by(argv: Sequence[str]) -> tuple[int | None, str | None, list[str]]:
    """Return the number of ranks to start, the command that starts them, and the flags of the run."""
    words, ranks, launcher = list(argv), None, None
    while words and words[0] in ("-n", "--launcher"):
        if len(words) == 1:
            raise ConfigError(f"expected a value after {words[0]}, found none: dpmpi run -n 20 --epsilon 1")
        name, value, *words = words
        if name == "--launcher":
            launcher = value
        elif value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= MOST_RANKS:
            ranks = int(value)
        else:
            raise ConfigError(f"expected -n RANKS with 1 to {MOST_RANKS} ranks, found {value[:40]!r}: -n 20")
    if "-n" in words or (launcher is not None and ranks is None):
        raise ConfigError("expected -n RANKS first, found it later or not at all: dpmpi run -n 20 ...")
    return ranks, launcher, words
