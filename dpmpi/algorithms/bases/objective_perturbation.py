"""ADMM with noise inside the local objective; what `dvp-admm` and `r-admm` share.

With p_i, gamma_i, s_i, d_i as in `bases/consensus_admm.py`, h = (l2/2) |w|^2 and q_i = l2 + 2 rho d_i, a private
round is

    x_i  = argmin_w f_i(w) - <p_i, w> + <nu, w> + (q_i/2) |w|^2,   nu with density ~ exp(-|nu|/b)   (1)
    w_i <- x_i + e,   e with density ~ exp(-|e|/b'),  b' tiny                                       (2)

or, with `--mechanism gaussian`, both normal with deviations b and b',

and w_i goes to the neighbours. This is the dual variable perturbation of [ZZ17]: nu is twice the noise on its
multiplier.

Privacy of (1). For a fixed shard D, nu -> x is a bijection with inverse nu_D(x) = p_i - q_i x - grad f_D(x), and x has
the density exp(-|nu_D(x)|/b) det J_D(x), up to a constant, J_D = hess f_D(x) + q_i I. Take D, D' that differ in one of
m records. First, |nu_D(x) - nu_D'(x)| = |grad f_D(x) - grad f_D'(x)| <= 2 L / m. Second, a record (a, y) adds
(l''/m) a a' to J, where 0 <= l'' |a|^2 <= kappa, the smoothness. With K >= q_i I the part of J that D and D' share,

    det J_D / det J_D' = (1 + (l''/m) <a, K^-1 a>) / (1 + (l0''/m) <a0, K^-1 a0>) <= 1 + kappa / (m q_i)   (3)

as the denominator is at least 1. So the density changes by a factor of at most exp of

    2 L / (m b) + log(1 + kappa / (m q_i)),                                                         (4)

a pure loss: sensitivity 2 L / m, and the second term as `extra`. Clipping makes l' piecewise smooth; (3) holds where
both gradients are differentiable, which is almost everywhere, and that is enough, as nu_D is Lipschitz with a Lipschitz
inverse. For the mean loss the Hessians do not depend on the data, and (4) is more than enough. (The theorem of [CMS11]
has twice the logarithm, for general changes of the Hessian.)

Losses of one score only: one of K scores changes J in K directions, and (3) does not hold.

Privacy of (2). (4) is about the exact minimiser for a real-valued nu. The nu that is drawn lies on a grid, at most
delta = 2^-20 b sqrt(dimension) from a real one, and what is computed for it is at most tau / mu away from the
minimiser, where mu >= q_i is the strong convexity, and at most r / mu with rounding, r = 2 tau + m u L, u = 2^-52. Both
would give the shard away in the low bits. They move x by at most (delta + r) / mu. Under e, that changes densities by a
factor of at most exp((delta + r) / (mu b')), on D and on D'. With b' = b / (64 mu), e is small beside what nu does to
x, and (2) costs

    2 r / (mu b') + 128 delta / b = 2 r / (mu b') + 2^-13 sqrt(dimension):                          (5)

it is charged as a release of sensitivity 2 r / mu with an `extra` of 2^-13 sqrt(dimension). With tau = 5e-6 L / m, the
default, the r term is 128 r / b, less than a thousandth of the 2 L / (m b) of (4). The number of steps behind x depends
on nu as little as on the records: how long they take does not tell |nu| (`problem/accelerated_gradient.py`).

Gaussian noise. nu_D(x) - nu_D'(x) depends on nu, so (1) is not a Gaussian mechanism of sensitivity 2 L / m: the shift
can follow the noise. What holds is derived in `privacy/objective_noise.py`, from (3) and from the fixed direction of a
record's gradient; it costs about what a Gaussian mechanism does with 1/1.36 of the noise, in every dimension. (2) is
then a release after (1): given the exact minimiser for the real-valued nu, which (1) pays for, what is computed is a
function of it and of the shard, at most (delta + r) / mu away from it on either, so that e covers a shift of
2 (delta + r) / mu: the sensitivity 2 r / mu, and 2^-13 sqrt(dimension) deviations of e on top, as (5) has it.

Settings from public facts. Pure losses of few releases add up, and composition gains from the 14th on (at epsilon 1,
delta 1e-5), so k noises of (1) are min(sqrt(k), 3.7) times as large as k Gaussian ones are beside one, and q of (5) in
`bases/consensus_admm.py` is so many times larger. And the second term of (4) must not use up epsilon: for k releases of
ranks with m records, k kappa/(m q) <= epsilon/4. Noise on a mean gradient of n ranks is L nu = 2 L/(sqrt(n) m mu),
mu = mu(epsilon, delta) being about 0.27 epsilon, hence

    q >= 1.08 kappa k sqrt(n) L nu / (2 L)                                                          (6)

Changed from [ZZ17] and, for `r-admm`, [ZKL19]: their constants are not used; the loss per round is (4) plus that of
(2).

[CMS11] Chaudhuri, Monteleoni, Sarwate. Differentially private empirical risk minimization. JMLR 12, 2011.
[ZZ17]  Zhang, Zhu. Dynamic differential privacy for ADMM-based distributed classification learning. IEEE TIFS 12(1),
        2017.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpmpi.algorithms.bases.consensus_admm import LocalMinimisation, State, smooth
from dpmpi.core import Agent, Array, Facts, Planned, Query, Terms, combine
from dpmpi.errors import ConfigError


@dataclass(frozen=True)
class ObjectivePerturbation(LocalMinimisation):
    """Steps (1) and (2), for methods that differ in when they take them."""

    mechanisms: ClassVar[tuple[str, ...]] = ("spherical-laplace", "gaussian")
    exactness: ClassVar[float] = 5e-6

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for losses for which (3) does not hold."""
        if terms.scores > 1:  # first: no other clip helps
            raise ConfigError(
                f"expected a loss of one score for noise inside the objective, found {terms.scores} scores: use "
                "momentum, ip-admm or another method with noise on gradients"
            )
        super().check(terms)

    def private(self, t: int) -> bool:
        """Return whether round t touches data."""
        return True

    def releases(self, terms: Terms) -> Iterator[Planned]:
        """Return noise inside the objective and, for its accuracy, on the minimiser, in rounds that touch data."""
        for t in range(1, terms.active_rounds + 1):
            if self.private(t):
                yield Planned(terms.gradient_sensitivity, extra=self.jacobian(terms), inside=True)
                yield Planned(self.slip(terms), self.slip_scale(terms), extra=self.slip_loss(terms))

    def fitting_convexity(self, facts: Facts) -> float:
        """Return q of (6)."""
        kappa, k = 2.0 / facts.longest_step, self.released(facts.rounds)
        least = 1.08 * kappa * k * math.sqrt(facts.ranks) * facts.noise / (2.0 * facts.lipschitz)
        composed = min(math.sqrt(k), 3.7) if facts.mechanism == "spherical-laplace" else 1.0
        return max(super().fitting_convexity(facts) * composed, least)

    def jacobian(self, terms: Terms) -> float:
        """Return the logarithm in (4)."""
        return math.log1p(
            smooth(terms, "noise inside the objective") / (terms.sampling.records * self.quadratic(terms))
        )

    def slip(self, terms: Terms) -> float:
        """Return 2 r / mu, the sensitivity of (2)."""
        rounding = terms.sampling.records * 2.0**-52 * terms.own_lipschitz
        return 2.0 * (2.0 * self.accuracy(terms) + rounding) / self.modulus(terms)

    def slip_scale(self, terms: Terms) -> float:
        """Return b' / b = 1 / (64 mu)."""
        return 1.0 / (64.0 * self.modulus(terms))

    def slip_loss(self, terms: Terms) -> float:
        """Return the second term of (5), a pure loss or a shift in deviations of e."""
        return 2.0**-13 * math.sqrt(terms.dimension)

    def perturbed_step(self, agent: Agent, state: State) -> None:
        """Run (1) and (2); a rank that may not speak any more stays where it is."""
        terms, linear = agent.terms, state.scratch

        def solve(noise: Array) -> None:
            combine(linear, (1.0, noise), (-1.0, state.pull))
            self.minimise(agent, linear, out=noise)

        gradient = agent.problem.subgradient(state.w)
        query = Query(gradient.value, gradient.sensitivity, gradient.sampling, self.jacobian(terms), inside=True)
        x = agent.release_inside(query, solve).value  # (1)
        if agent.stopped is None:
            query = Query(x, self.slip(terms), terms.sampling, self.slip_loss(terms))
            agent.release(query, self.slip_scale(terms))  # (2)
        if agent.stopped is None:
            np.copyto(state.w, x)
