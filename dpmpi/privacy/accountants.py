"""What releases cost: from a tally of `ReleaseEvent`s to a certified epsilon.

Adjacency is replace-one. Which accountant certifies depends on the tally:

    nothing but Gaussian noise on all records       closed form                 gdp.py
    nothing but Laplace noise on vectors            Renyi divergence            renyi.py
    all others                                      loss distributions          pld.py

Spherical Laplace noise has its exact loss distribution where the dimension is known (spherical_laplace.py).
The discrete Gaussian of a shared sum is Gaussian noise of slightly less variance (discrete_gaussian.py).
Gaussian noise inside an objective has a loss distribution of its own (objective_noise.py).

Laplace noise on vectors among others, or over sampled batches, is priced both ways, and the smaller figure holds: for
all records the loss distributions know only that its L1 shift is worst in one coordinate, the Renyi divergence has its
L2 sensitivity too. Over sampled batches the latter uses a general amplification theorem, and there is a second loss
distribution, of the Gaussian noise that dominates it in L2.
Where all releases are pure, the sum of their epsilons is taken if it is smaller; where delta is too small for loss
distributions, Renyi divergence steps in. Budgets that are spent adaptively are the business of filters.py.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from dpmpi.errors import ConfigError
from dpmpi.privacy.figure_cache import cached_figure, keep_figure
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.pld import pld_epsilon
from dpmpi.privacy.renyi import renyi_epsilon
from dpmpi.privacy.spending import (
    ReleaseGroup,
    Spending,
    by_parts,
    has_sampled_vectors,
    per_coordinate,
    pure_sum,
    release_groups,
)

ACCOUNTANT = "5"
"""Part of every cache key: to be raised whenever a figure could change."""


def rdp_epsilon(spending: Spending, delta: float) -> float:
    """Return an upper bound by Renyi divergence: shares no step with the loss distributions, hence checks them.

    It is looser than `certified_epsilon`, except for Laplace noise on vectors, where it is the certified figure.
    """
    return max(renyi_epsilon(release_groups(part), delta) for part in by_parts(spending))


@lru_cache(maxsize=4096)
def _composed(groups: tuple[ReleaseGroup, ...], delta: float) -> float:
    vectors = [group.coordinates > 1 for group in groups]
    sampled = has_sampled_vectors(groups)
    if all(vectors) and not sampled:
        return renyi_epsilon(groups, delta)
    epsilon = min(pure_sum(groups), pld_epsilon(per_coordinate(groups), delta))
    if sampled:
        epsilon = min(epsilon, pld_epsilon(per_coordinate(groups, sampled=False), delta))
    return epsilon if epsilon < math.inf and not any(vectors) else min(epsilon, renyi_epsilon(groups, delta))


def equal_split_pld_epsilon(spending: Spending, delta: float) -> float:
    """Return the epsilon if every shift under Laplace noise on a vector is spread evenly over its coordinates.

    A figure to compare with, NOT a guarantee: by (7) of renyi.py no other spread has a larger Renyi divergence, but one
    can have a larger delta. A single release of L2 sensitivity t on two coordinates, t small, has at epsilon 0 a delta
    of t/2 if one coordinate takes it all, and of t/sqrt(8) if they share it. After many releases the losses of all
    spreads are close to normal, of a variance that is largest for the equal one.
    """
    groups = per_coordinate(release_groups(spending), equal_split=True)
    if not groups:
        return 0.0
    return math.inf if any(group.z == 0 for group in groups) else min(pure_sum(groups), pld_epsilon(groups, delta))


def certified_epsilon(spending: Spending, delta: float, cache: Path | None = None) -> float:
    """Return an upper bound of the epsilon at `delta` that the releases cost together; infinity if there is none.

    Releases that read different parts of the rows cost the larger of both prices, by (1) of spending.py.

    Gaussian noise on all records has the closed form of gdp.py and never imports the library. Other figures are kept in
    this process and, if `cache` names a file, there too.
    """
    if not 0 <= delta < 1:
        raise ConfigError(f"expected delta in [0, 1), found {delta}")
    parts = by_parts(spending)
    if len(parts) > 1:
        return max(certified_epsilon(part, delta, cache) for part in parts)
    groups = release_groups(spending)
    if not groups:
        return 0.0
    if any(group.z == 0 for group in groups):
        return math.inf
    if len(groups) == 1 and groups[0].noise == "gaussian" and groups[0].kind == "full":
        return gdp_epsilon(1 / groups[0].z, delta)
    if cache is None:
        return _composed(groups, delta)
    key = f"{ACCOUNTANT} delta={delta!r} " + " ".join(
        "{}:{}:{!r}:{!r}:{}:{}:{}:{!r}".format(*group) for group in groups
    )
    figure = cached_figure(cache, key)
    if figure is None:
        figure = _composed(groups, delta)
        keep_figure(cache, key, figure)
    return figure
