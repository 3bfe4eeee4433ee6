"""What the papers claim: the noise that their theorems prescribe, and the epsilon that they promise for noise.

None of it is trusted (see privacy/theorems.py); `--calibration theorem` uses it, and reports put it next to what is
certified. With Delta_k and s_k the sensitivity and the relative noise of a run's releases,

    dual averaging, node sampling     theorems (1), (2), of L, rounds and records
    consensus descent                 sigma^2 = sum_k (Delta_k/s_k)^2 / kappa                              (1)
    multi-step ADMM                   sigma = (Delta/s) times the multiplier for that many steps           (2)
    local DP, Laplace of scale b s_k  eps = sum_k (Delta_k/2) / (b s_k), as the paper takes 1/b for 2/b    (3)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpmpi.errors import ConfigError
from dpmpi.methods import Planned
from dpmpi.privacy import theorems


@dataclass(frozen=True)
class Claim:
    """The facts about a run that a theorem speaks of."""

    planned: Sequence[Planned]
    lipschitz: float
    rounds: int
    records: int
    share: float
    delta: float

    @property
    def square(self) -> float:
        """The sum of (Delta_k/s_k)^2."""
        return math.fsum(r.count * (r.sensitivity / r.scale) ** 2 for r in self.planned)

    @property
    def sum(self) -> float:
        """The sum of Delta_k/s_k."""
        return math.fsum(r.count * r.sensitivity / r.scale for r in self.planned)

    @property
    def count(self) -> int:
        """The number of releases."""
        return sum(r.count for r in self.planned)


Prescribe = Callable[[Claim, float], float]
Promise = Callable[[Claim, float], "float | None"]

_DUAL: tuple[Prescribe, Promise] = (
    lambda c, eps: theorems.liu2022_sigma(c.lipschitz, c.rounds, c.records, eps, c.delta),
    lambda c, sigma: theorems.liu2022_epsilon(sigma, c.lipschitz, c.rounds, c.records, c.delta),
)
_SAMPLED: tuple[Prescribe, Promise] = (
    lambda c, eps: theorems.node_sampling_sigma(c.lipschitz, c.rounds, c.records, c.share, eps, c.delta),
    lambda c, sigma: theorems.node_sampling_epsilon(sigma, c.lipschitz, c.rounds, c.records, c.share, c.delta),
)
_CONSENSUS: tuple[Prescribe, Promise] = (
    lambda c, eps: math.sqrt(c.square / theorems.consensus_budget(eps, c.delta)),  # (1)
    lambda c, sigma: theorems.consensus_epsilon(c.square / sigma**2, c.delta),
)
_MULTISTEP: tuple[Prescribe, Promise] = (
    lambda c, eps: math.sqrt(c.square / c.count) * theorems.multistep_sigma(c.count, 1, eps, c.delta),  # (2)
    lambda c, sigma: theorems.multistep_epsilon(sigma / math.sqrt(c.square / c.count), c.count, 1, c.delta),
)
_LOCAL: tuple[Prescribe, Promise] = (
    lambda c, eps: math.sqrt(2.0) * c.sum / (2.0 * eps),  # (3), with sigma = sqrt(2) b
    lambda c, sigma: math.sqrt(2.0) * c.sum / (2.0 * sigma),
)

THEOREMS: dict[str, tuple[Prescribe, Promise]] = {
    "dp-dda": _DUAL,
    "sampled-dda": _SAMPLED,
    "dp-dgd": _CONSENSUS,
    "ip-admm": _MULTISTEP,
    "ldp-admm": _LOCAL,
    "ldp-gd": _LOCAL,
    "ldp-gd-minmax": _LOCAL,
}


def prescribed_noise(algorithm: str, claim: Claim, epsilon: float) -> float:
    """Return the noise that the paper's theorem prescribes; raise `ConfigError` where there is none."""
    if algorithm not in THEOREMS:
        raise ConfigError(
            f"no theorem prescribes noise for {algorithm}, only for {', '.join(THEOREMS)}: use --calibration certified"
        )
    return THEOREMS[algorithm][0](claim, epsilon)


def claimed_epsilon(algorithm: str, claim: Claim, sigma: float) -> float | None:
    """Return what the paper's theorem claims for this noise, or None where it says nothing."""
    if sigma == 0 or algorithm not in THEOREMS or claim.count == 0:
        return None
    return THEOREMS[algorithm][1](claim, sigma)
