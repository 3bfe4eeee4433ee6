"""Heavy ball in the dual, with accelerated mixing.

Agent i keeps a dual z_i, its moving sum e_i and the point x_i, all zero at the start. With W the mixing matrix and
lambda its second largest |eigenvalue|, round t is

    s_i     = noised subgradient of f_i at x_i(t-1) over a batch                              (1)
    y_i     = z_i(t-1) + s_i                                                                  (2)
    z(t)    = P_K(W) y                                                                        (3)
    e_i(t)  = beta e_i(t-1) + z_i(t),    E(t) = beta E(t-1) + t                               (4)
    x_i(t)  = argmin_x <e_i(t), x> + E(t) h(x) + |x|^2 / (2 eta)                              (5)

where P_K(W) stands for the K accelerated mixes of `bases/accelerated_mixing.py`, which shrink what the ranks disagree
about by 1/t_K. After the last round e is mixed `closing_mixes` times, and (5) is taken once more. The model is x_i.

Heavy ball. Without h, (5) is x(t) = -eta e(t), so x(t) - beta x(t-1) = -eta z(t). Means over all ranks, of which (3)
changes none, have z(t) - z(t-1) = s(t), hence

    x(t) = x(t-1) + beta (x(t-1) - x(t-2)) - eta s(t)                                         (6)

the heavy ball of [P64] on the mean gradient; e is post-processing and stays on the rank.

Mixes. (3) shrinks a disagreement by |rho| <= 1/t_K. Where f has the curvature c on all ranks, what the ranks disagree
about obeys r^2 - (rho + beta - rho eta c) r + rho beta = 0 without h. Both roots are inside the unit circle if
(1 - rho)(1 - beta) + rho eta c > 0 and (1 + rho)(1 + beta) - rho eta c > 0: for eta c <= 2 whenever
|rho| <= (1 - beta)/2. By default K is the smallest number with

    1/t_K <= min(0.1, (1 - beta)/2)                                                           (7)

Settings from public facts. With tau how far to go (`Facts.flow`, from the noise) and eta_max 2 over the smoothness,

    T    = clip(ceil(sqrt(6 tau / eta_max)), 10, 100),   beta = 1 - 6/T                       (8)
    eta  = min(eta_max, (1 - beta) tau / T)                                                   (9)

In T rounds heavy ball goes eta T / (1 - beta) = eta T^2 / 6 far. The noise of the mean model does not depend on T.

Noise over the rounds. By (4) and (5) the mean of x(T) is a multiple of the mean of e(T) = sum_t beta^(T-t) z(t), also
with an l2 penalty, and z(t) the sum of s(1) ... s(t). So the noise of round s has in the model a weight of

    c_s ~ (1 - beta^(T-s+1)) / (1 - beta)                                                    (10)

With `noise_schedule` optimal it is distributed by `bases/noise_schedule.py`; for beta = 1 - 6/T the model has 0.962
times the noise of equal releases (0.966 in 100 rounds).

Privacy: the data enter only through (1). What is sent is a sum of releases, hence post-processing, however often.

[P64] Polyak. Some methods of speeding up the convergence of iteration methods. USSR Comp. Math. 4(5), 1964.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from dpmpi.algorithms.bases.accelerated_mixing import (
    CLOSING_HELP,
    LIMITS,
    MIXES_HELP,
    AcceleratedMixing,
    accelerate,
    mix_again,
)
from dpmpi.algorithms.bases.noise_schedule import NoiseSchedule
from dpmpi.core import (
    Agent,
    Array,
    Exchanges,
    Facts,
    Gossip,
    Mix,
    Steps,
    Terms,
    combine,
    four_digits,
    hyperparameter,
    public,
)
from dpmpi.errors import ConfigError

WHY_PUBLIC = "a weighted sum of releases"
FEWEST, MOST = 10, 100
"""Rounds of (8)."""


@dataclass
class State:
    """What an agent carries from round to round."""

    z: Array
    e: Array
    E: float
    x: Array
    before: Array
    """y^0, then scratch, of accelerated mixing"""


@dataclass(frozen=True)
class Momentum(NoiseSchedule, AcceleratedMixing):
    """Heavy ball in the dual, with accelerated mixing."""

    usual_rounds: ClassVar[int] = 100
    settles: ClassVar[bool] = False
    adds_up: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    mixes: int | None = hyperparameter(None, MIXES_HELP, minimum=1, **LIMITS)
    closing_mixes: int | None = hyperparameter(None, CLOSING_HELP, minimum=0, **LIMITS)
    beta: float | None = hyperparameter(None, "momentum, below 1; auto: 1 - 6/rounds", minimum=0.0)
    eta: float | None = hyperparameter(None, "step; auto: by --epsilon, 2/smoothness at most", minimum=0.0)

    def fitting_rounds(self, facts: Facts) -> int:
        """Return (8)."""
        return min(max(math.ceil(math.sqrt(6.0 * facts.flow / facts.longest_step)), FEWEST), MOST)

    def fitted(self, facts: Facts) -> Self:
        """Return the method with beta and eta by (8) and (9), where they are not given."""
        beta = max(0.0, 1.0 - four_digits(6.0 / facts.rounds)) if self.beta is None else self.beta
        eta = four_digits(min(facts.longest_step, (1.0 - beta) * facts.flow / facts.rounds))
        return replace(self, beta=beta, eta=eta if self.eta is None else self.eta)

    def check(self, terms: Terms) -> None:
        """Refuse a step or momentum for which nothing converges, and edges that change from round to round."""
        if not self.momentum(terms) < 1.0:
            raise ConfigError(f"expected --beta below 1, found {self.beta}: 0.9 looks back ten rounds")
        if not self.step(terms) > 0.0:
            raise ConfigError(f"expected --eta above 0, found {self.eta}: leave it out to have it derived")
        self.check_mixing(terms)

    def accelerates(self) -> bool:
        """Return True: (7) needs the graph's eigenvalue."""
        return True

    def shrinkage(self, terms: Terms) -> float:
        """Return t_K of (7)."""
        return max(10.0, 2.0 / (1.0 - self.momentum(terms)))

    def momentum(self, terms: Terms) -> float:
        """Return beta."""
        return max(0.0, 1.0 - 6.0 / terms.rounds) if self.beta is None else self.beta

    def step(self, terms: Terms) -> float:
        """Return eta."""
        return (2.0 / terms.smoothness if terms.smoothness else 1.0) if self.eta is None else self.eta

    def flow(self, terms: Terms) -> float:
        """Return how far the rounds go: a gradient of 1 moves x by so much in all."""
        return self.step(terms) * terms.rounds / (1.0 - self.momentum(terms))

    def noise_weights(self, terms: Terms) -> Array:
        """Return (10)."""
        left = np.arange(terms.rounds, 0.0, -1.0)
        return np.asarray(1.0 - self.momentum(terms) ** left)

    def exchanges(self, terms: Terms) -> list[Exchanges]:
        """Return K messages a round, and the closing ones."""
        count = self.mixes_per_release(terms) * terms.active_rounds + self.mixes_at_the_end(terms)
        return [Exchanges("neighbours", terms.dimension, count)]

    def gossip(self, terms: Terms) -> Gossip:
        """Refuse: by (4) and (5) a gradient is taken at a point that earlier rounds moved, too."""
        raise ConfigError("momentum makes messages depend on earlier rounds, not on the last one alone")

    def start(self, agent: Agent) -> State:
        """Return zeros."""
        z, e, x, before = (np.zeros(agent.dimension) for _ in range(4))
        return State(z, e, 0.0, x, before)

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run steps (1) to (5) of round t, and the closing mixes after the last."""
        z, e, x, before, terms = state.z, state.e, state.x, state.before, agent.terms
        beta, K = self.momentum(terms), self.mixes_per_release(terms)
        s = agent.release(agent.problem.subgradient(x), self.noise_scale(terms, t))  # (1)
        if K > 1:
            combine(before, (1.0, z), (1.0, s.value))  # (2); with one mix nobody looks at s
        yield Mix(public(z, because=WHY_PUBLIC), plus=s, out=z)  # (3), the first mix
        yield from accelerate(z, before, x, terms.mixing, K, WHY_PUBLIC)  # (3), the others; x is free until (5)
        combine(e, (beta, e), (1.0, z))  # (4)
        state.E = beta * state.E + t  # (4)
        if t == terms.rounds:
            yield from mix_again(e, before, x, terms.mixing, self.mixes_at_the_end(terms), WHY_PUBLIC)
        agent.penalty.dual_step(e, state.E, 1.0 / self.step(terms), out=x)  # (5)
