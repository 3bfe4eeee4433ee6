"""Noise that differs from round to round, least where it counts most; what `momentum` and dual averaging share.

Let the noise of round s, of deviation sigma_s, reach the model with the weight c_s, which everybody knows. In every
coordinate the model then has noise of variance

    sum_s c_s^2 sigma_s^2                                                                     (1)

and releases of one sensitivity Delta on all records have the price sum_s (Delta / sigma_s)^2. By Cauchy-Schwarz

    (sum_s c_s)^2 <= sum_s c_s^2 sigma_s^2  *  sum_s 1/sigma_s^2                              (2)

with equality if and only if c_s sigma_s^2 is the same for all s. So at a given price the least noise has

    sigma_s^2 ~ 1/c_s,     which is   sum_s c_s / sqrt(T sum_s c_s^2)                         (3)

times the noise of T equal releases. The relative noise is rounded, so that plans and ledgers hold a few kinds of
releases and sampled batches can be priced, and has the price of equal releases with the run's sigma:

    sigma_s = k sigma 2^(j/8),   j the integer next to -4 log2(c_s),   sum_s 1/sigma_s^2 = T/sigma^2      (4)

(4) has at most 1.004 times the noise of (3), as c_s sigma_s^2 is constant within 2^(+-1/8). For sampled batches, whose
price is another, (4) is a choice like any other, and priced as what it is. Methods say what their c_s are if gradients
do not answer to earlier noise; where they do, they take some of it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal

import numpy as np

from dpmpi.core import Array, Method, Planned, Terms, hyperparameter
from dpmpi.errors import ConfigError

_STEPS = 8  # kinds of noise from one deviation to twice as much


def relative_noise(weights: Array) -> Array:
    """Return sigma_s/sigma of (4); a weight of 0, whose noise would not count, is taken as the least of the others."""
    least = weights[weights > 0.0].min(initial=np.inf)
    if not np.isfinite(least):
        return np.ones_like(weights)
    j = np.rint(-_STEPS / 2.0 * np.log2(np.maximum(weights, least) / weights.max()))
    steps = 2.0 ** (j / _STEPS)
    return np.asarray(steps * np.sqrt(np.mean(steps**-2.0)))  # (4)


@dataclass(frozen=True)
class NoiseSchedule(Method):
    """A method that may distribute its noise over the rounds by (4)."""

    noise_schedule: Literal["constant", "optimal"] = hyperparameter(
        "constant", "noise over the rounds: all the same, or least in the model"
    )

    def noise_weights(self, terms: Terms) -> Array:
        """Return c_1 ... c_T of (1), up to a factor."""
        raise NotImplementedError

    def noise_scale(self, terms: Terms, t: int) -> float:
        """Return the noise of round t relative to the run's."""
        return 1.0 if self.noise_schedule == "constant" else _schedule(self, terms)[t - 1]

    def check_noise(self, terms: Terms) -> None:
        """Refuse noise by (4) for a rank that is not active in all rounds: which ones decides how often each occurs."""
        if self.noise_schedule != "constant" and self.schedule == "sampled":
            raise ConfigError(
                "expected every rank in every round for --noise-schedule optimal, found sampled edges: use constant"
            )

    def releases(self, terms: Terms) -> list[Planned]:
        """Return one gradient in every active round."""
        sensitivity = terms.gradient_sensitivity
        if self.noise_schedule == "constant":
            return [Planned(sensitivity, count=terms.active_rounds)]
        runs = groupby(_schedule(self, terms)[: terms.active_rounds])
        return [Planned(sensitivity, scale, len(list(same))) for scale, same in runs]


@lru_cache(maxsize=64)
def _schedule(method: NoiseSchedule, terms: Terms) -> tuple[float, ...]:
    return tuple(relative_noise(method.noise_weights(terms)).tolist())
