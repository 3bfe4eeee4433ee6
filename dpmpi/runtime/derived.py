"""Settings of `momentum` from public facts: on private data nobody can tune.

For n ranks, N records in all, m features and a target (epsilon, delta), with mu(epsilon, delta) of Gaussian DP:

    c    = sqrt(n) for local noise, sqrt(n / (n - k)) for noise in the sum with k colluders              (1)
    nu   = 2 c / (N mu)               the noise of the mean gradient per unit of L and sqrt(round)       (2)
    L    = 1/2 logistic, 1 hinge      the clip: at x = 0 a logistic gradient has norm |row|/2            (3)
    tau  = (2 L nu)^(-3/2) sqrt(10/m) how far to go (flow time); 0.35 of it for hinge                    (4)
    T    = clip(ceil(sqrt(6 tau / 8)), 10, 100)                          rounds                          (5)
    beta = 1 - 6/T,   eta = min(8, 6 tau / T^2)                          momentum and step               (6)

(2): T rounds at local noise 2 L sqrt(T) / (q mu), q = N/n, average over the ranks to L nu sqrt(T). (6): heavy ball goes
eta T / (1 - beta) = eta T^2 / 6 far in T rounds; 8 is 2 over the smoothness 1/4 of the logistic loss. (4) and its
constants were fitted on public data sets: a rule, not a theorem.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from dpmpi.errors import ConfigError
from dpmpi.privacy.gdp import gdp_mu

CLIPS = {"logistic": 0.5, "hinge": 1.0}
"""L of (3)."""
FLOW = {"logistic": 1.0, "hinge": 0.35}
"""The part of tau, (4)."""
LONGEST_STEP = 8.0
FEWEST, MOST = 10, 100


class Derived(NamedTuple):
    """Settings that were computed, not chosen."""

    rounds: int
    eta: float
    beta: float
    clip: float


def derived(
    n: int,
    N: int,
    m: int,
    loss: str,
    epsilon: float,
    delta: float,
    place: Literal["local", "sum"] = "local",
    colluders: int = 0,
) -> Derived:
    """Return (rounds, eta, beta, clip) of (3), (5), (6)."""
    if loss not in CLIPS:
        raise ConfigError(f"expected the loss {' or '.join(CLIPS)} to derive settings for, found {loss}: set them")
    if min(n, N, m) < 1 or not 0 <= colluders < n:
        raise ConfigError(
            f"expected ranks, records and features, and fewer colluders than ranks, found {n}, {N}, {m} and {colluders}"
        )
    c = math.sqrt(n) if place == "local" else math.sqrt(n / (n - colluders))  # (1)
    nu = 2.0 * c / (N * gdp_mu(epsilon, delta))  # (2)
    clip = CLIPS[loss]  # (3)
    tau = FLOW[loss] * (2.0 * clip * nu) ** -1.5 * math.sqrt(10.0 / m)  # (4)
    T = min(max(math.ceil(math.sqrt(6.0 * tau / LONGEST_STEP)), FEWEST), MOST)  # (5)
    return Derived(T, min(LONGEST_STEP, 6.0 * tau / T**2), 1.0 - 6.0 / T, clip)  # (6)
