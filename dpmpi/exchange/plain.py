"""The plain exchange: one hop, vectors as float64.

The answer to `Mix` is sum_j w_ij v_j, multiplied and added up one rank after the other in rank order, so that its bits
do not depend on the transport or on which message came first.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from dpmpi.core import Array, Gather, Mix, NeighbourSum, Request, Sum
from dpmpi.wire import Channel, Neighbourhood, Transport


class _Link:
    """A channel with its buffers seen as vectors, and the terms of the weighted sum in rank order."""

    def __init__(self, channel: Channel, near: Neighbourhood, length: int) -> None:
        self.channel = channel
        self.near = near
        self.length = length
        heard: list[Array] = [payload.view(np.float64) for payload in channel.incoming]
        self.heard = dict(zip(channel.peers, heard, strict=True))
        self.outgoing: list[Array] = [payloads[0].view(np.float64) for payloads in channel.outgoing]
        self.answer = np.zeros_like(self.outgoing[0])
        self.scratch = np.zeros_like(self.outgoing[0])
        self.terms: list[list[tuple[Array, float]]] = []
        """For each of the two outgoing buffers, (vector, weight) of this rank and its peers in rank order."""
        for own in self.outgoing:
            terms = [(channel.rank, own, near.self_weight), *zip(channel.peers, heard, near.weights, strict=True)]
            self.terms.append([(vector, weight) for _, vector, weight in sorted(terms, key=lambda term: term[0])])

    def weighted_sum(self, turn: int, out: Array) -> Array:
        """Write sum_j w_j v_j to `out`, in rank order."""
        multiply, add, scratch = np.multiply, np.add, self.scratch
        terms = iter(self.terms[turn])
        vector, weight = next(terms)
        multiply(vector, weight, out)
        for vector, weight in terms:
            multiply(vector, weight, scratch)
            add(out, scratch, out)
        return out

    def plain_sum(self, out: Array) -> Array:
        """Write the sum of the peers' vectors to `out`, in rank order."""
        out.fill(0.0)
        for vector in self.heard.values():
            np.add(out, vector, out)
        return out


class PlainExchange:
    """Serves one rank's requests with one message to, and one from, each peer."""

    def __init__(self, transport: Transport, rank: int, size: int) -> None:
        others = tuple(j for j in range(size) if j != rank)
        self._transport = transport
        self._rank = rank
        self._everyone = Neighbourhood(others, (1.0,) * len(others), 1.0)
        self._links: dict[tuple[Neighbourhood, int], _Link] = {}
        self._recent: _Link | None = None
        self._round = 0
        self._hop = 0

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Generator[Channel, None, Any]:
        """Send the request's vector to the peers, receive theirs, return the answer."""
        vector, kind = request.vector.value, type(request)
        if kind is Sum:
            near = self._everyone
        link = self._recent
        if link is None or link.near is not near or link.length != vector.size:
            link = self._recent = self._link(near, vector.size)
        if round_ != self._round:
            self._round, self._hop = round_, 0
        channel = link.channel
        turn = channel.flip()
        out = link.outgoing[turn]
        if isinstance(request, Mix) and request.plus is not None:
            np.multiply(request.plus.value, request.times, out)
            np.add(out, vector, out)
        else:
            np.copyto(out, vector)
        yield channel.stamp(round_, self._hop)
        self._hop += 1
        if kind is Mix or kind is Sum:
            return link.weighted_sum(turn, link.answer if request.out is None else request.out)
        if kind is NeighbourSum:
            return link.plain_sum(link.answer if request.out is None else request.out)
        if kind is Gather:
            return link.heard
        raise TypeError(f"the plain exchange serves Mix, NeighbourSum, Gather and Sum, got {kind.__name__}")

    def _link(self, near: Neighbourhood, length: int) -> _Link:
        link = self._links.get((near, length))
        if link is None:
            channel = self._transport.channel(self._rank, near.peers, 8 * length, tag=0)
            link = self._links[near, length] = _Link(channel, near, length)
        return link
