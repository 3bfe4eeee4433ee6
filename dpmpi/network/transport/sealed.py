"""Messages that only their receiver can open: a layer around any transport.

A channel of this transport holds plain messages; behind it stands one of the transport inside with the sealed bytes
for each peer. A message that does not open raises `SealBroken`, and nothing of it is used.

Messages are opened where they came, and what is meant for one peer alone is sealed where it is: with many ranks on a
core, buffers that no rank has are buffers that do not push another's out of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter

from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.seal import Position, SealedPair, position
from dpmpi.network.channel import Channel, ChannelSpec, Layer, Transport


class _Lines:
    """The (pair, source, target) of every message of a channel to seal or open, put together once.

    An exchange is short, and to slice or look up for every message would be seen in it.
    """

    __slots__ = ("incoming", "outgoing", "place", "sealed")

    def __init__(self, meant: Channel, sealed: Channel, pairs: Mapping[int, SealedPair]) -> None:
        ends = [pairs[peer] for peer in meant.peers]
        self.sealed = sealed
        """The channel of sealed messages."""
        self.outgoing: list[list[tuple[SealedPair, memoryview, memoryview]]] = []
        """For each of the two outgoing buffers."""
        for plain, out in zip(meant.outgoing, sealed.outgoing, strict=True):
            each = plain if meant.distinct else plain * len(ends)
            self.outgoing.append([(end, a.data, b.data) for end, a, b in zip(ends, each, out, strict=True)])
        self.incoming: list[tuple[SealedPair, memoryview, memoryview]] = [
            (pairs[source], a.data, b.data)
            for source, a, b in zip(meant.sources, sealed.incoming, meant.incoming, strict=True)
        ]
        self.place: Position = (b"", b"")
        """The position of the messages of the current exchange."""


class SealedTransport(Layer):
    """Seals the messages that it sends through the transport inside it, and opens those that arrive."""

    def __init__(self, inside: Transport, pairs: Mapping[int, Mapping[int, SealedPair]]) -> None:
        """Take the ends of the sealed pairs: for each rank of this process, one for each other rank."""
        super().__init__(inside)
        self._pairs = pairs
        self.crypto_seconds: dict[int, float] = dict.fromkeys(inside.ranks, 0.0)
        """The seconds that each rank of this process spent on sealing and opening."""

    def channel(self, spec: ChannelSpec) -> Channel:
        """Return a new channel of plain messages, with one of sealed messages behind it."""
        sealed = self.inside.channel(replace(spec, payload_bytes=spec.payload_bytes + SEAL_BYTES, distinct=True))
        sealed.overhead = SEAL_BYTES
        meant = Channel(spec, over=sealed)
        meant.handle = _Lines(meant, sealed, self._pairs[spec.rank])
        return meant

    def start(self, channel: Channel) -> None:
        """Seal the payloads, each for its receiver, and send them."""
        begin = perf_counter()
        lines: _Lines = channel.handle
        round_, hop, turn = channel.round, channel.hop, channel.turn
        place = lines.place = position(round_, hop, channel.payload_bytes)
        for pair, plain, out in lines.outgoing[turn]:
            pair.seal_at(place, plain, out)
        sealed = lines.sealed
        sealed.turn = turn
        self.crypto_seconds[channel.rank] += perf_counter() - begin
        self.inside.start(sealed.stamp(round_, hop))

    def done(self, channel: Channel) -> bool:
        """Return whether a message has come from every source; if so, they are open."""
        if not self.inside.done(channel.handle.sealed):
            return False
        self._open(channel)
        return True

    def wait(self, channel: Channel) -> None:
        """Wait for the messages, and open them."""
        sealed: Channel = channel.handle.sealed
        sealed.polls = channel.polls
        self.inside.wait(sealed)
        channel.awaited = sealed.awaited
        self._open(channel)

    def _open(self, channel: Channel) -> None:
        begin = perf_counter()
        lines: _Lines = channel.handle
        place = lines.place
        for pair, message, out in lines.incoming:
            pair.open_at(place, message, out)
        self.crypto_seconds[channel.rank] += perf_counter() - begin
