"""The noise that the papers' theorems prescribe, for comparison; `--calibration theorem`.

None of it is trusted: whatever noise is used, the reported epsilon is the accountants'.
"""

from __future__ import annotations

import math

from dpmpi.errors import ConfigError


def _check(L: float, T: int, q: int) -> None:
    if not 0 < L < math.inf or T < 1 or q < 1:
        raise ConfigError(f"the theorem needs L > 0, T >= 1 and q >= 1, found L={L}, T={T}, q={q}")


def liu2022_sigma(L: float, T: int, q: int, eps: float, delta: float) -> float:
    """Return the standard deviation that [LJS] Theorem 1 prescribes for dual averaging.

        sigma^2 = 12 L^2 T log(1/delta) / (q^2 eps^2),    0 < eps <= 1, 0 < delta <= 1/3                (1)

    for T rounds of subgradients bounded by L, over q records. Defect: the proof takes the sensitivity of a one-sample
    subgradient to be 2L/q, which it is for the full batch only; for one sample it is 2L at rate 1/q. At q = 20000,
    T = 60000, eps = 1, delta = 0.01 the noise certifies epsilon = 1806, not 1. It holds for very many epochs.

    [LJS] Liu, Johansson, Shi. Private stochastic dual averaging for decentralized empirical risk minimization.
    IFAC-PapersOnLine 55(13), 2022.
    """
    _check(L, T, q)
    if not 0 < eps <= 1 or not 0 < delta <= 1 / 3:
        raise ConfigError(
            f"the theorem holds for 0 < epsilon <= 1 and 0 < delta <= 1/3, found {eps:g} and {delta:g}: "
            "use certified calibration"
        )
    return math.sqrt(12 * T * math.log(1 / delta)) * L / (q * eps)  # (1)


def liu2022_epsilon(sigma: float, L: float, T: int, q: int, delta: float) -> float | None:
    """Return the epsilon that [LJS] Theorem 1 claims for `sigma`: (1) solved for eps; None where it is silent."""
    _check(L, T, q)
    if sigma <= 0 or not 0 < delta <= 1 / 3:
        return None
    eps = math.sqrt(12 * T * math.log(1 / delta)) * L / (q * sigma)
    return eps if eps <= 1 else None


def node_sampling_sigma(L: float, T: int, q: int, iota: float, eps: float, delta0: float) -> float:
    """Return the standard deviation that [LJS2] Theorem 1 prescribes for node-sampled dual averaging.

        sigma^2 = 32 iota^2 L^2 T log(2/delta0) / (q^2 eps^2),    T >= 5 eps^2 / (4 iota^2)             (2)

    for 0 < eps <= 1, 0 < delta0 <= 1, and a fraction iota of active nodes. Defects of the proof: with 32 the sum of
    eps'^2 is eps^2, where its last display uses eps^2/5 (its own argument needs 160); delta' = sqrt(sum eps'^2) = eps,
    so that the delta which it yields is at least eps; Lemma 2 prints e^iota for e^eps. Moreover whoever sees who speaks
    knows the schedule, so that node sampling amplifies nothing: a rank composes over its own activations.

    [LJS2] Liu, Johansson, Shi. Privacy amplification via node sampling for distributed empirical risk minimization.
    """
    _check(L, T, q)
    if not 0 < iota <= 1:
        raise ConfigError(f"the fraction of active nodes must be in (0, 1], found {iota:g}")
    if not 0 < eps <= 1 or not 0 < delta0 <= 1:
        raise ConfigError(
            f"the theorem holds for 0 < epsilon <= 1 and 0 < delta <= 1, found {eps:g} and {delta0:g}: "
            "use certified calibration"
        )
    fewest = 5 * eps**2 / (4 * iota**2)
    if fewest > T:
        raise ConfigError(
            f"the theorem holds from {math.ceil(fewest)} rounds on, found {T}: run longer, or use certified calibration"
        )
    return math.sqrt(32 * T * math.log(2 / delta0)) * iota * L / (q * eps)  # (2)


def node_sampling_epsilon(sigma: float, L: float, T: int, q: int, iota: float, delta0: float) -> float | None:
    """Return the epsilon that [LJS2] Theorem 1 claims for `sigma`: (2) solved for eps; None where it is silent."""
    _check(L, T, q)
    if sigma <= 0 or not 0 < iota <= 1 or not 0 < delta0 <= 1:
        return None
    eps = math.sqrt(32 * T * math.log(2 / delta0)) * iota * L / (q * sigma)
    return eps if eps <= 1 and 5 * eps**2 / (4 * iota**2) <= T else None
