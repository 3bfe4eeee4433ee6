"""What releases cost: from a tally of `ReleaseEvent`s to a certified epsilon.

Adjacency is replace-one. A release has noise multiplier z = scale/sensitivity; s is the probability that a given record
takes part in it. R(t) = Phi(-t)/phi(t) is Mills' ratio.

Gaussian noise on all records is exact and needs two `erfc`: n releases compose to mu^2 = sum 1/z^2, and

    delta(eps) = Phi(a) - e^eps Phi(b) = phi(a) (R(-a) - R(-b)),   a, b = -eps/mu +- mu/2              (1)

Everything else is composed as privacy loss distributions by `dp_accounting`. Poisson batches of Gaussian noise are its
own REPLACE_ONE pair (1-s) N(0) + s N(+-1/2): it takes the noise multiplier of ONE record's norm and doubles the
sensitivity itself, so that it must be given 2 z. The others are given by a profile. If delta_M is the profile of
the mechanism on all records, drawing records at rate s (a fixed number without replacement, or Poisson) has at most

    delta(eps) = s delta_M( log(1 + (e^eps - 1)/s) ),          eps >= 0                                (2)
    delta(eps) = 1 - e^eps + e^eps delta(-eps),                eps < 0                                 (3)

because the outputs p, q with either record in the batch and r with neither are within one replacement of each other
(Balle, Barthe, Gaboardi 2018, advanced joint convexity; Zhu, Dong, Wang 2022 for the composition). delta_M is (1)
with mu = 1/z or, as an L1 shift is worst in one coordinate,

    Laplace:                delta_M(eps) = (1 - e^((eps - 1/z)/2))+                                    (4)
    any pure 1/z-DP:        delta_M(eps) = (e^(1/z) - e^eps)+ / (1 + e^(1/z))                          (5)

A profile is turned into a discrete loss distribution by connecting its dots (Doroshenko et al. 2022): linear
interpolation in e^eps lies above the convex truth, so that what comes out is an upper bound.

Discrete Gaussians, and whatever is mixed with them, are composed by Renyi divergence: see `rdp_epsilon`.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import BudgetExceeded, ConfigError
from dpmpi.privacy.events import ReleaseEvent

Spending: TypeAlias = Mapping[ReleaseEvent, int]
"""How often each kind of release was made."""

ACCOUNTANT = "1"
"""Part of every cache key: to be raised whenever a figure could change."""

_MOST_GROUPS = 128  # more kinds of sampled releases than this are merged, pessimistically
_MOST_POINTS = 2**18  # beyond a grid of about so many no finer one is tried
_CONVERGED = 0.002
_INTEGER_ORDERS = np.array([*range(2, 65), *range(72, 129, 8), *range(144, 257, 16), *range(320, 513, 64)], float)
_ORDERS = 1.0 + np.geomspace(0.02, 2e4, 1200)


# --- Gaussian noise on all records -----------------------------------------------------------------------------------


def _mills(t: float) -> float:
    """Return R(t) = Phi(-t)/phi(t), to full relative precision."""
    x = t / math.sqrt(2)
    if x < 10:
        return math.sqrt(math.pi / 2) * math.exp(x * x) * math.erfc(x)
    term = total = 1.0
    for n in range(1, 13):
        term *= -(2 * n - 1) / (t * t)
        total += term
    return total / t


def gdp_delta(mu: float, eps: float) -> float:
    """Return the delta at `eps` of mu-Gaussian DP, equation (1)."""
    if mu == 0 or eps == math.inf:
        return 0.0
    a, b = -eps / mu + mu / 2, -eps / mu - mu / 2
    if a < -38:
        return 0.0
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if a > 5:
        return 0.5 * math.erfc(-a / math.sqrt(2)) - density * _mills(-b)
    if mu < 1e-3:  # the difference would cancel: it is -mu R'(t) - mu^3 R'''(t)/24 at t = eps/mu, with R' = t R - 1
        t = eps / mu
        first = t * _mills(t) - 1
        third = 2 * first + t * (_mills(t) + t * first)
        return density * mu * -(first + mu * mu / 24 * third)
    return density * (_mills(-a) - _mills(-b))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest eps with gdp_delta(mu, eps) <= delta, rounded up."""
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    if delta <= 0 or mu == math.inf:
        return math.inf
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta)) + mu  # beyond the Gaussian tail bound
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if gdp_delta(mu, middle) > delta else (low, middle)
    return high


