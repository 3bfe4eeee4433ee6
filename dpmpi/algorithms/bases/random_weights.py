"""Gradient descent with random weights; what `ldp-gd` and `ldp-gd-minmax` share, and, of noise, `ldp-admm`.

A message of agent i in round t is uniform between two vectors that its neighbours know, coordinate by coordinate, less
a gradient step. With u drawn afresh, uniform on (0, 1) in each coordinate and kept secret,

    s_i = gradient of f_i at x + noise of scale sigma / growth^t                                    (1)
    y_i = low + u o (high - low) - eta_t s_i                                                        (2)
    eta_t = min(1/M, c/t), min(1/M, c/sqrt(t)) or min(1/M, c r^t)                                   (3)

with M a bound of the curvature of every f_i: proximal steps longer than 1/M need not descend. What x, low and high are
is said by the methods.

Privacy: the data enter only through (1); messages are made of releases and of random weights that do not depend on
data. The paper's Laplace rate beta_t on the iterate is a scale of 1/(eta_t beta_t) on the gradient. The certified
cost counts the noise alone; what the weights hide beyond it only a `Witness` on the rank is told.

Corrected: [XYD] prints e^epsilon as epsilon in its Eq. (8), takes labels {0, 1} where {-1, +1} are meant, and 1/b for
the sensitivity of a mean over b records, which is 2/b for replacing one. Its h is inside f_i; here it is handled by its
proximal step.

[XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dpmpi.core import (
    Agent,
    Array,
    Asked,
    Facts,
    Method,
    Planned,
    Terms,
    combine,
    held_back,
    hyperparameter,
    rounds_to_go,
)
from dpmpi.errors import ConfigError

WHY_PUBLIC = "made of releases, and of random weights that do not depend on data"
STEPS_HELP = "c/t, c/sqrt(t) or c r^t, never longer than 1/smoothness"
RATIO_HELP = "r of geometric steps"

_LARGEST_CHANGE = 1e12  # of the noise over a run: beyond it the scale has no meaning in float64 sums
_SHORTEST = 1e-100


def falling(terms: Terms, growth: float) -> list[Planned]:
    """Return one gradient in every round, under noise that falls by the growth."""
    if growth == 1.0:
        return [Planned(terms.gradient_sensitivity, count=terms.active_rounds)]
    return [Planned(terms.gradient_sensitivity, float(growth**-t)) for t in range(1, terms.active_rounds + 1)]


def check_growth(terms: Terms, growth: float) -> None:
    """Raise `ConfigError` for a noise that vanishes or explodes."""
    if terms.rounds * abs(math.log(growth)) > math.log(_LARGEST_CHANGE):
        raise ConfigError(
            f"expected a noise growth whose power {terms.rounds} (rounds) is within 1e-12 and 1e12, found "
            f"{growth:g}: set --noise-growth closer to 1"
        )


@dataclass
class State:
    """What an agent carries from round to round."""

    x: Array
    low: Array
    high: Array
    total: Array
    """sum of x over the rounds"""
    y: Array
    scratch: Array


@dataclass(frozen=True)
class RandomWeights(Method):
    """Steps (1) and (2), for methods that differ in x, low and high."""

    state: ClassVar[Any] = State
    mechanisms: ClassVar[tuple[str, ...]] = ("laplace", "gaussian")
    asks: ClassVar[tuple[Asked, ...]] = ("gather",)
    testifies: ClassVar[bool] = True

    step: float | None = hyperparameter(
        None, "c of the step; derived: 1/l2 (harmonic), 1/(smoothness + l2) (others)", minimum=0.0
    )
    step_schedule: Literal["harmonic", "sqrt", "geometric"] = hyperparameter("harmonic", STEPS_HELP)
    step_ratio: float = hyperparameter(0.95, RATIO_HELP, minimum=0.0)
    noise_growth: float = hyperparameter(1.0, "g: noise of round t is sigma / g^t", minimum=0.0)
    average: Literal["last", "mean"] = hyperparameter(
        "last", "the model is the last iterate, or the mean over the rounds"
    )

    def fitting_rounds(self, facts: Facts) -> int:
        """Return the rounds in which steps of 1/M, or 1/(M sqrt(t)), go as far as the noise allows.

        Steps of c/t, with an l2 weight of 1/flow for 1/c, are 1/M long until they have gone that far.
        """
        if not facts.noise or self.step_schedule == "geometric":
            return self.usual_rounds
        step = facts.longest_step / 2.0
        if self.step_schedule == "sqrt":
            return min(max(math.ceil((facts.flow / (2.0 * step)) ** 2), 20), 300)
        return rounds_to_go(facts, step, 20, 1000)

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for steps or noise that vanish."""
        if self.step is not None and not 0.0 < self.step < math.inf:
            raise ConfigError(f"expected --step > 0, found {self.step:g}: leave it out for the default")
        if not 0.0 < self.step_ratio <= 1.0:
            raise ConfigError(
                f"expected --step-ratio above 0 and at most 1, found {self.step_ratio:g}: leave it out for the default"
            )
        if self.eta(terms, terms.rounds) < _SHORTEST:
            raise ConfigError(
                f"expected steps above {_SHORTEST:g}, found less in round {terms.rounds}: set --step-ratio closer to 1"
            )
        if not 0.0 < self.noise_growth < math.inf:
            raise ConfigError(f"expected --noise-growth > 0, found {self.noise_growth:g}: leave it out for no growth")
        check_growth(terms, self.noise_growth)

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return the first step, if it is derived."""
        return {"step": self.eta(terms, 1)} if self.step is None else {}

    def flow(self, terms: Terms) -> float:
        """Return how far the steps (3) go."""
        return held_back(sum(self.eta(terms, t) for t in range(1, terms.active_rounds + 1)), terms)

    def releases(self, terms: Terms) -> list[Planned]:
        """Return (1) in every round."""
        return falling(terms, self.noise_growth)

    def model(self, agent: Agent, state: State, t: int, out: Array) -> None:
        """Write x, or its mean over the points of the first t gradients, to `out`."""
        if self.average == "mean":
            np.divide(state.total, t, out=out)
        else:
            np.copyto(out, state.x)

    def descend(self, agent: Agent, state: State, eta: float, t: int) -> None:
        """Write (2) to y."""
        x, y, low, high = state.x, state.y, state.low, state.high
        if self.average == "mean":
            state.total += x
        query, scale = agent.problem.subgradient(x), float(self.noise_growth**-t)
        clean = None if agent.witness is None else query.value.copy()
        s = agent.release(query, scale).value  # (1)
        combine(state.scratch, (1.0, high), (-1.0, low))
        agent.stream.uniforms(y.size, out=y)
        y *= state.scratch
        combine(y, (1.0, y), (1.0, low), (-eta, s), scratch=s)  # (2)
        if clean is not None and agent.witness is not None and agent.stopped is None:
            # The interval on which y was uniform before its noise: it holds the gradient itself and is private.
            clean *= eta
            noise = agent.mechanism.sigma * scale * eta / math.sqrt(2.0)
            ends = np.minimum(low, high) - clean, np.maximum(low, high) - clean
            agent.witness.saw(y, *ends, noise, query.sensitivity * eta)

    def eta(self, terms: Terms, t: int) -> float:
        """Return (3)."""
        mu, steepest = terms.curvature_floor + terms.strong_convexity, terms.largest_smoothness
        c = self.step
        if c is None:
            smooth = 1.0 if steepest is None else steepest + terms.strong_convexity
            c = 1.0 / mu if self.step_schedule == "harmonic" and mu > 0.0 else 1.0 / smooth
        rule = {"harmonic": 1.0 / t, "sqrt": 1.0 / math.sqrt(t), "geometric": self.step_ratio**t}
        return float(min(c * rule[self.step_schedule], 1.0 / steepest if steepest else math.inf))
