"""Heavy ball in the dual, with accelerated mixing.

Agent i keeps a dual z_i, its moving sum e_i and the point x_i, all zero at the start. With W the mixing matrix and
lambda its second largest |eigenvalue|, round t is

    s_i     = noised subgradient of f_i at x_i(t-1) over a batch                              (1)
    y_i     = z_i(t-1) + s_i                                                                  (2)
    z(t)    = P_K(W) y                                                                        (3)
    e_i(t)  = beta e_i(t-1) + z_i(t),    E(t) = beta E(t-1) + t                               (4)
    x_i(t)  = argmin_x <e_i(t), x> + E(t) h(x) + |x|^2 / (2 eta)                              (5)

P_K is the Chebyshev polynomial of degree K on [-lambda, lambda] with P_K(1) = 1: K mixes, the first of which is W y and
the others, with y^0 = y, y^1 = W y, t_0 = 1, t_1 = 1/lambda, t_{k+1} = (2/lambda) t_k - t_{k-1},

    y^{k+1} = (2 t_k / (lambda t_{k+1})) W y^k - (t_{k-1} / t_{k+1}) y^{k-1}                  (6)

After the last round e is mixed `closing_mixes` times by (6), and (5) is taken once more. The model is x_i.

Heavy ball. Without h, (5) is x(t) = -eta e(t), so x(t) - beta x(t-1) = -eta z(t). Means over all ranks, of which (3)
changes none, have z(t) - z(t-1) = s(t), hence

    x(t) = x(t-1) + beta (x(t-1) - x(t-2)) - eta s(t)                                         (7)

the heavy ball of [P64] on the mean gradient; e is post-processing and stays on the rank.

Mixes. (3) shrinks a disagreement by |rho| <= 1/t_K = 1 / cosh(K arccosh(1/lambda)). Where f has the curvature c on all
ranks, what the ranks disagree about obeys r^2 - (rho + beta - rho eta c) r + rho beta = 0 without h. Both roots are
inside the unit circle if (1 - rho)(1 - beta) + rho eta c > 0 and (1 + rho)(1 + beta) - rho eta c > 0: for eta c <= 2
whenever |rho| <= (1 - beta)/2. By default K is the smallest number with

    1/t_K <= min(0.1, (1 - beta)/2)                                                           (8)

Privacy: the data enter only through (1). What is sent is a sum of releases, hence post-processing, however often.

[P64] Polyak. Some methods of speeding up the convergence of iteration methods. USSR Comp. Math. 4(5), 1964.
[SBB17] Scaman, Bach, Bubeck, Lee, Massoulie. Optimal algorithms for smooth and strongly convex distributed optimization
        in networks. ICML 2017. Section 4.1 has (6) for gossip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpmpi.core import Agent, Array, Exchanges, Method, Mix, Steps, Terms, combine, hyperparameter, public
from dpmpi.errors import ConfigError

WHY_PUBLIC = "a weighted sum of releases"
_EXACT = 1e-9  # W with a smaller lambda averages over all ranks in one mix, up to rounding
_ROUNDING = 1e-9  # of the quotient in (8), so that ranks on unlike machines agree on K


@dataclass
class State:
    """What an agent carries from round to round."""

    z: Array
    e: Array
    E: float
    x: Array
    before: Array
    """y^{k-1} of (6)"""


@dataclass(frozen=True)
class Momentum(Method):
    """Heavy ball in the dual, with accelerated mixing."""

    adds_up: ClassVar[bool] = True
    accelerates: ClassVar[bool] = True

    beta: float | None = hyperparameter(None, "momentum, below 1; derived: 1 - 6/rounds", minimum=0.0)
    eta: float | None = hyperparameter(None, "step; derived: 2/smoothness of the loss, 1 if it has none", minimum=0.0)
    mixes: int | None = hyperparameter(None, "mixes per release; derived from the graph and beta", minimum=1)
    closing_mixes: int | None = hyperparameter(None, "mixes after the last round; derived: as --mixes", minimum=0)

    def check(self, terms: Terms) -> None:
        """Refuse a step or momentum for which nothing converges, and edges that change from round to round."""
        if not self.momentum(terms) < 1.0:
            raise ConfigError(f"expected --beta below 1, found {self.beta}: 0.9 looks back ten rounds")
        if not self.step(terms) > 0.0:
            raise ConfigError(f"expected --eta above 0, found {self.eta}: leave it out to have it derived")
        if not terms.mixing < 1.0:
            raise ConfigError(
                "expected a connected graph whose edges are all used in every round for momentum, found one that "
                "never mixes: use another --graph, or sampled-dda for sampled edges"
            )

    def momentum(self, terms: Terms) -> float:
        """Return beta."""
        return max(0.0, 1.0 - 6.0 / terms.rounds) if self.beta is None else self.beta

    def step(self, terms: Terms) -> float:
        """Return eta."""
        return (2.0 / terms.smoothness if terms.smoothness else 1.0) if self.eta is None else self.eta

    def mixes_per_release(self, terms: Terms) -> int:
        """Return K; 1 on a graph that one mix averages exactly, whatever was asked for."""
        if terms.mixing <= _EXACT:
            return 1
        if self.mixes is not None:
            return self.mixes
        wanted = max(10.0, 2.0 / (1.0 - self.momentum(terms)))
        return max(1, math.ceil(math.acosh(wanted) / math.acosh(1.0 / terms.mixing) - _ROUNDING))  # (8)

    def mixes_at_the_end(self, terms: Terms) -> int:
        """Return the number of closing mixes; 0 where the ranks agree anyway."""
        if terms.mixing <= _EXACT:
            return 0
        return self.mixes_per_release(terms) if self.closing_mixes is None else self.closing_mixes

    def exchanges(self, terms: Terms) -> list[Exchanges]:
        """Return K messages a round, and the closing ones."""
        count = self.mixes_per_release(terms) * terms.active_rounds + self.mixes_at_the_end(terms)
        return [Exchanges("neighbours", terms.dimension, count)]

    def start(self, agent: Agent) -> State:
        """Return zeros."""
        z, e, x, before = (np.zeros(agent.dimension) for _ in range(4))
        return State(z, e, 0.0, x, before)

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run steps (1) to (5) of round t, and the closing mixes after the last."""
        z, e, x, terms = state.z, state.e, state.x, agent.terms
        beta, K = self.momentum(terms), self.mixes_per_release(terms)
        s = agent.release(agent.problem.subgradient(x))  # (1)
        if K > 1:
            combine(state.before, (1.0, z), (1.0, s.value))  # (2), y^0; with one mix nobody looks at s
        yield Mix(public(z, because=WHY_PUBLIC), plus=s, out=z)  # (3), y^1
        yield from _accelerate(z, state.before, x, terms.mixing, K)  # (3), y^K; x is free until (5)
        combine(e, (beta, e), (1.0, z))  # (4)
        state.E = beta * state.E + t  # (4)
        closing = self.mixes_at_the_end(terms)
        if t == terms.rounds and closing:
            np.copyto(state.before, e)
            yield Mix(public(e, because=WHY_PUBLIC), out=e)
            yield from _accelerate(e, state.before, x, terms.mixing, closing)
        agent.penalty.dual_step(e, state.E, 1.0 / self.step(terms), out=x)  # (5)


def _accelerate(now: Array, before: Array, scratch: Array, mixing: float, K: int) -> Steps:
    """Take `now` from y^1 to y^K by (6), with `before` = y^0; both and `scratch` are overwritten.

    In ratios r_k = t_{k-1} / t_k, which do not overflow: r_1 = lambda, r_{k+1} = 1 / (2/lambda - r_k).
    """
    r, mine, last = mixing, now, before
    for _ in range(K - 1):
        following = 1.0 / (2.0 / mixing - r)
        yield Mix(public(now, because=WHY_PUBLIC), out=scratch)
        combine(last, (-following * r, last), (2.0 * following / mixing, scratch), scratch=scratch)  # (6)
        now, last, r = last, now, following
    if now is not mine:
        np.copyto(mine, now)
