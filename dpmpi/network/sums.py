"""Sums over all ranks, hop by hop: one `Adder` for each route of `route.py`.

The summand is written to `room()`, and `total` is the sum after the last hop, the same bits on every rank: it was
added up in one place, or in the same order everywhere. Both are buffers of messages where that saves a copy, so `total`
is to be read, not written, before the next sum begins. Numbers are added as they are counted (float64, or integers of
the words' own length) and travel as `wire` says, which may be shorter: then all ranks, those who added included, go on
with what was sent.

Order of floating-point sums, fixed by the route:

    tree        a rank's own vector, then the sums of its children in rank order
    butterfly   a rank's own piece, then the pieces that come in a stage, from the nearest rank before it on
    direct      all vectors in rank order
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.network.channel import Channel, ChannelSpec, Transport
from dpmpi.network.polling import SUM_POLLS
from dpmpi.network.route import Routes, Tree, block_words, plan_stages

Numbers: TypeAlias = NDArray[Any]
Hops: TypeAlias = Generator[Channel, None, None]
WORD = 8


class Adder(Protocol):
    """Adds up one vector of each rank."""

    total: Numbers
    """The last sum."""
    hops: int

    def room(self) -> Numbers:
        """Begin a sum: return where this rank's summand is to be written."""

    def add_up(self, round_: int, hop: int) -> Hops:
        """Add up what was written to `room()` over all ranks; the first message has this hop."""


