"""One agent per MPI process: persistent nonblocking requests on numpy buffers.

This is the only importer of mpi4py; importing it initialises MPI, so `open_world` does that, after it has told MPI
whether there are more ranks than cores here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.errors import NeighbourSilent, RankLost
from dpmpi.network import heartbeat
from dpmpi.network.channel import Channel, ChannelSpec, slices
from dpmpi.network.launcher import BRIEF_BYTES, advice, fault_tolerant, heartbeats, party
from dpmpi.network.polling import SLOW_SHARE, nap_until
from dpmpi.network.words import check_lengths, other_lengths, text_of
from dpmpi.rng import Words

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

CARD_BYTES = 256
"""A text that fits, with its length, is collected in one step."""
YIELDS = 12
"""How often to poll at least, yielding the core in between, before napping."""
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
    from mpi4py import MPI  # noqa: PLC0415

    if beating:
        heartbeat.start(lambda: MPI.COMM_SELF.Iprobe(0))
    try:
        return MpiTransport(MPI, MPI.COMM_WORLD if comm is None else comm.Dup(), deadline)
    except Exception as error:
        raise translated(error) from error


def _telling(method: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Let a method raise `RankLost` where MPI says that a rank has died."""

    @wraps(method)
    def telling(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            raise translated(error) from error

    return telling


def translated(error: Exception) -> Exception:
    """Return `RankLost` for what MPI raises when it is fault tolerant, and anything else as it is.

    An operation that fails because of a death has many codes: of the process, of a request in a list, or of a
    communicator that another survivor revoked. With fault tolerance on, nothing else makes these operations fail.
    """
    if fault_tolerant(os.environ) and type(error).__module__.startswith("mpi4py"):
        return RankLost(f"a rank has died ({error})")
    return error


class MpiTransport:
    """Sends the bytes of channels on duplicated communicators, one for rounds and one for evaluation."""

    def __init__(self, mpi: Any, world: Any, deadline: float) -> None:
        self._mpi = mpi
        self._world = world
        self._rounds = world.Dup()
        self._aside = world.Dup()
        self._deadline = deadline
        self._channels: list[Channel] = []
        self.rank: int = world.Get_rank()
        self.size: int = world.Get_size()
        self.ranks: Sequence[int] = (self.rank,)
        self.tolerant = fault_tolerant(os.environ)
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

    def watch(self) -> None:
        """Raise if waiting is in vain; called while this rank waits."""

    @_telling
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
            for _ in range(YIELDS):
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

    @_telling
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

        if not nap_until(ready, self._deadline, slow, channel.yielding):
            raise self._silence(channel)

    @_telling
    def total(self, buffer: Array) -> None:
        """Sum over all ranks in rank order: each rank adds up one slice of the coordinates, then all get all slices."""
        self._add(buffer)

    @_telling
    def add_up(self, words: Words) -> None:
        """Sum over all ranks modulo 2^64, by slices too."""
        self._add(words)

    def _add(self, buffer: NDArray[Any]) -> None:
        mine = slices(buffer, self.size)
        theirs = np.empty_like(mine)
        self._finish(self._aside.Ialltoall(mine, theirs), "an evaluation")
        for row in theirs[1:]:
            theirs[0] += row
        self._finish(self._aside.Iallgather(theirs[0].copy(), mine), "an evaluation")
        buffer.reshape(-1)[:] = mine.reshape(-1)[: buffer.size]

    @_telling
    def collect(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of all ranks in rank order."""
        [text] = texts
        mine = np.frombuffer(text.encode(), np.uint8)
        # Most texts are short: they go with their lengths, in one step.
        card, cards = np.zeros(CARD_BYTES, np.uint8), np.zeros((self.size, CARD_BYTES), np.uint8)
        card[:8].view(np.int64)[0] = mine.size
        card[8 : 8 + mine.size] = mine[: CARD_BYTES - 8]
        self._finish(self._aside.Iallgather(card, cards), "the other ranks")
        lengths: list[int] = cards[:, :8].copy().view(np.int64)[:, 0].tolist()
        if max(lengths) <= CARD_BYTES - 8:
            return [
                text_of(peer, row[8 : 8 + k].tobytes())
                for peer, (row, k) in enumerate(zip(cards, lengths, strict=True))
            ]
        with self._announced(lengths):
            joined, ends = np.empty(sum(lengths), np.uint8), np.cumsum([0, *lengths]).tolist()
            spec = [joined, lengths, ends[:-1], self._mpi.BYTE]
            self._finish(self._aside.Iallgatherv([mine, self._mpi.BYTE], spec), "the other ranks")
        return [text_of(peer, joined[a:b].tobytes()) for peer, (a, b) in enumerate(pairwise(ends))]

    @contextmanager
    def _announced(self, lengths: Sequence[int]) -> Iterator[None]:
        """Raise `ProtocolError` for lengths that cannot be, and where others come than were announced."""
        check_lengths(self.rank, lengths)
        try:
            yield
        except self._mpi.Exception as error:
            if self.tolerant:
                raise
            raise other_lengths(self.rank, lengths) from error

    @_telling
    def gather(self, row: Array, roots: Sequence[int]) -> Array | None:
        """Return the rows of all ranks as a matrix on those in `roots`, None elsewhere."""
        found = None
        for root in roots:
            rows = np.empty((self.size, row.size)) if self.rank == root else None
            self._finish(self._aside.Igather(row, rows, root=root), "the other ranks")
            found = found if rows is None else rows
        return found

    @_telling
    def swap(self, messages: Sequence[bytes], theirs: Sequence[int] | None = None) -> list[bytes]:
        """Send every rank its own bytes; return those of every rank, who announced as many as `theirs`.

        Without `theirs` the lengths are announced here, bare.
        """
        lengths = [len(message) for message in messages]
        if theirs is None:
            told = self.swap_alike([length.to_bytes(8, "big") for length in lengths])()
            theirs = [int.from_bytes(one, "big") for one in told]
        with self._announced(theirs):
            came, out = np.empty(sum(theirs), np.uint8), np.frombuffer(b"".join(messages), np.uint8)
            ends, outs = np.cumsum([0, *theirs]).tolist(), np.cumsum([0, *lengths]).tolist()
            byte = self._mpi.BYTE
            request = self._aside.Ialltoallv([out, lengths, outs[:-1], byte], [came, [*theirs], ends[:-1], byte])
            self._finish(request, "the other ranks")
        return [came[a:b].tobytes() for a, b in pairwise(ends)]

    @_telling
    def swap_alike(self, messages: Sequence[bytes]) -> Callable[[], list[bytes]]:
        """Begin to send every rank its own bytes, as many to each; calling the result returns those of every rank."""
        out = np.frombuffer(b"".join(messages), np.uint8)
        buffers = (out, np.empty_like(out))
        request, width = self._aside.Ialltoall(*buffers), len(messages[0])

        @_telling
        def result() -> list[bytes]:
            self._finish(request, "the other ranks")
            came = buffers[1]  # both are held until here, as by `vote`
            return [came[k : k + width].tobytes() for k in range(0, len(came), width)]

        return result

    @_telling
    def vote(self, wishes: Array) -> Callable[[], Array]:
        """Begin to agree on the largest of all ranks' wishes, entry by entry."""
        buffers = (wishes, np.empty_like(wishes))
        request = self._aside.Iallreduce(*buffers, op=self._mpi.MAX)

        @_telling
        def result() -> Array:
            self._finish(request, "the other ranks")
            return buffers[1]  # both must be held until here: mpi4py 4.1 lets go of what Iallreduce reads

        return result

    @_telling
    def shrink(self, wrap: Callable[[MpiTransport], Any] = lambda living: living) -> tuple[Any, list[int]]:
        """Return a transport among the ranks that live, wrapped, and who of this one they are, in their new order.

        All survivors come here: whoever notices a death revokes what the others wait on. They leave together: if one of
        them fails on the way, because yet another has died, all try again.
        """
        self._rounds.Revoke()
        self._aside.Revoke()
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

    @_telling
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

    def barrier(self) -> None:
        """Return when every rank has called this; for benchmarks."""
        self._finish(self._aside.Ibarrier(), "the other ranks")

    def bare_communicator(self) -> Any:
        """Return a new duplicate of COMM_WORLD, for benchmarks that go without this class."""
        return self._world.Dup()

    def wait_all(self, requests: list[Any]) -> None:
        """Call MPI_Waitall; for the same benchmarks."""
        self._mpi.Request.Waitall(requests)

    def describe(self) -> str:
        """Return the MPI library's name and version, on one line."""
        return " ".join(str(self._mpi.Get_library_version()).split())[:60]

    def _finish(self, request: Any, what: str) -> None:
        """Wait for a collective operation."""
        for _ in range(YIELDS):
            if request.Test():
                return
            os.sched_yield()

        def ready() -> bool:
            if request.Test():
                return True
            self.watch()
            return False

        if not nap_until(ready, self._deadline):
            raise NeighbourSilent(
                f"rank {self.rank} waited {self._deadline:g} s for {what}: has a rank died, or is it slow "
                "(--deadline SECONDS waits longer)?"
            )

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
