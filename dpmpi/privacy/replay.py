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
                              divergence, whichever is less (upper); k shifts t/k (lower), sampled: one of t/sqrt(k)
    spherical Laplace         L = sqrt(r^2 + 2 r t c + t^2) - r, r ~ Gamma(m), c the cosine of a random direction (5)
                              both, by quadrature over r; sampled, or with a loss from a minimisation on top: upper any
                              pure t-DP pair, lower nothing
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpmpi.core import Array
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.loss_sums import Loss, epsilon_bounds
from dpmpi.privacy.spending import Spending

MOST_KINDS = 48
"""More kinds of releases than this are merged: to less noise for the upper bound, to more for the lower one."""


@dataclass(frozen=True)
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
    if any(event.noise == "none" or event.scale == 0 for event in spending):
        return Bounds(math.inf, math.inf)
    missing = sorted({event.noise for event in spending if _unpaired(event, dimension, extra)})
    names = tuple(f"no lower bound for {name} noise" + (" in an objective" if extra else "") for name in missing)
    paired = {event: count for event, count in spending.items() if not _unpaired(event, dimension, extra)}
    if delta == 0:
        return Bounds(_pure(paired), _pure(spending), names)
    lower = epsilon_bounds(_merged(paired, +1, lambda event: _lower(event, dimension)), delta)[0]
    less = Counter({_continuous(event): count for event, count in spending.items()})
    upper = epsilon_bounds(_merged(less, -1, lambda event: _upper(event, dimension, extra)), delta)[1]
    return Bounds(lower, min(upper, _pure(spending), renyi_bound(less, delta)), names)


def _continuous(event: ReleaseEvent) -> ReleaseEvent:
    """Return a Gaussian release that gives away at least as much as one of discrete noise."""
    return replace(event, scale=0.999 * event.scale) if event.noise == "discrete-gaussian" else event


def _unpaired(event: ReleaseEvent, dimension: int | None, extra: bool) -> bool:
    return event.noise == "spherical-laplace" and (extra or dimension is None or event.sampling.kind != "full")


def _rate(event: ReleaseEvent) -> float:
    return 1.0 if event.sampling.kind == "full" else event.sampling.rate


def _pure(spending: Spending) -> float:
    """Return the sum of pure epsilons; infinity if some noise has none."""
    if any("gaussian" in event.noise for event in spending):
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
    if event.noise == "laplace":
        return (laplace_loss(t) if s == 1 else mirrored(laplace_tails(t, s), t, s, t)), 1
    if _unpaired(event, dimension, extra) or dimension is None:
        return mirrored(pure_tails(t, s), t, s, t), 1
    return spherical_loss(t, dimension), 1


def _lower(event: ReleaseEvent, dimension: int | None) -> tuple[Loss, int]:
    t, s, k = event.sensitivity / event.scale, _rate(event), event.coordinates
    if "gaussian" in event.noise:
        return (gaussian_loss(t, s) if event.sampling.kind == "poisson" else one_sided(t, s)), 1
    if event.noise == "laplace":
        return (laplace_loss(t / k), k) if s == 1 else (laplace_pair(t / math.sqrt(k), s), 1)
    return spherical_loss(t, dimension or 1), 1


# --- pairs -----------------------------------------------------------------------------------------------------------


def _quantile(p: float) -> float:
    """Return an x with P(N(0,1) > x) <= p."""
    return math.sqrt(-2 * math.log(p))


def gaussian_loss(t: float, s: float) -> Loss:
    """Return the loss of (2); with s = 1, of (1).

    With u = e^(x t/2), k = s e^(-t^2/8) and y = e^l, the loss at x is l where (1-s+ku)/(1-s+k/u) = y.
    """
    from scipy.special import ndtr  # noqa: PLC0415 - slow

    def place(loss: Array) -> Array:
        """Return the x with that loss; the pair is its own mirror image."""
        if s == 1:
            return loss / t
        y = np.exp(np.minimum(np.abs(loss), 700.0))
        log_k = math.log(s) - t * t / 8
        with np.errstate(divide="ignore"):
            log_b = math.log1p(-s) + np.log(y - 1) - log_k  # u = (b + sqrt(b^2 + 4 y))/2, b = (1-s)(y-1)/k
        log_u = log_b + np.log1p(np.sqrt(1 + 4 * np.exp(np.minimum(np.log(y) - 2 * log_b, 700.0)))) - math.log(2)
        log_u = np.where(2 * log_b < np.log(y) - 690, np.log(y) / 2, log_u)
        return np.asarray(np.sign(loss) * log_u * 2 / t)

    def cdf(loss: Array) -> Array:
        x = place(loss)
        return np.asarray((1 - s) * ndtr(x) + s * ndtr(x - t / 2))

    def reach(p: float) -> float:
        x = _quantile(p / 2) + t / 2
        top = x * t / 2 - t * t / 8
        over, under = (
            np.logaddexp(math.log1p(-s), math.log(s) + v) if s < 1 else v for v in (top, -x * t / 2 - t * t / 8)
        )
        return float(over - under)

    return Loss(cdf, reach)


