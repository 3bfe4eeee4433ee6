"""Secret shares of integer vectors modulo 2^64, in two modes.

Full shares. Rank i splits its vector k_i into N shares, keeps one and sends the others, each sealed to its receiver:

    s_i1, ..., s_i(N-1) uniform,   s_iN = k_i - (s_i1 + ... + s_i(N-1))                                      (1)
    rank j broadcasts  S_j = s_1j + ... + s_Nj,   and  S_1 + ... + S_N = k_1 + ... + k_N                     (2)

For every k_i, any N - 1 of its shares are uniform and independent: for fixed N - 1 shares, k_i and the missing share
determine each other. So N - 2 colluders learn nothing about the others but the sum of their vectors, whatever they
can compute. (1), (2) are Algorithm 3 and Theorem 2.1 of [XYD]; they take N >= 3 and cost N - 1 vectors a rank.

Expanded shares. Every two ranks i < j hold a 32-byte secret, from which both draw the same keystream. With G_ij its
next 8 m bytes, rank i sends

    y_i = k_i + sum_{j > i} G_ij - sum_{j < i} G_ji,   and  y_1 + ... + y_N = k_1 + ... + k_N                (3)

since each G_ij occurs once with each sign. This hides k_i from the same N - 2 colluders, but computationally: as long
as AES-256 is a pseudorandom function. It costs no messages beyond y_i itself.

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

_PIECE = 4096  # words: 32 KiB of keystream stay in the cache
STRETCH = 1 << 35
"""Bytes of keystream under one nonce: AES-GCM ends at 2^36."""


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
    """The masks (3) of one rank. `secrets` has one for each other rank, drawn anew for each incarnation of the run."""

    __slots__ = ("_keystream", "_left", "_peers", "_secrets", "_stretch", "_zeros", "rank", "size")

    def __init__(self, rank: int, size: int, secrets: Mapping[int, bytes]) -> None:
        others = [j for j in range(size) if j != rank]
        if not 0 <= rank < size or sorted(secrets) != others:
            raise ValueError(f"expected a secret of rank {rank} with each of {others}, found {sorted(secrets)}")
        if any(len(secret) != 32 for secret in secrets.values()) or len(set(secrets.values())) != len(others):
            raise ValueError("expected different secrets of 32 bytes, found others")
        self.rank = rank
        self.size = size
        self._secrets = {j: secrets[j] for j in others}
        self._peers: list[tuple[np.ufunc, Any]] = []
        self._stretch = self._left = 0
        self._keystream: Words = np.empty(_PIECE, np.uint64)
        self._zeros = memoryview(bytes(8 * _PIECE))

    def add(self, vector: Words) -> None:
        """Add the next masks to `vector`, in place. All ranks come here with vectors of the same lengths in turn."""
        if vector.dtype != np.uint64 or vector.ndim != 1:
            raise ValueError(f"expected a vector of uint64 words, found {vector.dtype} of shape {vector.shape}")
        for i in range(0, len(vector), _PIECE):
            words = vector[i : i + _PIECE]
            mask = self._keystream[: len(words)]
            raw, zeros = mask.view(np.uint8), self._zeros[: words.nbytes]
            if self._left < words.nbytes:
                self._begin_stretch()
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
