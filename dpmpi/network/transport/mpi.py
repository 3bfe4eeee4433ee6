"""One agent per MPI process: persistent nonblocking requests on numpy buffers.

This is the only importer of mpi4py; importing it initialises MPI, so `open_world` does that, after it has told MPI
whether there are more ranks than cores here.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from dpmpi.errors import NeighbourSilent, RankLost
from dpmpi.network import heartbeat
from dpmpi.network.channel import Channel, ChannelSpec
from dpmpi.network.launcher import BRIEF_BYTES, advice, check_together, heartbeats, local_ranks, party, usable_cores
from dpmpi.network.mpi_collectives import MpiCollectives, telling, translated
from dpmpi.network.polling import SLOW_SHARE, nap_until, patient

FAREWELL_SECONDS = 2
"""How long a rank that ends may take to tell MPI."""


def open_world(deadline: float = 120.0, comm: Any = None) -> MpiTransport:
    """Initialise MPI and return the transport over private copies of COMM_WORLD, or of another communicator."""
    for name, value in advice(os.environ).items():
        os.environ.setdefault(name, value)
    import mpi4py  # noqa: PLC0415 - importing initialises MPI

    beating = heartbeats(os.environ)
    # With one thread per rank MPI need not lock; a party's rank has others, which leave MPI alone.
    mpi4py.rc.thread_level = "multiple" if beating else "funneled" if party(os.environ) else "single"
    crowded = local_ranks(os.environ) > usable_cores()
    with warnings.catch_warnings(), patient() if crowded else nullcontext():
        # A launcher of another MPI: our own words say what to do.
        warnings.filterwarnings("ignore", "suspicious MPI execution environment", RuntimeWarning)
        from mpi4py import MPI  # noqa: PLC0415

    check_together(os.environ, MPI.COMM_WORLD.Get_size(), MPI.get_vendor()[0])
    if beating:
        heartbeat.start(lambda: MPI.COMM_SELF.Iprobe(0))
    try:
        return MpiTransport(MPI, MPI.COMM_WORLD if comm is None else comm.Dup(), deadline)
    except Exception as error:
        raise translated(error) from error


class MpiTransport(MpiCollectives):
    """Sends the bytes of channels on duplicated communicators, one for rounds and one for evaluation."""

    def __init__(self, mpi: Any, world: Any, deadline: float) -> None:
        self._world = world
        self._rounds = world.Dup()
        super().__init__(mpi, world.Dup(), deadline)
        self._channels: list[Channel] = []
        self._agreed = False
        """Whether all have agreed that not all are through."""
        self.ranks: Sequence[int] = (self.rank,)
        self.on_slow: Callable[[int, tuple[int, ...], float], None] | None = None
        self._testall: Callable[[list[Any]], bool] = mpi.Request.Testall
        self._startall: Callable[[list[Any]], None] = mpi.Prequest.Startall

    @property
    def library(self) -> Any:
        """The module MPI, for those who make a communicator of their own."""
        return self._mpi

    @property
    def communicator(self) -> Any:
        """What this transport was made of; nothing is sent on it."""
        return self._world

    @telling
    def channel(self, spec: ChannelSpec) -> Channel:
        """Return a new channel with persistent requests."""
        channel = Channel(spec)
        channel.handle = _Requests(self._rounds, channel)
        self._channels.append(channel)
        return channel

    def start(self, channel: Channel) -> None:
        """Start the receives, then the sends."""
        try:
            self._startall(channel.handle.all[channel.turn])
        except Exception as error:
            raise translated(error) from error

    def done(self, channel: Channel) -> bool:
        """Return whether a message has come from every source."""
        if not self._testall(channel.handle.awaited[channel.turn]):
            return False
        channel.check()
        return True

    def wait(self, channel: Channel) -> None:
        """Poll, yielding the core before each poll.

        To yield first costs little when the neighbour has a core of its own, and when it does not, it is the only way
        to hear from it.
        """
        channel.awaited = None
        requests = channel.handle.awaited[channel.turn]
        testall, yield_core = self._testall, os.sched_yield
        try:
            for _ in range(channel.polls):
                yield_core()
                if testall(requests):
                    break
            else:
                self._poll(requests, channel)
        except Exception as error:
            raise translated(error) from error
        channel.check()

    def sent(self, channel: Channel) -> bool:
        """Return whether the messages of the exchange that is under way have left their buffers."""
        return self._testall(channel.handle.sends[channel.turn])

    @telling
    def close(self) -> None:
        """Wait until everything that was sent has been received."""
        for channel in self._channels:
            for sends in channel.handle.sends:
                self._poll(sends, channel)

    def _poll(self, requests: list[Any], channel: Channel) -> None:
        """Poll and nap until the requests are complete; raise `NeighbourSilent` after the deadline."""

        def ready() -> bool:
            if self._testall(requests):
                return True
            self.watch()
            missing = [k for k, receive in enumerate(channel.handle.receives) if not receive.Test()]
            channel.awaited = missing[0] if missing else channel.awaited
            return False

        def slow() -> None:
            if self.on_slow is not None:
                self.on_slow(channel.round, self._missing(channel), self._deadline / SLOW_SHARE)

        if not nap_until(ready, self._deadline, slow):
            raise self._silence(channel)

    def agree_to_end(self) -> bool:
        """Return whether all who live are through, the same on all of them.

        A rank that dies while all tell each other that they are through is missed by some of them and not by others:
        these would wait in `shrink` for those who have left.
        """
        self._agreed = self.tolerant and not self._agree(self._world, True)
        return not self._agreed

    @telling
    def shrink(self, wrap: Callable[[MpiTransport], Any] = lambda living: living) -> tuple[Any, list[int]]:
        """Return a transport among the surviving ranks, wrapped, and their numbers in this one, in their new order.

        All survivors come here: whoever notices a death revokes what the others wait on. They leave together: if one of
        them fails on the way, because yet another has died, all try again.
        """
        self._rounds.Revoke()
        self._aside.Revoke()
        if not self._agreed:  # some may be in `agree_to_end`, and must not be left waiting there
            self._agree(self._world, False)
        world = self._world
        while True:
            world, living, left = world.Shrink(), None, []
            try:
                living = MpiTransport(self._mpi, world, self._deadline)
                left = [int(text) for text in wrap(living).collect([str(self.rank)])]
            except (self._mpi.Exception, RankLost):
                for comm in (world,) if living is None else (living._rounds, living._aside):
                    comm.Revoke()
            if self._agree(world, bool(left)) and living is not None:
                return wrap(living), left

    def _agree(self, world: Any, fine: bool) -> bool:
        """Return whether all who live say so: the same on all of them, whoever dies meanwhile."""
        try:
            return bool(world.Agree(int(fine)))
        except self._mpi.Exception:
            return False

    @telling
    def among(self, chosen: Sequence[int]) -> MpiTransport | None:
        """Return a transport among some of the ranks, in this order; None on the others.

        If a rank dies meanwhile, all of them raise `RankLost`.
        """
        here, found, fine = self.rank in chosen, None, False
        try:
            left = self._world.Split(0 if here else self._mpi.UNDEFINED, list(chosen).index(self.rank) if here else 0)
            found = MpiTransport(self._mpi, left, self._deadline) if here else None
            fine = True
        except self._mpi.Exception:
            self._world.Revoke()
        if not self._agree(self._world, fine):
            raise RankLost("a rank has died")
        return found

    def abort(self, code: int) -> None:
        """End all ranks now; where MPI is fault tolerant this one alone, and the others see a death.

        There an abort would leave the others waiting for this rank for ever. And if many ranks fail at once, mpirun
        might wait: Open MPI 5.0's then locks up in one of four runs of 20 ranks. So this one takes its leave first, and
        is killed if that takes too long.
        """
        if self.tolerant:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(FAREWELL_SECONDS)
            heartbeat.stop()
            with suppress(Exception):
                self._mpi.Finalize()
            os._exit(code)
        self._world.Abort(code)

    def release(self) -> None:
        """Give back what MPI keeps for this transport, after `close`; all ranks call this together."""
        for channel in self._channels:
            for request in (*channel.handle.receives, *channel.handle.sends[0], *channel.handle.sends[1]):
                request.Free()
        self._channels.clear()
        for comm in (self._rounds, self._aside, *(() if self._world == self._mpi.COMM_WORLD else (self._world,))):
            comm.Free()

    def bare_communicator(self) -> Any:
        """Return a new duplicate of COMM_WORLD, for benchmarks that go without this class."""
        return self._world.Dup()

    def wait_all(self, requests: list[Any]) -> None:
        """Call MPI_Waitall; for the same benchmarks."""
        self._mpi.Request.Waitall(requests)

    def describe(self) -> str:
        """Return the MPI library's name and version, on one line."""
        return " ".join(str(self._mpi.Get_library_version()).split())[:60]

    def _silence(self, channel: Channel) -> Exception:
        silent = self._missing(channel)
        error = NeighbourSilent(
            f"rank {self.rank} waited {self._deadline:g} s in round {channel.round}, hop {channel.hop}, "
            f"tag {channel.tag} for rank {', '.join(map(str, silent)) or '(own sends)'}: has it died, or is it slow "
            "(--deadline SECONDS waits longer)?"
        )
        error.round, error.hop, error.waits_for = channel.round, channel.hop, silent
        return error

    def _missing(self, channel: Channel) -> tuple[int, ...]:
        """Return the peers whose message has not come."""
        return tuple(p for p, r in zip(channel.sources, channel.handle.receives, strict=True) if not r.Test())


class _Requests:
    """The persistent requests of a channel: a receive per peer, and a send per peer for each outgoing buffer."""

    def __init__(self, comm: Any, channel: Channel) -> None:
        peers, sources, tag = channel.peers, channel.sources, channel.tag
        self.receives = [comm.Recv_init(m, p, tag) for m, p in zip(channel.incoming_messages, sources, strict=True)]
        self.sends = [
            [comm.Send_init(message, p, tag) for message, p in zip(messages, peers, strict=True)]
            for messages in channel.outgoing_messages
        ]
        self.all = [self.receives + sends for sends in self.sends]
        # A long message may need its sender's help until it is through: then wait for the sends too. Else for those of
        # the exchange before, which are over when the receives are (see Channel): MPI wants to be asked before they
        # start again.
        brief = channel.payload_bytes <= BRIEF_BYTES
        self.awaited = [self.receives + self.sends[turn ^ 1] if brief else self.all[turn] for turn in range(2)]
