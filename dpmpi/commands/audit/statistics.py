"""From observed releases to a lower bound of epsilon that holds with a stated confidence.

Two worlds. A mechanism is (eps, delta)-DP only if, for adjacent shards and every event E, both ways round,

    P(E | shard) <= e^eps P(E | neighbour) + delta                                                     (1)

An event is a score above (or below) a threshold. Score, direction and threshold are chosen on one part of the runs; on
the other part E occurs k+ times out of n+ in one world and k- out of n- in the other, and with p the lower
Clopper-Pearson limit of k+/n+ and q the upper one of k-/n-, each at half of the permitted error,

    eps >= log( (p - delta) / q )                                                                      (2)

with the stated confidence, whatever the mechanism. (2) is never larger than log(n-), however bad the mechanism is.

One run. m canaries carry independent random signs, each of which is one record's; r of the signs are guessed and v
guesses are right. If the run is (eps, delta)-DP then (Steinke, Nasr, Jagielski 2023, Theorem 5.2)

    P(at least v right) <= f(v) + 2 m delta max_{1 <= i <= v} (f(v - i) - f(v)) / i                    (3)
    f(v) = P( Binomial(r, e^eps / (1 + e^eps)) >= v )

and the lower bound is the largest eps at which (3) stays below the permitted error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpmpi.core import Array
from dpmpi.errors import ConfigError

SHARPEST = 1e-3
"""Below this fraction of the signal, noise counts as so much in the likelihood: it must not divide by zero."""


# --- scores ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Signal:
    """What a canary does to a release r: without it r is about `base`, with it, at `rate`, `plus` or `minus` more."""

    base: float
    plus: float
    minus: float
    rate: float
    sigma: float


def likelihood(releases: Array, signal: Signal) -> Array:
    """Return, column by column, the log-likelihood ratio of a canary of sign + against one of sign -.

    With s the rate, b the base, p and m the two shifts, and noise of deviation sigma, it is

        sum_t log( 1 - s + s e^{(p (r_t - b) - p^2/2)/sigma^2} ) - the same with m                      (4)

    which is the best score there is, if rounds are independent and the noise is what it should be.
    """
    shift = max(abs(signal.plus), abs(signal.minus))
    variance = max(signal.sigma, SHARPEST * shift) ** 2
    r = releases - signal.base
    up = (signal.plus * r - signal.plus**2 / 2) / variance
    down = (signal.minus * r - signal.minus**2 / 2) / variance
    if signal.rate < 1.0:
        absent, present = math.log1p(-signal.rate), math.log(signal.rate)
        up, down = np.logaddexp(absent, present + up), np.logaddexp(absent, present + down)
    return np.asarray((up - down).sum(axis=0))


def scores(releases: Array, signal: Signal) -> dict[str, float]:
    """Return the scores of one run, all of them large for a canary of sign +.

    The likelihood ratio trusts that rounds are independent; noise that is the same in every round drops out of the
    distances from the median.
    """
    return {
        "likelihood ratio": float(likelihood(releases, signal)),
        "distance from the median": float(np.sum(releases - np.median(releases))),
    }


# --- two worlds ------------------------------------------------------------------------------------------------------


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return the lower and the upper limit of a probability, each of which holds with `confidence`."""
    lower, upper = _limits(trials, confidence)
    return float(lower[successes]), float(upper[successes])


def _limits(trials: int, confidence: float) -> tuple[Array, Array]:
    """Return the one-sided limits for 0 ... trials successes: quantiles of Beta distributions."""
    from scipy.special import betaincinv  # noqa: PLC0415 - only one rank needs it

    k = np.arange(trials + 1.0)
    lower, upper = np.zeros(trials + 1), np.ones(trials + 1)
    lower[1:] = betaincinv(k[1:], trials - k[1:] + 1, 1.0 - confidence)
    upper[:-1] = betaincinv(k[:-1] + 1, trials - k[:-1], confidence)
    return lower, upper


def epsilon_from_rates(hit: Array | float, false: Array | float, delta: float) -> Array:
    """Return (2) for lower limits `hit` and upper limits `false`; 0 where it says nothing."""
    gain = np.maximum(np.asarray(hit) - delta, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(gain) - np.log(false), 0.0))


