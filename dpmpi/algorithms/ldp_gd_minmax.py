"""Gradient descent with random weights between the neighbours' extremes, on any connected graph.

With N_i+ the neighbours of agent i and itself, and eta_t, s_i and the random weights of `bases/random_weights.py`, per
coordinate,

    low_i = min over j in N_i+ of x_j,   high_i = max over j in N_i+ of x_j                         (4)
    x_i  <- prox of eta_t h at  low_i + u o (high_i - low_i) - eta_t s_i                            (5)

from x = 0; s_i is taken at x_i. (5) is Eq. (28) of [XYD], Algorithm 2*. The weights are centred on the middle of the
range, not on the mean: the limit balances the extreme gradients instead of all, and is not the optimum unless the
agents are alike or two. It is here to be compared, not to be used.

[XYD] see `bases/random_weights.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmpi.algorithms.bases.random_weights import RATIO_HELP, STEPS_HELP, WHY_PUBLIC, RandomWeights, State
from dpmpi.core import Agent, Array, Gather, Steps, hyperparameter, public


@dataclass(frozen=True)
class LdpGdMinmax(RandomWeights):
    """Gradient descent with random weights between the neighbours' extremes, Algorithm 2* of [XYD]."""

    step_schedule: Literal["harmonic", "sqrt", "geometric"] = hyperparameter("sqrt", STEPS_HELP)
    step_ratio: float = hyperparameter(0.93, RATIO_HELP, minimum=0.0)

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run (5), then (4) for the next round."""
        eta, x, low, high = self.eta(agent.terms, t), state.x, state.low, state.high
        self.descend(agent, state, eta, t)
        agent.penalty.prox(state.y, eta, out=x)  # (5)
        heard: dict[int, Array] = yield Gather(public(x, because=WHY_PUBLIC))
        np.copyto(low, x)
        np.copyto(high, x)
        for other in heard.values():
            np.minimum(low, other, out=low)  # (4)
            np.maximum(high, other, out=high)
