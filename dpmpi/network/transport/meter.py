"""Counts the bytes that a transport carries, and the seconds spent waiting for them: for whom, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

from dpmpi.network.channel import SHARES_TAG, TRAILER_BYTES, Channel, ChannelSpec, Layer, Transport

BUCKETS = 256
"""The most buckets of a time line, however long the run."""
FIRST_WIDTH = 1.0 / 64.0
"""Seconds of a bucket at first; doubled whenever the buckets do not reach far enough."""


WaitedFor: TypeAlias = Channel | tuple[int, int]
"""Whom a rank waited for: one of the peers of a channel, or a certain one as (rank, peer)."""


@dataclass
class Traffic:
    """The traffic between a rank and one of its peers, or all of them together."""

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


class Timeline:
    """Seconds over time, by whom they were spent on, in at most `BUCKETS` buckets of equal width.

    A key's first entry makes its row; from then on nothing is allocated. When an entry lies beyond the last bucket,
    buckets are merged two by two and their width doubles.
    """

    def __init__(self, origin: float) -> None:
        self.origin = origin
        self.width = FIRST_WIDTH
        self.rows: dict[WaitedFor, list[float]] = {}
        """The seconds of each key in each bucket."""
        self._now, self._low, self._high = 0, origin, origin + FIRST_WIDTH
        """The bucket of the last entry, and where it lies: most entries lie in the same."""

    def add(self, key: WaitedFor, begin: float, end: float) -> None:
        """Note the seconds from `begin` to `end`, each in the bucket in which it lies."""
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = [0.0] * BUCKETS
        if begin < self._low or end >= self._high:
            begin = self._move(row, begin, end)
        row[self._now] += end - begin

    def _move(self, row: list[float], begin: float, end: float) -> float:
        """Go on to the bucket in which `end` lies; note the seconds before it, and return where it begins."""
        while end >= self.origin + BUCKETS * self.width:
            self._merge()
        first, self._now = (min(int((t - self.origin) / self.width), BUCKETS - 1) for t in (begin, end))
        for k in range(first, self._now):
            edge = self.origin + (k + 1) * self.width
            row[k] += edge - begin
            begin = edge
        self._low, self._high = (self.origin + (self._now + k) * self.width for k in (0, 1))
        return begin

    def _merge(self) -> None:
        self.width *= 2.0
        for row in self.rows.values():
            for k in range(BUCKETS // 2):
                row[k] = row[2 * k] + row[2 * k + 1]
            row[BUCKETS // 2 :] = [0.0] * (BUCKETS // 2)


class Meter(Layer):
    """A transport that counts the messages of the transport inside it; those of evaluation are not counted.

    The hot path only counts exchanges per channel; `traffic` multiplies out. A wait that was long enough to see whose
    message was missing is put down to that neighbour; a brief one is shared by all peers of the channel.
    """

    def __init__(self, inside: Transport) -> None:
        super().__init__(inside)
        self.start, self.done = inside.start, inside.done  # channels count their own use: no call in between
        self.channels: list[Channel] = []
        self.begin()

    def begin(self) -> None:
        """Let the time line of waits begin now."""
        self._started = time.time()
        self._waits = Timeline(perf_counter())

    def channel(self, spec: ChannelSpec) -> Channel:
        """Return a new channel of the transport inside."""
        channel = self.inside.channel(spec)
        self.channels.append(channel)
        return channel

    def wait(self, channel: Channel) -> None:
        """Wait, and note for how long and for whom."""
        begin = perf_counter()
        self.inside.wait(channel)
        end = perf_counter()
        position = channel.awaited
        self._waits.add(channel if position is None else (channel.rank, channel.sources[position]), begin, end)

    def traffic(self, rank: int) -> dict[int, Traffic]:
        """Return the traffic between `rank` and each of its peers."""
        result: dict[int, Traffic] = {}
        for channel in self.channels:
            if channel.rank == rank:
                k, tags = channel.exchanges, channel.exchanges * channel.overhead
                payload = k * channel.payload_bytes - tags
                shares = payload if channel.tag == SHARES_TAG else 0
                sent = Traffic(
                    messages_sent=k, payload_bytes_sent=payload, share_bytes_sent=shares, tag_bytes_sent=tags
                )
                heard = Traffic(messages_received=k, payload_bytes_received=payload, tag_bytes_received=tags)
                for others, traffic in ((channel.peers, sent), (channel.sources, heard)):
                    for peer in others:
                        result.setdefault(peer, Traffic()).add(traffic)
        for peers, row in self._waited(rank):
            share = sum(row) / len(peers)
            for peer in peers:
                result[peer].wait_seconds += share
        return dict(sorted(result.items()))

    def waits(self, rank: int, names: Sequence[int]) -> dict[str, object]:
        """Return a time line of the peers that `rank` waited for, JSON-ready, ranks by their names.

        `buckets[k]` holds the seconds waited for each peer between started + k width and started + (k + 1) width.
        """
        buckets: list[dict[int, float]] = [{} for _ in range(BUCKETS)]
        for peers, row in self._waited(rank):
            for bucket, seconds in zip(buckets, row, strict=True):
                for peer in peers if seconds else ():
                    bucket[peer] = bucket.get(peer, 0.0) + seconds / len(peers)
        while buckets and not buckets[-1]:
            buckets.pop()
        told = [{str(names[peer]): round(seconds, 6) for peer, seconds in sorted(b.items())} for b in buckets]
        return {"rank": names[rank], "started": self._started, "width": self._waits.width, "buckets": told}

    def _waited(self, rank: int) -> Iterator[tuple[tuple[int, ...], Sequence[float]]]:
        """Yield whom `rank` waited for, several where it is not known for which of them, and its seconds over time."""
        for key, row in self._waits.rows.items():
            waiter, peers = (key.rank, key.sources or key.peers) if isinstance(key, Channel) else (key[0], key[1:])
            if waiter == rank and peers:
                yield peers, row
