"""From a target (epsilon, delta) to noise, and to a batch size.

Per rank, as shards differ in size. The noise is the smallest whose certified epsilon stays within the target:

    sigma* = min { sigma : certified_epsilon(releases at that noise, delta) <= epsilon }                (1)

found in closed form for Gaussian noise on all records, sqrt(sum of 1/z^2 at noise 1) / mu(epsilon, delta) with z the
noise multipliers of spending.py, and elsewhere by a search on log scale. Poisson batches cost at most 1% more noise
than all records do once they hold

    b* = 1.5 q mu(epsilon, delta) / sqrt(T)                                                             (2)

of the q records in expectation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from dpmpi.errors import ConfigError
from dpmpi.privacy.accountants import certified_epsilon
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.privacy.spending import inverse_square, release_group

_TIGHT = 0.995  # the search ends when the certified epsilon is above this fraction of the target


def _round_up(x: float) -> float:
    """Return a number of six digits that exceeds `x` by a billionth at least: sums over rounds may be rounded too."""
    exponent = math.floor(math.log10(x)) - 5
    return float(f"{math.ceil(x * (1 + 1e-9) / 10.0**exponent)}e{exponent}")


def _check_target(releases: int, epsilon: float, delta: float) -> None:
    if releases < 1:
        raise ConfigError(f"expected at least 1 release, found {releases}")
    if not 0 < epsilon < math.inf:
        raise ConfigError(f"expected a positive and finite epsilon, found {epsilon}")
    if not 0 <= delta < 1:
        raise ConfigError(f"expected delta in [0, 1), found {delta}")


def _square(spending: Mapping[ReleaseEvent, int]) -> float:
    """Return the sum of 1/z^2."""
    multipliers = [(release_group(event).z, count) for event, count in spending.items()]
    return math.fsum(inverse_square(z, count) if z > 0 else math.inf for z, count in multipliers)


def calibrate(
    events: Callable[[float], Mapping[ReleaseEvent, int]],
    epsilon: float,
    delta: float,
    cache: Path | None = None,
    spent: Mapping[ReleaseEvent, int] | None = None,
) -> float:
    """Return the smallest noise (1), rounded up: `events(sigma)` are the releases under noise of level `sigma`.

    They come after what was `spent`; raise `ConfigError` if that leaves nothing.
    """
    spent = spent or {}
    unit = events(1.0)
    _check_target(sum(unit.values()), epsilon, delta)
    for event in unit:
        if event.noise == "none":
            raise ConfigError(
                "expected noise to calibrate, found 'none': choose a noise, or leave epsilon and delta out"
            )
        if not 0 < event.sensitivity < math.inf:
            raise ConfigError(f"expected a positive and finite sensitivity, found {event.sensitivity}")
        if delta == 0 and event.noise in ("gaussian", "discrete-gaussian", "objective"):
            raise ConfigError(f"expected delta > 0 for {event.noise} noise, found 0: choose a delta, or pure noise")
    sampled = {event: 1.0 if event.sampling.kind == "full" else event.sampling.rate for event in unit}
    seldom = math.fsum(math.log1p(-rate) * unit[e] if rate < 1 else -math.inf for e, rate in sampled.items())
    ever = -math.expm1(seldom)
    if ever <= delta:
        records = min(event.sampling.records for event in unit)
        raise ConfigError(
            f"expected delta below {ever:.3g}, the chance that a record takes part in any of {sum(unit.values())} "
            f"releases, found {delta:g}: choose a delta below 1/records = {1 / records:.3g}"
        )
    mu = gdp_mu(epsilon, delta)
    # 1/z^2 of all releases together: at noise sigma it is square / sigma^2, if no pure loss comes on top
    square = _square(unit)
    gaussian = all(event.noise in ("gaussian", "discrete-gaussian") for event in (*unit, *spent))
    closed_form = min(sampled.values()) == 1 and gaussian
    left = mu
    if closed_form and spent:  # squares add up
        left = math.sqrt(max(0.0, mu**2 - _square(spent)))
    over = left <= 1e-3 * mu if closed_form else certified_epsilon(Counter(spent), delta, cache) >= _TIGHT * epsilon
    if over:
        raise ConfigError(
            f"expected a budget that is left, found epsilon {epsilon:g} spent: raise it, or begin a new ledger"
        )
    if closed_form:
        sigma = _round_up(math.sqrt(square) / left)
        if _square(events(sigma)) <= left**2:  # not if sensitivities grow with the noise, as on a grid that does
            return sigma

    def cost(sigma: float) -> float:
        return certified_epsilon(Counter(events(sigma)) + Counter(spent), delta, cache)

    if delta == 0:
        guess = math.fsum(count * e.sensitivity / e.scale for e, count in unit.items()) / epsilon
    else:  # many small losses, or a few large ones: whichever asks for more
        rate = max(sampled.values())
        rare = gdp_mu(math.log1p(math.expm1(min(epsilon, 500.0)) / rate), delta / ever)
        poisson = all(event.sampling.kind == "poisson" for event in unit)
        half = 0.5 if poisson else 1.0  # a record that comes in moves half as far as one replaced
        largest = max(e.sensitivity / e.scale for e in unit)
        guess = max(rate * math.sqrt(square) / mu, half * largest / rare)
    return _search(cost, guess, epsilon)


def _search(cost: Callable[[float], float], guess: float, epsilon: float) -> float:
    """Return the smallest scale of six digits with cost <= epsilon, or one whose cost is within half a percent."""
    scale = _round_up(guess)
    costs = {0.0: math.inf, scale: cost(scale)}
    low, high = (scale, math.inf) if costs[scale] > epsilon else (0.0, scale)
    step = 1.05  # grows, so that a guess off by orders of magnitude costs little
    while high == math.inf or (low == 0 and costs[high] <= _TIGHT * epsilon):
        scale = _round_up(low * step) if high == math.inf else _round_up(high / step)
        if not 1e-200 < scale < 1e200:
            raise ConfigError(
                f"expected noise that reaches epsilon {epsilon:g}, found none: choose a larger epsilon or delta"
            )
        costs[scale] = cost(scale)
        low, high = (scale, high) if costs[scale] > epsilon else (low, scale)
        step = min(step * step, 1e6)
    turn = 0
    while costs[high] <= _TIGHT * epsilon and high > low * (1 + 1e-5):
        share = 0.5
        if turn % 3 < 2 and costs[high] > 0 and costs[low] < math.inf:  # cost is close to a power of scale
            share = math.log(costs[low] / (0.998 * epsilon)) / math.log(costs[low] / costs[high])
        turn += 1
        scale = _round_up(low * (high / low) ** min(max(share, 0.02), 0.98))
        if not low < scale < high:
            break
        costs[scale] = cost(scale)
        low, high = (scale, high) if costs[scale] > epsilon else (low, scale)
    return high


def auto_batch(records: int, releases: int, epsilon: float, delta: float) -> int:
    """Return b* of equation (2), rounded up; `records`, that is the full batch, where it would exceed them."""
    _check_target(releases, epsilon, delta)
    if records < 1:
        raise ConfigError(f"expected at least 1 record, found {records}")
    return max(1, min(records, math.ceil(1.5 * records * gdp_mu(epsilon, delta) / math.sqrt(releases))))


def check_delta(delta: float, records: int, allow_large: bool = False) -> None:
    """Refuse a delta that permits publishing a record outright: `delta` >= 1/`records`, unless it is allowed."""
    if delta >= 1 / records and not allow_large:
        raise ConfigError(
            f"expected delta below 1/records = {1 / records:.3g}, found {delta:g}, which publishing a random record "
            "would satisfy: choose a smaller delta, or allow a large one explicitly (--allow-large-delta)"
        )
