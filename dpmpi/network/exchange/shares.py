"""Secret shares: the sum of all ranks' vectors, of which nobody sees a summand.

A vector is encoded as integers modulo 2^64 (crypto/ring.py), the noise of the sum, if it has any, is added there, and

    full        hop 1: a share of it to every rank, another to each;  hop 2: the sum of the shares that one holds to all
    expanded    one hop: the vector plus masks that cancel in the sum, to all

The sum is that of the rounded values, exactly: n 2^-(f+1) from the plain one at most, the same bits on every rank. What
a rank may ask for is what the sum of all tells:

    Sum             the sum
    Mix             if all weights are 1/n, as on a complete graph: the sum times 1/n
    NeighbourSum    on a complete graph: the sum less the rank's own

Sums over neighbourhoods would add up to more than they show one by one (crypto/exposure.py), so they are refused.
"""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import Any

import numpy as np

from dpmpi.core import Array, Hidden, Mix, NeighbourSum, Request, Sum
from dpmpi.crypto.ring import check_capacity, decode, encode
from dpmpi.crypto.shares import PairwiseMasks, split
from dpmpi.errors import ConfigError
from dpmpi.network.channel import SHARES_TAG, Channel, Neighbourhood, Transport
from dpmpi.rng import PrivateStream, Words


class _SharesLink:
    """The channels and buffers for vectors of one length."""

    def __init__(self, transport: Transport, rank: int, peers: tuple[int, ...], length: int, full: bool) -> None:
        size = 8 * length
        self.sums = transport.channel(rank, peers, size, tag=0)
        self.sums_out: list[Words] = [payloads[0].view(np.uint64) for payloads in self.sums.outgoing]
        self.sums_in: list[Words] = [payload.view(np.uint64) for payload in self.sums.incoming]
        self.own: Words = np.empty(length, np.uint64)
        self.total: Words = np.empty(length, np.uint64)
        self.answer: Array = np.empty(length)
        self.real: Array = np.empty(length)
        if full:
            self.shares = transport.channel(rank, peers, size, SHARES_TAG, distinct=True)
            self.shares_out = [[one.view(np.uint64) for one in payloads] for payloads in self.shares.outgoing]
            self.shares_in: list[Words] = [payload.view(np.uint64) for payload in self.shares.incoming]
            self.split: Words = np.empty((len(peers) + 1, length), np.uint64)


