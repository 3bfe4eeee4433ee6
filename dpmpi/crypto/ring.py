"""Fixed point modulo 2^64, or 2^32: real vectors as integers whose sums are exact, whatever the order.

With f fractional bits and values clipped to [-C, C],

    k(x) = rint(2^f min(max(x, -C), C))   as a signed integer, taken modulo 2^64                             (1)
    decode(K) = 2^-f K                    with K read as a signed integer                                    (2)

A sum of n encoded vectors, noise e (an integer vector) included, is read correctly if and only if it stays in range:

    n rint(2^f C) + |e| < 2^63,   or 2^31 in words of 32 bits                                                (3)

and is then the exact sum of rounded values, off the sum of the clipped ones by at most n 2^-(f+1) in each coordinate.
Secret sharing modulo p needs p > 2 |sum|, not p > |sum| as in Appendix A of [XYD]: signs take one bit.

Integers below 2^51 are read off the bits of a sum that rounds to them, without casts:

    k(x) = bits(x + M) - bits(M),   M = 1.5 * 2^(52-f),   if |2^f x| < 2^51                                  (4)

since numbers from 2^(52-f) to 2^(53-f) are 2^-f apart. Where masks are added next they take bits(M) away, too, so that
an encoding is one sum of real and one of integer vectors.

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


class FixedPoint:
    """Encodes values of at most `clip` with `bits` fractional bits, and decodes their sums."""

    __slots__ = ("_bits", "_clip", "_raise", "_small", "_square", "offset")

    def __init__(self, clip: float, bits: int) -> None:
        if not (clip > 0.0 and 0 <= bits < WORD_BITS and clip * 2.0**bits < _LIMIT):  # written so that NaN fails
            raise ValueError(
                f"expected a clip > 0 and bits >= 0 with clip * 2^bits < 2^63, found clip {clip!r}, bits {bits}"
            )
        self._clip, self._bits = clip, bits
        self._square = 0.25 * clip * clip
        self._small = min(self._square, 0.999 * 4.0 ** (51 - bits))
        """Vectors whose squares add up to less have integers below 2^51, for (4)."""
        self._raise: Array = np.array(1.5 * 2.0 ** (52 - bits))
        self.offset: Words = self._raise.view(np.uint64)
        """bits(M) of (4), without axes: numpy makes such an array of every number that it meets."""

    def encode(self, x: Array, out: Words, *, strict: bool = False) -> None:
        """Write (1) to `out`, which also serves as the scratch. Raise `DataError` if a value is not finite.

        `strict` refuses values beyond the clip too, instead of clipping them.
        """
        self.encode_raised(x, out.view(np.float64), strict=strict)
        np.subtract(out, self.offset, out)

    def encode_raised(self, x: Array, out: Array, *, strict: bool = False) -> None:
        """Write numbers to `out` whose bits are (1) and `offset` on top, as `encode` does."""
        square = np.vdot(x, x)  # unlike `dot` without a warning
        if square < self._small:
            np.add(x, self._raise, out)  # (4)
            return
        clip = self._clip
        if not square < self._square:  # clears almost every vector at once, without a word of overflow
            low, high = float(x.min()), float(x.max())
            if not (math.isfinite(low) and math.isfinite(high)):  # minimum and maximum pass a NaN on
                found = low if not math.isfinite(low) else high
                raise _unfit(f"expected finite values to share, found {found}: the iterates diverge, use smaller steps")
            if strict and max(high, -low) > clip:  # what it was is a function of the records, and others read this
                expected = f"expected values below {clip:.3g} in a shared sum"
                raise _unfit(f"{expected}, found a larger one: use fewer --share-bits")
            x = np.clip(x, -clip, clip, out=out)
        np.multiply(x, 2.0**self._bits, out)
        np.rint(out, out)
        words = out.view(np.uint64)
        words.view(np.int64)[...] = out  # as np.copyto, which takes twice the steps
        np.add(words, self.offset, words)

    def scale(self, factor: float = 1.0) -> Array:
        """Return the scale of `decode`: the size of a step, times a factor of the sums."""
        return np.array(2.0**-self._bits * factor)


def decode(words: Words, scale: Array, out: Array) -> None:
    """Write (2) to `out`, times the factor of the scale: exact below 2^53 steps, else the nearest to the exact value.

    `words` may be seen as signed already, which takes numpy as long as to add a short vector.
    """
    out[...] = words.view(f"i{words.itemsize}") if words.dtype.kind == "u" else words  # a product would cast slowly
    np.multiply(out, scale, out)


def _unfit(text: str) -> DataError:
    """Return an error that quotes no value, so that other ranks may hear it."""
    error = DataError(text)
    error.public = True
    return error


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
