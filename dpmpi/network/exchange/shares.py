"""Secret shares: the sum of all ranks' vectors, of which nobody sees a summand.

A vector is encoded as integers modulo 2^64 or 2^32 (crypto/ring.py), noise of the sum, if there is any, is added, and

    full        a share of it goes to each partner; what a rank then holds, its own share and those it got, is summed
    expanded    the vector plus masks that cancel in the sum is summed

along a route (network/sums.py): nobody on the way sees more than everybody may. The sum is that of the rounded values,
exactly: n 2^-(f+1) from the plain one at most, the same bits on every rank and on every route. What a rank may ask for
is what the sum of all tells:

    Sum             the sum
    Mix             if all weights are 1/n: the sum times 1/n
    NeighbourSum    if all others are neighbours: the sum less the rank's own

Sums over neighbourhoods would add up to more than they show one by one (crypto/exposure.py), so they are refused.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from dpmpi.core import Array, Hidden, Mix, NeighbourSum, Request, Sum
from dpmpi.crypto.ring import WORD_BITS, FixedPoint, check_capacity, decode
from dpmpi.crypto.shares import PIECE, PairwiseMasks, split
from dpmpi.errors import ConfigError
from dpmpi.network.channel import SHARES_TAG, Channel, ChannelSpec, Neighbourhood, Transport
from dpmpi.network.route import Routes
from dpmpi.network.sums import make_adder, payload_of
from dpmpi.rng import PrivateStream, Words


class _SharesLink:
    """The channels and buffers for vectors of one length; `partners` get shares, if shares are full."""

    def __init__(
        self,
        transport: Transport,
        rank: int,
        routes: Routes | None,
        length: int,
        wire: str,
        partners: Sequence[int] | None,
    ) -> None:
        self.adder = make_adder(transport, rank, routes, length, wire)
        self.pieces = [(begin, min(begin + PIECE, length)) for begin in range(0, max(1, length), PIECE)]
        self.raised: Array = np.empty(min(length, PIECE))
        """A piece of the summand, with the offset of its encoding on top."""
        self.bits: Words = self.raised.view(np.uint64)
        self.narrow = wire != "uint64"
        self.kept: Words = np.empty(length, wire)
        self._signed: dict[int, tuple[Words, Any]] = {}
        self.answer: Array = np.empty(length)
        self.real: Array = np.empty(length)
        if partners is not None:
            payload = payload_of(length, wire)
            self.shares = transport.channel(ChannelSpec(rank, partners, payload, tag=SHARES_TAG, distinct=True))
            self.shares_out = [[one.view(wire)[:length] for one in payloads] for payloads in self.shares.outgoing]
            self.shares_in: list[Words] = [payload.view(wire)[:length] for payload in self.shares.incoming]
            self.split: Words = np.empty((len(partners) + 1, length), wire)

    def signed(self, words: Words) -> Any:
        """Return words of a buffer that is used again and again, seen as signed integers."""
        found = self._signed.get(id(words))
        if found is None:
            found = self._signed[id(words)] = words, words.view(f"i{words.itemsize}")
        return found[1]


class SharesExchange:
    """Serves one rank's requests from the sum of all ranks' vectors."""

    def __init__(
        self,
        transport: Transport,
        rank: int,
        routes: Routes | None,
        *,
        bits: int,
        hide: PairwiseMasks | tuple[PrivateStream, Sequence[int]],
        noise_tail: float = 0.0,
        word: int = WORD_BITS,
    ) -> None:
        """Hide summands behind masks, or behind full shares from a stream, one for each of some partners."""
        n = transport.size
        if n < 3:
            raise ConfigError(
                f"expected at least 3 ranks for shares, which hide a summand among others, found {n}: start more, "
                "or use --seal to hide messages from outsiders"
            )
        self._transport = transport
        self._rank = rank
        self._routes = routes
        self._size = n
        self._peers = tuple(j for j in range(n) if j != rank)
        self._fixed = FixedPoint(capacity(n, bits, noise_tail, word), bits)
        self._scale = self._fixed.scale()
        self._offset = self._fixed.offset
        self._wire = f"uint{word}"
        self._hide = hide
        if isinstance(hide, PairwiseMasks):
            hide.take_away(int(self._offset))
        self._links: dict[int, _SharesLink] = {}
        self._known: tuple[type[Request], Neighbourhood] | None = None
        self._round = self._hop = 0
        self.total: Words = np.empty(0, np.uint64)
        """The last sum, as integers: everybody may know it."""
        self.crypto_seconds: dict[int, float] = {rank: 0.0}
        """The seconds spent on encoding, splitting, masking and decoding; sealing comes on top."""

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Generator[Channel, None, Any]:
        """Share the request's vector, add up everybody's, return the answer to the request."""
        begin, kind = perf_counter(), type(request)
        if self._known is None or self._known[0] is not kind or self._known[1] is not near:
            self._scale, self._known = self._fixed.scale(self._check(kind, near)), (kind, near)
        link = self._link((request.vector.secret if isinstance(request.vector, Hidden) else request.vector.value).size)
        if round_ != self._round:
            self._round, self._hop = round_, 0
        words: Words = link.adder.room()
        values, noise = self._summand(request, link)
        kept = link.kept if kind is NeighbourSum else None
        if len(link.pieces) == 1:
            self._put(values, noise, words, kept, link)
        else:  # each piece stays in the cache until its masks are on it
            for begin, end in link.pieces:
                self._put(
                    values[begin:end],
                    None if noise is None else noise[begin:end],
                    words[begin:end],
                    None if kept is None else kept[begin:end],
                    link,
                )
        if not isinstance(self._hide, PairwiseMasks):
            split(words, link.split, self._hide[0])
            for share, out in zip(link.split, link.shares_out[link.shares.flip()], strict=False):
                out[...] = share
            channel = link.shares.stamp(round_, self._hop)
            self.crypto_seconds[self._rank] += perf_counter() - begin
            yield channel
            begin = perf_counter()
            self._hop += 1
            words[...] = link.split[-1]
            for share in link.shares_in:
                np.add(words, share, words)
        self.crypto_seconds[self._rank] += perf_counter() - begin
        hop, self._hop = self._hop, self._hop + link.adder.hops
        yield from link.adder.add_up(round_, hop)
        begin = perf_counter()
        words = self.total = link.adder.total
        if kind is NeighbourSum:
            words = np.subtract(words, link.kept, link.kept)
        answer = self._decode(request, link, words)
        self.crypto_seconds[self._rank] += perf_counter() - begin
        return answer

    def go_to(self, round_: int, hop: int) -> None:
        """Let the next message be of this round and hop."""
        self._round, self._hop = round_, hop

    def prepare(self) -> None:
        """Draw the masks of the next sum ahead."""
        if isinstance(self._hide, PairwiseMasks):
            begin = perf_counter()
            self._hide.prepare()
            self.crypto_seconds[self._rank] += perf_counter() - begin

    def _link(self, length: int) -> _SharesLink:
        link = self._links.get(length)
        if link is None:
            partners = None if isinstance(self._hide, PairwiseMasks) else self._hide[1]
            link = self._links[length] = _SharesLink(
                self._transport, self._rank, self._routes, length, self._wire, partners
            )
        return link

    def _summand(self, request: Request, link: _SharesLink) -> tuple[Array, Any]:
        """Return the rank's summand, and its part of the noise as integers if there is any."""
        plus = request.plus if isinstance(request, Mix) else None
        hidden = plus if isinstance(plus, Hidden) else request.vector if isinstance(request.vector, Hidden) else None
        if hidden is not None:
            return hidden.secret, hidden.noise.view(np.uint64)
        if plus is None or not isinstance(request, Mix):
            return request.vector.value, None
        np.multiply(plus.value, request.times, out=link.real)
        np.add(link.real, request.vector.value, link.real)
        return link.real, None

    def _put(self, values: Array, noise: Any, words: Words, kept: Words | None, link: _SharesLink) -> None:
        """Encode a piece of the summand, add its noise and masks, write it to `words`; keep it bare if asked to."""
        raised, bits = link.raised, link.bits
        if len(values) < len(raised):
            raised, bits = raised[: len(values)], bits[: len(values)]
        self._fixed.encode_raised(values, raised, strict=True)
        if noise is not None:
            np.add(bits, noise, bits)
        if link.narrow:
            np.copyto(words, bits, casting="unsafe")  # modulo 2^32, in which the offset is 0
            bits = words
        if kept is not None:
            np.subtract(bits, self._offset, kept, casting="unsafe")
        if isinstance(self._hide, PairwiseMasks):
            self._hide.add(bits, words)
        else:
            np.subtract(bits, self._offset, words, casting="unsafe")

    def _decode(self, request: Request, link: _SharesLink, words: Words) -> Array:
        """Return the answer to the request from the sum in `words`."""
        answer: Array = link.answer if request.out is None else request.out
        if isinstance(request, Mix) and isinstance(request.plus, Hidden):
            decode(words, self._scale, link.real)
            link.real *= request.times
            np.add(request.vector.value, link.real, out=answer)  # the same vector on all ranks: its mean is itself
        else:
            decode(link.signed(words), self._scale, answer)
        return answer

    def _check(self, kind: type[Request], near: Neighbourhood) -> float:
        """Return the factor of the sum; raise `ConfigError` for a request that the sum of all does not answer."""
        if kind is Sum:
            return 1.0
        if near.peers == self._peers:
            if kind is NeighbourSum:
                return 1.0
            if kind is Mix and even(near):
                return 1.0 / self._size
        raise ConfigError(
            f"expected a request that the sum of all ranks answers, found {kind.__name__} over {len(near.peers)} "
            "peers: use --exchange plain"
        )


def even(near: Neighbourhood) -> bool:
    """Return whether a rank and its peers have the same weight, up to rounding."""
    n = len(near.peers) + 1
    return all(abs(weight - 1.0 / n) < 1e-12 for weight in (near.self_weight, *near.weights))


def capacity(size: int, bits: int, noise_tail: float = 0.0, word: int = WORD_BITS) -> float:
    """Return the largest value that each of `size` ranks may put into a sum; raise `ConfigError` if there is none.

    In words of 64 bits there is room for values of 1, whatever a method says; narrower ones are for values of a known
    bound.
    """
    limit = (2.0 ** (word - 2) / size) * 2.0**-bits - noise_tail / size
    check_capacity(size, max(limit, 2.0**-bits), bits, noise_tail, word)
    if limit < 1.0 and word == WORD_BITS:
        raise ConfigError(
            f"expected room for values of 1, found {max(limit, 0.0):.3g} for {size} ranks at {bits} fractional bits: "
            "use fewer --share-bits"
        )
    return limit