def payload_of(length: int, wire: str) -> int:
    """Return the bytes of a vector on the wire: whole words of 8 bytes."""
    return WORD * -(-length * np.dtype(wire).itemsize // WORD)


def make_adder(transport: Transport, rank: int, routes: Routes | None, length: int, wire: str) -> Adder:
    """Return the adder of vectors of `length` numbers that travel as `wire` says; without routes, a direct one."""
    name = "direct" if routes is None else routes.of(payload_of(length, wire))
    if routes is not None and name == "tree":
        return TreeAdder(transport, rank, routes.tree, length, wire)
    return (ButterflyAdder if name == "butterfly" else DirectAdder)(transport, rank, length, wire)


def _channel(transport: Transport, spec: ChannelSpec) -> Channel:
    """Return a channel of a sum, for whose messages everybody waits."""
    found = transport.channel(spec)
    found.polls = SUM_POLLS
    return found


def _counted(wire: str) -> str:
    """Return the type in which numbers are added that travel like this."""
    return "float64" if wire == "float32" else wire


class TreeAdder:
    """Adds up along a tree: one hop, in which a rank hears its children, then its parent, then tells its children.

    The summand is written into the message to the parent, or at the root into the message to the children, and the
    children's sums are added there. On a narrow wire it has a vector of its own.
    """

    hops = 1

    def __init__(self, transport: Transport, rank: int, tree: Tree, length: int, wire: str) -> None:
        payload, children, parent = payload_of(length, wire), tree.children[rank], tree.parents[rank]
        self._up = self._down = self._parent = None
        self._wide: Numbers | None = np.zeros(length, _counted(wire)) if _counted(wire) != wire else None
        if children:
            self._up = _channel(transport, ChannelSpec(rank, (), payload, sources=children))
            self._down = _channel(transport, ChannelSpec(rank, children, payload, sources=()))
            self._heard = [one.view(wire)[:length] for one in self._up.incoming]
            self._told = [one[0].view(wire)[:length] for one in self._down.outgoing]
        if parent != rank:
            self._parent = _channel(transport, ChannelSpec(rank, (parent,), payload))
            self._passed = [one[0].view(wire)[:length] for one in self._parent.outgoing]
            self._answer: Numbers = self._parent.incoming[0].view(wire)[:length]
        self.total: Numbers = np.zeros(length, _counted(wire))

    def room(self) -> Numbers:
        """Begin a sum: return where this rank's summand is to be written."""
        if self._parent is not None:
            self._own: Numbers = self._passed[self._parent.flip()]
        elif self._down is not None:
            self._own = self._told[self._down.flip()]
        return self._own if self._wide is None else self._wide

    def add_up(self, round_: int, hop: int) -> Hops:
        """Add up what was written to `room()` over all ranks."""
        own, wide = self._own, self._wide
        if self._up is not None:
            self._up.flip()
            yield self._up.stamp(round_, hop)
            for heard in self._heard:
                np.add(own if wide is None else wide, heard, own if wide is None else wide)
        if wide is not None:
            own[...] = wide
        if self._parent is not None:
            yield self._parent.stamp(round_, hop)
            own = self._answer
        if self._down is not None:
            if self._parent is not None:
                self._told[self._down.flip()][...] = own
            yield self._down.stamp(round_, hop)
        if wide is None:
            self.total = own
        else:
            self.total[...] = own  # the root goes on with what it has told, too


class _Pieces:
    """A stage of a butterfly as one rank has it: a channel, and which part of the vector is in each message."""

    def __init__(self, channel: Channel, wire: str, sent: list[list[Numbers]], heard: list[list[Numbers]]) -> None:
        self.channel = channel
        outgoing = [[one.view(wire) for one in payloads] for payloads in channel.outgoing]
        self.outgoing = [_paired(messages, sent) for messages in outgoing]
        """For each of the two turns, (part of the message, part of the vector)."""
        self.incoming = _paired([one.view(wire) for one in channel.incoming], heard)


class ButterflyAdder:
    """Adds up by recursive halving and doubling."""

    def __init__(self, transport: Transport, rank: int, length: int, wire: str) -> None:
        n, payload = transport.size, payload_of(length, wire)
        words = block_words(n, payload)
        block = words * WORD // np.dtype(wire).itemsize
        whole: Numbers = np.zeros(n * block, _counted(wire))
        self.total: Numbers = whole[:length]
        self._mine = whole[rank * block : (rank + 1) * block]
        self._narrow = np.dtype(wire) if _counted(wire) != wire else None

        def parts(first: int, count: int) -> list[Numbers]:
            """Return the blocks from `first` on, which may go on at the beginning."""
            low, high = first % n * block, (first % n + count) * block
            return [whole[low:high]] if high <= n * block else [whole[low:], whole[: high - n * block]]

        self._halving: list[_Pieces] = []
        self._doubling: list[_Pieces] = []
        for stage in plan_stages(n, payload):
            size, pieces = stage.width * words * WORD, list(enumerate(stage.offsets))
            ahead = [(rank + offset) % n for offset in stage.offsets]
            behind = [(rank - offset) % n for offset in stage.offsets]
            first = [parts(rank, stage.blocks(k)) for k, _ in pieces]
            later = [parts(rank + offset, stage.blocks(k)) for k, offset in pieces]
            halve = _channel(transport, ChannelSpec(rank, ahead, size, distinct=True, sources=behind))
            double = _channel(transport, ChannelSpec(rank, behind, size, sources=ahead))
            self._halving.append(_Pieces(halve, wire, later, first))
            self._doubling.insert(0, _Pieces(double, wire, [parts(rank, stage.width)], later))
        self.hops = 2 * len(self._halving)

    def room(self) -> Numbers:
        """Begin a sum: return where this rank's summand is to be written."""
        return self.total

    def add_up(self, round_: int, hop: int) -> Hops:
        """Add up what was written to `room()` over all ranks."""
        for stage in self._halving:
            yield _filled(stage, round_, hop)
            hop += 1
            for message, part in stage.incoming:
                np.add(part, message, part)
        if self._narrow is not None:
            self._mine[...] = self._mine.astype(self._narrow)  # as the others will hear it
        for stage in self._doubling:
            yield _filled(stage, round_, hop)
            hop += 1
            for message, part in stage.incoming:
                part[...] = message


def _filled(stage: _Pieces, round_: int, hop: int) -> Channel:
    """Return the channel of a stage with its messages written."""
    for message, part in stage.outgoing[stage.channel.flip()]:
        message[...] = part
    return stage.channel.stamp(round_, hop)


def _paired(messages: list[Numbers], parts: list[list[Numbers]]) -> list[tuple[Numbers, Numbers]]:
    """Return (part of the message, part of the vector) of all messages, each of which holds some parts in turn."""
    found = []
    for message, some in zip(messages, parts, strict=True):
        begin = 0
        for part in some:
            found.append((message[begin : begin + part.size], part))
            begin += part.size
    return found


class DirectAdder:
    """Adds up what everybody tells everybody."""

    hops = 1

    def __init__(self, transport: Transport, rank: int, length: int, wire: str) -> None:
        peers = tuple(j for j in range(transport.size) if j != rank)
        self.total: Numbers = np.zeros(length, _counted(wire))
        self._channel = _channel(transport, ChannelSpec(rank, peers, payload_of(length, wire)))
        self._told = [one[0].view(wire)[:length] for one in self._channel.outgoing]
        heard = [one.view(wire)[:length] for one in self._channel.incoming]
        self._terms = [[*heard[:rank], told, *heard[rank:]] for told in self._told]
        """For each of the two turns, all vectors in rank order."""

    def room(self) -> Numbers:
        """Begin a sum: return where this rank's summand is to be written."""
        return self._told[self._channel.flip()]

    def add_up(self, round_: int, hop: int) -> Hops:
        """Add up what was written to `room()` over all ranks."""
        terms, total = self._terms[self._channel.turn], self.total
        yield self._channel.stamp(round_, hop)
        total[...] = terms[0]
        for vector in terms[1:]:
            np.add(total, vector, total)
