"""Settings that are not given, from public facts: on private data nobody can tune.

For n ranks with q_i records and weights w_i, m features and a target (epsilon, delta), with mu(epsilon, delta) of
Gaussian DP, T rounds of clipped gradients of norm at most L get noise such that their mean over the ranks has noise of
deviation L nu sqrt(T) in every coordinate, where

    nu = (2 / (n mu)) sqrt(sum_i (w_i / q_i)^2)                 noise of each rank                            (1)
    nu = (2 / (n mu)) max_i (w_i / q_i) sqrt(n / (n - k))       noise in the sum, k colluders                 (2)
    nu = (2 / (sqrt(n) mu)) max_i (w_i / q_i) / gain            noise that cancels between neighbours (`pair_noise.py`)

Both are for records of different people; persons of up to k records have k times the noise.

With weights by records, w_i / q_i = n / N for N records in all: nu is 2 sqrt(n) / (N mu) and 2 sqrt(n/(n-k)) / (N mu).
The largest rank alone, with Q records, has 2 / (Q mu), which can be less than the first. Among weights of sum n, (1) is
least for

    w_i = n q_i^2 / sum_j q_j^2        precision: the inverse variance of a rank's noise,                     (3)

by Cauchy-Schwarz, and is then nu = 2 / (mu sqrt(sum_j q_j^2)): never above that of any rank alone. Nor is the variance
of sampling, sum_i (w_i/n)^2 / q_i = sum_j q_j^3 / (sum_j q_j^2)^2 <= max_j q_j / sum_j q_j^2 <= 1 / max_j q_j. So
nobody loses by joining others whose records are of the same kind. (2) is least for weights by records. So (3) is the
default where an epsilon is given and the noise is local, and records elsewhere; with equal shards both are 1. A rank's
records count by its size in (3), so that small ranks unlike the others lose by it.

    L    = 1/2 logistic, 1/sqrt 2 softmax, delta huber, sqrt(bound) poisson, 1 others    the clip             (4)
    tau  = (2 L nu)^(-3/2) sqrt(10/m) how far to go (flow time); 0.35 of it for hinge                         (5)

Flow time: a gradient of norm 1 would move the model by tau in all rounds. Gradient descent with T steps of tau/T adds
up T noises of deviation L nu sqrt(T) tau/T to tau L nu, whatever T is. The longest step is 2 over the smoothness. (5)
was fitted on public data sets (docs/experiments/defaults.md): a rule, not a theorem. What a method makes of tau is in
its docstring.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dpmpi.core import Facts, four_digits
from dpmpi.privacy.gdp import gdp_mu
from dpmpi.problem.penalties import parse_penalty
from dpmpi.runtime.config import Config
from dpmpi.runtime.options import AUTO, hyperfields
from dpmpi.runtime.settings import Settings

MEAN_FLOW = 0.25
"""The part of tau, (5), for the mean. A loss of curvature 1 takes a fourth of the way of one of 1/4."""
FARTHEST = 1e6
"""The flow without noise."""
_LEAST_RATE = 1e-9
"""Of (5): less noise leads no farther."""
FARTHEST_MOMENTUM = 8.0 * 100**2 / 6.0
"""How far `momentum` goes at most."""
LONGEST_STEP = 8.0
"""For a loss without smoothness."""
USUAL_ROUNDS = 100
"""Of a run whose noise is given, and whose rounds are not."""


def weighing(settings: Settings) -> str:
    """Return how ranks are weighed: records, precision or ranks."""
    config = settings.config
    if config.weigh != AUTO:
        return config.weigh
    return "precision" if config.epsilon is not None and settings.noise.place == "local" else "records"


def weights(settings: Settings, records: Sequence[int]) -> list[float]:
    """Return w_i: exactly 1 for all ranks if they have equally many records."""
    power = {"ranks": 0, "records": 1, "precision": 2}[weighing(settings)]
    total = sum(count**power for count in records)
    return [len(records) * count**power / total for count in records]


def noise_rate(settings: Settings, records: Sequence[int], lipschitz: float) -> float:
    """Return nu of (1), (2); 0 without noise."""
    config, noise = settings.config, settings.noise
    if config.epsilon is None:  # a given deviation is that of a rank's gradient, or of the sum
        spread = noise.mean_deviation([1.0] * len(records))
        return (config.noise or 0.0) * spread / (lipschitz * math.sqrt(config.rounds or USUAL_ROUNDS))
    each = [weight / count for weight, count in zip(weights(settings, records), records, strict=True)]
    mu = gdp_mu(config.epsilon, config.delta if config.delta > 0 else 1e-5)
    return 2.0 * noise.records * noise.mean_deviation(each) / mu


def flow_time(settings: Settings, nu: float, dimension: int, lipschitz: float) -> float:
    """Return tau of (5) for a model of this length and a clip."""
    if nu <= 0.0:
        return FARTHEST
    part = MEAN_FLOW if settings.loss is None else settings.loss.flow
    columns = dimension // settings.scores
    tau: float = part * max(2.0 * lipschitz * nu, _LEAST_RATE) ** -1.5 * math.sqrt(10.0 / columns)
    return min(FARTHEST, tau)


def derive(settings: Settings, records: Sequence[int], dimension: int, share: float, max_degree: int) -> Settings:
    """Return the settings with everything that is not given derived, in the configuration too.

    `share` is the expected fraction of ranks that are active in a round, `max_degree` that of `Facts`.
    """
    config, method, loss = _with_labels(settings), settings.method, settings.loss
    if config.lipschitz is None and loss is not None:
        config = dataclasses.replace(config, lipschitz=four_digits(loss.clip))
    config = dataclasses.replace(config, weigh=weighing(settings))
    settings = dataclasses.replace(settings, config=config, typed=settings.typed or settings.config)
    L, curvature = settings.lipschitz(dimension), settings.curvature[0]
    nu = noise_rate(settings, records, L)
    facts = Facts(
        rounds=config.rounds or 0,
        ranks=len(records),
        share=share,
        dimension=dimension,
        lipschitz=L,
        flow=flow_time(settings, nu, dimension, L),
        longest_step=2.0 / curvature if curvature else LONGEST_STEP,
        noise=L * nu,
        mechanism=config.mechanism or method.mechanisms[0],
        max_degree=max_degree,
        scores=settings.scores,
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
        share_bits=config.fraction_bits if settings.messages.hides else config.share_bits,
        intercept=f"{settings.constant:g}" if settings.constant else "none",
        options=tuple(sorted((name, value) for name, value in options if name in kept)),
    )
    return dataclasses.replace(settings, config=config, method=method, regulariser=regulariser)


def _with_labels(settings: Settings) -> Config:
    """Return the configuration with the loss and what labels are."""
    config = dataclasses.replace(settings.config, loss=settings.loss_name)
    if settings.loss is None:
        return config
    task = settings.task
    return dataclasses.replace(config, task=task.kind, classes=task.class_text, label_range=task.range_text)


def derivation(settings: Settings, counts: Sequence[Mapping[str, float]]) -> str | None:
    """Return the derived settings in words; None if everything was given.

    `counts` follow from it, for every kind of rank.
    """
    before, now = settings.typed, settings.config
    if before is None:
        return None
    given = dict(before.options)
    found = [f"{now.rounds} round{'s' if now.rounds != 1 else ''}"] if before.rounds is None else []
    found += [
        f"{name.replace('_', '-')} {value:g}"
        for name, value in now.options
        if isinstance(value, float) and given.get(name) is None and name in _unset(settings)
    ]
    if before.lipschitz is None and now.lipschitz is not None:
        found.append(f"clip {now.lipschitz:g}")
    if now.penalty not in (before.penalty, "none"):
        found.append(f"penalty {now.penalty}")
    if before.batch != now.batch:
        found.append(f"batch {now.batch}")
    found += [_in_words(name, [each[name] for each in counts]) for name in counts[0]]
    return ", ".join(found) or None


def _in_words(name: str, values: Sequence[float]) -> str:
    """Return a count of something, or a setting with its range over the ranks."""
    if isinstance(values[0], int):
        return f"{values[0]} {name}"
    ends = dict.fromkeys(f"{value:.4g}" for value in (min(values), max(values)))
    return f"{name} {' to '.join(ends)}"


def _unset(settings: Settings) -> set[str]:
    """Return the hyperparameters that are None unless somebody sets or derives them."""
    return {f.name for f in hyperfields(type(settings.method)) if f.default is None}
