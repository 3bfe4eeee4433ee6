"""From scores of runs in two worlds to a verdict that holds with a stated confidence.

**The trade-off.** A test that tells two adjacent shards apart has a rate of false alarms a and a rate of misses b. What
is certified is a curve f below which no test can get, b >= f(a). For mu-Gaussian DP, and for (eps, delta) pairs, it is

    f(a) = Phi( Phi^-1(1 - a) - mu )                                                                    (1)
    f(a) = max over the pairs of max( 0, 1 - delta - e^eps a, e^-eps (1 - delta - a) )                  (2)

The test is a score above a threshold, learned on one part of the runs. On the other part, a' and b' are the upper
Clopper-Pearson limits of both rates, each at half of the permitted error. Whatever the mechanism, the true rates lie
in the rectangle below (a', b') with the stated confidence; if all of it lies below the curve, the claim is refuted:

    b' < f(a'),    for Gaussian DP the same as    mu >= Phi^-1(1 - a') - Phi^-1(b') > what is certified  (3)

(Nasr et al. 2023). f falls, so the corner decides.

**At one delta.** A mechanism is (eps, delta)-DP only if P(E | shard) <= e^eps P(E | neighbour) + delta, both ways
round. With the same limits, the larger one of

    eps >= log( (1 - b' - delta) / a' )    and    eps >= log( (1 - a' - delta) / b' )                    (4)

This needs no claim, is never larger than log(n), and is far weaker than (3).

**One run.** m canaries carry independent random signs, each of which is one record's; r of the signs are guessed and v
guesses are right. If the run is (eps, delta)-DP then (Steinke, Nasr, Jagielski 2023, Theorem 5.2)

    P(at least v right) <= g(v) + 2 m delta max_{1 <= i <= v} (g(v - i) - g(v)) / i                     (5)
    g(v) = P( Binomial(r, e^eps / (1 + e^eps)) >= v )

and the lower bound is the largest eps at which (5) stays below the permitted error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.privacy.gdp import gdp_epsilon
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.privacy.spending import Spending, release_groups

DELTAS = (1e-6, 1e-5, 1e-4, 1e-3, 0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Where (2) is certified, beside the run's delta: small ones bind where rates are small, large ones in the middle."""
CUTS = 200
"""The most thresholds that are tried."""


# --- claims ----------------------------------------------------------------------------------------------------------


class Claim(Protocol):
    """A trade-off curve."""

    def least_misses(self, alarms: Array) -> Array:
        """Return f at rates of false alarms."""

    def quantiles(self, alarms: Array) -> Array:
        """Return Phi^-1 of f, as far as it can be told from minus infinity."""


@frozen
class GaussianClaim:
    """The curve (1)."""

    mu: float

    def least_misses(self, alarms: Array) -> Array:
        """Return (1)."""
        from scipy.special import ndtr  # noqa: PLC0415 - only one rank needs it

        return np.asarray(ndtr(self.quantiles(alarms)))

    def quantiles(self, alarms: Array) -> Array:
        """Return Phi^-1 of (1)."""
        return _normal_quantiles(1.0 - np.asarray(alarms)) - self.mu

    def epsilon(self, delta: float) -> float:
        """Return the epsilon that it comes to."""
        return gdp_epsilon(self.mu, delta)


@frozen
class PairsClaim:
    """The curve (2)."""

    pairs: tuple[tuple[float, float], ...]
    """(epsilon, delta)"""

    def least_misses(self, alarms: Array) -> Array:
        """Return (2)."""
        a, found = np.asarray(alarms, dtype=np.float64), np.zeros_like(alarms, dtype=np.float64)
        for epsilon, delta in self.pairs:
            if epsilon < 700.0:
                found = np.maximum(found, 1.0 - delta - math.exp(epsilon) * a)
            found = np.maximum(found, math.exp(-epsilon) * (1.0 - delta - a))
        return found

    def quantiles(self, alarms: Array) -> Array:
        """Return Phi^-1 of (2)."""
        return _normal_quantiles(self.least_misses(alarms))


def _normal_quantiles(p: Array) -> Array:
    from scipy.special import ndtri  # noqa: PLC0415 - only one rank needs it

    return np.asarray(ndtri(np.clip(p, 1e-300, 1.0 - 1e-16)))


