"""Real numbers by the bit: a lazy uniform, enclosures of functions of it, and decisions that need enough bits only.

A question about a real number X, such as to which integer it rounds, is answered from an interval that holds X. If both
ends give the same answer, so does X; if not, the stream supplies more bits of the uniforms behind X, and the interval
shrinks. The rounding of `decimal` is covered by widening each interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from dpmpi.rng import PrivateStream


class Uniform:
    """A real number, uniform on [0, 1], known to its first bits; the stream supplies the next ones on demand."""

    __slots__ = ("_bits", "_count", "_stream")

    def __init__(self, bits: int, count: int, stream: PrivateStream) -> None:
        self._bits = bits
        self._count = count
        self._stream = stream

    def known(self, count: int) -> tuple[int, int]:
        """Return (A, n), n >= count and A > 0: the number lies in [A, A + 1] / 2^n."""
        while self._count < count or self._bits == 0:
            self._bits = self._bits << 64 | int(self._stream.words(1)[0])
            self._count += 64
        return self._bits, self._count


Enclosure: TypeAlias = Callable[[int], tuple[Fraction, Fraction]]


def _digits(bits: int) -> int:
    """Return a working precision whose accumulated rounding, below 10^(8 - digits), is far below 2^-bits."""
    return bits * 31 // 100 + 20


@lru_cache
def _two_pi(digits: int) -> Decimal:
    """Return 2 pi by Machin's formula, pi / 4 = 4 atan(1/5) - atan(1/239)."""
    one = 10 ** (digits + 10)

    def atan_inverse(x: int) -> int:
        total, power, k = 0, one // x, 0
        while power:
            total += (power if k % 2 == 0 else -power) // (2 * k + 1)
            power //= x * x
            k += 1
        return total

    return Decimal(8 * (4 * atan_inverse(5) - atan_inverse(239))).scaleb(-digits - 10)


def enclose_exponential(u: Uniform, bits: int) -> tuple[Fraction, Fraction]:
    """Return an interval that holds -ln U."""
    a, n = u.known(bits)
    with localcontext(Context(prec=_digits(n))) as ctx:
        slack = Decimal(10) ** (8 - ctx.prec)
        low, high = -(Decimal(a + 1) / (1 << n)).ln() - slack, -(Decimal(a) / (1 << n)).ln() + slack
    return max(Fraction(low), Fraction(0)), Fraction(high)


def _enclose_cosine(v: Uniform, quarter_turns: int, bits: int) -> tuple[Fraction, Fraction]:
    """Return an interval that holds cos(2 pi V - quarter_turns pi / 2), by the Taylor series."""
    b, n = v.known(bits)
    with localcontext(Context(prec=_digits(n))) as ctx:
        slack = Decimal(10) ** (8 - ctx.prec)
        x = _two_pi(ctx.prec) * (Decimal(4 * b - (quarter_turns << n)) / (4 << n))
        square, term, total, k = x * x, Decimal(1), Decimal(1), 0
        while k < 8 or abs(term) > slack / 10**8:  # the terms fall from k = 8 on, because |x| <= 2 pi
            k += 2
            term = -term * square / (k * (k - 1))
            total += term
        width = _two_pi(ctx.prec) / (1 << n) + slack
        return Fraction(total - width), Fraction(total + width)


def enclose_normal(u: Uniform, v: Uniform, sine: bool, bits: int) -> tuple[Fraction, Fraction]:
    """Return an interval that holds sqrt(-2 ln U) cos 2 pi V, or with `sine` the same with a sine."""
    low, high = enclose_exponential(u, bits)
    one = 1 << 2 * bits
    radii = [Fraction(math.isqrt(int(2 * x * one * one)) + up, one) for x, up in ((low, 0), (high, 1))]
    products = [r * c for r in radii for c in _enclose_cosine(v, int(sine), bits)]
    return min(products), max(products)


def settle(decide: Callable[[Fraction], int], enclose: Enclosure) -> int:
    """Return decide(x) for the real x that `enclose(bits)` narrows down; `decide` is monotone."""
    bits = 120
    while True:
        low, high = enclose(bits)
        answer = decide(low)
        if answer == decide(high):
            return answer
        bits *= 2
