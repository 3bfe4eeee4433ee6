"""Budgets that are spent adaptively: what is released next may depend on what was released before.

The accountants price a tally that was fixed in advance. A filter has a budget, of which every release takes its cost;
as long as the costs fit, the whole is (eps, delta)-DP whatever was chosen on the way.
"""

from __future__ import annotations

import math

import numpy as np

from dpmpi.errors import ConfigError
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.gdp import gdp_epsilon, gdp_mu
from dpmpi.privacy.renyi import composed_divergences, divergences, epsilon_conversion, needs_integers
from dpmpi.privacy.spending import (
    Spending,
    gaussian_mu,
    inverse_square,
    largest_of_parts,
    pure_sum,
    release_group,
    release_groups,
)


class GaussianFilter:
    """Admits Gaussian releases on all records while sum (sensitivity/scale)^2 <= mu(eps, delta)^2.

    The order and size of the charges may depend on earlier releases (fully adaptive Gaussian DP composition).
    """

    __slots__ = ("budget",)

    def __init__(self, eps: float, delta: float) -> None:
        self.budget = gdp_mu(eps, delta) ** 2

    def cost(self, event: ReleaseEvent, count: int = 1) -> float:
        """Return the part of the budget that `count` such releases take."""
        group = release_group(event, count)
        if group.z == 0:
            return math.inf if count else 0.0
        if (group.noise, group.kind) != ("gaussian", "full"):
            raise ConfigError(f"expected gaussian noise on all records, found {event}: use RdpFilter")
        return inverse_square(group.z, count)


class RdpFilter:
    """Admits any release while the sum of Renyi divergences at ONE order, fixed in advance, fits.

    The budget at order alpha is

        eps - log(1 - 1/alpha) + log(delta alpha)/(alpha - 1)                                           (1)

    (Feldman, Zrnic 2021). `best_order` picks the order from public parameters.
    """

    __slots__ = ("budget", "order")

    def __init__(self, eps: float, delta: float, order: float) -> None:
        if not 1 < order < math.inf or not 0 < delta < 1:
            raise ConfigError(f"expected 1 < order < inf and 0 < delta < 1, found {order} and {delta}")
        self.order = order
        self.budget = eps - float(epsilon_conversion(np.array([order]), delta)[0])  # (1)

    def cost(self, event: ReleaseEvent, count: int = 1) -> float:
        """Return the Renyi divergence of `count` such releases."""
        group = release_group(event, count)
        if group.times == 0 or group.z == math.inf:
            return 0.0
        if needs_integers((group,)) and (self.order != int(self.order) or self.order < 2):
            raise ConfigError(f"expected an integer order >= 2 for sampled Gaussian noise, found {self.order}")
        return count * float(divergences(group, np.array([self.order]))[0])


def filter_epsilon(spending: Spending, delta: float, order: float) -> float | None:
    """Return the smallest epsilon whose filter admits all of these releases; None if there is none.

    It is what is proven for releases whose parameters, or whose very taking place, depended on earlier ones: Gaussian
    DP where all are Gaussian on all records, else Renyi divergence at the order that was fixed before the first of
    them. The accountants' figure for the same tally can be smaller, and holds only for what was fixed in advance.
    """
    return largest_of_parts(spending, lambda part: _filter_epsilon(part, delta, order))


def _filter_epsilon(spending: Spending, delta: float, order: float) -> float | None:
    groups = release_groups(spending)
    mu = gaussian_mu(groups)
    if mu is not None:
        found = gdp_epsilon(mu, delta)
    elif delta <= 0:
        found = pure_sum(groups)  # pure epsilons add up, however they were chosen
    else:
        filter_ = RdpFilter(0.0, delta, order)
        found = math.fsum(filter_.cost(event, count) for event, count in spending.items()) - filter_.budget
    return max(0.0, found) if math.isfinite(found) else None


def best_order(plan: Spending, eps: float, delta: float) -> float:
    """Return the order at which the budget (1) admits the planned releases most often over."""
    groups = release_groups(plan)
    orders, total = composed_divergences(groups)
    budget = eps - epsilon_conversion(orders, delta)
    if not groups or np.max(budget) <= 0:
        raise ConfigError(f"expected releases and a budget, found none at epsilon {eps}, delta {delta}: raise either")
    with np.errstate(divide="ignore", over="ignore"):  # releases under so much noise cost nothing
        return float(orders[np.argmax(budget / total)])
