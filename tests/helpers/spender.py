"""What a filter admits when releases are charged one after the other."""

from __future__ import annotations

import math

import numpy as np

from dpmpi.privacy.filters import GaussianFilter
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.renyi import epsilon_conversion


class Spender:
    """Charges releases to a filter as long as they fit."""

    def __init__(self, filter_, delta):
        self.filter, self.delta, self.spent = filter_, delta, 0.0

    def charge(self, *release):
        """Charge the release if it fits; return whether it did."""
        cost = self.filter.cost(*release)
        fits = self.spent + cost <= self.filter.budget
        self.spent += cost if fits else 0.0
        return fits

    def epsilon(self):
        """The epsilon of what was charged."""
        if isinstance(self.filter, GaussianFilter):
            return gdp_epsilon(math.sqrt(self.spent), self.delta)
        return max(0.0, self.spent + float(epsilon_conversion(np.array([self.filter.order]), self.delta)[0]))
