"""Mechanisms: the noise added to the value of a query, and the event that records it.

`sigma` is the standard deviation of the noise in each coordinate, for every kind. With b the scale of an event,

    gaussian            sigma = the event's scale                                                            (1)
    laplace             density ~ exp(-|x|_1 / b),   sigma = sqrt(2) b                                       (2)
    spherical-laplace   density ~ exp(-|x|_2 / b),   sigma = sqrt(m + 1) b                                   (3)

(3) because the radius has law Gamma(m, b), so that E|x|^2 / m = b^2 (m + 1).

A query declares how far one record moves it. A person of at most k records is k replacements, one after the other, each
of which moves the value by that sensitivity and the determinant of a minimisation by its `extra` at most, so that

    event's sensitivity = k x that of the query,     extra = k x that of the query                           (6)

for queries of all records, and for batches in which all records of a person take part or none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from dpmpi.core import Array, Integers, Query, Sampling
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError, LeakError
from dpmpi.privacy.discrete_gaussian import LEAST_STEPS, MOST_COORDINATES
from dpmpi.privacy.events import Noise, ReadRows, ReleaseEvent
from dpmpi.privacy.samplers import GaussianNoise, GridNoise, LaplaceNoise, SphericalLaplaceNoise, discrete_gaussian
from dpmpi.rng import PrivateStream


@frozen
class Pricing:
    """The events of noise of scale `b`, one for each kind of query."""

    kind: Noise
    b: float
    ratio: float = 1.0
    """The event's sensitivity over the query's, which is in L2."""
    coordinates: int = 1
    """As in `ReleaseEvent`: at most ratio^2."""
    slack: float = 0.0
    """Added to the sensitivity, for rounding."""
    dimension: int = 0
    """As in `ReleaseEvent`."""
    records: int = 1
    """The most records of one person: all of them may be replaced at once, (6)."""
    rows: ReadRows = "all"
    """The rows that releases under this noise read."""

    def event(
        self, sensitivity: float, sampling: Sampling, scale: float = 1.0, extra: float = 0.0, *, inside: bool = False
    ) -> ReleaseEvent:
        """Return the event of a release under noise of scale `b * scale`.

        A loss `extra` on top of the noise's own 1/z = sensitivity/scale is a larger sensitivity, in one coordinate, as
        is a shift by `extra` scales; nothing is known of its direction. Gaussian noise `inside` an objective keeps it
        apart.
        """
        b = self.b * scale
        sensitivity, extra = self.records * sensitivity, self.records * extra  # (6)
        if (extra or inside) and self.kind == "discrete-gaussian":
            raise ConfigError(f"expected noise on values under a minimisation, found {self.kind}: use --noise-in local")
        if inside and self.kind == "gaussian":
            return ReleaseEvent("objective", b, sensitivity, sampling, extra=extra, rows=self.rows)
        whole, coordinates = self.ratio * sensitivity + self.slack + extra * b, 1 if extra else self.coordinates
        dimension = 0 if extra else self.dimension
        return ReleaseEvent(self.kind, b, whole, sampling, coordinates, dimension, rows=self.rows)


def pricing(kind: str, sigma: float, dimension: int, l1_ratio: float | None = None) -> Pricing:
    """Return the pricing of noise of standard deviation `sigma` per coordinate, by (1) to (3).

    Laplace noise costs in L1: the L1 distance of two values is at most `l1_ratio` times their L2 distance. The default,
    sqrt(m), holds for all vectors; where at most k coordinates can differ, sqrt(k) does. The event's `coordinates`,
    l1_ratio^2 rounded down, keeps the L2 distance for the accountants.
    """
    if sigma == 0.0 or kind == "none":
        return Pricing("none", 0.0)
    if kind == "gaussian":
        return Pricing("gaussian", sigma)
    if kind == "laplace":
        if l1_ratio is None:
            return Pricing("laplace", sigma / math.sqrt(2.0), math.sqrt(dimension), dimension)
        if not 1.0 <= l1_ratio < math.inf:
            raise ConfigError(f"expected an L1 to L2 ratio of at least 1, found {l1_ratio!r}: use sqrt(m)")
        k = int(l1_ratio**2 * (1 + 2.0**-50))  # the square of a rounded root may fall just short of an integer
        return Pricing("laplace", sigma / math.sqrt(2.0), l1_ratio, k)
    if kind == "spherical-laplace":
        return Pricing("spherical-laplace", sigma / math.sqrt(dimension + 1.0), dimension=dimension)
    raise _unknown(kind)


def _unknown(kind: str) -> ConfigError:
    return ConfigError(f"expected mechanism none, gaussian, laplace or spherical-laplace, found {kind!r}")


_NOISES: dict[str, type[GaussianNoise | LaplaceNoise | SphericalLaplaceNoise]] = {
    "gaussian": GaussianNoise,
    "laplace": LaplaceNoise,
    "spherical-laplace": SphericalLaplaceNoise,
}


class _Mechanism:
    """A mechanism with a price for each query, whose output may be seen; it adds nothing."""

    hides: ClassVar[bool] = False
    cancels: ClassVar[bool] = False

    def __init__(self, sigma: float, price: Pricing) -> None:
        self.sigma = sigma
        self.price = price
        self._key: tuple[float, float, Sampling, float, bool] | None = None
        self._event: ReleaseEvent

    def event(self, query: Query, scale: float = 1.0) -> ReleaseEvent:
        """Return the event of releasing `query` under noise of scale `b * scale`; the last one is kept."""
        key = (scale, query.sensitivity, query.sampling, query.extra, query.inside)
        if key != self._key:  # rounds repeat the same query, and a tuple compares by identity first
            self._event = self.price.event(query.sensitivity, query.sampling, scale, query.extra, inside=query.inside)
            self._key = key
        return self._event

    def part(self, scale: float = 1.0) -> Integers:
        """Refuse: the noise is on the value, there is no sum to hide in."""
        raise LeakError("expected a value under this noise, found a sum: release the value")

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Leave `value` as it is."""

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        """Overwrite `value` with noise, then with the solution for it."""
        value.fill(0.0)
        self.perturb(value, scale)
        solve(value)

    def prepare(self) -> None:
        """Draw nothing ahead."""

    def streams(self) -> tuple[PrivateStream, ...]:
        """Return the streams that the noise is drawn from."""
        return ()


