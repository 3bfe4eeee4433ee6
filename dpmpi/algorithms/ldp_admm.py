"""Linearised ADMM with random weights and noised gradients, on any connected graph.

Agent i keeps a model x_i and a dual lambda_i, zero at the start. In round t, with N_i its neighbours, g_i the gradient
of its loss f_i at x_i, and u drawn afresh, uniform on (0, 1) in each coordinate and kept secret,

    w_i       = u o x_i + (1 - u) o (1/|N_i|) sum_{j in N_i} x_j                                    (1)
    s_i       = g_i + noise of scale sigma / growth^t                                               (2)
    x_i      <- argmin_x h(x) + (D/2) |x - v_i|^2,   v_i = w_i - (s_i - lambda_i) / D               (3)
    lambda_i <- lambda_i + zeta sum_{j in N_i} (x_j - x_i)                                          (4)

and the model is x_i. (1) to (4) are Algorithm 1 of [XYD], its Eq. (6), with the following equivalences. Noise Delta on
the iterate is noise D Delta on the gradient: the paper's Laplace rate beta_t is a scale of D/beta_t in (2), and both
the noise and what one record moves are divided by D on the way to x_i. Its penalties are Gamma = D u and
rho |N_i| = D (1 - u). Its objective has h inside f_i; in (3) h is not linearised, so that l1 and domains work, and
for an l2 penalty (3) is v_i / (1 + l2/D).

Fixed points. If (4) stands still, all x_i are the same x; then w_i = x, and (3) says lambda_i - g_i is a subgradient
of h at x. (4) keeps sum_i lambda_i = 0, so sum_i g_i + n dh(x) contains 0: x is the optimum, whatever u was.

Stability. For a d-regular graph, quadratic f_i of curvature H <= M, h = 0 and the mean of u, a mode with eigenvalue l
of the graph's Laplacian evolves with a = 1 - l/(2d) - H/D by

    z^2 - (1 + a - zeta l/D) z + a = 0,   |z| < 1  iff  |a| < 1 and 0 < zeta l/D < 2 + 2a           (5)

and with zeta = D/(2d), where q = zeta l/D = l/(2d) <= 1, the last condition is 3q + 2 H/D < 4: it holds for all modes
if D > 2M. Hence the defaults D = 2.5 (M + l2), zeta = D/(2 d_max). Fluctuations of u are not part of this argument;
that they do no harm is measured in the tests, at the largest curvature.

Noise growth. Where f_i has the curvature m0 that it has for all data (0, but for the mean loss), (3) shrinks an error
by c = (1 - m0/D) / (1 + l2/D) a round. The noise of round t thus weighs c^(T-t) in x after round T, and the sum over t
of c^(2(T-t)) s_t^2 is smallest for a given sum of 1/s_t^2 at s_t^2 ~ c^t:

    growth = c^(-1/2), but at most 1000^(1/T)                                                       (6)

The bound keeps the first noise below 1000 times the last in runs that are longer than this needs.

Privacy: the data enter only through (2); x_i is made of releases and of random weights that do not depend on data. The
weights hide more than the certified cost says: it counts the noise of (2) alone. Theorem 2.2 of [XYD] measures what
was given away in one run; it is a function of the data, so only a `Witness` on the rank is told.

Corrected: [XYD] subtracts in (4), which diverges; sums over all agents where the neighbours are meant (its Theorem
3.1 is for graphs); takes labels {0, 1} in a loss of margins, where label 0 has a constant loss, for {-1, +1}; takes
1/b for the sensitivity of a mean over b records, which is 2/b for replacing one; and drops the factor of the dimension
in the corollary of Theorem 2.2.

[XYD] Xiao, Ye, Devadas. Local differential privacy in decentralized optimization. arXiv:1902.06101, 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpmpi.algorithms.bases.random_weights import WHY_PUBLIC, check_growth, falling
from dpmpi.core import (
    Agent,
    Array,
    Asked,
    Facts,
    Method,
    NeighbourSum,
    Planned,
    Steps,
    Terms,
    combine,
    held_back,
    hyperparameter,
    public,
    rounds_to_go,
)
from dpmpi.errors import ConfigError

_LARGEST_FALL = 1e3  # of the noise over a run, by default


@dataclass
class State:
    """What an agent carries from round to round."""

    x: Array
    dual: Array
    near: Array
    """sum of the neighbours' x"""
    w: Array