Tails = Callable[[Array], tuple[Array, Array]]
"""For losses l >= 0: P(L > l) and Q(L > l)."""


def mirrored(tails: Tails, t: float, s: float, top: float = math.inf) -> Loss:
    """Return the loss of a pair whose negative losses are the positive ones of its mirror image, the rest at 0."""

    def cdf(loss: Array) -> Array:
        p, q = tails(np.abs(loss))
        return np.asarray(np.where(loss < 0, q, 1 - p))

    def reach(p: float) -> float:
        most = min(top, t * (_quantile(p) + t) - t * t / 2)
        return float(np.logaddexp(math.log1p(-s), math.log(s) + most)) if s < 1 else most

    return Loss(cdf, reach, (0.0,) if top == math.inf else (0.0, -reach(0.5), reach(0.5)))


def _unmixed(loss: Array, s: float) -> Array:
    """Return the loss of the release itself that shows as `loss` when it happens at rate s."""
    return np.asarray(np.log1p(np.expm1(np.minimum(loss, 500.0)) / s) + np.maximum(loss - 500.0, 0.0))


def gaussian_tails(t: float, s: float) -> Tails:
    """Return the tails of M against N(0,1) in (3)."""
    from scipy.special import ndtr  # noqa: PLC0415 - slow

    def tails(loss: Array) -> tuple[Array, Array]:
        x = _unmixed(loss, s) / t + t / 2
        return (1 - s) * ndtr(-x) + s * ndtr(t - x), ndtr(-x)

    return tails


