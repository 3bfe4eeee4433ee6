"""Mechanisms: what is added to a query's value, and the event that says so.

`sigma` is the standard deviation of the noise in each coordinate, for every kind. With b the scale of an event,

    gaussian            sigma = the event's scale                                                            (1)
    laplace             density ~ exp(-|x|_1 / b),   sigma = sqrt(2) b                                       (2)
    spherical-laplace   density ~ exp(-|x|_2 / b),   sigma = sqrt(m + 1) b                                   (3)

(3) because the radius has law Gamma(m, b), so that E|x|^2 / m = b^2 (m + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from dpmpi.core import Array, Integers, Query, Sampling
from dpmpi.errors import ConfigError, LeakError
from dpmpi.privacy.events import Noise, ReleaseEvent
from dpmpi.privacy.samplers import (
    GaussianNoise,
    GridNoise,
    LaplaceNoise,
    SphericalLaplaceNoise,
    discrete_gaussian,
)
from dpmpi.rng import PrivateStream


class _Visible:
    """A mechanism whose output may be seen."""

    __slots__ = ()
    hides: ClassVar[bool] = False

    def part(self, scale: float = 1.0) -> Integers:
        """Refuse: the noise is on the value, there is no sum to hide in."""
        raise LeakError("this noise covers a value and not a sum: release the value")


class NoNoise(_Visible):
    """Releases the value as it is. Its event costs infinity."""

    __slots__ = ("_event", "_query", "sigma")

    def __init__(self) -> None:
        self.sigma = 0.0
        self._query: Query | None = None
        self._event: ReleaseEvent

    def event(self, query: Query, scale: float = 1.0) -> ReleaseEvent:
        """Return the event of a release without noise; the last event is kept."""
        if query is not self._query:
            self._query = query
            self._event = ReleaseEvent("none", 0.0, query.sensitivity, query.sampling)
        return self._event

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Leave `value` as it is."""

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        """Overwrite `value` with what `solve` makes of no noise."""
        value.fill(0.0)
        solve(value)

    def prepare(self) -> None:
        """Draw nothing."""

    def streams(self) -> tuple[PrivateStream, ...]:
        """Return none."""
        return ()


@dataclass(frozen=True, slots=True)
class Pricing:
    """How noise of scale `b` is written down: as events, one for each kind of query."""

    kind: Noise
    b: float
    ratio: float = 1.0
    """The event's sensitivity over the query's, which is in L2."""
    coordinates: int = 1
    """As in `ReleaseEvent`: at most ratio^2."""
    slack: float = 0.0
    """Added to the sensitivity, for rounding."""

    def event(self, sensitivity: float, sampling: Sampling, scale: float = 1.0, extra: float = 0.0) -> ReleaseEvent:
        """Return the event of a release under noise of scale `b * scale`.

        A pure loss `extra` on top of the noise's own 1/z = sensitivity/scale is a larger sensitivity, in one
        coordinate.
        """
        b = self.b * scale
        if extra and self.kind in ("gaussian", "discrete-gaussian"):
            raise ConfigError(f"a pure loss on top needs pure noise, found {self.kind}: use spherical-laplace")
        return ReleaseEvent(
            self.kind, b, self.ratio * sensitivity + self.slack + extra * b, sampling, 1 if extra else self.coordinates
        )


def pricing(kind: str, sigma: float, dimension: int) -> Pricing:
    """Return how noise of standard deviation `sigma` per coordinate is written down, by (1) to (3)."""
    if sigma == 0.0 or kind == "none":
        return Pricing("none", 0.0)
    if kind == "gaussian":
        return Pricing("gaussian", sigma)
    if kind == "laplace":  # the L1 distance of two vectors is at most sqrt(m) times their L2 distance
        return Pricing("laplace", sigma / math.sqrt(2.0), math.sqrt(dimension), dimension)
    if kind == "spherical-laplace":
        return Pricing("spherical-laplace", sigma / math.sqrt(dimension + 1.0))
    raise ConfigError(f"expected mechanism none, gaussian, laplace or spherical-laplace, got {kind!r}")


