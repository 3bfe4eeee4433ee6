"""How often each kind of release was made, in the form that the accountants take.

Adjacency is replace-one. A release has noise multiplier z = scale/sensitivity; its rate is the probability that a given
record takes part in it. Laplace noise on a vector has its z in L1, and `coordinates` k > 1 where the L2 sensitivity is
known to be at most 1/sqrt(k) of that in L1; the loss distributions make use of k for sampled batches only. A discrete
Gaussian is counted among the Gaussian releases, with the smaller deviation of discrete_gaussian.py. Spherical Laplace
noise on all records keeps its `dimension` where it is known; in one dimension it is Laplace noise. Gaussian noise in an
objective has an `extra` loss, that of its determinant.

Parts. A row is a training row or a held-out one, by its public position, and an event may say which of them it read. A
record that is replaced lies in one part P, so that all events which read the other part alone are, given what was
released before, the same in both worlds: they cost nothing. With e(P) the price of the events that read P or all rows,

    epsilon = max( e(training), e(held-out) )                                                       (1)

whatever was chosen on the way by what was released. Pricing all events together, as if the parts were one, gives more
than (1): who does not know of parts errs on the safe side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias, get_args

from dpmpi.errors import ConfigError
from dpmpi.privacy.discrete_gaussian import CONTINUOUS_SHARE
from dpmpi.privacy.events import PARTS, Noise, ReadRows, ReleaseEvent

Spending: TypeAlias = Mapping[ReleaseEvent, int]
"""How often each kind of release was made."""

GAUSSIAN_FACTOR = math.sqrt(math.pi / 2)
"""Laplace noise moved by t in L2 gives away no more than a Gaussian moved by t times this, (8) of renyi.py."""

_MOST_GROUPS = 128  # more kinds of sampled releases than this are merged, pessimistically


def charged_to(spending: Spending, part: ReadRows) -> Counter[ReleaseEvent]:
    """Return the releases charged to the rows of one part: those that read them, or all rows."""
    return Counter({event: count for event, count in spending.items() if event.rows in ("all", part)})


def by_parts(spending: Spending) -> list[Spending]:
    """Return the releases charged to each part of the rows; one tally if no two parts were charged apart, (1)."""
    if not {event.rows for event in spending}.issuperset(PARTS):
        return [spending]
    return [charged_to(spending, part) for part in PARTS]


def largest_of_parts(spending: Spending, price: Callable[[Spending], float | None]) -> float | None:
    """Return the largest price of a part, (1); None if a part has none."""
    return largest_known([price(part) for part in by_parts(spending)])


def largest_known(values: Sequence[float | None]) -> float | None:
    """Return the largest value; None if one is not known."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def to_all_rows(spending: Spending) -> Counter[ReleaseEvent]:
    """Return the releases as if each had read all rows: for rows that another split has put into other parts."""
    found: Counter[ReleaseEvent] = Counter()
    for event, count in spending.items():
        found[replace(event, rows="all")] += count
    return found


def for_persons(spending: Spending, times: float) -> Counter[ReleaseEvent]:
    """Return releases that were charged for fewer records of a person than it has, `times` as many.

    Each of its records moved a release by the sensitivity at most. Batches were drawn without regard to who has several
    records: that it was in them all is the worst.
    """
    found: Counter[ReleaseEvent] = Counter()
    for event, count in spending.items():
        drawn = replace(event.sampling, kind="full")
        sensitivity, extra = times * event.sensitivity, times * event.extra
        found[replace(event, sampling=drawn, sensitivity=sensitivity, extra=extra)] += count
    return found


class ReleaseGroup(NamedTuple):
    """Releases that cost the same. `z` = 0: no noise at all."""

    noise: str
    kind: str
    rate: float
    z: float
    times: int = 1
    coordinates: int = 1
    dimension: int = 0
    extra: float = 0.0


GroupKey: TypeAlias = tuple[str, str, float, float, int, int, float]
"""What tells groups apart: noise, kind, rate, z, coordinates, dimension and extra."""


def release_group(event: ReleaseEvent, count: int = 1) -> ReleaseGroup:
    """Return the group of `count` such releases; raise `ConfigError` if no accountant understands them."""
    if event.noise not in get_args(Noise):
        raise ConfigError(f"expected gaussian, laplace or discrete-gaussian noise, found {event.noise!r}")
    if event.sampling.kind not in ("full", "poisson", "fixed"):
        raise ConfigError(f"expected full, poisson or fixed sampling, found {event.sampling.kind!r}")
    rate = 1.0 if event.sampling.kind == "full" else event.sampling.rate
    if not 0 < rate <= 1:
        raise ConfigError(f"expected a sampling rate in (0, 1], found {rate}: the batch cannot exceed the records")
    if not (event.scale >= 0 and event.sensitivity >= 0 and count >= 0 and count == int(count)):  # also refuses nan
        raise ConfigError(f"expected no negative scale, sensitivity or count, found {count} x {event}")
    if event.coordinates < 1 or event.coordinates != int(event.coordinates):
        raise ConfigError(f"expected at least 1 coordinate, a whole number, found {event.coordinates}")
    if event.dimension < 0 or event.dimension != int(event.dimension):
        raise ConfigError(f"expected a whole number of dimensions, found {event.dimension}")
    if not 0 <= event.extra < math.inf or (event.noise == "objective" and rate < 1):
        raise ConfigError(f"expected noise in an objective of all records, with a finite loss on top, found {event}")
    z = float(event.scale) / float(event.sensitivity) if event.sensitivity else math.inf
    if event.noise == "none" or event.scale == 0 or not z > 1e-100:
        return ReleaseGroup("none", "full", 1.0, 0.0, int(count))
    noise, kind, k, m = event.noise, "full" if rate == 1 else event.sampling.kind, 1, 0
    if noise == "discrete-gaussian":
        noise, z = "gaussian", z * CONTINUOUS_SHARE
    elif noise == "laplace":
        k = event.coordinates
    elif noise == "spherical-laplace" and rate == 1:
        noise, m = ("laplace", 0) if event.dimension == 1 else (noise, event.dimension)
    return ReleaseGroup(noise, kind, rate, z, int(count), k, m, event.extra if noise == "objective" else 0.0)


