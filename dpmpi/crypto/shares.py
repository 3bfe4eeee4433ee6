"""Secret shares of integer vectors modulo 2^64, in two modes.

Full shares. Rank i splits its vector k_i into N shares, keeps one and sends the others, each sealed to its receiver:

    s_i1, ..., s_i(N-1) uniform,   s_iN = k_i - (s_i1 + ... + s_i(N-1))                                      (1)
    rank j broadcasts  S_j = s_1j + ... + s_Nj,   and  S_1 + ... + S_N = k_1 + ... + k_N                     (2)

For every k_i, any N - 1 of its shares are uniform and independent: for fixed N - 1 shares, k_i and the missing share
determine each other. So N - 2 colluders learn nothing about the others but the sum of their vectors, whatever they
can compute. (1), (2) are Algorithm 3 and Theorem 2.1 of [XYD]; they take N >= 3 and cost N - 1 vectors a rank.

Expanded shares. Every two ranks i < j hold a 32-byte secret. With G_ij its keystream at (round, hop), rank i sends

    y_i = k_i + sum_{j > i} G_ij - sum_{j < i} G_ji,   and  y_1 + ... + y_N = k_1 + ... + k_N                (3)

since each G_ij occurs once with each sign. This hides k_i from the same N - 2 colluders, but computationally: as long
as AES-256 is a pseudorandom function. It costs no messages beyond y_i itself.

G_ij is AES-256 in counter mode under the pair's secret, from the counter block

    round (8 bytes) | hop (4 bytes) | block number (4 bytes), big-endian                                     (4)

A vector has fewer than 2^32 blocks, so that two positions (round, hop) have no block in common; two incarnations of a
run have none because their secrets are drawn anew.

[XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpmpi.rng import PrivateStream, Words

_PIECE = 4096  # words: 32 KiB of keystream stay in the cache
_MOST_WORDS = 2 << 32  # two words a block, 2^32 blocks: more would run into the next hop


def split(secret: Words, out: Words, stream: PrivateStream) -> None:
    """Write (1) to the rows of `out`; its last row may be `secret` itself."""
    if out.ndim != 2 or len(out) < 2 or out.shape[1:] != secret.shape:
        raise ValueError(f"expected room for at least 2 shares of shape {secret.shape}, got an array of {out.shape}")
    last = out[-1]
    np.copyto(last, secret)
    stream.fill(out[:-1].reshape(-1))
    for share in out[:-1]:
        np.subtract(last, share, out=last)


def reconstruct(shares: Words, out: Words) -> None:
    """Write the sum of the rows of `shares` to `out`: a secret from its shares, or (2) from the partial sums."""
    np.add.reduce(shares, axis=0, out=out)


def counter_block(round_: int, hop: int) -> bytes:
    """Return the first counter block (4) of a position."""
    if not (0 <= round_ < 1 << 64 and 0 <= hop < 1 << 32):
        raise ValueError(f"expected 0 <= round < 2^64 and 0 <= hop < 2^32, got round {round_}, hop {hop}")
    return round_.to_bytes(8, "big") + hop.to_bytes(4, "big") + bytes(4)


class PairwiseMasks:
    """The masks (3) of one rank. `secrets` has one for each other rank, drawn anew for each incarnation of the run.

    The masks are a function of the position alone. The object only remembers the last position, because two vectors
    under the same masks would give away their difference.
    """

    __slots__ = ("_keystream", "_last", "_peers", "_zeros", "rank", "size")

    def __init__(self, rank: int, size: int, secrets: Mapping[int, bytes]) -> None:
        others = [j for j in range(size) if j != rank]
        if not 0 <= rank < size or sorted(secrets) != others:
            raise ValueError(f"rank {rank} of {size} needs a secret for each of {others}, got {sorted(secrets)}")
        if any(len(secret) != 32 for secret in secrets.values()) or len(set(secrets.values())) != len(others):
            raise ValueError("expected different secrets of 32 bytes, got others")
        self.rank = rank
        self.size = size
        self._peers: list[tuple[np.ufunc, Any]] = [
            (np.add if j > rank else np.subtract, _keystream(secrets[j])) for j in others
        ]
        self._keystream: Words = np.empty(_PIECE, np.uint64)
        self._zeros = memoryview(bytes(8 * _PIECE))
        self._last = b""

    def add(self, vector: Words, round_: int, hop: int) -> None:
        """Add the masks of (round, hop) to `vector`, in place. Positions must increase from call to call."""
        if vector.dtype != np.uint64 or vector.ndim != 1 or len(vector) >= _MOST_WORDS:
            raise ValueError(f"expected less than 2^33 uint64 words, got {vector.dtype} of shape {vector.shape}")
        start = counter_block(round_, hop)
        if start <= self._last:  # big-endian, so that bytes compare as positions do
            raise ValueError(f"rank {self.rank} may not use the masks of round {round_}, hop {hop} again")
        self._last = start
        pieces = []
        for i in range(0, len(vector), _PIECE):
            words = vector[i : i + _PIECE]
            mask = self._keystream[: len(words)]
            pieces.append((words, mask, self._zeros[: 8 * len(words)], mask.view(np.uint8)))
        for combine, encryptor in self._peers:
            encryptor.reset_nonce(start)
            for words, mask, zeros, raw in pieces:
                encryptor.update_into(zeros, raw)
                combine(words, mask, words)


def _keystream(secret: bytes) -> Any:
    return Cipher(algorithms.AES(secret), modes.CTR(bytes(16))).encryptor()
