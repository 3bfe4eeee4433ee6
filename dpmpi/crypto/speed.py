"""How fast messages are sealed, next to the library alone; for `python -m dpmpi bench`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dpmpi.crypto.keys import PairKeys, Session
from dpmpi.crypto.seal import SealedPair
from dpmpi.rng import fresh_key
from dpmpi.wire import SEAL_BYTES


def sealing_seconds(length: int, turns: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds in which `SealedPair.seal` and `AESGCM.encrypt` seal a message of `length` bytes.

    The two take turns; each turn is `repeats` messages. The library gets what (1) and (2) of seal.py have: 12 bytes of
    nonce, 52 of associated data.
    """
    keys = PairKeys(fresh_key(), fresh_key(), fresh_key())
    pair, library = SealedPair(Session(b"speed", 0), 0, 1, keys), AESGCM(fresh_key())
    plain, out = np.zeros(length, np.uint8), np.zeros(length + SEAL_BYTES, np.uint8)
    source, target, same = plain.data, out.data, plain.tobytes()
    data, position = bytes(52), iter(range(1, turns * repeats + 1))

    def timed(step: Callable[[int], Any], numbers: list[int]) -> float:
        begin = time.perf_counter()
        for number in numbers:
            step(number)
        return (time.perf_counter() - begin) / repeats

    pairs = []
    for _ in range(turns):
        numbers = [next(position) for _ in range(repeats)]
        mine = timed(lambda number: pair.seal(source, target, number, 0), numbers)
        alone = timed(lambda number: library.encrypt(number.to_bytes(12, "big"), same, data), numbers)
        pairs.append((mine, alone))
    medians = np.median(pairs, axis=0)
    return float(medians[0]), float(medians[1])
