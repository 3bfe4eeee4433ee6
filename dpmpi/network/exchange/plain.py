"""The plain exchange: one hop to the neighbours, vectors as float64 or, on a narrow wire, as float32.

The answer to `Mix` is sum_j w_ij v_j, added up one rank after the other in rank order, so that its bits do not depend
on the transport or on which message came first. Vectors are multiplied by their weights before they are added; where
all weights are the same, as on a ring, their sum is multiplied instead, which takes 3 steps for 3 vectors and not 5.
`Sum` travels along a route of its own, which fixes its order (network/sums.py).

On a float32 wire v_j is what was sent, the rank's own included: every rank sees the same numbers. Products and sums are
taken in float64. Rounding what was released is post-processing and costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array, Gather, Mix, NeighbourSum, Request, Sum
from dpmpi.network.channel import Channel, ChannelSpec, Neighbourhood, Transport
from dpmpi.network.route import Routes
from dpmpi.network.sums import Adder, make_adder, payload_of

WireVector: TypeAlias = NDArray[np.float64] | NDArray[np.float32]

_FLOAT32_BITS = np.int64(~((1 << 29) - 1))
"""Sign, exponent and the first 23 bits of the mantissa of a float64."""


class _PlainLink:
    """A channel with its buffers seen as vectors, and the terms of the weighted sum in rank order."""

    def __init__(self, channel: Channel, near: Neighbourhood, length: int, wire: str) -> None:
        self.channel = channel
        self.near = near
        self.length = length
        self.narrow = wire == "float32"
        self.multiply: Callable[..., Any] = partial(np.multiply, dtype=np.float64) if self.narrow else np.multiply
        """Multiplies in float64, whatever comes in."""
        received: list[WireVector] = [payload.view(wire)[:length] for payload in channel.incoming]
        self.received = dict(zip(channel.peers, received, strict=True))
        self.heard: dict[int, Array] = {}
        """What `received` holds, in float64."""
        self.outgoing: list[WireVector] = [payloads[0].view(wire)[:length] for payloads in channel.outgoing]
        self.answer: Array = np.zeros(length)
        self.scratch: Array = np.zeros(length)
        self.terms: list[list[tuple[WireVector, Array]]] = []
        """For each of the two outgoing buffers, (vector, weight) of this rank and its peers in rank order.

        Weights are arrays without axes: to make one of a float takes numpy longer than to multiply a short vector.
        """
        for own in self.outgoing:
            terms = [(channel.rank, own, near.self_weight), *zip(channel.peers, received, near.weights, strict=True)]
            terms.sort(key=lambda term: term[0])
            self.terms.append([(vector, np.array(weight, np.float64)) for _, vector, weight in terms])
        same = bool(near.peers) and {near.self_weight} == {*near.weights} and not self.narrow
        self.common: Array | None = np.array(near.self_weight, np.float64) if same else None
        """The weight of all vectors, if it is one."""

    def weighted_sum(self, turn: int, out: Array) -> Array:
        """Write sum_j w_j v_j to `out`, in rank order."""
        multiply, add = self.multiply, np.add
        terms = self.terms[turn]
        if self.common is not None:
            add(terms[0][0], terms[1][0], out)
            for vector, _ in terms[2:]:
                add(out, vector, out)
            multiply(out, self.common, out)
            return out
        scratch, (vector, weight) = self.scratch, terms[0]
        multiply(vector, weight, out)
        for vector, weight in terms[1:]:
            multiply(vector, weight, scratch)
            add(out, scratch, out)
        return out

    def plain_sum(self, out: Array) -> Array:
        """Write the sum of the peers' vectors to `out`, in rank order."""
        out.fill(0.0)
        for vector in self.received.values():
            np.add(out, vector, out)
        return out

    def gathered(self) -> dict[int, Array]:
        """Return the peers' vectors."""
        if not self.heard:
            self.heard = {peer: vector.astype(np.float64, copy=False) for peer, vector in self.received.items()}
        elif self.narrow:
            for wide, vector in zip(self.heard.values(), self.received.values(), strict=True):
                np.copyto(wide, vector)
        return self.heard


class PlainExchange:
    """Serves one rank's requests: with one message to, and one from, each peer, or by a sum along `routes`.

    Without routes, everybody tells everybody what is to be added up.

    On a float32 wire the vector of a `Gather` or `NeighbourSum` is itself cut down to what is sent: a method that goes
    on with its own vector and its neighbours' must have the same ones as they. It is rounded towards zero, because a
    box or ball that held the vector must hold it afterwards.
    """

    def __init__(
        self, transport: Transport, rank: int, size: int, wire: str = "float64", routes: Routes | None = None
    ) -> None:
        if size != transport.size:
            raise ValueError(f"expected an exchange among the {transport.size} ranks of the transport, found {size}")
        self._transport = transport
        self._rank = rank
        self._routes = routes
        self._wire = wire
        self._adders: dict[int, tuple[Adder, Array]] = {}
        """For each length, what adds up, and room for an answer."""
        self._links: dict[tuple[Neighbourhood, int], _PlainLink] = {}
        self._recent: _PlainLink | None = None
        self._round = 0
        self._hop = 0

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Generator[Channel, None, Any]:
        """Send the request's vector to the peers, receive theirs, return the answer."""
        vector, kind = request.vector.value, type(request)
        if round_ != self._round:
            self._round, self._hop = round_, 0
        if kind is Sum:
            return (yield from self._sum(request, round_))
        link = self._recent
        if link is None or link.near is not near or link.length != vector.size:
            link = self._recent = self._link(near, vector.size)
        channel = link.channel
        turn = channel.flip()
        out = link.outgoing[turn]
        if isinstance(request, Mix) and request.plus is not None:
            np.multiply(request.plus.value, request.times, link.scratch)
            np.add(link.scratch, vector, out)
        else:
            if link.narrow and (kind is Gather or kind is NeighbourSum):
                bits = vector.view(np.int64)
                np.bitwise_and(bits, _FLOAT32_BITS, bits)
            out[...] = vector  # as np.copyto, which takes twice the steps
        yield channel.stamp(round_, self._hop)
        self._hop += 1
        if kind is Mix:
            return link.weighted_sum(turn, link.answer if request.out is None else request.out)
        if kind is NeighbourSum:
            return link.plain_sum(link.answer if request.out is None else request.out)
        if kind is Gather:
            return link.gathered()
        raise TypeError(f"expected Mix, NeighbourSum, Gather or Sum, found {kind.__name__}")

    def go_to(self, round_: int, hop: int) -> None:
        """Let the next message be of this round and hop."""
        self._round, self._hop = round_, hop

    def prepare(self) -> None:
        """Draw nothing ahead: there is nothing random in plain messages."""

    def _sum(self, request: Request, round_: int) -> Generator[Channel, None, Array]:
        """Add up the vectors of all ranks."""
        vector = request.vector.value
        found = self._adders.get(vector.size)
        if found is None:
            made = make_adder(self._transport, self._rank, self._routes, vector.size, self._wire)
            found = self._adders[vector.size] = (made, np.empty(vector.size))
        adder, answer = found
        adder.room()[...] = vector
        hop, self._hop = self._hop, self._hop + adder.hops
        yield from adder.add_up(round_, hop)
        out = answer if request.out is None else request.out
        out[...] = adder.total
        return out

    def _link(self, near: Neighbourhood, length: int) -> _PlainLink:
        link = self._links.get((near, length))
        if link is None:
            spec = ChannelSpec(self._rank, near.peers, payload_of(length, self._wire))
            link = self._links[near, length] = _PlainLink(self._transport.channel(spec), near, length, self._wire)
        return link