class SharesExchange:
    """Serves one rank's requests from the sum of all ranks' vectors."""

    def __init__(
        self,
        transport: Transport,
        rank: int,
        size: int,
        *,
        bits: int,
        stream: PrivateStream,
        masks: PairwiseMasks | None = None,
        noise_tail: float = 0.0,
    ) -> None:
        """Share in full, from `stream`, or with masks if there are any."""
        if size < 3:
            raise ConfigError(
                f"expected at least 3 ranks for shares, which hide a summand among others, found {size}: start more, "
                "or use --seal to hide messages from outsiders"
            )
        self._transport = transport
        self._rank = rank
        self._size = size
        self._peers = tuple(j for j in range(size) if j != rank)
        self._bits = bits
        self._limit = capacity(size, bits, noise_tail)
        self._stream = stream
        self._masks = masks
        self._links: dict[int, _SharesLink] = {}
        self._round = self._hop = 0
        self.crypto_seconds: dict[int, float] = {rank: 0.0}
        """The seconds spent on encoding, splitting, masking and adding up; sealing comes on top."""

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Generator[Channel, None, Any]:
        """Share the request's vector, add up everybody's, return the answer to the request."""
        begin = perf_counter()
        factor = self._factor(request, near)
        length = (request.vector.secret if isinstance(request.vector, Hidden) else request.vector.value).size
        link = self._links.get(length)
        if link is None:
            link = self._links[length] = _SharesLink(
                self._transport, self._rank, self._peers, length, self._masks is None
            )
        if round_ != self._round:
            self._round, self._hop = round_, 0
        mine = link.sums_out[link.sums.flip()]
        own = mine if self._masks is not None and type(request) is not NeighbourSum else link.own
        self._encode(request, link, own)
        if self._masks is not None:
            if own is not mine:
                mine[:] = own
            self._masks.add(mine)
        else:
            split(own, link.split, self._stream)
            for share, out in zip(link.split, link.shares_out[link.shares.flip()], strict=False):
                out[:] = share
            channel = link.shares.stamp(round_, self._hop)
            self.crypto_seconds[self._rank] += perf_counter() - begin
            yield channel
            begin = perf_counter()
            self._hop += 1
            _add_up(link.split[-1], link.shares_in, mine)
        channel = link.sums.stamp(round_, self._hop)
        self.crypto_seconds[self._rank] += perf_counter() - begin
        yield channel
        begin = perf_counter()
        self._hop += 1
        _add_up(mine, link.sums_in, link.total)
        if type(request) is NeighbourSum:
            np.subtract(link.total, own, link.total)
        answer = self._decode(request, link, factor)
        self.crypto_seconds[self._rank] += perf_counter() - begin
        return answer

    def _encode(self, request: Request, link: _SharesLink, out: Words) -> None:
        """Write the rank's summand to `out`."""
        plus = request.plus if isinstance(request, Mix) else None
        hidden = plus if isinstance(plus, Hidden) else request.vector if isinstance(request.vector, Hidden) else None
        if hidden is not None:
            encode(hidden.secret, self._limit, self._bits, out, strict=True)
            out += hidden.noise.view(np.uint64)
        elif plus is not None and isinstance(request, Mix):
            np.multiply(plus.value, request.times, out=link.real)
            link.real += request.vector.value
            encode(link.real, self._limit, self._bits, out, strict=True)
        else:
            encode(request.vector.value, self._limit, self._bits, out, strict=True)

    def _decode(self, request: Request, link: _SharesLink, factor: float) -> Array:
        """Return the answer to the request from the sum in `total`."""
        answer: Array = link.answer if request.out is None else request.out
        if isinstance(request, Mix) and isinstance(request.plus, Hidden):
            decode(link.total, self._bits, link.real)
            link.real *= factor * request.times
            np.add(request.vector.value, link.real, out=answer)  # the same vector on all ranks: its mean is itself
        else:
            decode(link.total, self._bits, answer)
            if factor != 1.0:
                answer *= factor
        return answer

    def _factor(self, request: Request, near: Neighbourhood) -> float:
        """Return the factor of the sum; raise `ConfigError` for a request that the sum of all does not answer."""
        kind = type(request)
        if kind is Sum:
            return 1.0
        if near.peers == self._peers:
            if kind is NeighbourSum:
                return 1.0
            if kind is Mix and even(near):
                return 1.0 / self._size
        raise ConfigError(
            f"expected a request that the sum of all ranks answers, found {kind.__name__} over {len(near.peers)} "
            "peers: use --graph complete, or --exchange plain"
        )


def _add_up(first: Words, others: list[Words], out: Words) -> None:
    """Write the sum of all to `out`."""
    np.add(first, others[0], out)
    for other in others[1:]:
        np.add(out, other, out)


def even(near: Neighbourhood) -> bool:
    """Return whether a rank and its peers have the same weight, up to rounding."""
    n = len(near.peers) + 1
    return all(abs(weight - 1.0 / n) < 1e-12 for weight in (near.self_weight, *near.weights))


def capacity(size: int, bits: int, noise_tail: float = 0.0) -> float:
    """Return the largest value that each of `size` ranks may put into a sum; raise `ConfigError` if there is none."""
    limit = (2.0**62 / size) * 2.0**-bits - noise_tail / size
    check_capacity(size, max(limit, 2.0**-bits), bits, noise_tail)
    if limit < 1.0:
        raise ConfigError(
            f"expected room for values of 1, found {max(limit, 0.0):.3g} for {size} ranks at {bits} fractional bits: "
            "use fewer --share-bits"
        )
    return limit
