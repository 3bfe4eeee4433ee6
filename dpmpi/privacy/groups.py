"""What the promise is worth for several records of one person.

A shard that differs in k records is k replacements away. Where that has a closed form,

    Gaussian noise on all records    k mu-Gaussian DP, mu^2 = sum of (sensitivity/scale)^2                    (1)
    pure noise                       k times the sum of the pure epsilons                                     (2)

(1) because a shift by k sensitivities is all that k records can do, and a larger shift of a Gaussian is a larger mu.
"""

from __future__ import annotations

import math

from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.spending import Spending, pure_sum, release_groups

GROUPS = (2, 5, 10)
"""The numbers of records of one person that are reported."""


def group_epsilon(spending: Spending, delta: float, k: int) -> float | None:
    """Return the epsilon at `delta` for `k` records at once; None where it has no closed form, or is infinite."""
    try:
        groups = release_groups(spending)
        if any(group.z == 0 for group in groups):
            return None
        if not groups:
            return 0.0
        if len(groups) == 1 and (groups[0].noise, groups[0].kind) == ("gaussian", "full"):
            found = gdp_epsilon(k / groups[0].z, delta)  # (1): all such releases are one group
        else:
            found = k * pure_sum(groups)  # (2); infinite for other noise
    except ArithmeticError:  # noise beyond what can be squared
        return None
    return found if math.isfinite(found) else None
