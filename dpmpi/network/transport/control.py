"""What ranks tell each other beside their rounds, sealed for each receiver alone.

Around the transport of a run, once the ranks have met (`handshake.meet`): texts, votes, rows, figures of evaluation.
Every message goes from one rank to one other under the keys of that pair, and is opened in the order in which it was
sealed. So a message that was changed, repeated, left out or put elsewhere does not open, and `SealBroken` names its
sender; no rank can speak for another.

`add_up` adds words modulo 2^64 under masks that cancel in the sum, (3) of `crypto/shares.py`: nobody sees another's
summand. `total`, for the reference solver alone, shows slices of summands to the other ranks, and to nobody else.

Where all ranks live in this process nothing travels, and nothing is sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.keys import PairKeys, Session
from dpmpi.crypto.seal import SealedPair
from dpmpi.crypto.shares import PairwiseMasks
from dpmpi.network.channel import Channel, Layer, Transport, slices
from dpmpi.rng import Words


class _Line:
    """One rank's sealed pairs for one purpose, and how many messages each has carried: all of them as many."""

    def __init__(self, purpose: bytes, session: Session, rank: int, keys: Mapping[int, PairKeys]) -> None:
        self._rank = rank
        self._pairs = {peer: SealedPair(session, rank, peer, pair.purpose(purpose)) for peer, pair in keys.items()}
        self._sealed = self._opened = 0

    def seal(self, messages: Sequence[bytes]) -> list[bytes]:
        """Return the messages, each sealed for the rank at its place; nothing for this one."""
        self._sealed += 1
        found = []
        for peer, message in enumerate(messages):
            out = bytearray(len(message) + SEAL_BYTES)
            if peer != self._rank:
                self._pairs[peer].seal(bytearray(message), out, self._sealed, 0)
            found.append(bytes(out))
        return found

    def open(self, sealed: Sequence[bytes], own: bytes) -> list[bytes]:
        """Return every rank's message, `own` for this one; raise `SealBroken` for a message that does not open."""
        self._opened += 1
        found = []
        for peer, message in enumerate(sealed):
            out = bytearray(max(len(message) - SEAL_BYTES, 0))
            if peer != self._rank:
                self._pairs[peer].open(bytearray(message), out, self._opened, 0)
            found.append(own if peer == self._rank else bytes(out))
        return found


class SealedControl(Layer):
    """Seals what all ranks of a transport tell each other together; channels are those of the transport inside."""

    def __init__(self, inside: Transport, session: Session, keys: Mapping[int, Mapping[int, PairKeys]]) -> None:
        """Take the keys of the rank in this process with each other rank."""
        super().__init__(inside)
        self.channel, self.start, self.done, self.wait = inside.channel, inside.start, inside.done, inside.wait
        self._here = len(inside.ranks) == inside.size
        if not self._here:
            [(self._rank, mine)] = keys.items()
            self._said = _Line(b"control", session, self._rank, mine)
            self._votes = _Line(b"votes", session, self._rank, mine)
            secrets = {peer: pair.purpose(b"sums").masks for peer, pair in mine.items()}
            self._masks = PairwiseMasks(self._rank, secrets)

    channel: Callable[..., Channel]
    start: Callable[[Channel], None]
    done: Callable[[Channel], bool]
    wait: Callable[[Channel], None]

    def swap(self, messages: Sequence[bytes], theirs: Sequence[int] | None = None) -> list[bytes]:
        """Send every rank its own bytes, sealed, and their lengths before them; return those of every rank."""
        said, sealed = self._said, [len(message).to_bytes(8, "big") for message in messages]
        told = said.open(self.inside.swap_alike(said.seal(sealed))(), sealed[self._rank])
        theirs = [int.from_bytes(length, "big") + SEAL_BYTES for length in told]
        return said.open(self.inside.swap(said.seal(messages), theirs), messages[self._rank])

    def collect(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of all ranks in rank order."""
        if self._here:
            return self.inside.collect(texts)
        [text] = texts
        return [told.decode() for told in self.swap([text.encode()] * self.size)]

    def gather(self, row: Array, roots: Sequence[int]) -> Array | None:
        """Return the rows of all ranks as a matrix on those in `roots`, None elsewhere."""
        if self._here:
            return self.inside.gather(row, roots)
        told = self.swap([row.tobytes() if rank in roots else b"" for rank in range(self.size)])
        return np.stack([np.frombuffer(one, row.dtype) for one in told]) if self._rank in roots else None

    def vote(self, wishes: Array) -> Callable[[], Array]:
        """Begin to agree on the largest of all ranks' wishes, entry by entry."""
        if self._here:
            return self.inside.vote(wishes)
        mine = wishes.tobytes()
        come = self.inside.swap_alike(self._votes.seal([mine] * self.size))

        def result() -> Array:
            told = self._votes.open(come(), mine)
            largest: Array = np.max([np.frombuffer(one, wishes.dtype) for one in told], axis=0)
            return largest

        return result

    def total(self, buffer: Array) -> None:
        """Replace the buffer by its sum over all ranks, in rank order; each rank sees a slice of every summand."""
        if not self._here:
            self._add(buffer)

    def add_up(self, words: Words) -> None:
        """Replace the words by their sum over all ranks, modulo 2^64; nobody sees another's summand."""
        if not self._here:
            self._masks.add(words)
            self._add(words)

    def _add(self, buffer: NDArray[Any]) -> None:
        """Add up one slice of the coordinates on each rank, in rank order; then all get all slices."""
        mine = slices(buffer, self.size)
        theirs = [np.frombuffer(one, buffer.dtype) for one in self.swap([row.tobytes() for row in mine])]
        total = theirs[0].copy()
        for row in theirs[1:]:
            total += row
        added = b"".join(self.swap([total.tobytes()] * self.size))
        buffer.reshape(-1)[:] = np.frombuffer(added, buffer.dtype)[: buffer.size]
