"""Local privacy of methods with random weights and Laplace noise: figures to compare, and a filter that counts weights.

A release of rate beta = 1/b on d coordinates, which one record moves by at most Delta_2 in L2, and hence none of them
by more, has a pure loss of d beta Delta_2 coordinate by coordinate, beta sqrt(d) Delta_2 by the L1 norm, and less by
its Renyi divergence. Random weights hide more. The widths of the intervals over which they spread an output follow from
what was sent before; given that, the output is Laplace noise on a uniform draw (mixtures.py), whose divergence at shift
t is at most c_l t^2 in coordinate l. With bounds B_l on the shifts of the coordinates, one release costs at most

    max { sum_l c_l q_l :  0 <= q_l <= B_l^2,  sum_l q_l <= Delta_2^2 }                                     (1)

which fills the largest c_l first. Without bounds, B_l = Delta_2, that is Delta_2^2 max_l c_l: a record that moves one
coordinate alone is hidden no better than the narrowest interval hides it. Weights pay where no interval is narrow, or
where the records are clipped in each coordinate.
"""

from __future__ import annotations

import math

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import BudgetExceeded, ConfigError
from dpmpi.privacy.accountants import equal_split_pld_epsilon, rdp_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.filters import RdpFilter
from dpmpi.privacy.mixtures import mixture_curvature, realised_loss
from dpmpi.privacy.renyi import zcdp_epsilon
from dpmpi.privacy.tallies import Spending, group_of


def laplace_figures(spending: Spending, delta: float) -> dict[str, float]:
    """Return the epsilons of Laplace releases on all records, by one way of counting after the other.

    worst_case    pure: every coordinate moves by the whole L2 sensitivity, as if it bounded nothing but each of them
    l1            pure: the sum of the L1 sensitivities over the scales
    zcdp          at `delta`, rho = sum (Delta_2/b)^2/2; needs no more than that the noise is Laplace
    rdp           at `delta`, Renyi divergence: the certified figure, where it is below l1
    pld           at `delta`, if all shifts are spread evenly: not a guarantee, see `equal_split_pld_epsilon`
    """
    groups = [group_of(event, count) for event, count in spending.items()]
    if any((group.noise, group.kind) != ("laplace", "full") for group in groups):
        raise ConfigError(
            "these figures are for laplace noise on all records, found other releases: use the accountants"
        )
    rho = math.fsum(group.times / group.z**2 / group.coordinates / 2 for group in groups)
    return {
        "worst_case": math.fsum(group.times * math.sqrt(group.coordinates) / group.z for group in groups),
        "l1": math.fsum(group.times / group.z for group in groups),
        "zcdp": zcdp_epsilon(rho, delta),
        "rdp": rdp_epsilon(spending, delta),
        "pld": equal_split_pld_epsilon(spending, delta),
    }


class MixtureFilter(RdpFilter):
    """An `RdpFilter` that counts random weights: it admits a Laplace release at the widths of its public intervals.

    `event` is the Laplace noise alone, `widths` the lengths of the intervals, one for each coordinate, which may depend
    on all that was sent before but on nothing else; `bounds` are the B_l of (1), one for all or one for each. Where the
    widths are not given, a release costs what it costs an `RdpFilter`; it never costs more. The weights are assumed to
    be uniform on multiples of 2^-53, fresh, and as secret as the noise: against real ones they change the logarithm of
    the density of coordinate l by eta_l = 2^-53 w_l/b at most, where w_l is its width, and the divergence by
    (2 alpha - 1)/(alpha - 1) eta_l, which is added.
    """

    __slots__ = ()

    def cost(
        self, event: ReleaseEvent, count: int = 1, widths: Array | None = None, bounds: Array | float | None = None
    ) -> float:
        """Return the Renyi divergence of `count` such releases, by (1)."""
        plain = super().cost(event, count)
        if widths is None or plain in (0.0, math.inf):
            return plain
        group = group_of(event, count)
        if (group.noise, group.kind) != ("laplace", "full"):
            raise ConfigError(f"random weights count with laplace noise on all records only, found {event}")
        whole = event.sensitivity / math.sqrt(event.coordinates)
        limits = np.minimum(np.broadcast_to(whole if bounds is None else bounds, np.shape(widths)), whole)
        if not (np.all(np.isfinite(widths)) and np.min(widths, initial=0.0) >= 0 and np.min(limits, initial=0.0) >= 0):
            raise ConfigError("the widths of the intervals and the bounds must be finite and not negative")
        if np.size(widths) < event.coordinates:
            raise ConfigError(f"expected {event.coordinates} widths, one per coordinate, found {np.size(widths)}")
        beta, reach = 1 / event.scale, float(limits.max())
        if bounds is None:  # one narrow interval and the others are of no use
            narrowest = mixture_curvature(self.order, beta, np.array([np.min(widths)]), reach)
            if count * narrowest[0] * whole**2 >= plain:
                return plain
        c = mixture_curvature(self.order, beta, np.asarray(widths, float), reach)
        first = np.argsort(-c, kind="stable")
        reached = np.minimum(np.cumsum(limits[first] ** 2), whole**2)
        mixed = float(np.sum(c[first] * np.diff(reached, prepend=0.0)))  # (1)
        slack = (2 * self.order - 1) / (self.order - 1) * 2.0**-53 * beta * float(np.sum(widths))
        return min(plain, count * (mixed + slack))

    def admits(
        self, event: ReleaseEvent, count: int = 1, widths: Array | None = None, bounds: Array | float | None = None
    ) -> bool:
        """Return whether `count` such releases still fit."""
        return self.spent + self.cost(event, count, widths, bounds) <= self.budget

    def add(
        self, event: ReleaseEvent, count: int = 1, widths: Array | None = None, bounds: Array | float | None = None
    ) -> None:
        """Charge `count` such releases; raise `BudgetExceeded` if they do not fit."""
        cost = self.cost(event, count, widths, bounds)
        if self.spent + cost > self.budget:
            raise BudgetExceeded(
                f"{count} more release(s) cost {cost:.6g}, but only {self.budget - self.spent:.6g} of "
                f"{self.budget:.6g} is left"
            )
        self.spent += cost


class RealisedLosses:
    """A `Witness`: what each output of a method with random weights gave away, by the closed form of mixtures.py.

    A realised loss is a function of the data: it stays on its rank, in a file that only its owner can read. It is no
    guarantee, and nothing may stop or change because of it.
    """

    def __init__(self) -> None:
        self.losses: list[float] = []
        """The loss of each output, summed over its coordinates."""
        self.largest: list[float] = []
        """What it would have been at worst: reach/scale in every coordinate."""

    def saw(self, output: Array, low: Array, high: Array, scale: float, reach: float) -> None:
        """Note one output."""
        self.losses.append(float(np.sum(realised_loss(low, high, output, 1.0 / scale, reach))))
        self.largest.append(output.size * reach / scale)