def inverse_square(z: float, count: int = 1) -> float:
    """Return count/z^2; an upper bound of it where z^2 is no number."""
    return count / z**2 if z < 1e150 else count * 1e-300


def release_groups(spending: Spending) -> tuple[ReleaseGroup, ...]:
    """Return the tally in canonical form: as few groups as possible, sorted; free releases left out."""
    tally: Counter[GroupKey] = Counter()
    vectors: Counter[GroupKey] = Counter()
    squares: list[float] = []
    for event, count in spending.items():
        group = release_group(event, count)
        if group.times == 0 or group.z == math.inf:
            continue
        if group.kind == "full" and group.noise == "gaussian":
            squares.append(inverse_square(group.z, count))
        else:
            (vectors if group.coordinates > 1 and group.kind == "full" else tally)[(*group[:4], *group[5:])] += count
    merged = [ReleaseGroup("gaussian", "full", 1.0, 1 / math.sqrt(math.fsum(squares)))] if squares else []
    return tuple(sorted([*merged, *_groups(_merged(tally)), *_groups(vectors)]))


def gaussian_mu(groups: tuple[ReleaseGroup, ...]) -> float | None:
    """Return the mu of releases that are all Gaussian on all records; infinity without noise, None for others."""
    if any(group.z == 0 for group in groups):
        return math.inf
    if not groups:
        return 0.0
    whole = len(groups) == 1 and (groups[0].noise, groups[0].kind) == ("gaussian", "full")
    return 1 / groups[0].z if whole else None  # all such releases are one group


def per_coordinate(
    groups: tuple[ReleaseGroup, ...], *, equal_split: bool = False, sampled: bool = True
) -> tuple[ReleaseGroup, ...]:
    """Return the groups with Laplace noise on vectors replaced by Laplace noise on one coordinate at a time.

    Either all of the L1 sensitivity lies in one coordinate, the worst that it allows, or with `equal_split` every one
    of the k coordinates is a release of its own, with a k-th of it, on all records. Without `sampled`, vectors over
    sampled batches stay as they are.
    """
    tally: Counter[GroupKey] = Counter()
    kept = []
    for group in groups:
        if group.coordinates == 1 or not (sampled or group.kind == "full"):
            kept.append(group)
        else:
            k = group.coordinates if equal_split and group.kind == "full" else 1
            tally[group.noise, group.kind, group.rate, group.z * k, 1, 0, 0.0] += group.times * k
    return tuple(sorted([*kept, *_groups(_merged(tally))]))


def has_sampled_vectors(groups: tuple[ReleaseGroup, ...]) -> bool:
    """Return whether there is Laplace noise on vectors over sampled batches."""
    return any(group.coordinates > 1 and group.kind != "full" for group in groups)


def _groups(tally: Counter[GroupKey]) -> list[ReleaseGroup]:
    return [ReleaseGroup(*key[:4], count, *key[4:]) for key, count in tally.items()]


def _merged(tally: Counter[GroupKey]) -> Counter[GroupKey]:
    """Return about `_MOST_GROUPS` kinds at most: multipliers rounded down and rates up, on a grid of ratios."""
    if len(tally) <= _MOST_GROUPS:
        return tally
    zs, rates = [key[3] for key in tally if key[3] > 0], [key[2] for key in tally]
    coarse: Counter[GroupKey] = Counter()
    cells = _MOST_GROUPS if len(set(rates)) == 1 else math.isqrt(_MOST_GROUPS)
    steps = [math.log(max(v) / min(v)) / cells or 1.0 for v in (zs or [1.0], rates)]
    for (noise, kind, rate, z, *kinds), count in tally.items():
        lower = z and min(zs) * math.exp(steps[0] * math.floor(math.log(z / min(zs)) / steps[0]))
        upper = max(rates) * math.exp(-steps[1] * math.floor(math.log(max(rates) / rate) / steps[1]))
        coarse[noise, kind, max(rate, upper), min(z, lower), int(kinds[0]), int(kinds[1]), kinds[2]] += count
    return coarse


def pure_epsilon(group: ReleaseGroup) -> float:
    """Return the pure epsilon of one release of a (spherical) Laplace group, amplified by sampling."""
    eps = 1 / group.z
    return eps + math.log(group.rate) if eps > 500 else math.log1p(group.rate * math.expm1(eps))


def pure_sum(groups: tuple[ReleaseGroup, ...]) -> float:
    """Return the sum of the pure epsilons; infinity if some noise has none."""
    pure = all(group.noise in ("laplace", "spherical-laplace") for group in groups)
    return math.fsum(group.times * pure_epsilon(group) for group in groups) if pure else math.inf
