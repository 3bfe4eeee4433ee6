"""Settings that are not given, from public facts: on private data nobody can tune.

For n ranks with q_i records and weights w_i, m features and a target (epsilon, delta), with mu(epsilon, delta) of
Gaussian DP, T rounds of clipped gradients of norm at most L get noise such that their mean over the ranks has noise of
deviation L nu sqrt(T) in every coordinate, where

    nu = (2 / (n mu)) sqrt(sum_i (w_i / q_i)^2)                 noise of each rank                            (1)
    nu = (2 / (n mu)) max_i (w_i / q_i) sqrt(n / (n - k))       noise in the sum, k colluders                 (2)

With weights by records, w_i / q_i = n / N for N records in all: nu is 2 sqrt(n) / (N mu) and 2 sqrt(n/(n-k)) / (N mu).

    L    = 1/2 logistic, 1 others     the clip: at x = 0 a logistic gradient has norm |row|/2                 (3)
    tau  = (2 L nu)^(-3/2) sqrt(10/m) how far to go (flow time); 0.35 of it for hinge                         (4)

Flow time: a gradient of norm 1 would move the model by tau in all rounds. Gradient descent with T steps of tau/T adds
up T noises of deviation L nu sqrt(T) tau/T to tau L nu, whatever T is. The longest step is 2 over the smoothness. (4)
was fitted on public data sets (docs/experiments/defaults.md): a rule, not a theorem. What a method makes of tau is in
its docstring.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dpmpi.core import Facts
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.problem.penalties import parse_penalty
from dpmpi.runtime.config import hyperfields
from dpmpi.runtime.settings import Settings

CLIPS = {"logistic": 0.5}
"""L of (3), where it is not 1."""
FLOW = {"hinge": 0.35, "squared": 0.25, "mean": 0.25}
"""The part of tau, (4), where it is not all. A loss of curvature 1 takes a fourth of the way of one of 1/4."""
FARTHEST = 1e6
"""The flow without noise."""
FARTHEST_MOMENTUM = 8.0 * 100**2 / 6.0
"""How far `momentum` goes at most."""
LONGEST_STEP = 8.0
"""For a loss without smoothness."""
USUAL_ROUNDS = 100
"""Of a run whose noise is given, and whose rounds are not."""


def weights(settings: Settings, records: Sequence[int]) -> list[float]:
    """Return w_i: exactly 1 for all ranks that have as many records as the mean."""
    n, total = len(records), sum(records)
    return [n * count / total if settings.config.weigh == "records" else 1.0 for count in records]


def noise_rate(settings: Settings, records: Sequence[int], lipschitz: float) -> float:
    """Return nu of (1), (2); 0 without noise."""
    config, colluders, n = settings.config, settings.noise.colluders, len(records)
    honest = 1.0 if colluders is None else math.sqrt(n / max(1, n - colluders))
    if config.epsilon is None:  # a given deviation is that of a rank's gradient, or of the sum
        spread = 1.0 / math.sqrt(n) if colluders is None else honest / n
        return (config.noise or 0.0) * spread / (lipschitz * math.sqrt(config.rounds or USUAL_ROUNDS))
    each = [weight / count for weight, count in zip(weights(settings, records), records, strict=True)]
    size: float = math.hypot(*each) if colluders is None else max(each) * honest
    mu = gdp_mu(config.epsilon, config.delta if config.delta > 0 else 1e-5)
    return 2.0 * size / (n * mu)


def flow_time(loss: str, lipschitz: float, nu: float, dimension: int) -> float:
    """Return tau of (4)."""
    if nu <= 0.0:
        return FARTHEST
    tau: float = FLOW.get(loss, 1.0) * (2.0 * lipschitz * nu) ** -1.5 * math.sqrt(10.0 / dimension)
    return min(FARTHEST, tau)


def derive(settings: Settings, records: Sequence[int], dimension: int, share: float) -> Settings:
    """Return the settings with everything that is not given derived, in the configuration too.

    `share` is the expected fraction of ranks that are active in a round.
    """
    config, method = settings.config, settings.method
    if config.lipschitz is None and settings.radius is None:
        config = dataclasses.replace(config, lipschitz=CLIPS.get(config.loss, 1.0))
    settings = dataclasses.replace(settings, config=config, typed=settings.typed or settings.config)
    L, curvature = settings.lipschitz(dimension), settings.curvature[0]
    facts = Facts(
        rounds=config.rounds or 0,
        ranks=len(records),
        share=share,
        dimension=dimension,
        lipschitz=L,
        flow=flow_time(config.loss, L, noise_rate(settings, records, L), dimension),
        longest_step=2.0 / curvature if curvature else LONGEST_STEP,
    )
    if not facts.rounds:
        facts = dataclasses.replace(facts, rounds=method.fitting_rounds(facts))
    regulariser = settings.regulariser
    if regulariser is None:
        config = dataclasses.replace(config, penalty=method.fitting_penalty(facts))
        regulariser = parse_penalty(config.penalty, config.domain)
    method = method.fitted(facts)
    options = tuple((f.name, getattr(method, f.name)) for f in hyperfields(type(method)))
    kept = dict(config.options).keys() | {name for name, value in options if value is not None}
    config = dataclasses.replace(
        config,
        rounds=facts.rounds,
        intercept=f"{settings.constant:g}" if settings.constant else "none",
        options=tuple(sorted((name, value) for name, value in options if name in kept)),
    )
    return dataclasses.replace(settings, config=config, method=method, regulariser=regulariser)


def derivation(settings: Settings, counts: Mapping[str, int]) -> str | None:
    """Return what was derived, in words, with `counts` that follow from it; None if everything was given."""
    before, now = settings.typed, settings.config
    if before is None:
        return None
    given = dict(before.options)
    found = [f"{now.rounds} rounds"] if before.rounds is None else []
    found += [
        f"{name} {value:g}"
        for name, value in now.options
        if isinstance(value, float) and given.get(name) is None and name in _unset(settings)
    ]
    if before.lipschitz is None and now.lipschitz is not None:
        found.append(f"clip {now.lipschitz:g}")
    if now.penalty not in (before.penalty, "none"):
        found.append(f"penalty {now.penalty}")
    if before.batch != now.batch:
        found.append(f"batch {now.batch}")
    found += [f"{count} {name}" for name, count in counts.items()]
    return ", ".join(found) or None


def _unset(settings: Settings) -> set[str]:
    """Return the hyperparameters that are None unless somebody sets or derives them."""
    return {f.name for f in hyperfields(type(settings.method)) if f.default is None}