@dataclass(frozen=True, slots=True)
class Rule:
    """The event: `sign` times the score exceeds `threshold`."""

    score: str
    sign: int
    threshold: float

    def count(self, values: Array) -> int:
        """Return how often the event occurs."""
        return int(np.count_nonzero(self.sign * values > self.threshold))


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound of epsilon, and the counts that it comes from."""

    epsilon: float
    rule: Rule
    hits: int
    false_alarms: int
    trials: int


def choose_rule(plus: Mapping[str, Array], minus: Mapping[str, Array], delta: float, confidence: float) -> Rule:
    """Return the rule whose bound (2) is largest on these runs; use it on other runs only."""
    best, value = Rule(next(iter(plus)), 1, math.inf), -math.inf
    for name in plus:
        for sign, world, other in ((1, plus[name], minus[name]), (-1, minus[name], plus[name])):
            hits, alarms = np.sort(sign * world), np.sort(sign * other)
            both = np.unique(np.concatenate([hits, alarms]))
            cuts = (both[:-1] + both[1:]) / 2.0
            if len(cuts) == 0:
                continue
            k = len(hits) - np.searchsorted(hits, cuts, side="right")
            j = len(alarms) - np.searchsorted(alarms, cuts, side="right")
            lower, _ = _limits(len(hits), (1.0 + confidence) / 2.0)
            _, upper = _limits(len(alarms), (1.0 + confidence) / 2.0)
            found = epsilon_from_rates(lower[k], upper[j], delta)
            # Among equals the widest gap between the two worlds is the most likely to hold on other runs.
            at = max(np.flatnonzero(found == found.max()), key=lambda i: both[i + 1] - both[i])
            if found[at] > value:
                best, value = Rule(name, sign, float(cuts[at])), float(found[at])
    return best


def two_world_bound(plus: Mapping[str, Array], minus: Mapping[str, Array], delta: float, confidence: float) -> Bound:
    """Return the bound (2) from the scores of runs in the two worlds: chosen on the even runs, measured on the odd."""
    first, second = ({name: values[::2] for name, values in world.items()} for world in (plus, minus))
    rule = choose_rule(first, second, delta, confidence)
    world, other = (plus, minus) if rule.sign > 0 else (minus, plus)
    hits, alarms = rule.count(world[rule.score][1::2]), rule.count(other[rule.score][1::2])
    trials = len(world[rule.score][1::2])
    hit, _ = clopper_pearson(hits, trials, (1.0 + confidence) / 2.0)
    _, false = clopper_pearson(alarms, trials, (1.0 + confidence) / 2.0)
    return Bound(float(epsilon_from_rates(hit, false, delta)), rule, hits, alarms, trials)


# --- one run ---------------------------------------------------------------------------------------------------------


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the right-hand side of (3): how likely so many right guesses are under (epsilon, delta)-DP, at most."""
    from scipy.special import betainc, gammaln  # noqa: PLC0415 - only one rank needs it

    if not 0 <= right <= guesses <= canaries:
        raise ConfigError(f"expected right <= guesses <= canaries, found {right}, {guesses} and {canaries}")
    if right == 0:
        return 1.0
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(betainc(right, guesses - right + 1, accuracy))  # f(v)
    v = np.arange(right - 1.0, -1.0, -1.0)
    log_mass = gammaln(guesses + 1) - gammaln(v + 1) - gammaln(guesses - v + 1)
    log_mass += v * math.log(accuracy) - (guesses - v) * np.logaddexp(0.0, epsilon)
    slope = float(np.max(np.cumsum(np.exp(log_mass)) / np.arange(1.0, right + 1)))
    return min(1.0, tail + 2.0 * canaries * delta * slope)


def one_run_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Return the largest epsilon that (3) rejects with `confidence`; 0 if it rejects none.

    The delta term of (3) is not monotone in epsilon, so the search walks up from 0 and ends at the first that stands.
    """
    error = 1.0 - confidence
    low, step = 0.0, 0.01
    if one_run_p_value(canaries, guesses, right, low, delta) > error:
        return 0.0
    while one_run_p_value(canaries, guesses, right, low + step, delta) <= error:
        low += step
    high = low + step
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        rejected = one_run_p_value(canaries, guesses, right, middle, delta) <= error
        low, high = (middle, high) if rejected else (low, middle)
    return low
