"""Who talks to whom, and the bytes in between: the seam between exchanges, schedules and transports."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array, Bytes, Request
from dpmpi.core.frozen import frozen
from dpmpi.errors import ProtocolError
from dpmpi.network.polling import POLLS
from dpmpi.rng import Words

TRAILER_BYTES = 16
"""Every message ends with two int64: its round and its hop."""
VECTORS_TAG, SHARES_TAG = 0, 1
"""The tags of channels that carry vectors and sums, and of those that carry secret shares."""
_pack_trailer = struct.Struct("=qq").pack


@frozen
class Neighbourhood:
    """Whom a rank talks to in a round, with the mixing weights. `peers` is sorted and does not hold the rank."""

    peers: tuple[int, ...]
    weights: tuple[float, ...]
    self_weight: float


class Schedule(Protocol):
    """Who talks to whom in which round: a pure function of (shared seed, round), the same on every rank."""

    size: int
    share: float

    def rounds(self, rank: int, start: int, stop: int) -> Iterator[tuple[int, Neighbourhood]]:
        """Yield (t, neighbourhood) for every round t with start <= t < stop in which `rank` is active."""


@frozen
class ChannelSpec:
    """Which ranks a channel joins, and what a message on it looks like."""

    rank: int
    peers: Sequence[int]
    payload_bytes: int
    tag: int = field(default=VECTORS_TAG, kw_only=True)
    distinct: bool = field(default=False, kw_only=True)
    """Whether each peer gets its own bytes."""
    sources: Sequence[int] | None = field(default=None, kw_only=True)
    """Who is heard; None for the peers."""


class Channel:
    """One rank's buffers towards a fixed set of peers: a message to each, the same bytes or not, one from each.

    Where ranks pass something on, a channel may hear from other ranks than it speaks to, its `sources`, or from none.

    A message is the payload followed by the trailer (round, hop). There are two sets of outgoing buffers, used in
    turns: when a rank has heard from all its peers of one exchange, they have heard its message of the exchange before,
    so the buffer that is filled next is never one that still travels, and nobody has to wait for a send. The same holds
    for the channels of a sum: it is known to nobody before every rank has heard all messages of the sum before. So
    `flip` begins every exchange.
    """

    def __init__(self, spec: ChannelSpec, over: Channel | None = None) -> None:
        """Make the buffers.

        Over another channel, whose messages are longer and different for each peer, this one is a view of them. What is
        the same for all peers does not travel then, and has one buffer for both turns.
        """
        payload_bytes, distinct = spec.payload_bytes, spec.distinct
        n = -(-payload_bytes // 8) * 8  # whole words, so that the trailer is aligned
        self.rank = spec.rank
        self.peers = tuple(spec.peers)
        self.sources = self.peers if spec.sources is None else tuple(spec.sources)
        self.payload_bytes = payload_bytes
        self.tag = spec.tag
        self.distinct = distinct
        self.overhead = 0
        """How many bytes of the payload are seals."""
        self.round = self.hop = self.turn = 0
        """The exchange that is under way, and which of the two outgoing buffers it uses."""

        def new(count: int) -> list[Bytes]:
            return [np.zeros(n + TRAILER_BYTES, np.uint8) for _ in range(count)]

        if over is None:
            made = [new(len(self.peers) if distinct else 1) for _ in range(2)]
        else:
            made = over.outgoing_messages if distinct else [new(1)] * 2
        self.outgoing_messages: list[list[Bytes]] = made if distinct else [one * len(self.peers) for one in made]
        """For each of the two turns, the message to each peer."""
        self.incoming_messages: list[Bytes] = new(len(self.sources)) if over is None else over.incoming_messages
        self.outgoing: list[list[Bytes]] = [[message[:payload_bytes] for message in one] for one in made]
        """For each of the two turns, the payloads: one for each peer if they are distinct, else one for all."""
        self.incoming: list[Bytes] = [message[:payload_bytes] for message in self.incoming_messages]
        trailer = slice(n, n + TRAILER_BYTES)
        self._trailers = [[message.data[trailer] for message in one] for one in made]
        self._incoming_trailers = [message.data[trailer] for message in self.incoming_messages]
        self._stamp = b""
        """The trailer of the exchange that is under way."""
        self.exchanges = 0
        """How often the channel was used."""
        self.awaited: int | None = None
        """Position in `sources` of the message that the last wait was for; None if it was too short to tell."""
        self.polls = POLLS
        """How often to poll for its messages before napping."""
        self.handle: Any = None
        """The transport's own: its requests for these buffers."""

    @property
    def messages(self) -> list[Bytes]:
        """The outgoing messages in use, one for each peer, trailers included."""
        return self.outgoing_messages[self.turn]

    def flip(self) -> int:
        """Go on to the other outgoing buffer; return which."""
        self.turn ^= 1
        return self.turn

    def stamp(self, round_: int, hop: int) -> Channel:
        """Write (round, hop) into the outgoing trailers; return self, ready to be yielded to the transport."""
        self.round, self.hop = round_, hop
        stamp = self._stamp = _pack_trailer(round_, hop)
        for trailer in self._trailers[self.turn]:
            trailer[:] = stamp
        self.exchanges += 1
        return self

    def check(self) -> None:
        """Raise `ProtocolError` if a message that came is not of this round and hop."""
        stamp = self._stamp
        for trailer in self._incoming_trailers:
            if trailer.tobytes() != stamp:
                peer = self.sources[self._incoming_trailers.index(trailer)]
                round_, hop = np.frombuffer(trailer, np.int64)
                raise ProtocolError(
                    f"rank {self.rank} expected round {self.round}, hop {self.hop} from rank {peer}, "
                    f"found round {round_}, hop {hop}: do all ranks run the same configuration?"
                )