def certified_claim(spending: Spending, delta: float) -> Claim:
    """Return the curve of these releases: (1) where it is exact, else (2) from the accountant at many deltas."""
    groups = release_groups(spending)
    if len(groups) == 1 and groups[0].noise == "gaussian" and groups[0].kind == "full":
        return GaussianClaim(1.0 / groups[0].z)
    deltas = sorted({*DELTAS, *([delta] if delta > 0 else [])})
    certified = [(spent_epsilon(spending, one), one) for one in deltas]
    return PairsClaim(tuple((epsilon, one) for epsilon, one in certified if epsilon is not None))


# --- rates -----------------------------------------------------------------------------------------------------------


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return the lower and the upper limit of a probability, each of which holds with `confidence`."""
    k = np.array([float(successes)])
    return float(lower_limit(k, trials, confidence)[0]), float(upper_limit(k, trials, confidence)[0])


def lower_limit(successes: Array, trials: int, confidence: float) -> Array:
    """Return lower limits: quantiles of Beta distributions, for any numbers of successes."""
    from scipy.special import betaincinv  # noqa: PLC0415 - only one rank needs it

    k = np.asarray(successes, dtype=np.float64)
    return np.where(k > 0, betaincinv(np.maximum(k, 1e-9), trials - k + 1, 1.0 - confidence), 0.0)


def upper_limit(successes: Array, trials: int, confidence: float) -> Array:
    """Return upper limits."""
    return np.asarray(1.0 - lower_limit(trials - np.asarray(successes), trials, confidence))


@frozen
class Counts:
    """How often the test was wrong in each world, out of the trials in either."""

    misses: int
    false_alarms: int
    trials: int

    def corner(self, confidence: float) -> tuple[float, float]:
        """Return (a', b'): with `confidence` both rates lie below."""
        each = (1.0 + confidence) / 2.0
        return tuple(clopper_pearson(k, self.trials, each)[1] for k in (self.false_alarms, self.misses))  # type: ignore[return-value]


def refutes(counts: Counts, claim: Claim, confidence: float) -> bool:
    """Return whether the rectangle lies wholly below the curve, (3)."""
    alarms, misses = counts.corner(confidence)
    return bool(misses < claim.least_misses(np.array(alarms)))


def mu_bound(counts: Counts, confidence: float) -> float:
    """Return the lower bound (3) of mu, 0 at least: for mechanisms that are Gaussian DP."""
    alarms, misses = map(np.array, counts.corner(confidence))
    return max(0.0, float(_normal_quantiles(1.0 - alarms) - _normal_quantiles(misses)))


def epsilon_from_rates(hit: Array | float, false: Array | float, delta: float) -> Array:
    """Return (4) for lower limits `hit` and upper limits `false`; 0 where it says nothing."""
    gain = np.maximum(np.asarray(hit) - delta, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(gain) - np.log(false), 0.0))


def epsilon_bound(counts: Counts, delta: float, confidence: float) -> float:
    """Return (4)."""
    alarms, misses = map(np.array, counts.corner(confidence))
    return float(epsilon_at(alarms, misses, delta))


# --- the test --------------------------------------------------------------------------------------------------------


@frozen
class Rule:
    """The test: `sign` times the score above `threshold` means the world +."""

    score: str
    sign: int
    threshold: float

    def count(self, plus: Mapping[str, Array], minus: Mapping[str, Array]) -> Counts:
        """Return how often the test is wrong on these runs."""
        hit, alarm = (self.sign * world[self.score] > self.threshold for world in (plus, minus))
        return Counts(int(np.count_nonzero(~hit)), int(np.count_nonzero(alarm)), len(hit))


@frozen
class Rates:
    """Rates of false alarms and misses that thresholds would have, and how they are to be tested."""

    alarms: Array
    misses: Array
    trials: int
    confidence: float

    @property
    def corner(self) -> tuple[Array, Array]:
        """(a', b') if the counts came out as expected."""
        each, n = (1.0 + self.confidence) / 2.0, self.trials
        return upper_limit(n * self.alarms, n, each), upper_limit(n * self.misses, n, each)


Worth = Callable[[Rates], Array]
"""How good thresholds are."""


def against(claim: Claim) -> Worth:
    """Return how far below a curve the corner would lie, in normal quantiles.

    Where it would lie below, in deviations of that distance, which decide the power: a count near half of the trials
    varies least.
    """

    def margin(rates: Rates) -> Array:
        alarms, misses = rates.corner
        below = claim.quantiles(alarms) - _normal_quantiles(misses)
        tie = 1e-6 * (_normal_quantiles(1.0 - alarms) - _normal_quantiles(misses))  # where the curve is next to 0
        spread = np.sqrt(sum(_quantile_variance(rate, rates.trials) for rate in (rates.alarms, rates.misses)))
        return np.where(below > 0.0, below / spread, below) + tie

    return margin


def _quantile_variance(rate: Array, trials: int) -> Array:
    """Return the variance of the normal quantile of a rate that is estimated from `trials` trials."""
    p = np.clip(rate, 0.5 / trials, 1.0 - 0.5 / trials)
    density = np.exp(-(_normal_quantiles(p) ** 2) / 2.0) / math.sqrt(2.0 * math.pi)
    return np.asarray(p * (1.0 - p) / (trials * density**2))


def at_delta(delta: float) -> Worth:
    """Return the bound (4)."""
    return lambda rates: epsilon_at(*rates.corner, delta)


def epsilon_at(alarms: Array, misses: Array, delta: float) -> Array:
    """Return (4) for a corner."""
    forth, back = epsilon_from_rates(1.0 - misses, alarms, delta), epsilon_from_rates(1.0 - alarms, misses, delta)
    return np.maximum(forth, back)


def choose_rule(
    plus: Mapping[str, Array], minus: Mapping[str, Array], worth: Worth, trials: int, confidence: float
) -> Rule:
    """Return the rule that is worth most if rates are as on these runs, smoothed; use it on other runs only."""
    best, value = Rule(next(iter(plus)), 1, math.inf), -math.inf
    for name in plus:
        for sign in (1, -1):
            up, down = sign * plus[name], sign * minus[name]
            both = np.unique(np.concatenate([up, down]))
            if len(both) < 2:
                continue
            cuts = (both[:-1] + both[1:]) / 2.0
            cuts = cuts[np.unique(np.linspace(0, len(cuts) - 1, CUTS).astype(int))]
            found = worth(Rates(_share_above(down, cuts), 1.0 - _share_above(up, cuts), trials, confidence))
            at = int(np.argmax(found))
            if found[at] > value:
                best, value = Rule(name, sign, float(cuts[at])), float(found[at])
    return best


def _share_above(scores: Array, cuts: Array) -> Array:
    """Return the share of scores above each cut, every score smeared by Silverman's bandwidth."""
    from scipy.special import ndtr  # noqa: PLC0415 - only one rank needs it

    low, high = np.quantile(scores, [0.25, 0.75])
    width = 0.9 * min(float(np.std(scores)), float(high - low) / 1.34) * len(scores) ** -0.2
    if width <= 0.0:
        return np.asarray(np.mean(scores[:, None] > cuts, axis=0))
    return np.asarray(np.mean(ndtr((scores[:, None] - cuts) / width), axis=0))


