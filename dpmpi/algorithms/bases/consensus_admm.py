"""What the ADMM methods share; not a method itself.

Consensus over the edges of a graph, for local objectives f_i + h and a penalty rho > 0 per edge. Agent i keeps a public
iterate w_i, the sum s_i of its neighbours' iterates and a multiplier gamma_i, all zero at the start. In every round,
with d_i its number of neighbours,

    p_i     = 2 gamma_i + rho (s_i + d_i w_i)                                                       (1)
    w_i    <- a minimiser, exact or not, of  f_i(w) + h(w) - <p_i, w> + rho d_i |w|^2               (2)
    s_i    <- sum over the neighbours j of w_j                                                      (3)
    gamma_i <- gamma_i - (rho/2) (d_i w_i - s_i)                                                    (4)

Up to a constant, (2) is f_i + h - 2 <gamma_i, w> + rho sum_j |w - (w_i + w_j)/2|^2: Eq. (9a) with (8) of [HG20]; (4) is
its (9b). As every edge has the same rho, the gamma_i always add up to zero, so that a fixed point of (1) to (4), at
which all w_i agree, minimises sum_i (f_i + h) = n F. Everything here depends on data through the released w_i alone.

Defaults, from public facts alone. beta = smoothness of a mean loss (valid for all data) + l2 weight; where there is no
smoothness, L takes its place; for what a rank alone must know, its f_i with its weight takes the mean loss's place. rho
= beta / (16 max_j d_j): on logistic problems with unit rows 2 rho d_i is then about .03 on a regular graph, between the
values at which consensus or the local objectives become too slow.

Under noise, methods that solve (2) exactly release minimisers of objectives with the strong convexity q = 2 rho d at
least: the noise of such a minimiser, in the mean over all ranks, is L nu sqrt(k)/q in every coordinate, where L nu
sqrt(k) is that of a mean gradient if k are released (`Facts.noise`). Rows have norm 1 at most, so it is the noise of a
score, too. With

    rho = 2 L nu sqrt(k) / (2 max_j d_j)                                                            (5)

it is 1/2, which costs a logistic loss, of curvature 1/4 at most, (1/4)(1/2)^2/2 = 0.03 at most. A smaller q goes
farther (k/q is the flow time of k such steps), and drowns in noise what it has learned.

[HG20] Huang, Gong. Differentially private ADMM for convex distributed learning: improved accuracy via multi-step
       approximation. 2020.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dpmpi.core import (
    Agent,
    Array,
    Asked,
    Facts,
    Method,
    NeighbourSum,
    Steps,
    Terms,
    combine,
    four_digits,
    held_back,
    hyperparameter,
    public,
)
from dpmpi.errors import ConfigError

RHO_HELP = (
    "penalty of disagreement; default beta / (16 largest degree), for dp-admm beta / 8; with noise, for methods that "
    "minimise exactly, by --epsilon"
)
ETA_HELP = "weight of the proximal term |w - w_i|^2 / 2; default beta, for dp-admm beta / 2"
GROWTH_HELP = "eta, or eta sqrt(steps so far); auto: constant for a smooth loss"
LARGEST_NOISE = 0.5
"""The noise of a score that (5) allows."""
FINEST = 2.0**-48
"""The smallest tolerance of a local minimisation, in L."""
WHY_PUBLIC = "computed from releases, this rank's and its neighbours', and public parameters"


def curvature(terms: Terms) -> float:
    """Return beta, the same for all ranks: the smoothness of a mean loss + h, or L where it is not smooth."""
    return (terms.lipschitz if terms.smoothness is None else terms.smoothness) + terms.strong_convexity


def own_curvature(terms: Terms) -> float:
    """Return beta of this rank: the smoothness of f_i + h, or its L."""
    own = terms.own_lipschitz if terms.own_smoothness is None else terms.own_smoothness
    return own + terms.strong_convexity


def positive(name: str, value: float) -> None:
    """Raise `ConfigError` unless the hyperparameter is above 0."""
    if not value > 0.0:
        raise ConfigError(f"expected --{name} above 0, found {value}: leave it out for the default")


def smooth(terms: Terms, method: str) -> float:
    """Return the smoothness of f_i; raise `ConfigError` if there is none."""
    if terms.own_smoothness is None:
        raise ConfigError(
            f"expected a smooth loss and rows of norm at most 1 for {method}, found a loss without a curvature bound: "
            "use --loss logistic, squared or mean with normalized rows, or ip-admm"
        )
    return terms.own_smoothness


def check_integrable(terms: Terms, method: str) -> None:
    """Raise `ConfigError` unless clipped gradients are those of a convex function."""
    if not terms.integrable:
        raise ConfigError(
            f"expected a clip that leaves the gradients of {terms.scores} scores as they are for {method}, found "
            f"{terms.lipschitz:g}: give --lipschitz 1.415 for softmax with normalized rows, or use momentum"
        )


def grown(eta: float, growth: str, terms: Terms, step: int) -> float:
    """Return the weight of the proximal term in the step-th step: eta, or eta sqrt(step)."""
    grows = growth == "sqrt" or (growth == "auto" and terms.smoothness is None)
    return eta * math.sqrt(step) if grows else eta


def full_batch(terms: Terms, method: str) -> None:
    """Raise `ConfigError` for a batch that is not all records."""
    if terms.sampling.kind != "full":
        raise ConfigError(
            f"expected all records in every round for {method}, found {terms.sampling.kind}: use --batch full"
        )


@dataclass
class State:
    """What an agent carries from round to round."""

    w: Array
    near: Array
    """s_i of (3)"""
    gamma: Array
    pull: Array
    """p_i of (1)"""
    total: Array
    """The sum of the iterates that the model averages."""
    scratch: Array


@dataclass(frozen=True)
class Averaging(Method):
    """A method whose model is an average of one public iterate per round."""

    average: Literal["tail", "mean", "last"] = hyperparameter(
        "tail", "model: mean over the second half of the rounds, over all rounds, or the last iterate"
    )

    def skipped(self, terms: Terms) -> int:
        """Return the number of first rounds that do not count in the average; all if there is none."""
        return {"tail": terms.rounds // 2, "mean": 0, "last": sys.maxsize}[self.average]

    def remember(self, agent: Agent, w: Array, total: Array, t: int) -> None:
        """Add the iterate of round t to `total` if it counts."""
        if t > self.skipped(agent.terms):
            total += w

    def write_average(self, agent: Agent, w: Array, total: Array, t: int, out: Array) -> None:
        """Write the mean of the iterates that count up to round t to `out`; the last one if none does."""
        counted = t - self.skipped(agent.terms)
        np.copyto(out, w if counted <= 0 else total)
        if counted > 0:
            out /= counted


@dataclass(frozen=True)
class ConsensusAdmm(Averaging):
    """Steps (1), (3) and (4), for methods that differ in (2)."""

    state: ClassVar[Any] = State
    asks: ClassVar[tuple[Asked, ...]] = ("neighbour sum",)

    rho: float | None = hyperparameter(None, RHO_HELP, minimum=0.0)

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for a rho that is not above 0."""
        positive("rho", self.penalty(terms))

    def penalty(self, terms: Terms) -> float:
        """Return rho."""
        return curvature(terms) / (16.0 * max(1, terms.max_degree)) if self.rho is None else self.rho

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return rho, if it is derived."""
        return {"rho": self.penalty(terms)} if self.rho is None else {}

    def attract(self, agent: Agent, state: State) -> None:
        """Compute (1)."""
        p, gamma = state.pull, state.gamma
        combine(p, (agent.terms.degree, state.w), (1.0, state.near))
        combine(p, (self.penalty(agent.terms), p), (1.0, gamma), (1.0, gamma))

    def spread(self, agent: Agent, state: State, t: int) -> Steps:
        """Run (3) and (4), and count w_i in the model."""
        yield NeighbourSum(public(state.w, because=WHY_PUBLIC), out=state.near)  # (3)
        apart, rho = state.scratch, self.penalty(agent.terms)
        combine(apart, (agent.terms.degree, state.w), (-1.0, state.near))
        combine(state.gamma, (1.0, state.gamma), (-rho / 2.0, apart), scratch=apart)  # (4)
        self.remember(agent, state.w, state.total, t)

    def regroup(self, agent: Agent, state: State) -> Steps:
        """Forget the multipliers, which add up to zero no more, and ask the neighbours that are left for (3)."""
        state.gamma.fill(0.0)
        yield NeighbourSum(public(state.w, because=WHY_PUBLIC), out=state.near)

    def model(self, agent: Agent, state: State, t: int, out: Array) -> None:
        """Write the average of the public iterates up to round t to `out`."""
        self.write_average(agent, state.w, state.total, t, out)


@dataclass(frozen=True)
class LocalMinimisation(ConsensusAdmm):
    """What methods that solve (2) exactly need: a smooth loss, all records, a quadratic penalty."""

    exactness: ClassVar[float] = 5e-4
    """The default of the tolerance, in L / records: with it noise on the minimiser grows by a thousandth."""

    tolerance: float | None = hyperparameter(
        None,
        "a local minimisation ends at most this over its strong convexity from the minimum; default 5e-4 L/records, "
        "for dvp-admm and r-admm 5e-6",
        minimum=0.0,
    )

    def released(self, rounds: int) -> int:
        """Return how many minimisers are released."""
        return rounds

    def fitted(self, facts: Facts) -> Self:
        """Return the method with rho by (5), where it is not given and there is noise."""
        if self.rho is not None or not facts.noise or not facts.max_degree:
            return self
        return replace(self, rho=four_digits(self.fitting_convexity(facts) / (2.0 * facts.max_degree)))

    def fitting_convexity(self, facts: Facts) -> float:
        """Return q of (5)."""
        return facts.noise * math.sqrt(self.released(facts.rounds)) / LARGEST_NOISE

    def flow(self, terms: Terms) -> float | None:
        """Return how far the rounds go: k/q, as said above (5)."""
        coupling = 2.0 * self.penalty(terms) * terms.degree
        return held_back(terms.active_rounds / coupling, terms) if coupling > 0.0 else None

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` where (2) cannot be solved to a certified accuracy."""
        super().check(terms)
        smooth(terms, "exact minimisation")
        check_integrable(terms, "exact minimisation")
        full_batch(terms, "exact minimisation")
        positive("tolerance", self.accuracy(terms))
        if self.accuracy(terms) < FINEST * terms.own_lipschitz:
            raise ConfigError(
                f"expected --tolerance of at least {FINEST * terms.own_lipschitz:.2g}, which leaves room for rounding, "
                f"found {self.accuracy(terms):.2g}: give a larger one"
            )
        if terms.l1 > 0.0 or terms.bounded or terms.own_penalty:
            found = "an l1 term" if terms.l1 > 0.0 else "a domain" if terms.bounded else "one of your own"
            raise ConfigError(
                f"expected a penalty l2 or none without domain for exact minimisation, found {found}: use ip-admm"
            )
        if self.modulus(terms) <= 0.0:
            raise ConfigError(
                "expected a neighbour or an l2 penalty for exact minimisation, found neither: use --penalty l2:W"
            )

    def quadratic(self, terms: Terms) -> float:
        """Return the weight q_i = l2 + 2 rho d_i of |w|^2 / 2 in (2)."""
        return terms.strong_convexity + 2.0 * self.penalty(terms) * terms.degree

    def modulus(self, terms: Terms) -> float:
        """Return the strong convexity mu of (2) that holds for all data."""
        return terms.curvature_floor * terms.weight + self.quadratic(terms)

    def accuracy(self, terms: Terms) -> float:
        """Return tau: what is computed for (2) is at most tau / mu from its minimiser, mu the strong convexity."""
        if self.tolerance is not None:
            return self.tolerance
        return self.exactness * terms.own_lipschitz / terms.sampling.records

    def minimise(self, agent: Agent, linear: Array, out: Array) -> None:
        """Write the minimiser of f_i(w) + <linear, w> + (q_i/2) |w|^2, to the accuracy tau, to `out`.

        The number of steps is a function of `Terms`: the same in every round, for all data, noise and `linear`.
        """
        terms = agent.terms
        bound = smooth(terms, "exact minimisation")
        agent.problem.minimise(linear, self.quadratic(terms), bound, out, self.accuracy(terms))
