"""Where the noise of a run is, and what that means: its mechanism, its price, and the room that it needs.

`LocalNoise` covers each rank's own value. `SumNoise` is inside a sum that nobody sees the summands of: every rank adds
its part, and only the sum is covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from dpmpi.core import Mechanism
from dpmpi.errors import ConfigError
from dpmpi.network.exchange.shares import capacity
from dpmpi.privacy.mechanisms import Pricing, SumMechanism, make_mechanism, pricing, sum_pricing

if TYPE_CHECKING:
    from dpmpi.runtime.plan import Plan

TAIL_DEVIATIONS = 40.0
"""Noise beyond so many standard deviations has a probability below 2^-1000."""


@dataclass(frozen=True)
class LocalNoise:
    """Noise on each rank's own value."""

    kind: str
    """gaussian, laplace or spherical-laplace"""
    place: ClassVar[str] = "local"
    colluders: ClassVar[int | None] = None

    def price(self, sigma: float, width: int) -> Pricing:
        """Return how releases under noise of standard deviation `sigma` are written down."""
        return pricing(self.kind, sigma, width)

    def mechanism(self, sigma: float, key: bytes, width: int, ranks: int) -> Mechanism:
        """Return the mechanism of one of `ranks` ranks."""
        return make_mechanism(self.kind if sigma else "none", sigma, key, width)

    def common(self, levels: Sequence[float]) -> list[float]:
        """Return the noise that each rank uses if these are the levels that they need: its own."""
        return list(levels)

    def tail(self, sigma: float, ranks: int) -> float:
        """Return the bound of the noise inside a sum: there is none."""
        return 0.0

    def check_room(self, plan: Plan, sigma: float) -> None:
        """Accept: noise that is no summand needs no room in a sum."""


@dataclass(frozen=True)
class SumNoise:
    """Discrete Gaussian noise inside a sum over all ranks, of which `colluders` may take their parts off again."""

    colluders: int
    bits: int
    """Fractional bits of the sum."""
    place: ClassVar[str] = "sum"
    kind: ClassVar[str] = "discrete-gaussian"

    def price(self, sigma: float, width: int) -> Pricing:
        """Return how releases under noise of standard deviation `sigma` are written down."""
        return sum_pricing(sigma, self.bits, width)

    def mechanism(self, sigma: float, key: bytes, width: int, ranks: int) -> Mechanism:
        """Return the mechanism of one of `ranks` ranks: its part of the noise."""
        if not sigma:
            return make_mechanism("none", 0.0, key, width)
        return SumMechanism(sigma, ranks - self.colluders, self.bits, key, width)

    def common(self, levels: Sequence[float]) -> list[float]:
        """Return the noise that each rank uses if these are the levels that they need: one sum, one noise."""
        return [max(levels)] * len(levels)

    def tail(self, sigma: float, ranks: int) -> float:
        """Return the bound of the noise of all ranks inside a sum."""
        return TAIL_DEVIATIONS * sigma * ranks

    def check_room(self, plan: Plan, sigma: float) -> None:
        """Raise `ConfigError` if a vector under this noise could be too long for the sum.

        Refused when it is, it would tell something about the records without noise.
        """
        n = plan.ranks
        drawn = [plan.terms(rank).sampling for rank in range(n)]
        most = max(
            s.records / s.expected if s.kind == "poisson" else 1.0 for s in drawn
        )  # a batch may hold all records
        longest, room = plan.lipschitz * max(plan.weights) * most, capacity(n, self.bits, self.tail(sigma, n))
        if longest >= room:
            raise ConfigError(
                f"expected gradients below {room:.3g} in a shared sum, found that they may reach {longest:.3g}: use "
                "fewer --share-bits, a smaller --lipschitz or a larger --batch"
            )


Noise: TypeAlias = LocalNoise | SumNoise
