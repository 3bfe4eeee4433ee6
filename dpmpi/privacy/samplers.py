"""Noise whose low bits tell nothing: value + real-valued noise, rounded to a public grid, exactly.

A float64 sum of a value and a float64 draw betrays the value through the set of sums that can occur. Here the output is

    g * N,   N = floor((v + s X) / g + 1/2),   g = 2^(floor(log2 s) - 20)                                    (1)

for a REAL-valued draw X, a function of real uniforms U = 0.u1u2u3... of which 64 bits are drawn at first and more when
they are needed:

    Gaussian  X = R cos 2 pi V and R sin 2 pi V,  R = sqrt(-2 ln U)          (a pair shares U and V)         (2)
    Laplace   X = -+ ln U                          (a sign bit and U)                                        (3)

So a release is a function of v + s X alone (post-processing), and the accounting of the continuous mechanism applies
without slack. g depends on s only; its rounding adds at most 2^-42 s^2 / 12 to the variance.

How it is decided. With v / g = q + r, q = rint(v / g), both are exact in float64 (g is a power of two), and

    N = q + floor(r + (s / g) X + 1/2).                                                                      (4)

Let e = 2^-53, and let numpy's log, sin, cos be wrong by at most 32 e (16 ulp; log relative, sin and cos absolute).
X is computed with U replaced by (a + 1/2) 2^-64, a the first 64 bits. Where 2^-8 <= R <= 5.25 (hence a > 2^44):

    |error of R| <= (2.1 e + 1 / (2 a)) / R + 17.1 e R,      |error of cos, sin| <= 32 e + 3 * 2 pi e        (5)
    |error of r + (s / g) X| <= 710 e (s / g)                                                                (6)

since (5) is convex in R: 420 e at R = 5.25, 565 e at R = 2^-8; for Laplace with |ln U| <= 13 it is at most 710 e. If
the float64 value of (4) is farther than 2^-43 s / g = 1024 e (s / g) from every j + 1/2, its rounding is the true one.
The others, and those outside the ranges of R and ln U, about 2^-16 of all, are decided in interval arithmetic with 120,
240, ... bits of U and V until both ends of the interval round alike (interval_arithmetic.py). A tie has probability 0.

For |v| >= 2^52 g the sum g N may need more than 53 bits; the output is then the float64 nearest to g N, again a
function of g N alone. A zero is +0. The bits are safe, the clock is not: a refined coordinate takes 0.1 ms longer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.privacy.interval_arithmetic import Enclosure, Uniform, enclose_exponential, enclose_normal, settle
from dpmpi.rng import PrivateStream, Words

Known: TypeAlias = dict[int, tuple[Uniform, ...]]

GRID_BITS = 20
_ERROR = 2.0**-43
_SMALLEST_RADIUS, _LARGEST_RADIUS = 2.0**-8, 5.25
_LARGEST_LOG = 13.0
_NOWHERE: NDArray[np.intp] = np.empty(0, np.intp)


def grid(scale: float) -> float:
    """Return the spacing of the outputs for noise of this scale: a power of two between scale/2^21 and scale/2^20."""
    if not 2.0**-400 <= scale <= 2.0**400:
        raise ValueError(f"expected a noise scale between 2^-400 and 2^400, found {scale!r}")
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - GRID_BITS)


# --- vectors of noise ------------------------------------------------------------------------------------------------


def _uniforms(words: Words, out: Array) -> None:
    """Write (a + 1/2) 2^-64 for each word a."""
    np.copyto(out, words, casting="unsafe")
    out += 0.5
    out *= 2.0**-64


class GridNoise(ABC):
    """Noise vectors by (1): `prepare` draws one, `add` uses it up. All buffers are allocated at the start."""

    _bound: ClassVar[float] = _ERROR

    def __init__(self, stream: PrivateStream, dimension: int, words: int) -> None:
        if dimension < 1:
            raise ValueError(f"expected a dimension of at least 1, found {dimension}")
        key = np.empty(4, np.uint64)
        stream.fill(key)
        self._stream = stream
        self._more = PrivateStream(key.tobytes(), "refine")  # so that a refinement does not shift the later draws
        self.dimension = dimension
        self._ready = False
        self._error = self._bound
        self._words: Words = np.empty(words, np.uint64)
        self._x: Array = np.empty(dimension + dimension % 2)
        self._rest: Array = np.empty(dimension)
        self._integers: Array = np.empty(dimension)
        self._doubtful = np.empty(dimension, np.bool_)
        self._unsafe = _NOWHERE

    @abstractmethod
    def _draw(self) -> NDArray[np.intp]:
        """Write float64 draws of scale 1 to `_x`; return the coordinates to which the error bound does not apply."""

    @abstractmethod
    def _enclosure(self, i: int, known: Known) -> Enclosure:
        """Return the enclosure of the real X_i; coordinates that share uniforms share them through `known`."""

    def prepare(self) -> None:
        """Draw the next vector, unless one is waiting to be used."""
        if not self._ready:
            self._stream.fill(self._words)
            self._unsafe = self._draw()
            self._ready = True

    def streams(self) -> tuple[PrivateStream, ...]:
        """Return the streams that it draws from; a vector that was prepared is put back."""
        if self._ready:
            self._stream.give_back(len(self._words))
            self._ready = False
        return self._stream, self._more

    def add(self, value: Array, scale: float) -> None:
        """Replace each value[i] by the multiple of `grid(scale)` nearest to value[i] + scale X_i, by (4)."""
        if value.shape != (self.dimension,) or value.dtype != np.float64:
            raise ValueError(
                f"expected a float64 vector of {self.dimension} values, found {value.dtype} of shape {value.shape}"
            )
        g = grid(scale)
        largest = max(float(value.max()), -float(value.min()))
        if not largest <= math.ldexp(g, 500):  # written so that NaN fails
            raise ValueError(
                f"expected finite values below 2^500 grid steps, found {largest!r} with noise scale {scale!r}"
            )
        self.prepare()
        self._ready = False
        q, rest, x = self._integers, self._rest, self._x[: self.dimension]
        np.multiply(value, 1.0 / g, out=rest)
        np.rint(rest, out=q)
        rest -= q
        x *= scale / g
        rest += x
        np.rint(rest, out=x)
        q += x
        rest -= x
        np.abs(rest, out=rest)
        np.greater(rest, 0.5 - self._error * (scale / g), out=self._doubtful)
        self._doubtful[self._unsafe] = True
        if self._doubtful.any():
            self._decide(value, scale, g)
        np.multiply(q, g, out=value)
        value += 0.0  # a negative zero would tell on which side of the grid point the value was

    def _decide(self, value: Array, scale: float, g: float) -> None:
        """Find N of (1) for the doubtful coordinates, in exact arithmetic."""
        known: Known = {}
        for i in np.flatnonzero(self._doubtful).tolist():
            v, s, step = Fraction(float(value[i])), Fraction(scale), Fraction(g)
            self._integers[i] = settle(partial(_round_sum, v, s, step), self._enclosure(i, known))


def _round_sum(v: Fraction, s: Fraction, step: Fraction, x: Fraction) -> int:
    return math.floor((v + s * x) / step + Fraction(1, 2))  # (1)


class _NormalNoise(GridNoise):
    """Noise made of normals; `_further` words for each coordinate follow theirs."""

    _further: ClassVar[int] = 0

    def __init__(self, stream: PrivateStream, dimension: int) -> None:
        half = (dimension + 1) // 2
        super().__init__(stream, dimension, 2 * half + self._further * dimension)
        self._radius: Array = np.empty(half)
        self._angle: Array = np.empty(half)

    def _box_muller(self) -> None:
        """Write the float64 value of (2) to `_x`: cosines to its first half, sines to the second."""
        radius, angle, half = self._radius, self._angle, len(self._radius)
        _uniforms(self._words[:half], radius)
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        np.copyto(angle, self._words[half : 2 * half], casting="unsafe")
        angle *= 2.0 * math.pi * 2.0**-64
        for trigonometric, part in ((np.cos, self._x[:half]), (np.sin, self._x[half:])):
            trigonometric(angle, out=part)
            np.multiply(part, radius, out=part)


class GaussianNoise(_NormalNoise):
    """Real-valued standard normals, by (2)."""

    def _draw(self) -> NDArray[np.intp]:
        self._box_muller()
        r = self._radius
        if r.min() >= _SMALLEST_RADIUS and r.max() <= _LARGEST_RADIUS:
            return _NOWHERE
        pairs = np.flatnonzero((r < _SMALLEST_RADIUS) | (r > _LARGEST_RADIUS))
        both = np.concatenate((pairs, pairs + len(r)))
        return both[both < self.dimension]

    def _enclosure(self, i: int, known: Known) -> Enclosure:
        half = len(self._radius)
        sine, pair = divmod(i, half)
        if pair not in known:
            known[pair] = tuple(Uniform(int(self._words[k]), 64, self._more) for k in (pair, pair + half))
        u, v = known[pair]
        return lambda bits: enclose_normal(u, v, sine == 1, bits)


class LaplaceNoise(GridNoise):
    """Real-valued Laplace draws of density exp(-|x|) / 2, by (3): 63 bits begin U, the top bit is the sign."""

    def __init__(self, stream: PrivateStream, dimension: int) -> None:
        super().__init__(stream, dimension, dimension)

    def _draw(self) -> NDArray[np.intp]:
        x, magnitude = self._x[: self.dimension], self._rest
        np.copyto(x, self._words.view(np.int64), casting="unsafe")
        x += 0.5  # a word and its complement are mirror images around -1/2
        np.abs(x, out=magnitude)
        magnitude *= 2.0**-63
        np.log(magnitude, out=magnitude)
        np.negative(magnitude, out=magnitude)
        np.copysign(magnitude, x, out=x)
        return _NOWHERE if magnitude.max() <= _LARGEST_LOG else np.flatnonzero(magnitude > _LARGEST_LOG)

    def _enclosure(self, i: int, known: Known) -> Enclosure:
        word = int(self._words[i])
        negative = word >= 1 << 63
        u = Uniform(~word & (1 << 64) - 1 if negative else word, 63, self._more)

        def enclose(bits: int) -> tuple[Fraction, Fraction]:
            low, high = enclose_exponential(u, bits)
            return (-high, -low) if negative else (low, high)

        return enclose


class SphericalLaplaceNoise(_NormalNoise):
    """Vectors of density ~ exp(-|x|_2): a uniform direction times a radius of law Gamma(m).

    The direction is a normalised vector of normals, the radius -sum_i ln U_i over m uniforms. The sum with the value is
    rounded to the grid as in (1), so every output is a grid point whatever the value was; but the draw is a float64 one
    and is NOT refined near the rounding boundaries: it is not proven to be the rounding of a real-valued draw.
    """

    _bound: ClassVar[float] = 0.0
    _further: ClassVar[int] = 1

    def _draw(self) -> NDArray[np.intp]:
        x = self._x[: self.dimension]
        self._box_muller()
        _uniforms(self._words[-self.dimension :], self._rest)
        np.log(self._rest, out=self._rest)
        x *= -float(self._rest.sum()) / math.sqrt(float(x @ x))
        return _NOWHERE

    def _enclosure(self, i: int, known: Known) -> Enclosure:
        raise AssertionError("a draw with error bound 0 is never in doubt")


# --- integers --------------------------------------------------------------------------------------------------------


def discrete_gaussian(stream: PrivateStream, sigma: float, count: int) -> NDArray[np.int64]:
    """Return `count` integers with P(y) proportional to exp(-y^2 / (2 sigma^2)), exactly; 0.5 <= sigma <= 2^50.

    Rejection from a two-sided geometric law. With M = 1, or the power of two with 2^17 <= sigma / M < 2^18 for large
    sigma, E and E' real exponentials -ln U, L uniform on 0 ... M - 1, and a fair sign,

        H = floor(E sigma / M),  |y| = H M + L,   so that P(H) ~ exp(-H M / sigma)                           (7)
        keep y iff E' > L / sigma + (|y| / sigma - 1)^2 / 2  and not (y = 0 with a minus sign)               (8)

    The probability of (8) given y is exp(-L / sigma - (|y| / sigma - 1)^2 / 2); times P(H) it is e^(-1/2) exp(-y^2 /
    (2 sigma^2)), for each sign. The float64 value of E sigma / M is wrong by less than 2^-43 sigma / M where E <= 13
    (760 e), the difference of the two sides of (8) by less than 2^-41 where E, E' <= 13 (1300 e); closer cases, and
    larger E or E', are decided with as many bits of U as it takes. About three proposals in four are kept.
    """
    if not 0.5 <= sigma <= 2.0**50:
        raise ValueError(f"expected a sigma between 0.5 and 2^50, found {sigma!r}")
    M = 1 << max(math.frexp(sigma)[1] - 18, 0)
    kept: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    missing = count
    while missing > 0:
        n = min(missing + missing // 2 + 16, 1 << 14)
        words = np.empty((3 if M > 1 else 2, n), np.uint64)
        stream.fill(words.reshape(-1))
        batch = _propose(stream, words, sigma, M)
        kept.append(batch[:missing])
        missing -= len(kept[-1])
    return np.concatenate(kept)


def _propose(stream: PrivateStream, words: Words, sigma: float, M: int) -> NDArray[np.int64]:
    """Return the proposals (7) that pass (8), one per column of `words`."""
    negative = words[0] >= np.uint64(1 << 63)
    words[0] <<= np.uint64(1)  # U begins with 63 bits A, so it lies within 3/4 of A + 1/4, which `_uniforms` takes
    e = np.empty((2, words.shape[1]))
    _uniforms(words[:2], e)
    np.log(e, out=e)
    np.negative(e, out=e)
    low = (words[-1] & np.uint64(M - 1)).astype(np.int64)
    steps = e[0] * (sigma / M)
    whole = np.floor(steps)
    size = whole.astype(np.int64) * M + low  # (7)
    margin = e[1] - (low / sigma + (size / sigma - 1.0) ** 2 / 2.0)
    keep = margin > 0.0  # (8)
    doubtful = np.abs(steps - whole - 0.5) > 0.5 - _ERROR * (sigma / M)
    doubtful |= np.abs(margin) < 2.0**-41
    doubtful |= e.max(axis=0) > _LARGEST_LOG
    for i in np.flatnonzero(doubtful).tolist():
        u, w = Uniform(int(words[0, i]) >> 1, 63, stream), Uniform(int(words[1, i]), 64, stream)
        size[i], keep[i] = _decide_proposal(u, w, int(low[i]), Fraction(sigma), M)
    keep &= ~(negative & (size == 0))
    np.negative(size, out=size, where=negative)
    accepted: NDArray[np.int64] = size[keep]
    return accepted


def _decide_proposal(u: Uniform, w: Uniform, low: int, s: Fraction, M: int) -> tuple[int, bool]:
    """Return |y| of (7) and the first half of (8), in exact arithmetic."""
    size = M * settle(lambda e: math.floor(e * s / M), lambda bits: enclose_exponential(u, bits)) + low
    threshold = low / s + (size / s - 1) ** 2 / 2
    return size, bool(settle(lambda e: e > threshold, lambda bits: enclose_exponential(w, bits)))
