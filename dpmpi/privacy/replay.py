"""What a ledger's releases cost, found by code that the runs do not use: between a lower and an upper bound.

`verify` compares a claimed epsilon with them. The bounds are on either side of the truth, the smallest epsilon that the
releases keep at delta against the worst neighbour, so that only two comparisons say anything:

    claimed < lower     the claim is false: two neighbouring data sets show more than it allows
    claimed > upper     the claim is true, and wasteful: the run's accountant is looser than it need be (no alarm)

Anything between is consistent. A claim is never measured against `upper` from below: an upper bound above it proves
nothing. For each release, with t = sensitivity/scale, s the rate, the upper bound composes a pair that dominates, the
lower one a pair that two data sets attain (loss_sums.py composes both):

    Gaussian, all records     N(0,1), N(t,1)                                          both                       (1)
    Gaussian, Poisson         (1-s) N(0,1) + s N(+-t/2,1)                              both                       (2)
    Gaussian, fixed size      M = (1-s) N(0,1) + s N(t,1) against N(0,1), and its mirror image for negative
                              losses (upper); the pair as it is (lower)                                           (3)
    discrete Gaussian         as (1), (2), (3) for the continuous one (lower), and for one of 0.999 times the deviation
                              (upper): up to a factor 1 + 1e-60 it is the randomised rounding of a Gaussian whose
                              variance is smaller by 8 squared steps of the grid, and the deviation has 64 at least
    Laplace, one coordinate   Lap(0), Lap(t); sampled as (3) (upper), as (2) (lower)                              (4)
    Laplace, k coordinates    an L1 shift t whose L2 norm is at most t/sqrt(k): all in one coordinate, or Renyi
                              divergence, whichever is less (upper); k shifts t/k (lower)
          sampled             as above with the theorem below, or (3) for a Gaussian moved by sqrt(pi/2) t/sqrt(k), as a
                              coordinate moved by t_i is t_i-DP and hence sqrt(pi/2) t_i-Gaussian DP (upper); one shift
                              of t/sqrt(k) (lower)
    spherical Laplace         L = sqrt(r^2 + 2 r t c + t^2) - r, r ~ Gamma(m), c the cosine of a random direction (5)
                              both, by quadrature over r; sampled, or with a loss from a minimisation on top: upper any
                              pure t-DP pair, lower nothing
    Gaussian in an objective  J + t^2/2 + t |z|, z normal, as far as there is mass for it and its mirror image (upper);
                              (1), for records whose gradients are clipped wherever the minimiser may be (lower)

The Renyi divergence D of a sampled release, at integer orders alpha, follows from those on all records, D_j, and those
between a batch with the record and one without, E_j (half of the shift for Poisson batches, all of it for others), as
in Theorem 9 of Wang, Balle, Kasiviswanathan 2019, whose adjacency is replace-one:

    e^((alpha-1) D) <= 1 + sum_{j=2..alpha} C(alpha,j) s^j ( (1-s) 2 e^((j-1) E_j) + s (e^((j-1) D_j) + 1) ),

where the terms of j = 2 have 4 (e^E_2 - 1) and e^D_2 - 1, and 2 e^((j-1) E_j) / (1-s)^(j-1) may replace the bracket.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.loss_pairs import (
    gaussian_loss,
    gaussian_tails,
    laplace_loss,
    laplace_pair,
    laplace_tails,
    mirrored,
    objective_loss,
    one_sided,
    pure_tails,
    spherical_loss,
)
from dpmpi.privacy.loss_sums import Loss, epsilon_bounds
from dpmpi.privacy.spending import Spending, by_parts

MOST_KINDS = 48
"""More kinds of releases than this are merged: to less noise for the upper bound, to more for the lower one."""


@frozen
class Bounds:
    """Where the truth lies; `missing` names what no lower pair is known for."""

    lower: float
    upper: float
    missing: tuple[str, ...] = ()


def replay(spending: Spending, delta: float, dimension: int | None = None, *, extra: bool = False) -> Bounds:
    """Return bounds of the epsilon at `delta` of all releases together.

    `dimension` is the length of a released vector, which spherical noise depends on; `extra` says that the sensitivity
    of its events contains a loss from a minimisation.
    """
    spending = {event: count for event, count in spending.items() if count and event.sensitivity > 0}
    parts = by_parts(spending)
    if len(parts) > 1:  # the truth is the larger of both
        each = [replay(part, delta, dimension, extra=extra) for part in parts]
        missing = tuple(dict.fromkeys(name for one in each for name in one.missing))
        return Bounds(max(one.lower for one in each), max(one.upper for one in each), missing)
    if any(event.noise == "none" or event.scale == 0 for event in spending):
        return Bounds(math.inf, math.inf)
    unpaired = sorted({event.noise for event in spending if _unpaired(event, dimension, extra)})
    names = tuple(f"no lower bound for {name} noise" + (" in an objective" if extra else "") for name in unpaired)
    paired = {event: count for event, count in spending.items() if not _unpaired(event, dimension, extra)}
    if delta == 0:
        return Bounds(_pure(paired), _pure(spending), names)
    lower = epsilon_bounds(_merged(paired, +1, lambda event: _lower(event, dimension)), delta)[0]
    less = Counter({_continuous(event): count for event, count in spending.items()})
    tallies = [less] if (dominating := _dominating(less)) == less else [less, dominating]
    losses = [_merged(one, -1, lambda event: _upper(event, dimension, extra)) for one in tallies]
    upper = min(epsilon_bounds(one, delta)[1] for one in losses)
    return Bounds(lower, min(upper, _pure(spending), renyi_bound(less, delta)), names)


def _continuous(event: ReleaseEvent) -> ReleaseEvent:
    """Return a Gaussian release that gives away at least as much as one of discrete noise."""
    return replace(event, scale=0.999 * event.scale) if event.noise == "discrete-gaussian" else event


def _dominating(spending: Spending) -> Spending:
    """Return the releases with Gaussian noise, drawn without replacement, for Laplace noise on sampled vectors."""
    found: Counter[ReleaseEvent] = Counter()
    for event, count in spending.items():
        vector = event.noise == "laplace" and event.coordinates > 1 and _rate(event) < 1
        shift = math.sqrt(math.pi / 2 / event.coordinates) * event.sensitivity
        fixed = replace(event.sampling, kind="fixed")
        found[ReleaseEvent("gaussian", event.scale, shift, fixed) if vector else event] += count
    return found


def _unpaired(event: ReleaseEvent, dimension: int | None, extra: bool) -> bool:
    return event.noise == "spherical-laplace" and (extra or dimension is None or event.sampling.kind != "full")


def _rate(event: ReleaseEvent) -> float:
    return 1.0 if event.sampling.kind == "full" else event.sampling.rate


def _pure(spending: Spending) -> float:
    """Return the sum of pure epsilons; infinity if some noise has none."""
    if any("gaussian" in event.noise or event.noise == "objective" for event in spending):
        return math.inf
    each = [
        count * math.log1p(_rate(event) * math.expm1(min(event.sensitivity / event.scale, 700.0)))
        for event, count in spending.items()
    ]
    return math.fsum(each)


Make = Callable[[ReleaseEvent], tuple[Loss, int]]
"""Return the loss of an event, and how many such losses one release has."""


def _merged(spending: Spending, side: int, make: Make) -> list[Loss]:
    """Return the losses of all releases, few enough to be composed: `side` +1 has more noise than there was, -1 less.

    Gaussian noise on all records is one loss, as the squares of its shifts add up.
    """
    square = 0.0
    kinds: Counter[ReleaseEvent] = Counter()
    for event, count in spending.items():
        if "gaussian" in event.noise and _rate(event) == 1:
            square += count * (event.sensitivity / event.scale) ** 2
        else:
            kinds[replace(event, scale=event.scale / event.sensitivity, sensitivity=1.0)] += count
    if len(kinds) > MOST_KINDS:
        least, most = (f(event.scale for event in kinds) for f in (min, max))
        step, coarse = math.log(most / least) / MOST_KINDS or 1.0, Counter[ReleaseEvent]()
        for event, count in kinds.items():
            cell = math.log(event.scale / least) / step
            cell = math.floor(cell + 1e-12) if side < 0 else math.ceil(cell - 1e-12)
            scale = least * math.exp(cell * step) * (1 + side * 1e-9)
            coarse[replace(event, scale=scale)] += count
        kinds = coarse
    losses = [gaussian_loss(math.sqrt(square), 1.0)] if square else []
    for event, count in kinds.items():
        loss, each = make(event)
        losses.append(replace(loss, times=count * each))
    return losses


def _upper(event: ReleaseEvent, dimension: int | None, extra: bool) -> tuple[Loss, int]:
    t, s = event.sensitivity / event.scale, _rate(event)
    if "gaussian" in event.noise:
        return (gaussian_loss(t, s) if event.sampling.kind == "poisson" else mirrored(gaussian_tails(t, s), t, s)), 1
    if event.noise == "objective":
        return objective_loss(t, event.extra), 1
    if event.noise == "laplace":
        return (laplace_loss(t) if s == 1 else mirrored(laplace_tails(t, s), t, s, t)), 1
    if _unpaired(event, dimension, extra) or dimension is None:
        return mirrored(pure_tails(t, s), t, s, t), 1
    return spherical_loss(t, dimension), 1


def _lower(event: ReleaseEvent, dimension: int | None) -> tuple[Loss, int]:
    t, s, k = event.sensitivity / event.scale, _rate(event), event.coordinates
    if "gaussian" in event.noise:
        return (gaussian_loss(t, s) if event.sampling.kind == "poisson" else one_sided(t, s)), 1
    if event.noise == "objective":
        return gaussian_loss(t, s), 1
    if event.noise == "laplace":
        return (laplace_loss(t / k), k) if s == 1 else (laplace_pair(t / math.sqrt(k), s), 1)
    return spherical_loss(t, dimension or 1), 1


# --- Renyi divergence ------------------------------------------------------------------------------------------------


def renyi_bound(spending: Spending, delta: float) -> float:
    """Return an upper bound by Renyi divergence for noise on all records, or Laplace noise; infinity for others."""
    sampled = [event for event in spending if _rate(event) < 1]
    if any(event.noise != "laplace" for event in sampled) or not spending:
        return math.inf if spending else 0.0
    orders = np.arange(2.0, 129.0) if sampled else 1 + np.geomspace(0.01, 1e4, 600)
    total = np.zeros_like(orders)
    for event, count in spending.items():
        t = event.sensitivity / event.scale
        one = orders * t * t / 2 if "gaussian" in event.noise else _pure_divergence(event, t, orders)
        if _rate(event) < 1:
            near = _pure_divergence(event, t / 2, orders) if event.sampling.kind == "poisson" else one
            one = _amplified(one, near, _rate(event), orders)
        total += count * one
    return max(0.0, float(np.min(total + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))))


def _amplified(whole: Array, near: Array, s: float, orders: Array) -> Array:
    """Return the theorem's bound at orders 2, 3, 4 ... from D_j and E_j at them."""
    far, close = (orders - 1) * whole, (orders - 1) * near
    terms = np.logaddexp(math.log1p(-s) + math.log(2) + close, math.log(s) + np.logaddexp(0.0, far))
    terms = np.minimum(terms, math.log(2) + close - (orders - 1) * math.log1p(-s))
    second = np.logaddexp(
        math.log1p(-s) + math.log(4) + close[0] + np.log(-np.expm1(-close[0])),
        math.log(s) + far[0] + np.log(-np.expm1(-far[0])),
    )
    terms[0] = min(terms[0], second)
    terms += orders * math.log(s)
    found = []
    for alpha in orders.astype(int).tolist():
        ways = np.array([math.log(math.comb(alpha, j)) for j in range(2, alpha + 1)])
        found.append(float(np.logaddexp(0.0, np.logaddexp.reduce(ways + terms[: alpha - 1]))) / (alpha - 1))
    return np.asarray(np.minimum(np.array(found), whole))


def _pure_divergence(event: ReleaseEvent, t: float, orders: Array) -> Array:
    """Return the divergence of k shifts t/k under Laplace noise; of any other pure noise at most t and alpha t^2/2.

    That of Gaussian noise in an objective is that of Redberg, Koskela, Wang 2023, for a record that is replaced.
    """
    if event.noise == "objective":
        from scipy.special import log_ndtr  # noqa: PLC0415 - slow

        half_normal = (math.log(2) + log_ndtr((orders - 1) * t)) / (orders - 1)
        return np.asarray(event.extra + orders * t * t / 2 + half_normal)
    if event.noise != "laplace":
        return np.minimum(t, orders * t * t / 2)
    k = event.coordinates
    parts: Sequence[Array] = (
        np.log(orders / (2 * orders - 1)) + (orders - 1) * t / k,
        np.log((orders - 1) / (2 * orders - 1)) - orders * t / k,
    )
    return np.asarray(np.minimum(k * np.logaddexp(*parts) / (orders - 1), orders * t * t / (2 * k)))
