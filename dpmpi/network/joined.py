"""One communicator of parties that each started on its own: MPI ports, and a lifeline beside MPI.

The parties come together in the order of their ranks. Rank 0 opens a port for each of them; all that are already
together accept the next one at its port, and merge with it, they before it:

    together = merge(accept(together, port_p), party p)        p = 1, 2, ...                                (1)

So rank k of the result is rank k of the run. MPICH does this between processes that no common launcher started; it
does not notice the death of one, which is what the lifeline (`rendezvous.py`) is for.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpmpi.core.files import write_file
from dpmpi.errors import ConfigError, NeighbourSilent
from dpmpi.network.rendezvous import Guest, Host, Lifeline, Papers, Patience, Place, format_address, parse_address
from dpmpi.network.transport.mpi import MpiTransport

FAREWELL_SECONDS = 5
"""How long a rank that is through may take to tell MPI."""
GRACE_SECONDS = 8.0
"""How long a rank may take to end by itself when another one was lost."""


def join(
    world: MpiTransport, place: Place, papers: Papers, meet: str, patience: Patience, news: Callable[[str], None]
) -> JoinedTransport:
    """Return the transport over all parties, given that of this party; all of its ranks call this together.

    `meet` is an address, or a file in which rank 0 writes the one at which it listens.
    """
    mpi, own, deadline = world.library, world.communicator, patience.silence
    line: Host | Guest
    ports: Mapping[int, str]
    if place.rank == 0:
        line = Host(papers, place, patience)
        host, port = line.open(*_listening(meet))
        news(f"rank 0 listens at {format_address(host, port)}")
        if not meet.startswith("tcp://"):
            write_file(Path(meet), f"{format_address(host, port)}\n", error=ConfigError)
        parties = line.meet(news)
        ports = {first: mpi.Open_port() for first in parties if first}
        line.hand_out(dict(ports))
    else:
        line = Guest(papers, place, patience)
        ports = line.meet(lambda: _where(meet), news)
    with _impatience(line, deadline):
        together = own if place.first == 0 else None
        for first in sorted(ports):
            if first == place.first:
                together = own.Connect(ports[first], root=0).Merge(True)
            elif together is not None:  # (1)
                together = together.Accept(ports[first], root=0).Merge(False)
        return JoinedTransport(mpi, together, deadline, line)


def _listening(meet: str) -> tuple[str, int]:
    """Return where rank 0 listens: at the address, or at any port of this host if its name is to be in a file."""
    return parse_address(meet) if meet.startswith("tcp://") else (os.uname().nodename, 0)


def _where(meet: str) -> tuple[str, int] | None:
    """Return the address at which rank 0 listens; None while the file is not there."""
    if meet.startswith("tcp://"):
        return parse_address(meet)
    try:
        text = Path(meet).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return parse_address(text.strip())


class _impatience:  # noqa: N801 - used as a function is
    """Ends this process if it takes longer than the deadline, or a rank is lost, while MPI cannot be interrupted."""

    def __init__(self, line: Lifeline, deadline: float) -> None:
        self._line = line
        self._timer = threading.Timer(deadline, self._end, (f"the ranks did not meet within {deadline:g} s",))
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._line.on_loss = self._end
        self._timer.start()
        if self._line.lost is not None:
            self._end(self._line.lost)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _end(self, text: str) -> None:
        _end_now(self._line, f"rank {self._line.place.rank}, while starting: {text}")


def _end_now(line: Lifeline, text: str) -> None:
    """Say why, and end this process from whatever thread."""
    sys.stderr.write(f"dpmpi: {text}\n")
    sys.stderr.flush()
    line.leave(NeighbourSilent.exit_code)
    os._exit(NeighbourSilent.exit_code)


class JoinedTransport(MpiTransport):
    """MPI between parties: waits end when the lifeline says that a rank was lost."""

    def __init__(self, mpi: Any, world: Any, deadline: float, line: Lifeline) -> None:
        super().__init__(mpi, world, deadline)
        self.line = line
        line.on_loss = self._end_soon
        if line.lost is not None:
            self._end_soon(line.lost)

    def watch(self) -> None:
        """Raise `ProtocolError` if a rank was lost."""
        self.line.check()

    def _end_soon(self, text: str) -> None:
        """Let the run end by `watch`; end this process where MPI itself does not return from what it does."""
        timer = threading.Timer(GRACE_SECONDS, _end_now, (self.line, f"rank {self.rank}: {text}"))
        timer.daemon = True
        timer.start()

    def abort(self, code: int) -> None:
        """End this rank, and tell the others: no launcher started all of them."""
        self.line.leave(code)
        os._exit(code)

    def leave(self, code: int) -> None:
        """Say goodbye; a rank that the others cannot reach any more does not wait for them."""
        self.line.leave(code)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(FAREWELL_SECONDS)
        self._mpi.Finalize()
        signal.alarm(0)
