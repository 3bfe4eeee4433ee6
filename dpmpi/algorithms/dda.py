"""Distributed dual averaging on privatised subgradients, with and without node sampling.

Agent i keeps a dual z_i. With a_t the weight of round t, A_t = a_1 + ... + a_t, gamma_t >= 0, iota the expected
fraction of active ranks, and W(t) the mixing matrix of the round, every agent has in every round

    x_i(t)   = argmin_x <z_i(t), x> + iota A_t h(x) + gamma_t |x|^2 / 2                   (1)

and the agents that are active in round t do

    s_i      = noised subgradient of f_i at x_i(t) over a batch                           (2)
    z_i(t+1) = sum_j W_ij(t) (z_j(t) + a_t s_j)                                           (3)

while the others keep z_i. The model is sum_t a_t x_i(t) / A_T. (1), (3) are Eqs. (5), (4) of [LJS22] when every
rank is active (iota = 1), and Eqs. (6), (5) of [LJS23] with node sampling. a_t = 1, gamma_t = gamma sqrt(t) without
noise is the conventional method of [DAW12]. With `mixes` K > 1 the sum in (3) is the K accelerated mixes of
`bases/accelerated_mixing.py`, and the model is mixed `closing_mixes` times after the last round.

Settings from public facts. x(t) is A_t / gamma_t times a mean gradient away from 0, its average about half as far, and
steps beyond 8 a_t / gamma_t overshoot. With tau = `Facts.flow`, how far to go,

    gamma = max(a_T / 8, A_T / tau), for gamma_t = gamma sqrt(t) over sqrt(T)             (4)

Without a penalty, rounds are 500 for a_t = t and 300 for a_t = 1, each over iota.

Noise over the rounds. With `noise_schedule` optimal and all ranks active, the mean over the ranks of z(t) is the sum of
a_s s(s) over s < t, so that for an l2 penalty of weight l2 the noise of round s reaches the mean model with the weight

    c_s = (a_s / A_T) sum_{s < t <= T} a_t / (A_t l2 + gamma_t)                           (5)

(at most, with an l1 penalty or a domain: (1) moves no two points further apart). c_T = 0, as the model does not know
the last release. `bases/noise_schedule.py` has what follows. Without a penalty, and u = s/T for many rounds,

    gamma_t = gamma, a_t = t:   c ~ u (1 - u^2),      ratio (3) there  sqrt(105/128) = 0.906
    gamma_t = gamma, a_t = 1:   c ~ 1 - u,                             sqrt(3/4)     = 0.866
    gamma sqrt(t),   a_t = 1:   c ~ 1 - sqrt(u),                       sqrt(2/3)     = 0.816      (6)

Privacy: the data enter only through (2). What is sent is a weighted sum of releases, hence post-processing. The
schedule is public, so node sampling amplifies nothing; a rank pays for the rounds in which it speaks.

Corrected: [LJS22] Theorem 1 takes the sensitivity of a one-sample subgradient to be 2L/q; it is 2L. Its listing
collects from "all agents"; neighbours are meant. [LJS23] Algorithm 1, line 8, lets a sleeping agent keep a stale
x_i; its analysis needs (1) for all i and t, so a rank that wakes up makes up the terms a_s x_i(s) of the rounds it
slept through from its unchanged z_i. See docs/privacy.md.

[LJS22] Liu, Johansson, Shi. Private stochastic dual averaging for decentralized empirical risk minimization.
        IFAC-PapersOnLine 55(13), 2022.
[LJS23] Liu, Johansson, Shi. Privacy amplification via node sampling for distributed empirical risk minimization.
[DAW12] Duchi, Agarwal, Wainwright. Dual averaging for distributed optimization. IEEE TAC 57(3), 2012.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np

from dpmpi.algorithms.bases.accelerated_mixing import AcceleratedMixing, accelerate, check_gossip, mix_again
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
GAMMA_HELP = "weight of |x|^2/2 in the dual step; auto: by --epsilon"


@dataclass
class State:
    """What an agent carries from round to round."""

    z: Array
    total: Array
    """sum_s a_s x(s) over the rounds s <= last"""
    last: int
    x: Array
    scratch: Array


@dataclass(frozen=True)
class DpDda(NoiseSchedule, AcceleratedMixing):
    """Dual averaging with weights a_t = t and constant gamma, which suit a strongly convex h [LJS22]."""

    usual_rounds: ClassVar[int] = 500
    settles: ClassVar[bool] = False
    adds_up: ClassVar[bool] = True
    linear: ClassVar[bool] = True

    weighting: Literal["linear", "constant"] = hyperparameter("linear", "a_t = t or a_t = 1")
    gamma: float | None = hyperparameter(None, GAMMA_HELP, minimum=0.0)
    gamma_growth: Literal["constant", "sqrt"] = hyperparameter("constant", "gamma_t = gamma or gamma sqrt(t)")

    def fitting_rounds(self, facts: Facts) -> int:
        """Return 500 or 300 rounds in which a rank is active."""
        return min(round((500 if self.weighting == "linear" else 300) / facts.share), 10**5)

    def fitted(self, facts: Facts) -> Self:
        """Return the method with gamma by (4), where it is not given."""
        if self.gamma is not None:
            return self
        T = facts.rounds
        gamma = facts.share * max(self._a(T) / facts.longest_step, self._A(T) / facts.flow)
        return replace(self, gamma=four_digits(gamma / math.sqrt(T) if self.gamma_growth == "sqrt" else gamma))

    def flow(self, terms: Terms) -> float:
        """Return how far the rounds go."""
        A = self._A(terms.rounds) * terms.active_rounds / terms.rounds
        return A / (self._gamma(terms.rounds) + terms.strong_convexity * A)

    def check(self, terms: Terms) -> None:
        """Refuse several mixes, and noise by (5), where edges change from round to round."""
        self.check_mixing(terms)
        self.check_noise(terms)

    def noise_weights(self, terms: Terms) -> Array:
        """Return (5)."""
        t = np.arange(1.0, terms.rounds + 1.0)
        a, A, gamma = self._coefficients(t)
        reach = np.cumsum((a / (A * terms.strong_convexity + gamma))[::-1])[::-1]
        return np.asarray(a * np.append(reach[1:], 0.0))

    def exchanges(self, terms: Terms) -> list[Exchanges]:
        """Return the mixes of all rounds, and the closing ones."""
        count = self.mixes_per_release(terms) * terms.active_rounds + self.mixes_at_the_end(terms)
        return [Exchanges("neighbours", terms.dimension, count)]

    def gossip(self, terms: Terms) -> Gossip:
        """Return a_t: what is said in (3) is m_j(t) = z_j(t) + a_t s_j, and z_j(t) = sum_k W_jk m_k(t-1).

        For an l2 penalty (1) is x = -z/d, d = A_t l2 + gamma_t, so that m_j(t) is F(z_j(t)) plus a_t times noise, with

            F(z) = z + a_t grad f_j(-z/d) = z - a_t grad phi(z),   phi(z) = d f_j(-z/d).

        phi is convex, its curvature at most 1/d of that of f_j (clipped or not, `LocalProblem.minimise`): a gradient
        step, which moves no two points apart if a_t/d times that curvature is at most 2. Models are means over all
        rounds.
        """
        curvature = check_gossip(self, terms)
        a, A, gamma = self._coefficients(np.arange(1.0, terms.rounds + 1.0))
        d = A * terms.strong_convexity + gamma
        longest = float(np.max(a * curvature / np.maximum(d, 1e-300)))
        if not longest <= 2.0:
            enough = np.max((a * curvature / 2.0 - A * terms.strong_convexity) * self._gamma(1) / gamma)
            raise ConfigError(
                f"steps may move points apart: a_t/(A_t l2 + gamma_t) times the curvature of the loss reaches "
                f"{longest:.4g}, above 2 (--gamma {1.001 * enough:.4g})"
            )
        return Gossip(a, ends_with_messages=False)

    def start(self, agent: Agent) -> State:
        """Return z = 0."""
        z, total, x, scratch = (np.zeros(agent.dimension) for _ in range(4))
        scratch.fill(1.0)
        agent.penalty.dual_step(scratch, agent.share, self._gamma(1), out=x)  # raises if (1) has no solution
        return State(z, total, 0, np.zeros_like(x), np.zeros_like(x))

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run steps (1) to (3) of round t, after making up for the rounds slept through."""
        z, x, a = state.z, state.x, self._a(t)
        self._add_slept(agent, state, t, state.total)
        agent.penalty.dual_step(z, agent.share * self._A(t), self._gamma(t), out=x)  # (1)
        combine(state.total, (1.0, state.total), (a, x), scratch=state.scratch)
        state.last = t
        terms = agent.terms
        s = agent.release(agent.problem.subgradient(x), self.noise_scale(terms, t))  # (2)
        K = self.mixes_per_release(terms)
        if K > 1:  # x is free from here on
            combine(x, (a, s.value))
            x += z
        yield Mix(public(z, because=WHY_PUBLIC), plus=s, times=a, out=z)  # (3)
        yield from accelerate(z, x, state.scratch, terms.mixing, K, WHY_PUBLIC)
        if t == terms.rounds:
            yield from mix_again(state.total, x, state.scratch, terms.mixing, self.mixes_at_the_end(terms), WHY_PUBLIC)

    def model(self, agent: Agent, state: State, t: int, out: Array) -> None:
        """Write sum_{s <= t} a_s x(s) / A_t to `out`."""
        np.copyto(out, state.total)
        self._add_slept(agent, state, t + 1, out)
        out /= self._A(t)

    def _add_slept(self, agent: Agent, state: State, t: int, total: Array) -> None:
        """Add a_s x(s) for last < s < t, in which z did not change."""
        if t - state.last > 1:
            s = np.arange(state.last + 1, t, dtype=np.float64)
            a, A, gamma = self._coefficients(s)
            agent.penalty.add_dual_steps(state.z, a, agent.share * A, gamma, total, state.scratch)

    def _coefficients(self, t: Array) -> tuple[Array, Array, Array]:
        """Return a_t, A_t and gamma_t of many rounds."""
        linear, one = self.weighting == "linear", np.ones_like(t)
        gamma = self._gamma(1) * (np.sqrt(t) if self.gamma_growth == "sqrt" else one)
        return (t, t * (t + 1) / 2, gamma) if linear else (one, t, gamma)

    def _a(self, t: int) -> float:
        return float(t) if self.weighting == "linear" else 1.0

    def _A(self, t: int) -> float:  # noqa: N802 - the paper's letter
        return t * (t + 1) / 2 if self.weighting == "linear" else float(t)

    def _gamma(self, t: int) -> float:
        if self.gamma is None:
            raise ConfigError("expected --gamma, found none: give it, or have it derived")
        return self.gamma * math.sqrt(t) if self.gamma_growth == "sqrt" else self.gamma


@dataclass(frozen=True)
class Dda(DpDda):
    """Dual averaging with a_t = 1 and gamma_t = gamma sqrt(t) [DAW12]."""

    weighting: Literal["linear", "constant"] = hyperparameter("constant", "a_t = t or a_t = 1")
    gamma_growth: Literal["constant", "sqrt"] = hyperparameter("sqrt", "gamma_t = gamma or gamma sqrt(t)")


@dataclass(frozen=True)
class SampledDda(DpDda):
    """Dual averaging in which only the ends of a few random edges are active in a round [LJS23]."""

    schedule: ClassVar[Literal["static", "sampled"]] = "sampled"