def gdp_mu(eps: float, delta: float) -> float:
    """Return the largest mu with gdp_delta(mu, eps) <= delta, rounded down."""
    if eps == math.inf or delta >= 1:
        return math.inf
    if delta <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while gdp_delta(high, eps) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if gdp_delta(middle, eps) <= delta else (low, middle)
    return low


# --- tallies ---------------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """Releases that cost the same. `z` = 0: no noise at all."""

    noise: str
    kind: str
    rate: float
    z: float
    times: int = 1


def _group(event: ReleaseEvent, count: int = 1) -> _Group:
    if event.noise not in ("none", "gaussian", "laplace", "spherical-laplace", "discrete-gaussian"):
        raise ConfigError(f"no accountant for noise {event.noise!r}: expected gaussian, laplace or discrete-gaussian")
    if event.sampling.kind not in ("full", "poisson", "fixed"):
        raise ConfigError(f"no accountant for {event.sampling.kind!r} sampling: expected full, poisson or fixed")
    rate = 1.0 if event.sampling.kind == "full" else event.sampling.rate
    if not 0 < rate <= 1:
        raise ConfigError(f"the sampling rate must be in (0, 1], found {rate}: the batch cannot exceed the records")
    if not (event.scale >= 0 and event.sensitivity >= 0 and count >= 0 and count == int(count)):  # also refuses nan
        raise ConfigError(f"scale, sensitivity and count must not be negative, found {count} x {event}")
    z = float(event.scale) / float(event.sensitivity) if event.sensitivity else math.inf
    if event.noise == "none" or event.scale == 0 or not z > 1e-100:
        return _Group("none", "full", 1.0, 0.0, int(count))
    return _Group(event.noise, "full" if rate == 1 else event.sampling.kind, rate, z, int(count))


def _groups(spending: Spending) -> tuple[_Group, ...]:
    """Return the tally in canonical form: as few groups as possible, sorted; free releases left out."""
    tally: Counter[tuple[str, str, float, float]] = Counter()
    squares: dict[str, list[float]] = {}
    for event, count in spending.items():
        group = _group(event, count)
        if group.times == 0 or group.z == math.inf:
            continue
        if group.kind == "full" and group.noise in ("gaussian", "discrete-gaussian"):
            squares.setdefault(group.noise, []).append(count / group.z**2)
        else:
            tally[group[:4]] += count
    if len(tally) > _MOST_GROUPS:  # round the multiplier down and the rate up, on a grid of ratios
        zs, rates = [key[3] for key in tally if key[3] > 0], [key[2] for key in tally]
        coarse: Counter[tuple[str, str, float, float]] = Counter()
        cells = _MOST_GROUPS if len(set(rates)) == 1 else math.isqrt(_MOST_GROUPS)
        steps = [math.log(max(v) / min(v)) / cells or 1.0 for v in (zs or [1.0], rates)]
        for (noise, kind, rate, z), count in tally.items():
            lower = z and min(zs) * math.exp(steps[0] * math.floor(math.log(z / min(zs)) / steps[0]))
            upper = max(rates) * math.exp(-steps[1] * math.floor(math.log(max(rates) / rate) / steps[1]))
            coarse[noise, kind, max(rate, upper), min(z, lower)] += count
        tally = coarse
    merged = [_Group(noise, "full", 1.0, 1 / math.sqrt(math.fsum(terms))) for noise, terms in squares.items()]
    return tuple(sorted([*merged, *(_Group(*key, count) for key, count in tally.items())]))


