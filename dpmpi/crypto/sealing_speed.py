"""How fast messages are sealed, next to the library alone; for `python -m dpmpi bench`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from timeit import timeit
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.keys import PairKeys, Session
from dpmpi.crypto.seal import WRITES_INTO, Buffer, SealedPair
from dpmpi.rng import fresh_key


def sealing_seconds(length: int, turns: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds in which `SealedPair.seal` and `AESGCM.encrypt` seal a message of `length` bytes.

    The two take turns; each turn is `repeats` messages. The library gets what (1) and (2) of seal.py have: 12 bytes of
    nonce, 52 of associated data.
    """
    keys = PairKeys(fresh_key(), fresh_key(), fresh_key())
    pair, library = SealedPair(Session(b"speed", 0), 0, 1, keys), AESGCM(fresh_key())
    plain, out = np.zeros(length, np.uint8), np.zeros(length + SEAL_BYTES, np.uint8)
    source, target, same = plain.data, out.data, plain.tobytes()
    data, number = bytes(52), count(1)
    steps = (
        lambda: pair.seal(source, target, next(number), 0),
        lambda: library.encrypt(next(number).to_bytes(12, "big"), same, data),
    )
    seconds = [[timeit(step, number=repeats) / repeats for step in steps] for _ in range(turns)]
    mine, alone = np.median(seconds, axis=0).tolist()
    return mine, alone


def bare_cipher(plain: Buffer, messages: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return functions that encrypt `plain` for `messages` peers and decrypt as many, by the library's calls alone.

    The nonce is always the same: this protects nothing. It is what a sealed exchange takes if all else were free.
    """
    nonce, data = bytes(12), bytes(52)
    ciphers: list[Any] = [AESGCM(fresh_key()) for _ in range(messages)]
    heard = [(cipher, memoryview(cipher.encrypt(nonce, plain, data))) for cipher in ciphers]
    said = [(cipher, memoryview(bytearray(len(plain) + SEAL_BYTES))) for cipher in ciphers]
    opened = memoryview(bytearray(len(plain)))

    def encrypt() -> None:
        for cipher, out in said:
            if WRITES_INTO:
                cipher.encrypt_into(nonce, plain, data, out)
            else:
                cipher.encrypt(nonce, plain, data)

    def decrypt() -> None:
        for cipher, message in heard:
            if WRITES_INTO:
                cipher.decrypt_into(nonce, message, data, opened)
            else:
                cipher.decrypt(nonce, message, data)

    return encrypt, decrypt
