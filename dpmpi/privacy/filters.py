"""Budgets that are spent adaptively: what is released next may depend on what was released before.

The accountants price a tally that was fixed in advance. A filter admits one release after another until its budget is
spent, and then the whole is (eps, delta)-DP whatever was chosen on the way.
"""

from __future__ import annotations

import math

import numpy as np

from dpmpi.errors import BudgetExceeded, ConfigError
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.gdp import gdp_epsilon, gdp_mu
from dpmpi.privacy.renyi import composed, divergences, needs_integers, price
from dpmpi.privacy.tallies import Spending, group_of, groups_of


class GaussianFilter:
    """Admits Gaussian releases on all records while sum (sensitivity/scale)^2 <= mu(eps, delta)^2.

    The order and size of the charges may depend on earlier releases (fully adaptive Gaussian DP composition).
    """

    __slots__ = ("budget", "delta", "spent")

    def __init__(self, eps: float, delta: float) -> None:
        self.delta = delta
        self.budget = gdp_mu(eps, delta) ** 2
        self.spent = 0.0

    def cost(self, event: ReleaseEvent, count: int = 1) -> float:
        """Return what `count` such releases take from the budget."""
        group = group_of(event, count)
        if group.z == 0:
            return math.inf if count else 0.0
        if (group.noise, group.kind) != ("gaussian", "full"):
            raise ConfigError(
                f"a Gaussian filter admits gaussian noise on all records only, found {event}: use RdpFilter"
            )
        return count / group.z**2

    def admits(self, event: ReleaseEvent, count: int = 1) -> bool:
        """Return whether `count` such releases still fit."""
        return self.spent + self.cost(event, count) <= self.budget

    def add(self, event: ReleaseEvent, count: int = 1) -> None:
        """Charge `count` such releases; raise `BudgetExceeded` if they do not fit."""
        if not self.admits(event, count):
            raise BudgetExceeded(
                f"{count} more release(s) cost {self.cost(event, count):.6g}, but only "
                f"{self.budget - self.spent:.6g} of {self.budget:.6g} is left"
            )
        self.spent += self.cost(event, count)

    def epsilon_spent(self) -> float:
        """Return the epsilon of what was charged: for this rank's log only, as the stopping time is adaptive."""
        return gdp_epsilon(math.sqrt(self.spent), self.delta)


class RdpFilter(GaussianFilter):
    """Admits any release while the sum of Renyi divergences at ONE order, fixed in advance, fits.

    The budget at order alpha is

        eps - log(1 - 1/alpha) + log(delta alpha)/(alpha - 1)                                           (1)

    (Feldman, Zrnic 2021). `filter_order` picks the order from public parameters.
    """

    __slots__ = ("order",)

    def __init__(self, eps: float, delta: float, order: float) -> None:
        if not 1 < order < math.inf or not 0 < delta < 1:
            raise ConfigError(f"an RDP filter takes 1 < order < inf and 0 < delta < 1, found {order} and {delta}")
        self.delta = delta
        self.order = order
        self.budget = eps - float(price(np.array([order]), delta)[0])  # (1)
        self.spent = 0.0

    def cost(self, event: ReleaseEvent, count: int = 1) -> float:
        """Return the Renyi divergence of `count` such releases."""
        group = group_of(event, count)
        if group.times == 0 or group.z == math.inf:
            return 0.0
        if needs_integers((group,)) and (self.order != int(self.order) or self.order < 2):
            raise ConfigError(f"sampled Gaussian noise needs an integer order of at least 2, found {self.order}")
        return count * float(divergences(group, np.array([self.order]))[0])

    def epsilon_spent(self) -> float:
        """Return the epsilon of what was charged: for this rank's log only, as the stopping time is adaptive."""
        if self.spent == 0:
            return 0.0
        return max(0.0, self.spent + float(price(np.array([self.order]), self.delta)[0]))


def filter_order(plan: Spending, eps: float, delta: float) -> float:
    """Return the order at which the budget (1) admits the planned releases most often over."""
    groups = groups_of(plan)
    orders, total = composed(groups)
    budget = eps - price(orders, delta)
    if not groups or np.max(budget) <= 0:
        raise ConfigError(f"no order leaves a budget at epsilon {eps}, delta {delta}: raise either, or plan a release")
    return float(orders[np.argmax(budget / total)])
