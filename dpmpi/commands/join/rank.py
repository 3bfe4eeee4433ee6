"""One rank of a party: `dpmpi join` starts it by mpiexec; it finds the other parties, and then trains as any rank."""

from __future__ import annotations

from dpmpi import run  # first: it sets the number of threads before numpy is imported

# ruff: isort: split
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dpmpi.commands.join.flags import parse
from dpmpi.errors import INTERRUPTED, DpmpiError
from dpmpi.network.channel import World
from dpmpi.network.joined import SPEAK_FIRST_SECONDS, JoinedTransport, join
from dpmpi.network.launcher import launched_as
from dpmpi.network.transport.mpi import MpiTransport
from dpmpi.runtime.output.console import say


def main(argv: Sequence[str]) -> int:
    """Take part as one rank; return the exit code."""
    number, speaking = launched_as(os.environ)[0], threading.RLock()

    def news(text: str) -> None:
        with speaking:  # ranks come in threads of their own
            say(f"dpmpi: {text}", sys.stderr)

    def interrupted(_signal: int, _frame: FrameType | None) -> None:
        if number == 0:
            news("interrupted")
        os._exit(INTERRUPTED)

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, interrupted)  # until the run has begun, which has handlers of its own
    with suppress(KeyError, OSError):  # where signals to this party are passed on
        (Path(os.environ["DPMPI_JOIN"]) / f"{os.getpid()}.pid").touch()
    joining = parse(argv)
    opened: list[JoinedTransport] = []

    def wrap(world: World) -> World:
        assert isinstance(world, MpiTransport)  # noqa: S101 - loopback is refused
        place, papers = joining.place(number), joining.papers(number)
        try:
            opened.append(join(world, place, papers, joining.meet, joining.patience, news))
        except DpmpiError as error:
            if number:
                time.sleep(SPEAK_FIRST_SECONDS)
            news(f"rank {place.rank}: {error}")
            os._exit(error.exit_code)
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
