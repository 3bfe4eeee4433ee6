"""What the promise is worth for several records of one person.

A shard that differs in k records is k replacements away. Where that has a closed form,

    Gaussian noise on all records    k mu-Gaussian DP, mu^2 = sum of (sensitivity/scale)^2                    (1)
    pure noise                       k times the sum of the pure epsilons                                     (2)

Of a group, k' rows may lie in the training part and k - k' in the held-out one: with mu_T and mu_E the prices of the
parts, (k' mu_T)^2 + ((k - k') mu_E)^2 <= k^2 max(mu_T, mu_E)^2, and likewise for sums of pure epsilons. So (1) and (2)
hold for the larger of both parts, if both have the same form.

(1) because a shift by k sensitivities is all that k records can do, and a larger shift of a Gaussian is a larger mu.
"""

from __future__ import annotations

import math

from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.spending import Spending, by_parts, gaussian_mu, largest_of_parts, pure_sum, release_groups

GROUPS = (2, 5, 10)
"""The numbers of records of one person that are reported."""
GAUSSIAN = ("gaussian", "discrete-gaussian")
"""The noise of (1)."""


def group_epsilon(spending: Spending, delta: float, k: int) -> float | None:
    """Return the epsilon at `delta` for `k` records at once; None where it has no closed form, or is infinite."""
    if len(by_parts(spending)) > 1 and len({event.noise in GAUSSIAN for event in spending}) > 1:
        return None
    return largest_of_parts(spending, lambda part: _group_epsilon(part, delta, k))


def _group_epsilon(spending: Spending, delta: float, k: int) -> float | None:
    groups = release_groups(spending)
    mu = gaussian_mu(groups)
    found = k * pure_sum(groups) if mu is None else gdp_epsilon(k * mu, delta)  # (2), infinite for other noise; (1)
    return found if math.isfinite(found) else None