# --- privacy loss distributions --------------------------------------------------------------------------------------


def _pure(group: _Group) -> float:
    """Return the pure epsilon of one release of a (spherical) Laplace group, amplified by sampling."""
    eps = 1 / group.z
    return eps + math.log(group.rate) if eps > 500 else math.log1p(group.rate * math.expm1(eps))


def _span(group: _Group) -> float:
    """Return the loss of one release beyond which there is a mass of at most 1e-22."""
    if group.noise != "gaussian":
        return _pure(group)
    top = (0.5 + 10 * group.z) / group.z**2 + math.log(group.rate)
    return top if group.rate == 1 else float(np.logaddexp(math.log1p(-group.rate), top))


def _profile(group: _Group, eps: Array) -> Array:
    """Return delta(eps) of one release for eps >= 0, equations (1), (2), (4), (5)."""
    from scipy.special import erfcx, ndtr  # noqa: PLC0415 - ranks that need no profile do not pay for it

    amplified = np.log1p(np.expm1(np.minimum(eps, 500)) / group.rate) + np.maximum(eps - 500, 0)
    if group.noise == "gaussian":
        a, b = -amplified * group.z + 0.5 / group.z, -amplified * group.z - 0.5 / group.z
        mills = math.sqrt(math.pi / 2) * (erfcx(np.maximum(-a, -5) / math.sqrt(2)) - erfcx(-b / math.sqrt(2)))
        density = np.exp(-a * a / 2) / math.sqrt(2 * math.pi)
        tail = ndtr(a) - density * math.sqrt(math.pi / 2) * erfcx(-b / math.sqrt(2))
        profile = np.where(a > 5, tail, density * mills)  # (1), without cancellation in either tail
    elif group.noise == "laplace":
        profile = -np.expm1(np.minimum(amplified - 1 / group.z, 0) / 2)  # (4)
    else:
        profile = -np.expm1(np.minimum(amplified - 1 / group.z, 0)) / (1 + math.exp(-1 / group.z))  # (5)
    return np.asarray(group.rate * profile)  # (2)