class Transport(Protocol):
    """Moves the bytes of channels. Between `start` and completion the buffers belong to the transport."""

    size: int
    ranks: Sequence[int]
    """The ranks that live in this process: all of them on loopback, one under MPI."""
    tolerant: bool
    """Whether those who survive a death learn of it and can go on."""

    def channel(self, spec: ChannelSpec) -> Channel:
        """Return a new channel."""

    def start(self, channel: Channel) -> None:
        """Post the receives, then the sends."""

    def done(self, channel: Channel) -> bool:
        """Return whether a message has come from every source."""

    def wait(self, channel: Channel) -> None:
        """Return when `done`; raise `NeighbourSilent` after the deadline."""

    def total(self, buffer: Array) -> None:
        """Replace the buffer by its sum over all processes, in rank order, the same bits everywhere.

        Not for training: this serves evaluation and the reference solver, which are outside the guarantee.
        """

    def add_up(self, words: Words) -> None:
        """Replace the words by their sum over all processes, modulo 2^64; sealed, nobody sees another's summand."""

    def collect(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of all ranks in rank order, given those of the ranks in this process."""

    def gather(self, row: Array, roots: Sequence[int]) -> Array | None:
        """Return the rows of all processes as a matrix on the ranks in `roots`, None elsewhere."""

    def swap(self, messages: Sequence[bytes], theirs: Sequence[int] | None = None) -> list[bytes]:
        """Send every rank its own bytes, in rank order; return those of every rank. One rank a process.

        `theirs` are the lengths of what will come, where the ranks have told each other.
        """

    def swap_alike(self, messages: Sequence[bytes]) -> Callable[[], list[bytes]]:
        """Begin the same with messages of one length; calling the result waits for it."""

    def vote(self, wishes: Array) -> Callable[[], Array]:
        """Begin to agree on the largest of all processes' wishes, entry by entry; calling the result waits for it."""

    def close(self) -> None:
        """Wait until everything that was sent has been received."""


class Layer:
    """A transport around another one, which does for it what has to do with all ranks together."""

    def __init__(self, inside: Transport) -> None:
        self.inside = inside
        self.size, self.ranks, self.tolerant = inside.size, inside.ranks, inside.tolerant

    def total(self, buffer: Array) -> None:
        """Replace the buffer by its sum over all processes."""
        self.inside.total(buffer)

    def add_up(self, words: Words) -> None:
        """Replace the words by their sum over all processes, modulo 2^64."""
        self.inside.add_up(words)

    def collect(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of all ranks in rank order."""
        return self.inside.collect(texts)

    def gather(self, row: Array, roots: Sequence[int]) -> Array | None:
        """Return the rows of all processes as a matrix on the ranks in `roots`, None elsewhere."""
        return self.inside.gather(row, roots)

    def vote(self, wishes: Array) -> Callable[[], Array]:
        """Begin to agree on the largest of all processes' wishes, entry by entry."""
        return self.inside.vote(wishes)

    def swap(self, messages: Sequence[bytes], theirs: Sequence[int] | None = None) -> list[bytes]:
        """Send every rank its own bytes; return those of every rank."""
        return self.inside.swap(messages, theirs)

    def swap_alike(self, messages: Sequence[bytes]) -> Callable[[], list[bytes]]:
        """Begin to send every rank its own bytes, all of one length."""
        return self.inside.swap_alike(messages)

    def close(self) -> None:
        """Wait until everything that was sent has been received."""
        self.inside.close()


def slices(buffer: NDArray[Any], n: int) -> NDArray[Any]:
    """Return the coordinates in n rows of equal length, the last ones filled up with zeros."""
    rows = np.zeros((n, -(-buffer.size // n)), buffer.dtype)
    rows.reshape(-1)[: buffer.size] = buffer.reshape(-1)
    return rows


class World(Transport, Protocol):
    """The transport that a run opens: it knows who lives, and can end all ranks."""

    on_slow: Callable[[int, tuple[int, ...], float], None] | None
    """Told once in a long wait: the round, for whom, and the seconds so far."""

    def agree_to_end(self) -> bool:
        """Return whether all processes that live are through: the same in all of them. If not, they `shrink`."""

    def shrink(self) -> tuple[World, list[int]]:
        """Return the transport among the surviving ranks, and their numbers in this one, in their new order."""

    def among(self, chosen: Sequence[int]) -> World | None:
        """Return a transport among some of the ranks, in this order; None on the others."""

    def release(self) -> None:
        """Give back what the system keeps for this transport, after `close`; all processes call this together."""

    def abort(self, code: int) -> None:
        """End all ranks now; where MPI is fault tolerant this one alone, and the others see a death."""


Flow: TypeAlias = Generator[Channel, None, None]
"""An agent's run as a transport sees it: channels to be exchanged, one after the other."""


class Exchange(Protocol):
    """Turns a request into hops: one for plain messages, two for secret shares."""

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Generator[Channel, None, Any]:
        """Yield stamped channels until the answer is there; return it."""

    def go_to(self, round_: int, hop: int) -> None:
        """Let the next message be of this round and hop."""

    def prepare(self) -> None:
        """Draw ahead what the next exchange needs; called while messages travel, and changes no bits."""
