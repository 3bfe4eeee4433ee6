"""DP-ADMM: linearised global consensus ADMM, one noisy gradient a round.

Agent i keeps w_i and a multiplier gamma_i, zero at the start; all agents know the same centre z. Every round, with
D = rho + eta_t,

    g        = noised gradient of f_i at w_i over a batch                                           (1)
    w_i     <- argmin_w <g, w> + h(w) - <gamma_i, w - z> + (rho/2) |w - z|^2 + (eta_t/2) |w - w_i|^2
             = prox_{h / D}((gamma_i + rho z + eta_t w_i - g) / D)                                  (2)
    z       <- (1/n) sum_j (w_j - gamma_j / rho)                                                    (3)
    gamma_i <- gamma_i - rho (w_i - z)                                                              (4)

The model is an average of z, the same on all ranks. These are the steps of [HHG19] with its server's step (3) done by
every rank from the sum over all ranks, and eta_t for its 1 / eta_t.

Privacy: the data enter only through (1). w_i, gamma_i and z are functions of releases, hence post-processing.

Defaults: rho = beta/8 and eta = beta/2 with beta = smoothness + l2, for which the forward-backward part of the step is
nonexpansive (eta >= beta/2). Without smoothness beta stands for L + l2 and eta_t = eta sqrt(t), as in [HHG19].

Changed from [HHG19]: its noise has a deviation that shrinks with 1 / D on w_i; here it is added to the gradient, which
is the same in law for an l2 penalty, and keeps the prox outermost for the others. Its moments accountant is replaced
by the exact composition of Gaussian releases.

[HHG19] Huang, Hu, Guo, Chan-Tin, Gong. DP-ADMM: ADMM-based distributed learning with differential privacy. IEEE TIFS
        15, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dpmpi.algorithms.bases.consensus_admm import (
    ETA_HELP,
    GROWTH_HELP,
    RHO_HELP,
    Averaging,
    curvature,
    grown,
    own_curvature,
    positive,
)
from dpmpi.core import Agent, Array, Asked, Exchanges, Steps, Sum, Terms, combine, held_back, hyperparameter, public

WHY_PUBLIC = "computed from this rank's releases and the public centre"


@dataclass
class State:
    """What an agent carries from round to round."""

    w: Array
    gamma: Array
    z: Array
    total: Array
    """The sum of the z that the model averages."""
    scratch: Array


@dataclass(frozen=True)
class DpAdmm(Averaging):
    """Linearised ADMM around a common centre [HHG19]."""

    usual_rounds: ClassVar[int] = 200
    state: ClassVar[Any] = State
    asks: ClassVar[tuple[Asked, ...]] = ("sum",)

    rho: float | None = hyperparameter(None, RHO_HELP, minimum=0.0)
    eta: float | None = hyperparameter(None, ETA_HELP, minimum=0.0)
    eta_growth: Literal["auto", "constant", "sqrt"] = hyperparameter("auto", GROWTH_HELP)

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for a rho or eta that is not above 0."""
        positive("rho", self.penalty(terms))
        positive("eta", self.proximal(terms, 1))

    def penalty(self, terms: Terms) -> float:
        """Return rho."""
        return curvature(terms) / 8.0 if self.rho is None else self.rho

    def proximal(self, terms: Terms, t: int) -> float:
        """Return eta_t."""
        return grown(own_curvature(terms) / 2.0 if self.eta is None else self.eta, self.eta_growth, terms, t)

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return rho and the first eta, where they are derived."""
        found = {"rho": self.penalty(terms)} if self.rho is None else {}
        return found | ({"eta": self.proximal(terms, 1)} if self.eta is None else {})

    def flow(self, terms: Terms) -> float:
        """Return how far the steps (2) go, each 1/D long."""
        rho, rounds = self.penalty(terms), range(1, terms.active_rounds + 1)
        return held_back(sum(1.0 / (rho + self.proximal(terms, t)) for t in rounds), terms)

    def exchanges(self, terms: Terms) -> list[Exchanges]:
        """Return one vector to everyone in every round."""
        return [Exchanges("everyone", terms.dimension, terms.active_rounds)]

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run (1) to (4)."""
        w, gamma, z, scratch = state.w, state.gamma, state.z, state.scratch
        rho, eta = self.penalty(agent.terms), self.proximal(agent.terms, t)
        g = agent.release(agent.problem.subgradient(w)).value  # (1)
        combine(g, (-1.0, g), (1.0, gamma), (rho, z), (eta, w), scratch=scratch, over=rho + eta)
        agent.penalty.prox(g, 1.0 / (rho + eta), out=w)  # (2)
        combine(scratch, (1.0, gamma), over=-rho)
        scratch += w
        yield Sum(public(scratch, because=WHY_PUBLIC), out=z)
        z /= agent.size  # (3)
        combine(scratch, (1.0, w), (-1.0, z))
        combine(gamma, (1.0, gamma), (-rho, scratch), scratch=scratch)  # (4)
        self.remember(agent, z, state.total, t)

    def regroup(self, agent: Agent, state: State) -> Steps:
        """Forget the multipliers, which no longer add up to zero; the centre is the mean of the survivors."""
        state.gamma.fill(0.0)
        yield Sum(public(state.w, because=WHY_PUBLIC), out=state.z)
        state.z /= agent.size

    def model(self, agent: Agent, state: State, t: int, out: Array) -> None:
        """Write the average of the centres up to round t to `out`."""
        self.write_average(agent, state.z, state.total, t, out)
