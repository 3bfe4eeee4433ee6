"""The theorems of the papers: the noise that they prescribe, and the epsilon that they claim for noise.

None of it is trusted: `--calibration theorem` uses it, reports put it next to what is certified, and whatever noise is
used, the reported epsilon is the accountants'. With Delta_k and s_k the sensitivity and the relative noise of a run's
releases, `theorem_noise` and `theorem_epsilon` are, method by method,

    dual averaging, node sampling     (1), (2) below, of L, rounds and records
    consensus descent                 sigma^2 = sum_k (Delta_k/s_k)^2 / kappa                              (a)
    multi-step ADMM                   sigma = (Delta/s) times the multiplier for that many steps           (b)
    local DP, Laplace of scale b s_k  eps = sum_k (Delta_k/2) / (b s_k), as the paper takes 1/b for 2/b    (c)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dpmpi.core import Planned
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError


def _check(L: float, T: int, q: int) -> None:
    if not 0 < L < math.inf or T < 1 or q < 1:
        raise ConfigError(f"expected L > 0, T >= 1 and q >= 1 for the theorem, found L={L}, T={T}, q={q}")


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
            f"expected 0 < epsilon <= 1 and 0 < delta <= 1/3 for the theorem, found {eps:g} and {delta:g}: "
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
        raise ConfigError(f"expected a fraction of active nodes in (0, 1], found {iota:g}")
    if not 0 < eps <= 1 or not 0 < delta0 <= 1:
        raise ConfigError(
            f"expected 0 < epsilon <= 1 and 0 < delta <= 1 for the theorem, found {eps:g} and {delta0:g}: "
            "use certified calibration"
        )
    fewest = math.ceil(5 * eps**2 / (4 * iota**2))
    if fewest > T:
        raise ConfigError(f"expected at least {fewest} rounds for the theorem, found {T}: use certified calibration")
    return math.sqrt(32 * T * math.log(2 / delta0)) * iota * L / (q * eps)  # (2)


def node_sampling_epsilon(sigma: float, L: float, T: int, q: int, iota: float, delta0: float) -> float | None:
    """Return the epsilon that [LJS2] Theorem 1 claims for `sigma`: (2) solved for eps; None where it is silent."""
    _check(L, T, q)
    if sigma <= 0 or not 0 < iota <= 1 or not 0 < delta0 <= 1:
        return None
    eps = math.sqrt(32 * T * math.log(2 / delta0)) * iota * L / (q * sigma)
    return eps if eps <= 1 and 5 * eps**2 / (4 * iota**2) <= T else None


# --- consensus gradient descent --------------------------------------------------------------------------------------


def consensus_budget(eps: float, delta: float) -> float:
    """Return the budget that [SKD] Theorem 1 gives the releases of consensus gradient descent.

        sum_t Delta_t^2 / M_t^2 <= eps^2 / (eps + 2 log(2/delta))                                       (3)

    for Gaussian noise M_t on rounds of sensitivity Delta_t. It is valid, for any eps, but its two-sided tail bound is
    loose: mu(eps, delta)^2 of gdp.py may be spent, which at 0.5 <= eps <= 1 is 1.2 to 2.2 times less noise (delta from
    1e-9 to 1e-2). Defects around it: line 8 of the listing hands the last iterate over without noise, and outside the
    sum; kappa of (15) is (3) over 4 G^2 with G a bound on one node's gradient, where it is the gradient of one record's
    loss that has to be bounded.

    [SKD] Showkatbakhsh, Karakus, Diggavi. Differentially private consensus-based distributed optimization.
    """
    if not 0 < eps < math.inf or not 0 < delta < 1:
        raise ConfigError(f"expected epsilon > 0 and 0 < delta < 1 for the theorem, found {eps:g} and {delta:g}")
    return eps**2 / (eps + 2 * math.log(2 / delta))  # (3)


def consensus_epsilon(spent: float, delta: float) -> float | None:
    """Return the epsilon that [SKD] Theorem 1 claims for sum_t Delta_t^2/M_t^2 = `spent`: (3) solved for eps."""
    if not 0 <= spent < math.inf or not 0 < delta < 1:
        return None
    return (spent + math.sqrt(spent**2 + 8 * spent * math.log(2 / delta))) / 2


# --- multi-step ADMM -------------------------------------------------------------------------------------------------


def multistep_sigma(rounds: int, steps: int, eps: float, delta: float, c0: float = 1.0) -> float:
    """Return the noise multiplier that [HG] Theorem 6 prescribes for ADMM with `steps` inner steps a round.

        sigma = c0 sqrt(2 t l log(1.25/delta)) / eps                                                    (4)

    in units of the sensitivity of one inner step. The theorem says of c0 no more than that it exists. The default 1 is
    the constant of the classical Gaussian mechanism, of which t l releases at (4) are a single one: valid for eps <= 1,
    and for larger eps as long as c0 >= eps / (mu(eps, delta) sqrt(2 log(1.25/delta))). Defects: Theorem 4, from which
    it is derived, composes t arbitrary (eps, delta) mechanisms to (c0 sqrt(t) eps, delta), without any delta adding up;
    that is true of Gaussian noise only. "Arbitrary eps" is wrong for every fixed c0: noise must fall as 1/sqrt(2 eps)
    in the end, not as 1/eps.

    [HG] Huang, Gong. Differentially private ADMM for convex distributed learning: improved accuracy via multi-step
    approximation.
    """
    if rounds < 1 or steps < 1 or not 0 < eps < math.inf or not 0 < delta < 1 or not 0 < c0 < math.inf:
        raise ConfigError(
            f"expected rounds, steps >= 1, epsilon > 0, 0 < delta < 1 and c0 > 0, found {rounds}, {steps}, "
            f"{eps:g}, {delta:g} and {c0:g}"
        )
    return c0 * math.sqrt(2 * rounds * steps * math.log(1.25 / delta)) / eps  # (4)


def multistep_epsilon(sigma: float, rounds: int, steps: int, delta: float, c0: float = 1.0) -> float | None:
    """Return the epsilon that [HG] Theorem 6 claims for the noise multiplier `sigma`: (4) solved for eps."""
    if sigma <= 0 or rounds < 1 or steps < 1 or not 0 < delta < 1 or not 0 < c0 < math.inf:
        return None
    return c0 * math.sqrt(2 * rounds * steps * math.log(1.25 / delta)) / sigma


# --- local privacy with random weights -------------------------------------------------------------------------------


def local_epsilon(
    betas: Sequence[float], steps: Sequence[float], bound: float, dimension: int = 1, delta: float = 0.0
) -> float:
    """Return the epsilon that [XYD] Theorem 2.2 gives fixed weights: Laplace noise of rate beta_k in d coordinates.

        eps = sum_k d e_k,   e_k = alpha_k beta_k B                                                     (5)
        eps = sum_k d e_k tanh(e_k/2) + sqrt(2 log(1/delta) sum_k d e_k^2)                              (6)

    where round k moves each coordinate by at most alpha_k B: alpha_k is the step, B the bound on how far one record
    moves a coordinate of the gradient. (6), its footnote 1, is for delta > 0. Defects: the corollary, which the paper's
    figures show, is (5) with d = 1, the default here; pass the dimension for what is proven. B is defined on values of
    f_i where gradients are meant, and taken to be 1/b for a mean over b records, which is 2/b for replacing one. With
    random weights the paper puts realised losses in place of e_k: they depend on the data and are no guarantee, least
    of all in (6), where they would have to be fixed beforehand. Theorem 2.1, of secret sharing, has no budget.

    [XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
    """
    if not all(0 <= alpha < math.inf for alpha in steps) or not 0 <= bound < math.inf or dimension < 1:
        raise ConfigError(
            f"expected steps >= 0, a bound >= 0 and a dimension >= 1 for the theorem, found {bound}, {dimension}"
        )
    if len(betas) != len(steps) or not all(0 <= beta < math.inf for beta in betas) or not 0 <= delta < 1:
        raise ConfigError(
            f"expected a rate >= 0 for each of {len(steps)} steps and 0 <= delta < 1, found {len(betas)} "
            f"rates and delta {delta:g}"
        )
    losses = [alpha * beta * bound for alpha, beta in zip(steps, betas, strict=True)]
    if delta == 0:
        return dimension * math.fsum(losses)  # (5)
    mean = dimension * math.fsum(e * math.tanh(e / 2) for e in losses)
    return mean + math.sqrt(-2 * math.log(delta) * dimension * math.fsum(e * e for e in losses))  # (6)


def local_gamma(beta: float, omega: float, shift: float) -> float:
    """Return the bound of [XYD] Theorem 2.3 on gamma, the expected loss over the largest, for weights of width omega.

        gamma <= log( e^(beta T) (1 - 2 P) + 2 Q ) / (beta T),    T = alpha B < omega                   (7)

    P and Q being the probabilities of 0 <= x <= (omega - T)/2 when x is uniform on [0, omega], or [-T, omega - T], plus
    noise. Defects: (7) is no bound. On that stretch the proof takes the ratio of moving towards the middle, but that
    of moving away is larger, (3) of random_weights.py: at beta omega = 1, T = omega/2 it says 0.883, gamma is
    0.923. Its (27) prints e^(omega T). `gamma_reduction` is exact.
    """
    if not 0 < beta < math.inf or not 0 < shift < omega < math.inf:
        raise ConfigError(f"expected beta > 0 and 0 < shift < omega for the theorem, found {beta}, {shift} and {omega}")
    w, t = beta * omega, beta * shift
    m = (w - t) / 2
    P = (2 * m + math.expm1(-m) - math.exp(-w) * math.expm1(m)) / (2 * w)
    Q = (2 * m + math.exp(-t) * math.expm1(-m) - math.exp(t - w) * math.expm1(m)) / (2 * w)
    return math.log(math.exp(t) * (1 - 2 * P) + 2 * Q) / t  # (7)


@frozen
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
    def local(self) -> float:
        """The epsilon (c) of Laplace noise at b = 1, by (5)."""
        shifts = [r.count * r.sensitivity / r.scale for r in self.planned]
        return local_epsilon([1.0] * len(shifts), shifts, bound=0.5)

    @property
    def equal(self) -> bool:
        """Whether all releases have the same noise."""
        return len({r.scale for r in self.planned}) <= 1

    @property
    def equal_rounds(self) -> int:
        """The rounds, for a theorem on equal noise; raise `ConfigError` if it is not."""
        if not self.equal:
            raise ConfigError(
                "expected the same noise in every round for the theorem, found --noise-schedule optimal: use "
                "--calibration certified"
            )
        return self.rounds

    @property
    def count(self) -> int:
        """The number of releases."""
        return sum(r.count for r in self.planned)


_Theorem: TypeAlias = tuple[Callable[[Claim, float], float], Callable[[Claim, float], float | None]]

_LOCAL: _Theorem = (
    lambda c, eps: math.sqrt(2.0) * c.local / eps,  # (c), with sigma = sqrt(2) b
    lambda c, sigma: math.sqrt(2.0) * c.local / sigma,
)
THEOREMS: dict[str, _Theorem] = {
    "dp-dda": (
        lambda c, eps: liu2022_sigma(c.lipschitz, c.equal_rounds, c.records, eps, c.delta),
        lambda c, sigma: liu2022_epsilon(sigma, c.lipschitz, c.rounds, c.records, c.delta) if c.equal else None,
    ),
    "sampled-dda": (
        lambda c, eps: node_sampling_sigma(c.lipschitz, c.rounds, c.records, c.share, eps, c.delta),
        lambda c, sigma: node_sampling_epsilon(sigma, c.lipschitz, c.rounds, c.records, c.share, c.delta),
    ),
    "dp-dgd": (
        lambda c, eps: math.sqrt(c.square / consensus_budget(eps, c.delta)),  # (a)
        lambda c, sigma: consensus_epsilon(c.square / sigma**2, c.delta),
    ),
    "ip-admm": (
        lambda c, eps: math.sqrt(c.square / c.count) * multistep_sigma(c.count, 1, eps, c.delta),  # (b)
        lambda c, sigma: multistep_epsilon(sigma / math.sqrt(c.square / c.count), c.count, 1, c.delta),
    ),
} | dict.fromkeys(("ldp-admm", "ldp-gd", "ldp-gd-minmax"), _LOCAL)
"""The noise that a method's theorem prescribes for an epsilon, and the epsilon that it claims for a noise."""


def theorem_noise(algorithm: str, claim: Claim, epsilon: float) -> float:
    """Return the noise that the paper's theorem prescribes; raise `ConfigError` where there is none."""
    if algorithm not in THEOREMS:
        raise ConfigError(
            f"expected a method whose noise a theorem prescribes ({', '.join(THEOREMS)}), found {algorithm}: "
            "use --calibration certified"
        )
    return THEOREMS[algorithm][0](claim, epsilon)


def theorem_epsilon(algorithm: str, claim: Claim, sigma: float) -> float | None:
    """Return the epsilon that the paper's theorem claims for this noise, or None where it says nothing."""
    if sigma == 0 or algorithm not in THEOREMS or claim.count == 0:
        return None
    return THEOREMS[algorithm][1](claim, sigma)
