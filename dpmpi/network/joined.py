"""One communicator of parties that each started on its own: MPI ports, and a lifeline beside MPI.

The parties come together in the order of their ranks. Rank 0 opens a port for each of them; all that are already
together accept the next one at its port, and merge with it, they before it:

    together = merge(accept(together, port_p), party p)        p = 1, 2, ...                                (1)

So rank k of the result is rank k of the run. MPICH does this between processes that no common launcher started; it
does not notice the death of one, which is what the lifeline (`rendezvous`) is for. Nor does MPI ask who connects to a
port: a stranger in a party's place is found by `handshake.meet`, which nobody passes without the party's key.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from dpmpi.errors import INTERRUPTED, ConfigError, NeighbourSilent
from dpmpi.network.meeting_point import announce, listening_at, where_to
from dpmpi.network.rendezvous.guest import Guest
from dpmpi.network.rendezvous.host import Host
from dpmpi.network.rendezvous.lifeline import Lifeline
from dpmpi.network.rendezvous.papers import Papers, Patience, Place, format_address
from dpmpi.network.transport.mpi import FAREWELL_SECONDS, MpiTransport

GRACE_SECONDS = 8.0
"""How long a rank may take to end by itself when another one was lost."""
TURN_SECONDS = 1.0
"""How long the others may take to say what all have found."""
SPEAK_FIRST_SECONDS = 1.0
"""How much later than the first rank of a party the others speak: mpiexec ends them when that one has."""


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
        where = line.open(*listening_at(meet))
        announce(meet, where)
        news(f"rank 0 listens at {format_address(*where)}")
        parties = line.meet(news)
        ports = {first: mpi.Open_port() for first in parties if first}
        line.hand_out(dict(ports))
    else:
        line = Guest(papers, place, patience)
        ports = line.meet(lambda: where_to(meet), news)
    with _Impatience(line, deadline) as waiting:
        together = own if place.first == 0 else None
        for first in sorted(ports):
            waiting.for_whom = papers.call(0 if first == place.first else first)
            if first == place.first:
                met = own.Connect(ports[first], root=0)
                _check_size(papers, 0, met.Get_remote_size(), first)
                together = met.Merge(True)
            elif together is not None:  # (1)
                met = together.Accept(ports[first], root=0)
                after = min((other for other in ports if other > first), default=place.size)
                _check_size(papers, first, met.Get_remote_size(), after - first)
                together = met.Merge(False)
        return JoinedTransport(mpi, together, deadline, line)


def _check_size(papers: Papers, first: int, found: int, expected: int) -> None:
    """Raise `ConfigError` if another number of processes came than of ranks that were announced."""
    if found != expected:
        raise ConfigError(
            f"expected {expected} ranks behind the port of {papers.call(first)}, found {found}: start again; does one "
            "of its ranks lie, or a stranger reach its ports?"
        )


class _Impatience:
    """Ends this process where MPI cannot be interrupted: after the deadline, when a rank is lost, by a signal."""

    def __init__(self, line: Lifeline, deadline: float) -> None:
        self._line = line
        self.for_whom = ""
        self._timer = threading.Timer(deadline, self._give_up, (deadline,))
        self._timer.daemon = True

    def __enter__(self) -> _Impatience:
        self._line.on_loss = self._end
        self._timer.start()
        # Python's own handlers wait until MPI returns; the bytes that this asks for do not.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._heed_signals, daemon=True).start()
        if self._line.lost is not None:
            self._end(self._line.lost)
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._writer)
        self._timer.cancel()
        if isinstance(error, ConfigError):
            self._line.leave(error.exit_code)

    def _heed_signals(self) -> None:
        with suppress(OSError):
            while told := os.read(self._reader, 1):
                if told[0] in (signal.SIGINT, signal.SIGTERM):
                    _end_now(self._line, "interrupted", INTERRUPTED)
        os.close(self._reader)

    def _give_up(self, deadline: float) -> None:
        self._end(
            f"waited {deadline:g} s for {self.for_whom} to connect by MPI: are the ports of --ports open on all sides, "
            "is --interface right?"
        )

    def _end(self, text: str) -> None:
        _end_now(self._line, f"rank {self._line.place.rank}, while starting: {text}")


def _end_now(line: Lifeline, text: str, code: int = NeighbourSilent.exit_code) -> None:
    """Say why, and end this process from whatever thread."""
    if line.place.rank != line.place.first:
        time.sleep(SPEAK_FIRST_SECONDS)
    sys.stderr.write(f"dpmpi: {text}\n")
    sys.stderr.flush()
    line.leave(code)
    os._exit(code)


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
        _later(GRACE_SECONDS, _end_now, self.line, f"rank {self.rank}: {text}")

    def abort(self, code: int) -> None:
        """End this rank, and tell the others: no launcher started all of them."""
        self._exit(code)

    def leave(self, code: int) -> None:
        """Say goodbye; a rank that the others cannot reach any more does not wait for them.

        An error that is known to all the others hear through MPI, and say themselves: they get the time for it.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        if code == 0:
            self.line.leave(code)
        _later(FAREWELL_SECONDS, self._exit, code)
        self._mpi.Finalize()
        if code != 0:
            time.sleep(TURN_SECONDS)
            self.line.leave(code)

    def _exit(self, code: int) -> None:
        self.line.leave(code)
        os._exit(code)


def _later(seconds: float, function: Callable[..., Any], *arguments: object) -> None:
    """Call a function from a thread, unless the process has ended by then."""
    timer = threading.Timer(seconds, function, arguments)
    timer.daemon = True
    timer.start()
