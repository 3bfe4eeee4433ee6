"""The plain exchange: one hop, vectors as float64.

The answer to `Mix` is sum_j w_ij v_j, multiplied and added up one rank after the other in rank order, so that its bits
do not depend on the transport or on which message came first.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from dpmpi.core import Array, Channel, Gather, Mix, Neighbourhood, Request, Sum, Transport


class _Link:
    """A channel with its buffers seen as vectors, and the terms of the weighted sum in rank order."""

    def __init__(self, channel: Channel, near: Neighbourhood) -> None:
        self.channel = channel
        self.outgoing: Array = channel.outgoing.view(np.float64)
        heard: list[Array] = [payload.view(np.float64) for payload in channel.incoming]
        self.heard = dict(zip(channel.peers, heard, strict=True))
        terms = [
            (channel.rank, self.outgoing, near.self_weight),
            *zip(channel.peers, heard, near.weights, strict=True),
        ]
        self.terms = [(vector, weight) for _, vector, weight in sorted(terms, key=lambda term: term[0])]
        self.answer = np.zeros_like(self.outgoing)
        self.scratch = np.zeros_like(self.outgoing)

    def weighted_sum(self, out: Array) -> Array:
        """Write sum_j w_j v_j to `out`, in rank order."""
        scratch = self.scratch
        vector, weight = self.terms[0]
        np.multiply(vector, weight, out)
        for vector, weight in self.terms[1:]:
            np.multiply(vector, weight, scratch)
            np.add(out, scratch, out)
        return out


class PlainExchange:
    """Serves one rank's requests with one message to, and one from, each peer."""

    def __init__(self, transport: Transport, rank: int, size: int) -> None:
        others = tuple(j for j in range(size) if j != rank)
        self._transport = transport
        self._rank = rank
        self._everyone = Neighbourhood(others, (1.0,) * len(others), 1.0)
        self._links: dict[tuple[Neighbourhood, int], _Link] = {}
        self._recent: tuple[Neighbourhood | None, int, _Link | None] = (None, 0, None)
        self._round = 0
        self._hop = 0

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Generator[Channel, None, Any]:
        """Send the request's vector to the peers, receive theirs, return the answer."""
        vector = request.vector.value
        link = self._link(self._everyone if isinstance(request, Sum) else near, vector.size)
        if round_ != self._round:
            self._round, self._hop = round_, 0
        np.copyto(link.outgoing, vector)
        yield link.channel.stamp(round_, self._hop)
        self._hop += 1
        if isinstance(request, Gather):
            return link.heard
        if isinstance(request, Mix | Sum):
            return link.weighted_sum(link.answer if request.out is None else request.out)
        raise TypeError(f"the plain exchange serves Mix, Gather and Sum, got {type(request).__name__}")

    def _link(self, near: Neighbourhood, length: int) -> _Link:
        recent_near, recent_length, recent = self._recent
        if recent is not None and near is recent_near and length == recent_length:
            return recent
        link = self._links.get((near, length))
        if link is None:
            channel = self._transport.channel(self._rank, near.peers, 8 * length, tag=0)
            link = self._links[near, length] = _Link(channel, near)
        self._recent = (near, length, link)
        return link