class NoiseMechanism(_Visible):
    """Adds noise of scale `b * scale`, and says so in events of the same b."""

    __slots__ = ("_event", "_key", "noise", "price", "sigma")

    def __init__(self, kind: Noise, sigma: float, noise: GridNoise, price: Pricing | None = None) -> None:
        if not 0.0 < sigma < math.inf:
            raise ConfigError(f"{kind} noise needs a sigma above 0, got {sigma!r}; for a run without noise use 'none'")
        self.sigma = sigma
        self.noise = noise
        self.price = price or pricing(kind, sigma, noise.dimension)
        self._key: tuple[float, float, Sampling, float] | None = None
        self._event: ReleaseEvent

    def event(self, query: Query, scale: float = 1.0) -> ReleaseEvent:
        """Return what releasing `query` under noise of scale `b * scale` does; the last event is kept."""
        key = (scale, query.sensitivity, query.sampling, query.extra)
        if key != self._key:  # rounds repeat the same query, and a tuple compares by identity first
            self._event = self.price.event(query.sensitivity, query.sampling, scale, query.extra)
            self._key = key
        return self._event

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Add the noise to `value`, in place."""
        self.noise.add(value, self.price.b * scale)

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        """Overwrite `value` with noise, then with what `solve` makes of it."""
        value.fill(0.0)
        self.perturb(value, scale)
        solve(value)

    def prepare(self) -> None:
        """Draw the noise of the next `perturb`."""
        self.noise.prepare()

    def streams(self) -> tuple[PrivateStream, ...]:
        """Return what the noise is drawn from."""
        return self.noise.streams()


class GaussianMechanism(NoiseMechanism):
    """Adds independent normals, by (1)."""

    __slots__ = ()

    def __init__(self, sigma: float, noise: GaussianNoise) -> None:
        super().__init__("gaussian", sigma, noise)


class LaplaceMechanism(NoiseMechanism):
    """Adds independent Laplace draws, by (2).

    Its cost is in L1: the L1 distance of two values is at most `l1_ratio` times their L2 distance. The default,
    sqrt(m), holds for all vectors; where at most k coordinates can differ, sqrt(k) does. The event's `coordinates`,
    l1_ratio^2 rounded down, keeps the L2 distance for the accountants.
    """

    __slots__ = ()

    def __init__(self, sigma: float, noise: LaplaceNoise, l1_ratio: float | None = None) -> None:
        ratio = math.sqrt(noise.dimension) if l1_ratio is None else l1_ratio
        if not 1.0 <= ratio < math.inf:
            raise ConfigError(f"the ratio of L1 to L2 sensitivity is at least 1, got {l1_ratio!r}; use sqrt(m)")
        k = int(ratio * ratio * (1 + 2.0**-50))  # the square of a rounded root may fall just short of an integer
        super().__init__("laplace", sigma, noise, Pricing("laplace", sigma / math.sqrt(2.0), ratio, k))


class SphericalLaplaceMechanism(NoiseMechanism):
    """Adds a vector of density ~ exp(-|x|_2 / b), by (3)."""

    __slots__ = ()

    def __init__(self, sigma: float, noise: SphericalLaplaceNoise) -> None:
        super().__init__("spherical-laplace", sigma, noise)


class DeafMechanism(GaussianMechanism):
    """Releases Gaussian noise instead of the value: for the check that nothing but releases carries data."""

    __slots__ = ()

    def __init__(self, sigma: float, stream: PrivateStream, dimension: int) -> None:
        super().__init__(sigma, GaussianNoise(stream, dimension))

    def event(self, query: Query, scale: float = 1.0) -> ReleaseEvent:
        """Return the event of the query without a pure loss on top, which Gaussian noise has no words for."""
        return self.price.event(query.sensitivity, query.sampling, scale)

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Overwrite `value` with noise."""
        value.fill(0.0)
        super().perturb(value, scale)

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        """Overwrite `value` with noise; `solve`, which knows the data, is not asked."""
        self.perturb(value, scale)