class NoNoise(_Mechanism):
    """Releases the value as it is. Its event costs infinity."""

    def __init__(self) -> None:
        super().__init__(0.0, Pricing("none", 0.0))


class NoiseMechanism(_Mechanism):
    """Adds noise of scale `b * scale`, and says so in events of the same b."""

    def __init__(self, kind: str, sigma: float, noise: GridNoise, price: Pricing | None = None) -> None:
        if not 0.0 < sigma < math.inf:
            raise ConfigError(
                f"expected a sigma above 0 for {kind} noise, found {sigma!r}: for a run without noise use 'none'"
            )
        self.noise = noise
        super().__init__(sigma, price or pricing(kind, sigma, noise.dimension))

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Add the noise to `value`, in place."""
        self.noise.add(value, self.price.b * scale)

    def prepare(self) -> None:
        """Draw the noise of the next `perturb`."""
        self.noise.prepare()

    def streams(self) -> tuple[PrivateStream, ...]:
        """Return the streams that the noise is drawn from."""
        return self.noise.streams()


class DeafMechanism(NoiseMechanism):
    """Releases Gaussian noise instead of the value: for the check that nothing but releases carries data."""

    def __init__(self, sigma: float, stream: PrivateStream, dimension: int) -> None:
        super().__init__("gaussian", sigma, GaussianNoise(stream, dimension))

    def event(self, query: Query, scale: float = 1.0) -> ReleaseEvent:
        """Return the event of the query as if it were released: nothing of it goes through a minimisation."""
        return self.price.event(query.sensitivity, query.sampling, scale)

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Overwrite `value` with noise."""
        value.fill(0.0)
        super().perturb(value, scale)

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        """Overwrite `value` with noise; `solve`, which knows the data, is not asked."""
        self.perturb(value, scale)


