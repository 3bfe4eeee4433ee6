"""Counts what a transport really carries, and the seconds spent waiting for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from dpmpi.core import Array
from dpmpi.wire import SHARES_TAG, TRAILER_BYTES, Channel, Transport


@dataclass
class Traffic:
    """What went between a rank and one of its peers, or all of them together."""

    messages_sent: int = 0
    messages_received: int = 0
    payload_bytes_sent: int = 0
    payload_bytes_received: int = 0
    share_bytes_sent: int = 0
    """Of the payload: shares, which are different for each peer."""
    tag_bytes_sent: int = 0
    """Seals, not part of the payload."""
    tag_bytes_received: int = 0
    wait_seconds: float = 0.0

    @property
    def bytes_sent(self) -> int:
        """Payload, seals and trailers; MPI's own envelopes come on top."""
        return self.payload_bytes_sent + self.tag_bytes_sent + self.trailer_bytes_sent

    @property
    def trailer_bytes_sent(self) -> int:
        """The (round, hop) of every message."""
        return TRAILER_BYTES * self.messages_sent

    @property
    def bytes_received(self) -> int:
        """Payload, seals and trailers."""
        return self.payload_bytes_received + self.tag_bytes_received + TRAILER_BYTES * self.messages_received

    def add(self, other: Traffic) -> None:
        """Add another account to this one."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Meter:
    """A transport that counts what the transport inside it does.

    The hot path only counts exchanges per channel; `traffic` multiplies out. A wait that was long enough to see whose
    message was missing is put down to that neighbour; a brief one is shared by all peers of the channel.
    """

    def __init__(self, inside: Transport) -> None:
        self.inside = inside
        self.size = inside.size
        self.ranks = inside.ranks
        self.start = inside.start  # channels count their own use: no call in between
        self.done = inside.done
        self._channels: list[Channel] = []
        self._brief: defaultdict[Channel, float] = defaultdict(float)
        self._long: defaultdict[tuple[int, int], float] = defaultdict(float)

    def channel(
        self, rank: int, peers: Sequence[int], payload_bytes: int, tag: int, distinct: bool = False, overhead: int = 0
    ) -> Channel:
        """Return a new channel of the transport inside."""
        channel = self.inside.channel(rank, peers, payload_bytes, tag, distinct, overhead)
        self._channels.append(channel)
        return channel

    def wait(self, channel: Channel) -> None:
        """Wait, and note for how long and for whom."""
        begin = perf_counter()
        self.inside.wait(channel)
        position = channel.awaited
        if position is None:
            self._brief[channel] += perf_counter() - begin
        else:
            self._long[channel.rank, channel.peers[position]] += perf_counter() - begin

    def total(self, buffer: Array) -> None:
        """Pass on; evaluation is not training traffic and is not counted."""
        self.inside.total(buffer)

    def collect(self, texts: Sequence[str]) -> list[str]:
        """Pass on, not counted."""
        return self.inside.collect(texts)

    def gather(self, row: Array) -> Array | None:
        """Pass on, not counted."""
        return self.inside.gather(row)

    def close(self) -> None:
        """Pass on."""
        self.inside.close()

    def traffic(self, rank: int) -> dict[int, Traffic]:
        """Return what went between `rank` and each of its peers."""
        result: dict[int, Traffic] = {}
        for channel in self._channels:
            if channel.rank == rank:
                k, tags = channel.exchanges, channel.exchanges * channel.overhead
                payload = k * channel.payload_bytes - tags
                shares = payload if channel.tag == SHARES_TAG else 0
                brief = self._brief[channel] / max(1, len(channel.peers))
                for peer in channel.peers:
                    result.setdefault(peer, Traffic()).add(Traffic(k, k, payload, payload, shares, tags, tags, brief))
        for (waiter, peer), seconds in self._long.items():
            if waiter == rank:
                result[peer].wait_seconds += seconds
        return dict(sorted(result.items()))