def one_sided(t: float, s: float) -> Loss:
    """Return the loss of M against N(0,1) in (3), as it is: all other records on one side, this one moves across."""
    from scipy.special import ndtr  # noqa: PLC0415 - slow

    def cdf(loss: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.log(np.maximum(np.expm1(np.minimum(loss, 500.0)) / s + 1, 0.0)) + np.maximum(loss - 500.0, 0.0)
        x = moved / t + t / 2
        return np.asarray((1 - s) * ndtr(x) + s * ndtr(x - t))

    def reach(p: float) -> float:
        top = t * (_quantile(p / 2) + t) - t * t / 2
        return (
            float(max(np.logaddexp(math.log1p(-s), math.log(s) + top), -math.log1p(-s))) if s < 1 else abs(top) + t * t
        )

    return Loss(cdf, reach, (math.log1p(-s),) if s < 1 else ())


def laplace_loss(t: float) -> Loss:
    """Return the loss t - 2x of Lap(0) against Lap(t), between -t and t."""

    def cdf(loss: Array) -> Array:
        inside = np.exp((np.clip(loss, -t, t) - t) / 2) / 2
        return np.where(loss >= t, 1.0, np.where(loss < -t, 0.0, inside))

    return Loss(cdf, lambda p: t, (-t, t))


def laplace_tails(t: float, s: float) -> Tails:
    """Return the tails of (1-s) Lap(0) + s Lap(t) against Lap(0)."""

    def tails(loss: Array) -> tuple[Array, Array]:
        own = _unmixed(loss, s)
        x = (np.minimum(own, t) + t) / 2
        without, within = np.exp(-x) / 2, 1 - np.exp(x - t) / 2
        return np.where(own < t, (1 - s) * without + s * within, 0.0), np.where(own < t, without, 0.0)

    return tails


def laplace_pair(t: float, s: float) -> Loss:
    """Return the loss of (1-s) Lap(0) + s Lap(t/2) against (1-s) Lap(0) + s Lap(-t/2)."""
    a = t / 2

    def density(x: Array, at: float) -> Array:
        """Return the density over that of Lap(0)."""
        return np.asarray((1 - s) + s * np.exp(np.abs(x) - np.abs(x - at)))

    grid = np.linspace(-a, a, 20001)  # the loss is constant beyond, and grows between
    losses = np.log(density(grid, a) / density(grid, -a))
    top = float(losses[-1])

    def cdf(loss: Array) -> Array:
        x = np.interp(loss, losses, grid)
        mass = (1 - s) * _laplace_cdf(x) + s * _laplace_cdf(x - a)
        return np.where(loss >= top, 1.0, np.where(loss < -top, 0.0, mass))

    return Loss(cdf, lambda p: top, (-top, top))


def _laplace_cdf(x: Array) -> Array:
    return np.where(x < 0, np.exp(np.minimum(x, 0.0)) / 2, 1 - np.exp(-np.maximum(x, 0.0)) / 2)


def pure_tails(t: float, s: float) -> Tails:
    """Return the tails of randomised response, which dominates everything that is t-DP, at rate s."""
    top, q = (math.log1p(s * math.expm1(t)) if t < 500 else t + math.log(s)), 1 / (1 + math.exp(min(t, 700.0)))

    def tails(loss: Array) -> tuple[Array, Array]:
        below = loss < top * (1 - 1e-12)
        return np.where(below, (1 - s) * q + s * (1 - q), 0.0), np.where(below, q, 0.0)

    return tails


def spherical_loss(t: float, m: int) -> Loss:
    """Return the loss (5): it is at most l where c <= (l^2 + 2 l r - t^2)/(2 r t)."""
    if m == 1:
        return laplace_loss(t)
    from scipy.special import betainc, gammaincinv  # noqa: PLC0415 - slow

    nodes, weights = _gamma_nodes(m)
    half = (m - 1) / 2

    def cdf(loss: Array) -> Array:
        total = np.zeros(loss.shape)
        for r, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
            c = (loss * loss + 2 * loss * r - t * t) / (2 * r * t)
            total += weight * betainc(half, half, np.clip((c + 1) / 2, 0.0, 1.0))
        return np.where(loss >= t, 1.0, np.where(loss < -t, 0.0, total))

    def reach(p: float) -> float:
        """|c| <= x except with probability 2 e^(-m x^2/2) (Ball), and then -t x <= L <= t x + t^2/(2 (r - t x))."""
        x, low = math.sqrt(2 * math.log(4 / p) / m), float(gammaincinv(m, p / 2))
        return min(t, t * x + t * t / (2 * (low - t * x))) if low > t * x else t

    return Loss(cdf, reach, (-t, t))


def _gamma_nodes(m: int) -> tuple[Array, Array]:
    """Return nodes and weights of quadrature against the Gamma(m) distribution, all but 1e-17 of it."""
    from scipy.special import gammainccinv, gammaincinv, gammaln  # noqa: PLC0415 - slow

    x, w = np.polynomial.legendre.leggauss(12)
    ends = np.linspace(float(gammaincinv(m, 1e-17)), float(gammainccinv(m, 1e-17)), 31)
    middle, half = (ends[1:] + ends[:-1]) / 2, (ends[1:] - ends[:-1]) / 2
    nodes = (middle[:, None] + half[:, None] * x).ravel()
    density = np.exp((m - 1) * np.log(nodes) - nodes - gammaln(m))
    return nodes, (half[:, None] * w).ravel() * density


# --- Renyi divergence ------------------------------------------------------------------------------------------------


def renyi_bound(spending: Spending, delta: float) -> float:
    """Return an upper bound by Renyi divergence for noise on all records; infinity if a batch was sampled."""
    if any(_rate(event) < 1 for event in spending) or not spending:
        return math.inf if spending else 0.0
    orders = 1 + np.geomspace(0.01, 1e4, 600)
    total = np.zeros_like(orders)
    for event, count in spending.items():
        t = event.sensitivity / event.scale
        total += count * (orders * t * t / 2 if "gaussian" in event.noise else _pure_divergence(event, t, orders))
    return max(0.0, float(np.min(total + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))))


def _pure_divergence(event: ReleaseEvent, t: float, orders: Array) -> Array:
    """Return the divergence of k shifts t/k under Laplace noise; of any other pure noise at most t and alpha t^2/2."""
    if event.noise != "laplace":
        return np.minimum(t, orders * t * t / 2)
    k = event.coordinates
    parts: Sequence[Array] = (
        np.log(orders / (2 * orders - 1)) + (orders - 1) * t / k,
        np.log((orders - 1) / (2 * orders - 1)) - orders * t / k,
    )
    return np.asarray(np.minimum(k * np.logaddexp(*parts) / (orders - 1), orders * t * t / (2 * k)))
