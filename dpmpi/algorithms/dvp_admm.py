"""ADMM with dual variable perturbation: noise inside the local objective in every round.

A round is (1) and (2) of `bases/objective_perturbation.py`, where its privacy is proved, between the steps of
`bases/consensus_admm.py`: Algorithm 1 of [ZZ17], whose noise on the multiplier is half of nu.

[ZZ17] Zhang, Zhu. Dynamic differential privacy for ADMM-based distributed classification learning. IEEE TIFS 12(1),
       2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpmpi.algorithms.bases.consensus_admm import State
from dpmpi.algorithms.bases.objective_perturbation import ObjectivePerturbation
from dpmpi.core import Agent, Steps


@dataclass(frozen=True)
class DvpAdmm(ObjectivePerturbation):
    """Dual variable perturbation [ZZ17]."""

    usual_rounds: ClassVar[int] = 1

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run (1) and (2)."""
        self.attract(agent, state)
        self.perturbed_step(agent, state)
        yield from self.spread(agent, state, t)
