"""One rank of a party: `dpmpi join` starts it by mpiexec; it finds the other parties, and then trains as any rank."""

from __future__ import annotations

from dpmpi import run  # first: it sets the number of threads before numpy is imported

# ruff: isort: split
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dpmpi.commands.join.flags import parse
from dpmpi.errors import INTERRUPTED, DpmpiError
from dpmpi.network.channel import World
from dpmpi.network.joined import JoinedTransport, join
from dpmpi.network.launcher import launched_as
from dpmpi.network.transport.mpi import MpiTransport
from dpmpi.runtime.output.console import say


def main(argv: Sequence[str]) -> int:
    """Take part as one rank; return the exit code."""
    with suppress(KeyError, OSError):  # where signals to this party are passed on
        (Path(os.environ["DPMPI_JOIN"]) / f"{os.getpid()}.pid").touch()
    joining, number = parse(argv), launched_as(os.environ)[0]
    opened: list[JoinedTransport] = []

    def news(text: str) -> None:
        say(f"dpmpi: {text}", sys.stderr)

    def wrap(world: World) -> World:
        assert isinstance(world, MpiTransport)  # noqa: S101 - loopback is refused
        try:
            place, papers = joining.place(number), joining.papers(number)
            opened.append(join(world, place, papers, joining.meet, joining.patience, news))
        except (DpmpiError, KeyboardInterrupt) as error:
            news("interrupted" if isinstance(error, KeyboardInterrupt) else f"rank {place.rank}: {error}")
            os._exit(error.exit_code if isinstance(error, DpmpiError) else INTERRUPTED)
        return opened[0]

    code = run.main(joining.run, wrap)
    for transport in opened:
        transport.leave(code)
    return code


if __name__ == "__main__":
    _code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_code)