@frozen
class Scores:
    """The scores of runs in both worlds by name: those to learn a rule from, and those to count on."""

    learn: tuple[Mapping[str, Array], Mapping[str, Array]]
    count: tuple[Mapping[str, Array], Mapping[str, Array]]

    def test(self, worth: Worth, confidence: float) -> tuple[Rule, Counts]:
        """Return the best rule of the runs to learn from, and how often it is wrong on the others."""
        trials = len(next(iter(self.count[0].values())))
        rule = choose_rule(*self.learn, worth, trials, confidence)
        return rule, rule.count(*self.count)


# --- one run ---------------------------------------------------------------------------------------------------------


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the right-hand side of (5): how likely `right` right guesses are under (epsilon, delta)-DP, at most."""
    from scipy.special import betainc, gammaln  # noqa: PLC0415 - only one rank needs it

    if not 0 <= right <= guesses <= canaries:
        raise ConfigError(f"expected right <= guesses <= canaries, found {right}, {guesses} and {canaries}")
    if right == 0:
        return 1.0
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(betainc(right, guesses - right + 1, accuracy))  # g(v)
    v = np.arange(right - 1.0, -1.0, -1.0)
    log_mass = gammaln(guesses + 1) - gammaln(v + 1) - gammaln(guesses - v + 1)
    log_mass += v * math.log(accuracy) - (guesses - v) * np.logaddexp(0.0, epsilon)
    slope = float(np.max(np.cumsum(np.exp(log_mass)) / np.arange(1.0, right + 1)))
    return min(1.0, tail + 2.0 * canaries * delta * slope)


def one_run_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Return the largest epsilon that (5) rejects with `confidence`; 0 if it rejects none.

    The delta term of (5) is not monotone in epsilon, so the search walks up from 0 and ends at the first that stands.
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
