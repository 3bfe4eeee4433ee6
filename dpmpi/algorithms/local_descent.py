"""Gradient descent with random weights: `ldp-gd` on the complete graph, `ldp-gd-minmax` on any.

`ldp-gd`. All n agents know the last messages y_j of all, hence their mean. With eta_t the step of round t and w_i drawn
afresh, uniform on (0, 1) in each coordinate and kept secret, agent i does

    x     = prox of eta_{t-1} h at (1/n) sum_j y_j                                                  (1)
    (a,b) = the pair of agents, a != b, whose messages are farthest apart in L1                     (2)
    s_i   = gradient of f_i at x + noise of scale sigma / growth^t                                  (3)
    y_i  <- x + (2 w_i - 1) o (y_a - y_b) / n - eta_t s_i                                           (4)

starting from y = 0. The model is x, the same for all, or the mean of x over the rounds. (4) is Eq. (7) of [XYD],
Algorithm 2: 2w/n y_a + 2(1-w)/n y_b + (1/n) sum_{j != a,b} y_j is the mean plus (2w-1)(y_a - y_b)/n. The random term
has mean zero, and as y_a - y_b shrinks with eta (the weights of (4) shrink it by 2/n a round, gradients add to it in
proportion to eta) it acts like the noise of stochastic gradients: it averages out if sum eta = infinity and
sum eta^2 < infinity, as for eta_t = c/t. With eta_t = c r^t the steps sum up to c r/(1-r) only, so that x stops short
of the optimum however long it runs.

`ldp-gd-minmax`. With N_i+ the neighbours of agent i and itself, per coordinate,

    low_i = min over j in N_i+ of x_j,   high_i = max over j in N_i+ of x_j                         (5)
    s_i   = gradient of f_i at x_i + noise of scale sigma / growth^t                                (6)
    x_i  <- prox of eta_t h at  w_i o low_i + (1 - w_i) o high_i - eta_t s_i                        (7)

(7) is Eq. (28) of [XYD], Algorithm 2*. The weights are centred on the middle of the range, not on the mean: the limit
balances the extreme gradients instead of all, and is not the optimum unless the agents are alike or two. It is here to
be compared, not to be used.

Steps: eta_t = min(1/M, c/t), min(1/M, c/sqrt(t)) or min(1/M, c r^t), with M a bound of f_i's curvature: proximal steps
longer than 1/M need not descend.                                                                   (8)

Privacy: the data enter only through (3), (6); messages are made of releases and of random weights that do not depend
on data. The paper's Laplace rate beta_t on the iterate is a scale of 1/(eta_t beta_t) on the gradient. The certified
cost counts the noise alone; what the weights hide beyond it only a `Witness` on the rank is told.

Corrected: (2) needs a != b; [XYD] prints e^epsilon as epsilon in its Eq. (8), takes labels {0, 1} where {-1, +1} are
meant, and 1/b for the sensitivity of a mean over b records, which is 2/b for replacing one. Its h is inside f_i; here
it is handled by its proximal step.

[XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from dpmpi.core import Agent, Array, Gather, Steps, Terms, public
from dpmpi.errors import ConfigError
from dpmpi.methods import Asked, Method, Planned

WHY_PUBLIC = "made of releases, and of random weights that do not depend on data"

_LARGEST_CHANGE = 1e12  # of the noise over a run: beyond it the scale has no meaning in float64 sums
_SHORTEST = 1e-100


@dataclass
class State:
    """What an agent carries from round to round."""

    x: Array
    low: Array
    high: Array
    """The next message is uniform between `low` and `high` before its gradient step."""
    total: Array
    """sum of x over the rounds"""
    y: Array
    scratch: Array


@dataclass(frozen=True)
class LocalDescent(Method):
    """Gradient descent with random weights around the mean, Algorithm 2 of [XYD]."""

    mechanisms: ClassVar[tuple[str, ...]] = ("laplace", "gaussian")
    asks: ClassVar[tuple[Asked, ...]] = ("gather",)
    testifies: ClassVar[bool] = True

    step: float | None = field(
        default=None,
        metadata={"minimum": 0.0, "help": "c of the step; derived: 1/l2 (harmonic), 1/(smoothness + l2) (others)"},
    )
    step_schedule: Literal["harmonic", "sqrt", "geometric"] = field(
        default="harmonic", metadata={"help": "c/t, c/sqrt(t) or c r^t, never longer than 1/smoothness"}
    )
    step_ratio: float = field(default=0.95, metadata={"minimum": 0.0, "help": "r of geometric steps"})
    noise_growth: float = field(default=1.0, metadata={"minimum": 0.0, "help": "g: noise of round t is sigma / g^t"})
    average: Literal["last", "mean"] = field(
        default="last", metadata={"help": "the model is the last iterate, or the mean over the rounds"}
    )

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for a graph that is not complete, and for steps or noise that vanish."""
        if terms.degree != terms.size - 1:
            raise ConfigError(
                f"ldp-gd needs every rank's message on every rank, found a rank with {terms.degree} neighbours of "
                f"{terms.size - 1}: use --graph complete, or ldp-admm"
            )
        self._check_steps(terms)

    def releases(self, terms: Terms) -> Iterable[Planned]:
        """One gradient in every round, under noise that falls by the growth."""
        if self.noise_growth == 1.0:
            return [Planned(terms.gradient_sensitivity, count=terms.active_rounds)]
        rounds = range(1, terms.active_rounds + 1)
        return [Planned(terms.gradient_sensitivity, self._scale(t)) for t in rounds]

    def start(self, agent: Agent) -> State:
        """Return zeros, which all agents know of each other."""
        return State(*(np.zeros(agent.dimension) for _ in range(6)))

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run steps (3), (4), then (1), (2) for the next round."""
        eta, x, n = self._eta(agent.terms, t), state.x, agent.size
        self._descend(agent, state, eta, t)  # (3), (4)
        heard: dict[int, Array] = yield Gather(public(state.y, because=WHY_PUBLIC))
        y = [heard[j] if j != agent.rank else state.y for j in range(n)]
        np.copyto(state.high, y[0])
        for other in y[1:]:
            state.high += other
        state.high /= n
        agent.penalty.prox(state.high, eta, out=x)  # (1)
        a, b = _farthest(y, state.scratch)  # (2)
        np.subtract(y[a], y[b], out=state.scratch)
        state.scratch /= n
        np.subtract(x, state.scratch, out=state.low)
        np.add(x, state.scratch, out=state.high)

    def model(self, agent: Agent, state: State, t: int, out: Array) -> None:
        """Write x, or its mean over the points of the first t gradients, to `out`."""
        if self.average == "mean":
            np.divide(state.total, t, out=out)
        else:
            np.copyto(out, state.x)

    def _descend(self, agent: Agent, state: State, eta: float, t: int) -> None:
        """Write low + w (high - low) - eta s to y, with s the noised gradient at x."""
        if self.average == "mean":
            state.total += state.x
        query, scale = agent.problem.subgradient(state.x), self._scale(t)
        clean = None if agent.witness is None else query.value.copy()
        s = agent.release(query, scale)
        np.subtract(state.high, state.low, out=state.y)
        state.y *= agent.stream.uniforms(state.y.size)
        state.y += state.low
        s.value *= eta
        state.y -= s.value
        if clean is not None and agent.witness is not None and agent.stopped is None:
            # The interval on which y was uniform before its noise: it holds the gradient itself and is private.
            clean *= eta
            low, high = np.minimum(state.low, state.high) - clean, np.maximum(state.low, state.high) - clean
            noise = agent.mechanism.sigma * scale * eta / math.sqrt(2.0)
            agent.witness.saw(state.y, low, high, noise, query.sensitivity * eta)

    def _check_steps(self, terms: Terms) -> None:
        if self.step is not None and not 0.0 < self.step < math.inf:
            raise ConfigError(f"expected --step > 0, found {self.step:g}")
        if not 0.0 < self.step_ratio <= 1.0:
            raise ConfigError(f"expected --step-ratio above 0 and at most 1, found {self.step_ratio:g}")
        if self._eta(terms, terms.rounds) < _SHORTEST:
            raise ConfigError(
                f"expected steps above {_SHORTEST:g}, found less in round {terms.rounds}: set --step-ratio closer to 1"
            )
        if not 0.0 < self.noise_growth < math.inf:
            raise ConfigError(f"expected --noise-growth > 0, found {self.noise_growth:g}")
        if terms.rounds * abs(math.log(self.noise_growth)) > math.log(_LARGEST_CHANGE):
            raise ConfigError(
                f"expected a noise growth whose power {terms.rounds} (rounds) is within 1e-12 and 1e12, found "
                f"{self.noise_growth:g}: set --noise-growth closer to 1"
            )

    def _eta(self, terms: Terms, t: int) -> float:
        """Return (8)."""
        mu = terms.curvature_floor + terms.strong_convexity
        c = self.step
        if c is None:
            smooth = 1.0 if terms.smoothness is None else terms.smoothness + terms.strong_convexity
            c = 1.0 / mu if self.step_schedule == "harmonic" and mu > 0.0 else 1.0 / smooth
        rule = {"harmonic": 1.0 / t, "sqrt": 1.0 / math.sqrt(t), "geometric": self.step_ratio**t}
        return float(min(c * rule[self.step_schedule], 1.0 / terms.smoothness if terms.smoothness else math.inf))

    def _scale(self, t: int) -> float:
        return float(self.noise_growth**-t)


@dataclass(frozen=True)
class MinMaxDescent(LocalDescent):
    """Gradient descent with random weights between the neighbours' extremes, Algorithm 2* of [XYD]."""

    step_schedule: Literal["harmonic", "sqrt", "geometric"] = field(
        default="sqrt", metadata={"help": "c/t, c/sqrt(t) or c r^t, never longer than 1/smoothness"}
    )
    step_ratio: float = field(default=0.93, metadata={"minimum": 0.0, "help": "r of geometric steps"})

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for steps or noise that vanish."""
        self._check_steps(terms)

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run steps (6), (7), then (5) for the next round."""
        eta, x = self._eta(agent.terms, t), state.x
        self._descend(agent, state, eta, t)  # (6)
        agent.penalty.prox(state.y, eta, out=x)  # (7)
        heard: dict[int, Array] = yield Gather(public(x, because=WHY_PUBLIC))
        np.copyto(state.low, x)
        np.copyto(state.high, x)
        for other in heard.values():
            np.minimum(state.low, other, out=state.low)  # (5)
            np.maximum(state.high, other, out=state.high)


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