def _loss_distribution(group: _Group, h: float, top: float) -> Any:
    """Return one release's loss distribution on multiples of `h`, rounded up; above `top` it may be infinite."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution  # noqa: PLC0415 - takes a second to import
    from dp_accounting.privacy_accountant import NeighboringRelation  # noqa: PLC0415 - likewise

    if group.kind == "poisson" and group.noise == "gaussian":
        return privacy_loss_distribution.from_gaussian_mechanism(
            standard_deviation=2 * group.z,  # in units of one record's norm, half of the replace-one sensitivity
            value_discretization_interval=h,
            sampling_prob=group.rate,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
    eps = np.arange(math.ceil(min(_span(group), top) / h) + 2, dtype=np.float64) * h
    delta = np.minimum.accumulate(_profile(group, eps))
    steps = -np.diff(delta)
    above = np.maximum((steps - math.exp(-h) * np.append(steps[1:], 0.0)) / -math.expm1(-h), 0.0)
    below = above * np.exp(-eps[1:])  # (3): the pair is its own mirror image
    at_zero = max(1.0 - delta[-1] - above.sum() - below.sum(), 0.0)
    masses = np.concatenate([below[::-1], [at_zero], above])
    pmf = pld_pmf.DensePLDPmf(h, -len(above), masses, float(delta[-1]), True)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def _pld_epsilon(groups: tuple[_Group, ...], delta: float) -> float:
    """Return the epsilon of composed loss distributions, on ever finer grids until it no longer falls."""
    usable = delta - sum(group.times for group in groups) * 2.0**-50  # covers the rounding of the Fourier transforms
    if usable <= 0:
        return math.inf
    span = max(map(_span, groups))
    h = 2.0 ** math.ceil(math.log2(span / 64))
    best = math.inf
    while True:
        top = 2 * best + 40  # a loss so far above epsilon counts like an infinite one, up to e^-40
        with np.errstate(over="ignore"):  # the library's Chernoff bounds try orders that are too large
            parts = [_loss_distribution(group, h, top).self_compose(group.times) for group in groups]
            epsilon = float(reduce(lambda done, part: done.compose(part), parts).get_epsilon_for_delta(usable))
        points = max(4 * epsilon, min(span, 2 * epsilon + 40)) / h
        settled = epsilon >= min((1 - _CONVERGED) * best, best - 5e-5) or epsilon in (0.0, math.inf)
        if settled or points > _MOST_POINTS:
            return min(best, epsilon)
        best, h = epsilon, h / 4


# --- Renyi divergence ------------------------------------------------------------------------------------------------


def _central_moments(d: float, j: Array) -> Array:
    """Return log E_r |p/r - 1|^j for even j, p = N(d, 1), r = N(0, 1); for d > 1 an upper bound."""
    if d > 1:
        return np.where(j == 2, d * d + np.log(-np.expm1(-d * d)), np.logaddexp(0.0, j * (j - 1) * d * d / 2))
    x = np.arange(-13.0, j[-1] * d + 13.0, 0.05)  # the trapezoidal rule is exact to rounding for such integrands
    with np.errstate(divide="ignore"):
        logs = np.multiply.outer(j, np.log(np.abs(np.expm1(x * d - d * d / 2)))) - x * x / 2
    peak = logs.max(axis=1)
    return np.asarray(peak + np.log(np.exp(logs - peak[:, None]).sum(axis=1) * 0.05 / math.sqrt(2 * math.pi)))


def _moments(d: float, top: int, minkowski: bool) -> Array:
    """Return log bounds of E_r |p/r - 1|^j, or with `minkowski` of E_r |(p-q)/r|^j by (9), j = 2 ... top."""
    j, even = np.arange(2.0, top + 1), np.arange(2.0, top + 2, 2)
    power = j * (j - 1) * d * d / 2
    bounds = power + math.log(2) if minkowski else np.logaddexp(0.0, power)  # |a - b|^j <= a^j + b^j
    central = _central_moments(d, even) + (even * math.log(2) if minkowski else 0.0)
    bounds[::2] = np.minimum(bounds[::2], central[: len(bounds[::2])])
    bounds[1::2] = np.minimum(bounds[1::2], (central[:-1] + central[1:]) / 2)  # Cauchy-Schwarz
    return np.asarray(bounds)


@lru_cache(maxsize=1024)
def _sampled_moments(z: float, rate: float, poisson: bool, top: int) -> Array:
    """Return log bounds of E_Q |(p-q)/Q|^j, j = 2 ... top, of a sampled Gaussian or discrete Gaussian release.

    Let p, q be the output with either record in the batch and r without; P = (1-s) r + s p, Q = (1-s) r + s q. Then

        E_Q (P/Q)^alpha = 1 + sum_{j=2..alpha} C(alpha,j) s^j E_Q ((p-q)/Q)^j                          (6)
        E_Q |(p-q)/Q|^j <= (1-s) E_r |(p-q)/r|^j + s E_q |p/q - 1|^j            (joint convexity)      (7)
        E_Q |(p-q)/Q|^j <= (1-s)^(1-j) E_r |(p-q)/r|^j                          (Q >= (1-s) r)         (8)
        E_r |(p-q)/r|^j <= 2^j E_r |p/r - 1|^j  (Minkowski),  <= E_r (p/r)^j + E_r (q/r)^j             (9)

    p and q are 1/z apart (in standard deviations); from r they are 1/(2z) for Poisson batches (a record adds at most
    half of what replacing it can do) and 1/z for fixed ones. For even j the right hand sides are polynomials in p/r,
    whose moments E_r (p/r)^k = e^{k(k-1)d^2/2} a discrete Gaussian shares with the continuous one, as an integer shift
    leaves a sum over the integers unchanged; odd j follow by Cauchy-Schwarz. After Wang, Balle, Kasiviswanathan 2019.
    """
    j = np.arange(2.0, top + 1)
    apart = _moments(1 / (2 * z) if poisson else 1 / z, top, True)
    mixed = np.logaddexp(math.log1p(-rate) + apart, math.log(rate) + _moments(1 / z, top, False))  # (7)
    return np.asarray(np.minimum(mixed, apart - (j - 1) * math.log1p(-rate)))  # (8)


def _sampled_rdp(group: _Group, orders: Array) -> Array:
    """Return upper bounds of the Renyi divergences of a sampled (discrete) Gaussian at integer orders, equation (6)."""
    moments = _sampled_moments(group.z, group.rate, group.kind == "poisson", int(orders.max()))
    log_factorial = np.array([math.lgamma(k + 1) for k in range(int(orders.max()) + 1)])
    divergences = []
    for order in orders.astype(int):
        j = np.arange(2, order + 1)
        log_comb = log_factorial[order] - log_factorial[j] - log_factorial[order - j]
        power = np.logaddexp(0.0, np.logaddexp.reduce(log_comb + j * math.log(group.rate) + moments[: order - 1]))
        divergences.append(min(float(power) / (order - 1), order / (2 * group.z**2)))
    return np.array(divergences)


def _rdp(group: _Group, orders: Array) -> Array:
    """Return the Renyi divergences of one release."""
    if group.z == 0:
        return np.full_like(orders, math.inf)
    if group.noise in ("gaussian", "discrete-gaussian"):
        if group.kind == "full":
            return np.asarray(orders / (2 * group.z**2))
        return _sampled_rdp(group, orders)
    eps = _pure(group)
    if group.noise == "laplace" and group.kind == "full":  # Mironov 2017, Prop. 6
        inner = (orders - 1) * np.expm1((1 - 2 * orders) * eps) / (2 * orders - 1)
        return np.asarray(eps + np.log1p(inner) / (orders - 1))
    power = np.logaddexp(orders * eps, (1 - orders) * eps) - np.logaddexp(0.0, eps)  # of (5)
    return np.asarray(np.minimum(power / (orders - 1), orders * eps * eps / 2))


def _needs_integers(groups: tuple[_Group, ...]) -> bool:
    return any(group.kind != "full" and group.noise in ("gaussian", "discrete-gaussian") for group in groups)


def _price(orders: Array, delta: float) -> Array:
    """Return what eps at `delta` adds to the Renyi divergence (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    return np.asarray(np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))