def make_mechanism(
    kind: str, sigma: float, key: bytes, dimension: int, *, price: Pricing | None = None, stream: str = "noise"
) -> NoNoise | NoiseMechanism:
    """Return the mechanism of this name, drawing from the stream of this name of the rank's own key.

    `price` replaces the usual one; it must be that of noise of this kind and size.
    """
    if kind in _NOISES:
        return NoiseMechanism(kind, sigma, _NOISES[kind](PrivateStream(key, stream), dimension), price)
    if kind != "none":
        raise _unknown(kind)
    if sigma != 0.0:
        raise ConfigError(f"expected sigma 0 for mechanism 'none', found {sigma!r}: choose gaussian, or set it to 0")
    return NoNoise()


class SumMechanism(_Mechanism):
    """A rank's part of the discrete Gaussian noise inside a sum over all ranks.

    The sum is over integers, value times 2^f. With n ranks of which c may collude and take their parts off again, each
    rank adds a discrete Gaussian of variance

        sigma^2 4^f / (n - c)                                                                         (4)

    so that the honest ones' parts have variance sigma^2 4^f at least. Rounding to integers moves two values apart by
    2^-f in each coordinate at most, whether a record is replaced or, as the accountants of sampled batches take it,
    left out and another one put in:

        sensitivity of the sum = that of the query + 2 sqrt(m) 2^-f                                   (5)

    A sum of discrete Gaussians is not quite one itself, nor is it a Gaussian. What that costs is in
    discrete_gaussian.py, for parts of 64 steps of 2^-f at least, which are required here.
    """

    hides: ClassVar[bool] = True

    def __init__(
        self,
        sigma: float,
        parts: int,
        bits: int,
        key: bytes,
        width: int,
        *,
        price: Pricing | None = None,
        stream: str = "noise",
    ) -> None:
        self.parts = parts
        self.bits = bits
        self.width = width
        super().__init__(sigma, price or sum_pricing(sigma, bits, width))
        self._stream = PrivateStream(key, stream)
        part_steps(sigma, parts, bits)

    def part(self, scale: float = 1.0) -> Integers:
        """Return this rank's part of the noise, by (4)."""
        return discrete_gaussian(self._stream, part_steps(self.sigma * scale, self.parts, self.bits), self.width)

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Refuse: the noise goes into the sum."""
        raise LeakError("expected a sum under this noise, found this rank's value alone: use a Sum")

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        """Refuse: the noise goes into the sum."""
        raise LeakError("expected a sum under this noise, found a minimisation: choose noise on values")

    def streams(self) -> tuple[PrivateStream, ...]:
        """Return the stream that the parts are drawn from."""
        return (self._stream,)


def part_steps(sigma: float, parts: int, bits: int) -> float:
    """Return the standard deviation of a rank's part of the noise, by (4) of `SumMechanism`, in steps of 2^-bits."""
    steps = sigma * 2.0**bits / math.sqrt(parts)
    if not LEAST_STEPS <= steps <= 2.0**50:
        raise ConfigError(
            f"expected a deviation of 64 to 2^50 steps for a rank's part of the noise, found {steps:.3g} at "
            f"{bits} fractional bits: use {'more' if steps < LEAST_STEPS else 'fewer'} --share-bits"
        )
    return steps


def sum_pricing(sigma: float, bits: int, width: int) -> Pricing:
    """Return the pricing of noise inside a sum, by (5)."""
    if sigma == 0.0:
        return Pricing("none", 0.0)
    if width > MOST_COORDINATES:
        raise ConfigError(f"expected at most 2^40 coordinates in a shared sum, found {width}: use fewer features")
    return Pricing("discrete-gaussian", sigma, slack=2.0 * math.sqrt(width) * 2.0**-bits)
