"""Keyed random streams. Three kinds, which never mix.

- `public_generator(seed, ...)`: counter-based, from the shared seed; data synthesis, graph, schedule.
- `PrivateStream`: AES-256 in counter mode under the rank's own key; noise, and everything else whose secrecy the
  accounting relies on (which records a batch holds). The key is 32 bytes of OS entropy, never on disk.
- pairwise keys for sealing live in `dpmpi.crypto`.

With `crypto/`, this is the only importer of `cryptography`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dpmpi.core import Array

Words = NDArray[np.uint64]

_BLOCK_WORDS = 4096  # 32 KiB: large enough to amortise the call, small enough to stay in the cache


def _digest(*parts: object) -> bytes:
    """Hash labels unambiguously, with their lengths."""
    h = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        h.update(len(raw).to_bytes(8, "little") + raw)
    return h.digest()


def public_generator(seed: int, *labels: object) -> np.random.Generator:
    """Return the generator of the shared seed for a purpose, e.g. `public_generator(7, "schedule", block)`.

    It is a pure function of its arguments, the same on every rank and for every rank count.
    """
    key = int.from_bytes(_digest("public", seed, *labels)[:16], "little")
    return np.random.Generator(np.random.Philox(key=key))


def fresh_key() -> bytes:
    """Return 32 bytes of OS entropy."""
    return os.urandom(32)


def insecure_key(seed: int, rank: int) -> bytes:
    """Return a repeatable key, for tests. Noise under such a key protects nobody."""
    return _digest("insecure", seed, rank)


def rank_key(seed: int | None, rank: int) -> bytes:
    """Return a rank's key: fresh, or repeatable if an insecure seed is given."""
    return fresh_key() if seed is None else insecure_key(seed, rank)


class PrivateStream:
    """Uniform bits from AES-256-CTR under a key derived from the rank's key and a label.

    Streams with different labels are independent, so that drawing noise ahead of time does not shift the batches.
    """

    __slots__ = ("_buffer", "_buffer_at", "_drawn", "_encryptor", "_key", "_next", "_zeros")

    def __init__(self, key: bytes, label: str) -> None:
        if len(key) != 32:
            raise ValueError(f"expected a key of 32 bytes for a private stream, found {len(key)}")
        self._key = _digest("private", key, label)
        self._zeros = bytes(8 * _BLOCK_WORDS)
        self._go_to(0)
        self._buffer: Words = np.empty(0, np.uint64)
        self._buffer_at = 0
        self._next = 0

    def _go_to(self, drawn: int) -> None:
        """Go on after the first `drawn` bytes of the stream."""
        block, rest = divmod(drawn, 16)
        self._encryptor: Any = Cipher(algorithms.AES(self._key), modes.CTR(block.to_bytes(16, "big"))).encryptor()
        self._encryptor.update(bytes(rest))
        self._drawn = drawn

    @property
    def position(self) -> list[int]:
        """The position of the stream, so that a run whose noise is repeatable anyway can be resumed."""
        return [self._drawn, self._buffer_at, len(self._buffer), self._next]

    def seek(self, position: Sequence[int]) -> None:
        """Go to where a stream of the same key was at `position`."""
        drawn, self._buffer_at, length, next_ = position
        self._buffer = np.empty(length, np.uint64)
        self._go_to(self._buffer_at)
        self.fill(self._buffer)
        self._next = next_
        self._go_to(drawn)

    def give_back(self, count: int) -> None:
        """Take the last `count` words of `fill` back: they are drawn again by the next one."""
        self._go_to(self._drawn - 8 * count)

    def fill(self, out: Words) -> None:
        """Fill `out` with uniform 64-bit words."""
        view = out.data.cast("B")
        self._drawn += len(view)
        for start in range(0, len(view), len(self._zeros)):
            piece = view[start : start + len(self._zeros)]
            self._encryptor.update_into(self._zeros[: len(piece)], piece)

    def words(self, count: int) -> Words:
        """Return `count` uniform 64-bit words in the stream's own buffer, which are valid until the next draw."""
        if self._next + count > len(self._buffer):
            self._buffer_at, size = self._drawn, max(count, 512)
            if len(self._buffer) != size:
                self._buffer = np.empty(size, np.uint64)
            self.fill(self._buffer)
            self._next = 0
        words = self._buffer[self._next : self._next + count]
        self._next += count
        return words

    def uniforms(self, count: int, out: Array | None = None) -> Array:
        """Return `count` doubles, uniform on the multiples of 2^-53 in (0, 1], in `out` if it is given."""
        words, out = self.words(count), np.empty(count) if out is None else out
        np.right_shift(words, np.uint64(11), out=words)
        np.add(words, 1.0, out=out)
        out *= 2.0**-53
        return out

    def integer(self, bound: int) -> int:
        """Return an integer, uniform on 0 ... bound-1 (by rejection, hence exactly)."""
        limit = 2**64 - 2**64 % bound
        while True:
            word = int(self.words(1)[0])
            if word < limit:
                return word % bound