def _pure_sum(groups: tuple[_Group, ...]) -> float:
    pure = all(group.noise in ("laplace", "spherical-laplace") for group in groups)
    return math.fsum(group.times * _pure(group) for group in groups) if pure else math.inf


def rdp_epsilon(spending: Spending, delta: float) -> float:
    """Return an upper bound by Renyi divergence: shares no step with the loss distributions, hence checks them.

    It is the certified figure where discrete Gaussians take part, elsewhere looser than `certified_epsilon`.
    """
    groups = _groups(spending)
    if not groups:
        return 0.0
    if any(group.z == 0 for group in groups):
        return math.inf
    return _rdp_epsilon(groups, delta)


def _rdp_epsilon(groups: tuple[_Group, ...], delta: float) -> float:
    if delta <= 0:
        return _pure_sum(groups)
    orders = _INTEGER_ORDERS if _needs_integers(groups) else _ORDERS
    total = sum((group.times * _rdp(group, orders) for group in groups), np.zeros_like(orders))
    return min(_pure_sum(groups), max(0.0, float(np.min(total + _price(orders, delta)))))


# --- the certified figure --------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _composed(groups: tuple[_Group, ...], delta: float) -> float:
    if any(group.noise == "discrete-gaussian" for group in groups):
        return _rdp_epsilon(groups, delta)
    epsilon = min(_pure_sum(groups), _pld_epsilon(groups, delta))
    return epsilon if epsilon < math.inf else _rdp_epsilon(groups, delta)


