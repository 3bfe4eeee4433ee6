"""Secret shares of integer vectors modulo 2^64, or 2^32, in two modes.

Every rank has some partners, as few as hide its vector from the colluders that are expected (mask_graph.py).

Full shares. Rank i splits its vector k_i, keeps one share and sends the others, each sealed to one of its d partners:

    s_ij uniform for each partner j,   s_ii = k_i - sum_j s_ij                                               (1)
    rank j says  S_j = s_jj + sum_i s_ij,   and  S_1 + ... + S_N = k_1 + ... + k_N                           (2)

s_ij - s_ji is a mask of the pair, uniform and known to nobody else: what colluders learn is what mask_graph.py says,
whatever they can compute. With all ranks as partners, N - 2 colluders learn the sum of the others' vectors alone, and
(1), (2) are Algorithm 3 and Theorem 2.1 of [XYD]. They take N >= 3 and cost d vectors a rank.

Expanded shares. Two partners i < j hold a 32-byte secret, from which both draw the same keystream. With G_ij its next
8 m bytes (4 m in words of 32 bits), rank i says

    y_i = k_i + sum_{j > i} G_ij - sum_{j < i} G_ji,   and  y_1 + ... + y_N = k_1 + ... + k_N                (3)

since each G_ij occurs once with each sign. This hides k_i from the same colluders, but computationally: as long as
AES-256 is a pseudorandom function. It costs no messages beyond y_i itself.

S_j and y_i may be seen by everybody, and so may the sums of any of them: they can be added up along any route.

The keystream is AES-256 in counter mode under the pair's secret, with the counter blocks

    stretch (12 bytes) | 2, 3, ... (4 bytes), big-endian,   stretch = 0, 1, ..., 2^35 bytes each             (4)

It only goes forwards, so that no part of it is used twice; two incarnations of a run have no secret in common, these
are drawn anew. (4) is what AES-GCM encrypts with under the nonce `stretch`, and so the keystream is taken from there,
as the ciphertext of zeros: the library's GCM takes little more than half the time of its counter mode.

[XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpmpi.rng import PrivateStream, Words

PIECE = 16384
"""Words that are masked at a time: they and 128 KiB of keystream stay in the cache."""
STRETCH = 1 << 35
"""Bytes of keystream under one nonce, whole words: AES-GCM ends at 2^36."""


def split(secret: Words, out: Words, stream: PrivateStream) -> None:
    """Write (1) to the rows of `out`; its last row may be `secret` itself."""
    if out.ndim != 2 or len(out) < 2 or out.shape[1:] != secret.shape:
        raise ValueError(f"expected room for at least 2 shares of shape {secret.shape}, found an array of {out.shape}")
    last = out[-1]
    np.copyto(last, secret)
    stream.fill(out[:-1].reshape(-1))
    for share in out[:-1]:
        np.subtract(last, share, out=last)


class PairwiseMasks:
    """The masks (3) of one rank. `secrets` has one for each partner, drawn anew for each incarnation of the run.

    Masks may be drawn ahead, while messages travel: they are used in the order in which they were drawn, so that a rank
    that draws ahead and one that does not say vectors whose masks cancel.
    """

    __slots__ = ("_ahead", "_keystream", "_left", "_peers", "_secrets", "_start", "_stretch", "_used", "_zeros", "rank")

    def __init__(self, rank: int, secrets: Mapping[int, bytes]) -> None:
        if rank in secrets or not secrets:
            raise ValueError(f"expected secrets of rank {rank} with others, found {sorted(secrets)}")
        if any(len(secret) != 32 for secret in secrets.values()) or len(set(secrets.values())) != len(secrets):
            raise ValueError("expected different secrets of 32 bytes, found others")
        self.rank = rank
        self._start = 0
        self._secrets = dict(sorted(secrets.items()))
        self._peers: list[tuple[np.ufunc, Any]] = []
        self._stretch = self._left = 0
        self._keystream: Words = np.empty(PIECE, np.uint64)
        self._zeros = memoryview(bytes(8 * PIECE))
        self._ahead: Words = np.empty(0, np.uint64)
        """Masks that were drawn ahead, of which the first `_used` are used up."""
        self._used = 0

    def take_away(self, offset: int) -> None:
        """Take this number away from every word from now on, in the same addition; nothing was drawn ahead yet."""
        self._start = -offset % (1 << 64)

    def add(self, vector: Words, out: Words | None = None) -> None:
        """Add the next masks to `vector`, in place or to `out`.

        All ranks come here with vectors of the same lengths in turn.
        """
        out = vector if out is None else out
        ready = self._ahead[self._used : self._used + len(vector)]
        count = len(ready)
        if vector.shape == ready.shape and vector.dtype is ready.dtype:
            self._used += count
            np.add(vector, ready, out)
            return
        if vector.dtype not in (np.uint64, np.uint32) or vector.ndim != 1:
            raise ValueError(f"expected a vector of unsigned words, found {vector.dtype} of shape {vector.shape}")
        if count and vector.dtype != ready.dtype:
            raise ValueError(f"expected {ready.dtype} in all vectors, found {vector.dtype}")
        self._used += count
        if count:
            np.add(vector[:count], ready, out[:count])
        np.add(vector[count:], self._first(vector.dtype), out[count:])
        self._draw(out[count:])
        if self._used == len(self._ahead) < len(vector):  # the next vectors are likely to be as long
            self._used = len(vector) * max(1, PIECE // len(vector))
            self._ahead = np.empty(self._used, vector.dtype)

    def prepare(self) -> None:
        """Draw masks ahead, for vectors as long as the longest so far, unless some are left.

        Short ones are drawn for several vectors at once: where ranks share a core, each comes back to a cold cache.
        """
        if self._used == len(self._ahead):
            self._ahead.fill(self._first(self._ahead.dtype))
            self._draw(self._ahead)
            self._used = 0

    def _first(self, words: Any) -> Any:
        """Return the negative of the offset that masks take away, as a word of this type."""
        return words.type(self._start % (1 << 8 * words.itemsize))

    def _draw(self, vector: Words) -> None:
        """Add the next masks of the keystreams to `vector`."""
        keystream, begin = self._keystream.view(vector.dtype), 0
        while begin < len(vector):
            if not self._left:
                self._begin_stretch()
            words = vector[begin : begin + min(len(keystream), self._left // vector.itemsize)]
            mask = keystream[: len(words)]
            raw, zeros = mask.view(np.uint8), self._zeros[: words.nbytes]
            begin += len(words)
            self._left -= words.nbytes
            for combine, draw in self._peers:
                draw(zeros, raw)
                combine(words, mask, words)

    def _begin_stretch(self) -> None:
        mode = modes.GCM(self._stretch.to_bytes(12, "big"))
        self._stretch += 1
        self._left = STRETCH
        self._peers = []
        for j, secret in self._secrets.items():
            draw = Cipher(algorithms.AES(secret), mode).encryptor().update_into
            self._peers.append((np.add if j > self.rank else np.subtract, draw))
