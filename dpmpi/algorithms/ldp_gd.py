"""Gradient descent with random weights around the mean, on the complete graph.

All n agents know the last messages y_j of all, zero at the start. With eta_t and the random weights of
`bases/random_weights.py`, agent i has

    x     = prox of eta_{t-1} h at (1/n) sum_j y_j                                                  (4)
    (a,b) = the pair of agents, a != b, whose messages are farthest apart in L1                     (5)
    y_i  <- x + (2 u - 1) o (y_a - y_b) / n - eta_t s_i                                             (6)

(6) being (2) there with low, high = x -+ (y_a - y_b) / n. The model is x, the same for all, or the mean of x over the
rounds. (6) is Eq. (7) of [XYD], Algorithm 2: 2u/n y_a + 2(1-u)/n y_b + (1/n) sum_{j != a,b} y_j is the mean plus
(2u-1)(y_a - y_b)/n. The random term has mean zero, and as y_a - y_b shrinks with eta (the weights of (6) shrink it by
2/n a round, gradients add to it in proportion to eta) it acts like the noise of stochastic gradients: it averages out
if sum eta = infinity and sum eta^2 < infinity, as for eta_t = c/t. With eta_t = c r^t the steps sum up to c r/(1-r)
only, so that x stops short of the optimum however long it runs.

Corrected: (5) needs a != b.

[XYD] see `bases/random_weights.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmpi.algorithms.bases.random_weights import WHY_PUBLIC, RandomWeights, State
from dpmpi.core import Agent, Array, Gather, Steps, Terms, combine, public
from dpmpi.errors import ConfigError


@dataclass(frozen=True)
class LdpGd(RandomWeights):
    """Gradient descent with random weights around the mean, Algorithm 2 of [XYD]."""

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for a graph that is not complete, and for steps or noise that vanish."""
        if terms.degree != terms.size - 1:
            raise ConfigError(
                f"expected every rank to hear from all others, found a rank with {terms.degree} neighbours of "
                f"{terms.size - 1}: use --graph complete, or ldp-admm"
            )
        super().check(terms)

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run (6), then (4), (5) for the next round."""
        eta, x, low, high, apart = self.eta(agent.terms, t), state.x, state.low, state.high, state.scratch
        self.descend(agent, state, eta, t)  # (6)
        heard: dict[int, Array] = yield Gather(public(state.y, because=WHY_PUBLIC))
        y = [heard[j] if j != agent.rank else state.y for j in range(agent.size)]
        combine(high, *((1.0, one) for one in y), over=agent.size)
        agent.penalty.prox(high, eta, out=x)  # (4)
        a, b = _farthest(y, apart)  # (5)
        combine(apart, (1.0, y[a]), (-1.0, y[b]), over=agent.size)
        combine(low, (1.0, x), (-1.0, apart))
        combine(high, (1.0, x), (1.0, apart))


def _farthest(vectors: list[Array], scratch: Array) -> tuple[int, int]:
    """Return the first pair a < b with the largest |v_a - v_b|_1; (0, 0) if there is but one vector."""
    best, pair = -1.0, (0, 0)
    for b, v in enumerate(vectors):
        for a in range(b):
            np.subtract(vectors[a], v, out=scratch)
            np.abs(scratch, out=scratch)
            distance = float(scratch.sum())
            if distance > best:
                best, pair = distance, (a, b)
    return pair