def make_mechanism(kind: str, sigma: float, key: bytes, dimension: int) -> NoNoise | NoiseMechanism:
    """Return the mechanism of this name, drawing from the rank's own key."""
    if kind == "none":
        if sigma != 0.0:
            raise ConfigError(f"mechanism 'none' adds no noise, got sigma {sigma!r}; choose gaussian or set it to 0")
        return NoNoise()
    stream = PrivateStream(key, "noise")
    if kind == "gaussian":
        return GaussianMechanism(sigma, GaussianNoise(stream, dimension))
    if kind == "laplace":
        return LaplaceMechanism(sigma, LaplaceNoise(stream, dimension))
    if kind == "spherical-laplace":
        return SphericalLaplaceMechanism(sigma, SphericalLaplaceNoise(stream, dimension))
    raise ConfigError(f"expected mechanism none, gaussian, laplace or spherical-laplace, got {kind!r}")


class SumMechanism:
    """A rank's part of the discrete Gaussian noise inside of a sum over all ranks.

    The sum is over integers, value times 2^f. With n ranks of which c may collude and take their parts off again, each
    rank adds a discrete Gaussian of variance

        sigma^2 4^f / (n - c)                                                                         (4)

    so that the honest ones' parts have variance sigma^2 4^f at least. Rounding to integers moves two values apart by
    2^-f in each coordinate at most, whether a record is replaced or, as the accountants of sampled batches take it,
    left out and another one put in:

        sensitivity of the sum = that of the query + 2 sqrt(m) 2^-f                                   (5)

    A sum of discrete Gaussians of variance s^2 is not quite one itself: each pair of densities differs from that of the
    discrete Gaussian of the whole by a factor 1 +- 5 sum_k exp(-2 pi^2 s^2 k/(k+1)) (Kairouz, Liu, Steinke 2021,
    Theorem 12). With s >= 64, which is required, that is 1 +- e^-40000: smaller than anything else in double precision.
    """

    __slots__ = ("_event", "_key", "_stream", "bits", "parts", "price", "sigma", "width")
    hides: ClassVar[bool] = True

    def __init__(self, sigma: float, parts: int, bits: int, key: bytes, width: int) -> None:
        self.sigma = sigma
        self.parts = parts
        self.bits = bits
        self.width = width
        self.price = sum_pricing(sigma, bits, width)
        self._stream = PrivateStream(key, "noise")
        self._key: tuple[float, float, Sampling, float] | None = None
        self._event: ReleaseEvent
        self._steps(1.0)

    def event(self, query: Query, scale: float = 1.0) -> ReleaseEvent:
        """Return what the sum with this query in it costs, by (5); the last event is kept."""
        key = (scale, query.sensitivity, query.sampling, query.extra)
        if key != self._key:
            self._event = self.price.event(query.sensitivity, query.sampling, scale, query.extra)
            self._key = key
        return self._event

    def part(self, scale: float = 1.0) -> Integers:
        """Return this rank's part of the noise, by (4)."""
        return discrete_gaussian(self._stream, self._steps(scale), self.width)

    def perturb(self, value: Array, scale: float = 1.0) -> None:
        """Refuse: the noise goes into the sum."""
        raise LeakError("the noise of a sum does not cover this rank's value alone")

    def through(self, value: Array, solve: Callable[[Array], None], scale: float = 1.0) -> None:
        """Refuse: the noise goes into the sum."""
        raise LeakError("the noise of a sum cannot go through a minimisation")

    def prepare(self) -> None:
        """Draw nothing ahead."""

    def streams(self) -> tuple[PrivateStream, ...]:
        """Return what the parts are drawn from."""
        return (self._stream,)

    def _steps(self, scale: float) -> float:
        """Return the standard deviation of the part, in steps of 2^-f."""
        steps = self.sigma * scale * 2.0**self.bits / math.sqrt(self.parts)
        if not 64.0 <= steps <= 2.0**50:
            raise ConfigError(
                f"a rank's part of the noise must have a deviation of 64 to 2^50 steps, found {steps:.3g} at "
                f"{self.bits} fractional bits: use {'more' if steps < 64.0 else 'fewer'} --share-bits"
            )
        return steps


def sum_pricing(sigma: float, bits: int, width: int) -> Pricing:
    """Return how noise inside of a sum is written down, by (5)."""
    if sigma == 0.0:
        return Pricing("none", 0.0)
    return Pricing("discrete-gaussian", sigma, slack=2.0 * math.sqrt(width) * 2.0**-bits)