@dataclass(frozen=True)
class LdpAdmm(Method):
    """Linearised ADMM with random weights, Algorithm 1 of [XYD]."""

    state: ClassVar[Any] = State
    asks: ClassVar[tuple[Asked, ...]] = ("neighbour sum",)
    mechanisms: ClassVar[tuple[str, ...]] = ("laplace", "gaussian")
    testifies: ClassVar[bool] = True

    damping: float | None = hyperparameter(None, "D: a step is 1/D long; derived: 2.5 (smoothness + l2)", minimum=0.0)
    zeta: float | None = hyperparameter(None, "step of the dual; derived: D / (2 largest degree)", minimum=0.0)
    noise_growth: float | None = hyperparameter(
        None, "g: noise of round t is sigma / g^t; derived: about sqrt(1 + l2/D)", minimum=0.0
    )

    def fitting_rounds(self, facts: Facts) -> int:
        """Return the rounds in which steps of 1/D, D = 2.5 times the smoothness, go as far as the noise allows."""
        if not facts.noise:
            return self.usual_rounds
        return rounds_to_go(facts, facts.longest_step / 5.0, self.usual_rounds, 1000)

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` without neighbours, without a step length, or for a noise that vanishes or explodes."""
        if terms.size < 2:
            raise ConfigError(f"expected at least 2 ranks for ldp-admm, found {terms.size}: start more")
        if self.damping is None and terms.smoothness is None:
            raise ConfigError(
                "expected a bound of the loss's curvature, from which ldp-admm derives its step, found none: use "
                "--loss logistic with normalized rows, or set --damping"
            )
        for name, value in (("--damping", self.damping), ("--zeta", self.zeta), ("--noise-growth", self.noise_growth)):
            if value is not None and not 0.0 < value < math.inf:
                raise ConfigError(f"expected {name} > 0, found {value:g}: leave it out for the default")
        check_growth(terms, self._growth(terms))

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return D, zeta and g, where they are derived."""
        found = {"damping": self._damping(terms), "zeta": self._zeta(terms), "noise-growth": self._growth(terms)}
        given = {"damping": self.damping, "zeta": self.zeta, "noise-growth": self.noise_growth}
        return {name: value for name, value in found.items() if given[name] is None}

    def flow(self, terms: Terms) -> float:
        """Return how far the steps (3) go, each 1/D long."""
        return held_back(terms.active_rounds / self._damping(terms), terms)

    def releases(self, terms: Terms) -> list[Planned]:
        """Return (2) in every round."""
        return falling(terms, self._growth(terms))

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run steps (1) to (4)."""
        terms, x, near, w = agent.terms, state.x, state.near, state.w
        D, degree, scale = self._damping(terms), terms.degree, float(self._growth(terms) ** -t)
        query = agent.problem.subgradient(x)
        clean = None if agent.witness is None else (x.copy(), query.value.copy())
        s = agent.release(query, scale).value  # (2)
        near /= degree
        x -= near  # x is needed no more: (3) writes the next one
        agent.stream.uniforms(w.size, out=w)
        w *= x
        w += near  # (1)
        combine(s, (1.0, s), (-1.0, state.dual), over=D)
        w -= s  # v of (3)
        if clean is not None and agent.witness is not None and agent.stopped is None:
            # x is a function of v, so that what v gives away bounds what x does. The interval on which v was uniform
            # before its noise holds the gradient itself: it is private.
            before, gradient = clean
            shift = (state.dual - gradient) / D
            ends = np.minimum(before, near) + shift, np.maximum(before, near) + shift
            noise = agent.mechanism.sigma * scale / (D * math.sqrt(2.0))
            agent.witness.saw(w, *ends, noise, query.sensitivity / D)
        agent.penalty.prox(w, 1.0 / D, out=x)  # (3)
        yield NeighbourSum(public(x, because=WHY_PUBLIC), out=near)
        combine(w, (-degree, x), (1.0, near))
        combine(state.dual, (1.0, state.dual), (self._zeta(terms), w), scratch=w)  # (4)

    def regroup(self, agent: Agent, state: State) -> Steps:
        """Forget the dual, which adds up to zero no more, and ask the neighbours that are left for their x."""
        state.dual.fill(0.0)
        yield NeighbourSum(public(state.x, because=WHY_PUBLIC), out=state.near)

    def _damping(self, terms: Terms) -> float:
        return self.damping or 2.5 * ((terms.largest_smoothness or 0.0) + terms.strong_convexity)

    def _zeta(self, terms: Terms) -> float:
        return self._damping(terms) / (2.0 * terms.max_degree) if self.zeta is None else self.zeta

    def _growth(self, terms: Terms) -> float:
        if self.noise_growth is not None:
            return self.noise_growth
        D = self._damping(terms)
        kept = max(1.0 - terms.curvature_floor / D, _LARGEST_FALL**-2) / (1.0 + terms.strong_convexity / D)
        return float(min(kept**-0.5, _LARGEST_FALL ** (1.0 / terms.rounds)))  # (6)