def certified_epsilon(spending: Spending, delta: float, cache: Path | None = None) -> float:
    """Return an upper bound of the epsilon at `delta` that the releases cost together; infinity if there is none.

    Gaussian noise on all records has the closed form (1) and never imports the library. Other figures are kept in
    this process and, if `cache` names a file, there too.
    """
    if not 0 <= delta < 1:
        raise ConfigError(f"delta must be in [0, 1), found {delta}")
    groups = _groups(spending)
    if not groups:
        return 0.0
    if any(group.z == 0 for group in groups):
        return math.inf
    if len(groups) == 1 and groups[0].noise == "gaussian" and groups[0].kind == "full":
        return gdp_epsilon(1 / groups[0].z, delta)
    if cache is None:
        return _composed(groups, delta)
    key = f"{ACCOUNTANT} delta={delta!r} " + " ".join("{}:{}:{!r}:{!r}:{}".format(*group) for group in groups)
    known = _read_cache(cache)
    if key not in known:
        known[key] = _composed(groups, delta)
        _write_cache(cache, known)
    return known[key]


def _read_cache(path: Path) -> dict[str, float]:
    try:
        known = json.loads(path.read_text())
        return {str(key): float(value) for key, value in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # a cache that cannot be read is a cache that is empty


def _write_cache(path: Path, known: dict[str, float]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w") as file:
            json.dump(known, file, indent=0)
        Path(name).replace(path)
    except OSError:
        return  # the figure is known all the same; only the next process has to find it again


# --- budgets that are spent adaptively -------------------------------------------------------------------------------


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
        group = _group(event, count)
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

        eps - log(1 - 1/alpha) + log(delta alpha)/(alpha - 1)                                          (10)

    (Feldman, Zrnic 2021). `filter_order` picks the order from public parameters.
    """

    __slots__ = ("order",)

    def __init__(self, eps: float, delta: float, order: float) -> None:
        if not 1 < order < math.inf or not 0 < delta < 1:
            raise ConfigError(f"an RDP filter takes 1 < order < inf and 0 < delta < 1, found {order} and {delta}")
        self.delta = delta
        self.order = order
        self.budget = eps - float(_price(np.array([order]), delta)[0])  # (10)
        self.spent = 0.0

    def cost(self, event: ReleaseEvent, count: int = 1) -> float:
        """Return the Renyi divergence of `count` such releases."""
        group = _group(event, count)
        if group.times == 0 or group.z == math.inf:
            return 0.0
        if _needs_integers((group,)) and (self.order != int(self.order) or self.order < 2):
            raise ConfigError(f"sampled Gaussian noise needs an integer order of at least 2, found {self.order}")
        return count * float(_rdp(group, np.array([self.order]))[0])

    def epsilon_spent(self) -> float:
        """Return the epsilon of what was charged: for this rank's log only, as the stopping time is adaptive."""
        if self.spent == 0:
            return 0.0
        return max(0.0, self.spent + float(_price(np.array([self.order]), self.delta)[0]))


def filter_order(plan: Spending, eps: float, delta: float) -> float:
    """Return the order at which the budget (10) admits the planned releases most often over."""
    groups = _groups(plan)
    orders = _INTEGER_ORDERS if _needs_integers(groups) else _ORDERS
    total = sum((group.times * _rdp(group, orders) for group in groups), np.zeros_like(orders))
    budget = eps - _price(orders, delta)
    if not groups or np.max(budget) <= 0:
        raise ConfigError(f"no order leaves a budget at epsilon {eps}, delta {delta}: raise either, or plan a release")
    return float(orders[np.argmax(budget / total)])
