"""Fixed point modulo 2^64, or 2^32: real vectors as integers whose sums are exact, whatever the order.

With f fractional bits and values clipped to [-C, C],

    k(x) = rint(2^f min(max(x, -C), C))   as a signed integer, taken modulo 2^64                             (1)
    decode(K) = 2^-f K                    with K read as a signed integer                                    (2)

A sum of n encoded vectors, noise e (an integer vector) included, is read correctly if and only if it stays in range:

    n rint(2^f C) + |e| < 2^63,   or 2^31 in words of 32 bits                                                (3)

and is then the exact sum of rounded values, off the sum of the clipped ones by at most n 2^-(f+1) in each coordinate.
Secret sharing modulo p needs p > 2 |sum|, not p > |sum| as in Appendix A of [XYD]: signs take one bit.

Integers below 2^51 are read off the bits of a sum that rounds to them, without casts:

    k(x) = bits(1.5 * 2^52 + 2^f x) - bits(1.5 * 2^52),   if |2^f x| < 2^51                                  (4)

[XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError, DataError
from dpmpi.rng import Words

WORD_BITS = 64
_LIMIT = 1 << (WORD_BITS - 1)
_MAGIC = 1.5 * 2.0**52
_MAGIC_BITS = np.float64(_MAGIC).view(np.uint64)


def encode(x: Array, clip: float, bits: int, out: Words, *, strict: bool = False) -> None:
    """Write (1) to `out`, which also serves as the scratch. Raise `DataError` if a value is not finite.

    `strict` refuses values beyond the clip too, instead of clipping them.
    """
    if not (clip > 0.0 and 0 <= bits < WORD_BITS and clip * 2.0**bits < _LIMIT):  # written so that NaN fails
        raise ValueError(
            f"expected a clip > 0 and bits >= 0 with clip * 2^bits < 2^63, found clip {clip!r}, bits {bits}"
        )
    real, square = out.view(np.float64), np.vdot(x, x)
    if square < min(0.25 * clip * clip, 4.0 ** (50 - bits)):  # then (4) has integers below 2^51
        np.multiply(x, 2.0**bits, real)
        np.add(real, _MAGIC, real)  # (4)
        np.subtract(out, _MAGIC_BITS, out)
        return
    if not square < 0.25 * clip * clip:  # clears almost every vector at once, without a word of overflow
        low, high = float(x.min()), float(x.max())
        if not (math.isfinite(low) and math.isfinite(high)):  # minimum and maximum pass a NaN on
            found = low if not math.isfinite(low) else high
            raise _unfit(f"expected finite values to share, found {found}: the iterates diverge, use smaller steps")
        if strict and max(high, -low) > clip:  # what it was is a function of the records, and others read this
            expected = f"expected values below {clip:.3g} in a shared sum"
            raise _unfit(f"{expected}, found a larger one: use fewer --share-bits")
        x = np.clip(x, -clip, clip, out=real)
    np.multiply(x, 2.0**bits, real)
    np.rint(real, real)
    out.view(np.int64)[...] = real  # as np.copyto, which takes twice the steps


def _unfit(text: str) -> DataError:
    """Return an error that quotes no value, so that other ranks may hear it."""
    error = DataError(text)
    error.public = True
    return error


def decode(words: Words, bits: int, out: Array) -> None:
    """Write (2) to `out`: exact below 2^53 steps, else the float64 nearest to the exact value."""
    out[...] = words.view(f"i{words.itemsize}")  # before the product, which would cast by way of a buffer
    np.multiply(out, 2.0**-bits, out)


def check_capacity(n: int, clip: float, bits: int, noise_tail: float = 0.0, word: int = WORD_BITS) -> None:
    """Raise `ConfigError` unless (3) holds for n ranks; the message names the largest f that would do.

    `noise_tail` bounds the sum of the noises of all ranks, in the units of x. Words have 64 bits, or 32.
    """
    if n < 1 or not (0.0 < clip < math.inf and 0.0 <= noise_tail < math.inf):
        raise ConfigError(
            f"expected at least 1 rank, a finite clip > 0 and a finite noise tail >= 0, "
            f"found {n} ranks, clip {clip!r}, noise tail {noise_tail!r}"
        )
    if not 0 <= bits < word:
        raise ConfigError(f"expected 0 to {word - 1} fractional bits, found {bits}")
    peak, limit = _peak(n, clip, bits, noise_tail), 1 << (word - 1)
    if peak < limit:
        return
    fitting = [f for f in range(word) if _peak(n, clip, f, noise_tail) < limit]
    advice = f"use at most {fitting[-1]} fractional bits" if fitting else "use a smaller clip or less noise"
    raise ConfigError(
        f"expected sums below 2^{word - 1}, found 2^{math.log2(peak):.1f} for {n} ranks with clip {clip:g}, "
        f"noise up to {noise_tail:g} and {bits} fractional bits: {advice}"
    )


def _peak(n: int, clip: float, bits: int, noise_tail: float) -> int:
    """Return the left side of (3), exactly."""
    step = Fraction(1, 1 << bits)
    return n * round(Fraction(clip) / step) + math.ceil(Fraction(noise_tail) / step)
