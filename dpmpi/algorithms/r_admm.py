"""Recycled ADMM: noise inside the local objective in odd rounds, what was said then once more in even ones.

With p_i, gamma_i, s_i, d_i as in `bases/consensus_admm.py`, odd rounds are (1) and (2) of
`bases/objective_perturbation.py`. The minimiser is stationary, so

    g_i  = p_i - 2 rho d_i w_i,   which is grad(f_i + h)(w_i) + nu up to e,                         (7)

is known to everybody, and the next, even round takes one linearised step with it, eta > 0 being the weight of
|w - w_i|^2 / 2, and p_i computed afresh [ZKL19]:

    w_i <- w_i - (g_i + 2 rho d_i w_i - p_i) / (2 rho d_i + eta)                                    (8)

Privacy: (7) and (8) are functions of releases, so that even rounds are free.

[ZKL19] Zhang, Khalili, Liu. Recycled ADMM: improving the privacy and accuracy of distributed algorithms. IEEE TIFS 15,
        2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dpmpi.algorithms.bases import consensus_admm as admm
from dpmpi.algorithms.bases.objective_perturbation import ObjectivePerturbation
from dpmpi.core import Agent, Array, Steps, Terms, combine, hyperparameter


@dataclass
class State(admm.State):
    """What an agent carries from round to round."""

    recycled: Array
    """g_i of (7)"""


@dataclass(frozen=True)
class RAdmm(ObjectivePerturbation):
    """Recycled ADMM [ZKL19]."""

    usual_rounds: ClassVar[int] = 2
    state: ClassVar[Any] = State

    eta: float | None = hyperparameter(None, admm.ETA_HELP, minimum=0.0)

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for what the method cannot work with."""
        super().check(terms)
        admm.positive("eta", self.proximal(terms))

    def proximal(self, terms: Terms) -> float:
        """Return eta."""
        return admm.own_curvature(terms) if self.eta is None else self.eta

    def released(self, rounds: int) -> int:
        """Return the odd rounds."""
        return (rounds + 1) // 2

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return rho and eta, where they are derived."""
        return super().counts(terms) | ({"eta": self.proximal(terms)} if self.eta is None else {})

    def private(self, t: int) -> bool:
        """Return whether round t touches data."""
        return t % 2 == 1

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run (1), (2) and (7), or (8)."""
        terms, w, g, p, step = agent.terms, state.w, state.recycled, state.pull, state.scratch
        coupling = 2.0 * self.penalty(terms) * terms.degree
        self.attract(agent, state)
        if self.private(t):
            self.perturbed_step(agent, state)
            combine(g, (-coupling, w), (1.0, p))  # (7)
        else:
            combine(step, (coupling, w), (1.0, g), (-1.0, p), over=coupling + self.proximal(terms))
            w -= step  # (8)
        yield from self.spread(agent, state, t)
