"""Consensus gradient descent with noise on the iterates, in two stages.

Agent i starts from z_i(1) = 0. With w_ij the mixing weights and X the domain, in the T rounds of stage I

    x_i(t)   = Proj_X( z_i(t) - eta_t (g_i + l2 z_i(t)) ),   g_i = gradient of f_i at z_i(t) over a batch     (1)
    y_i(t)   = x_i(t) + n_i(t),   n_i(t) noise of standard deviation M_t                                   (2)
    v_i(t)   = sum_j w_ij y_j(t)                                                                           (3)
    z_i(t+1) = prox of eta_t (l1 |.|_1 + indicator of X) at v_i(t)                                         (4)

and in stage II, t > T, pure consensus and no noise:

    v_i(t)   = sum_j w_ij v_j(t-1)                                                                         (5)
    model    = (4) at v_i(t), with eta_T in stage II                                                       (6)

For the local objectives f_i + l2 |.|^2 / 2 and l1 = 0 these are Eqs. (8), (9), (11), (12) of [SKD], where (4) is the
projection; without noise and stage II, gradient descent with consensus [NO]. An l1 penalty acts in (4), on the average.
With mu and L the strong convexity and smoothness of f_i + l2 |.|^2 / 2 and c = (1/mu + 1/L) / 2 as in [SKD] Theorem 2,

    eta_t = min(step, c/t),   step = 2/(mu + L);  for a loss that is not smooth 1/L = 0 in c, step = 1/Lipschitz   (7)

the cap being what keeps ill-conditioned problems from overshooting. Noise of round t reaches the result with the factor

    W_t = prod_{s > t} (1 - mu eta_s)   at most,                                                           (8)

and sum_t W_t^2 M_t^2 is least, for a given sum of (eta_t / M_t)^2, that is for a given privacy, with

    M_t^2 = constant * eta_t / W_t.                                                                        (9)

For mu << L and eta_t = c/t that is the t^(-3/2) of [SKD] Theorem 2; for mu = L, as for the mean, it is t^(-2).

`hmv-dgd` is (1) to (4) with eta_t = step q^(t-1) and Laplace noise of scale ~ p^(t-1), q < p < 1 [HMV]: the sum of
eta_t / M_t converges, so that any number of rounds has a finite pure epsilon.

Privacy: one record moves g_i by at most 2 L / b, and a projection moves no two points apart, so that it moves x_i by
2 L eta_t / b given what was said before. (3) to (6) use y and never x, the self term of (3) included.

Rounding: what is released is the move x_i - (1 - eta_t l2) z_i, the difference of x_i to what is public. It has an
error of at most (m + 16) u (|z_i| + eta L), u = 2^-52, where there is a projection, and of 4 u eta L where there is
none. The declared sensitivity has a slack of 1e-5 for it, and a step that is too small for that (which depends on z_i
and eta_t alone) is not taken: the noise is then added to nothing.

Corrected: [SKD] Algorithm 1, line 8, starts stage II by sending x_i(T) itself, from which everybody can compute the
gradient of round T; and a self term of (3) with x_i in place of y_i undoes the noise in the same way. Stage II projects
its output alone: y lies outside of X, and projecting on the way would move the average. The sensitivity is that of one
record, not of f_i. [HMV] protects a rank's whole function; here it is one record, as everywhere else.

[SKD] Showkatbakhsh, Karakus, Diggavi. Differentially private consensus-based distributed optimization. 2019.
[HMV] Huang, Mitra, Vaidya. Differentially private distributed optimization. ICDCN 2015.
[NO]  Nedic, Ozdaglar. Distributed subgradient methods for multi-agent optimization. IEEE TAC 54(1), 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, Literal

import numpy as np

from dpmpi.core import Agent, Array, Mix, Query, Steps, Terms, public
from dpmpi.errors import ConfigError
from dpmpi.methods import Exchanges, Method, Planned

WHY_PUBLIC = "a weighted sum of noised iterates"
_SLACK = 1e-5  # of the sensitivity, for rounding

Decay = Literal["auto", "harmonic", "sqrt", "constant"]
NoiseSchedule = Literal["optimal", "paper", "constant"]


@dataclass
class State:
    """What an agent carries from round to round."""

    message: Array
    """v of (3), (5), and last 1 if some rank that was heard of still moves, else 0"""
    z: Array
    scratch: Array
    steps: Array
    """eta_1 ... eta_T"""
    scales: Array
    """M_1 ... M_T relative to the run's sigma"""
    ended: int
    """The round after which all ranks are silent; 0 while they are not."""


class _Descent(Method):
    """Rounds (1) to (6); subclasses say which steps and noise."""

    def early(self) -> float:
        """Return the relative change below which stage II ends; 0: never."""
        return 0.0

    def plan(self, terms: Terms) -> tuple[Array, Array]:
        """Return (eta_1 ... eta_T, noise of the T rounds relative to the first); T is the length."""
        raise NotImplementedError

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for steps that cannot be taken."""
        self.plan(terms)

    def releases(self, terms: Terms) -> list[Planned]:
        """Return one release for each round of stage I in which the rank is active."""
        pairs = zip(*(values[: terms.active_rounds].tolist() for values in self.plan(terms)), strict=True)
        runs = ((pair, len(list(run))) for pair, run in groupby(pairs))
        return [Planned(_sensitivity(terms, eta), scale, count) for (eta, scale), count in runs]

    def exchanges(self, terms: Terms) -> list[Exchanges]:
        """Return one message a round, in stage II with one more number if it may end early."""
        T = min(len(self.plan(terms)[0]), terms.active_rounds)
        longer = terms.dimension + self.ends_early()
        both = [Exchanges("neighbours", terms.dimension, T), Exchanges("neighbours", longer, terms.active_rounds - T)]
        return [messages for messages in both if messages.count]

    def ends_early(self) -> bool:
        """Return whether stage II may end early."""
        return self.early() > 0.0

    def start(self, agent: Agent) -> State:
        """Return z = 0."""
        m = agent.dimension
        steps, scales = self.plan(agent.terms)
        return State(np.zeros(m + 1), np.zeros(m), np.zeros(m), steps, scales, 0)

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run round t of stage I or II."""
        v = state.message[:-1]
        if t > len(state.steps):
            if not state.ended:
                yield from self._agree(agent, state, t)
            return
        if t > 1:
            _prox(agent, v, float(state.steps[t - 2]), out=state.z)  # (4)
        self._descend(agent, state, float(state.steps[t - 1]), float(state.scales[t - 1]))
        yield Mix(public(v, because=WHY_PUBLIC), out=v)  # (3)

    def regroup(self, agent: Agent, state: State) -> Steps:
        """Let nobody rest before everybody was heard of again."""
        state.message[-1] = 1.0
        yield from ()

    def model(self, agent: Agent, state: State, t: int, out: Array) -> None:
        """Write (6) to `out`."""
        _prox(agent, state.message[:-1], float(state.steps[max(1, min(t, len(state.steps))) - 1]), out=out)

    def _descend(self, agent: Agent, state: State, eta: float, scale: float) -> None:
        """Write y of (2) to the message."""
        terms, z, y = agent.terms, state.z, state.message[:-1]
        np.multiply(z, 1.0 - eta * terms.strong_convexity, out=y)
        sensitivity = _sensitivity(terms, eta)
        if terms.bounded and _rounding(terms, z, eta) > _SLACK / 2.0 * sensitivity:
            move = state.scratch
            move.fill(0.0)
        else:
            move = agent.problem.subgradient(z).value
            move *= -eta
            if terms.bounded:
                np.add(y, move, out=state.scratch)
                _prox(agent, state.scratch, 0.0, out=move)  # (1)
                move -= y
        # The move is released and not x, so that a rank whose budget is spent takes the public part of the step.
        y += agent.release(Query(move, sensitivity, terms.sampling), scale).value  # (2)

    def _agree(self, agent: Agent, state: State, t: int) -> Steps:
        """Run (5); end it for all ranks in the same round once none has moved by more than the tolerance.

        Every n - 1 rounds each rank notes whether it has just moved. The notes travel with the messages: a weighted sum
        of zeros and ones is positive if and only if one of them is, and n - 1 rounds reach everybody. So all ranks know
        the same when they decide, without any further message.
        """
        message, v, before = state.message, state.message[:-1], state.scratch
        if not self.ends_early():
            yield Mix(public(v, because=WHY_PUBLIC), out=v)
            return
        k = t - len(state.steps) - 1  # rounds of stage II before this one
        np.copyto(before, v)
        heard_of = message[-1]
        yield Mix(public(message, because=WHY_PUBLIC), out=message)  # (5)
        message[-1] = float(heard_of > 0.0 or message[-1] > 0.0)
        if k % max(1, agent.size - 1) == 0:
            if k > 0 and message[-1] == 0.0:
                state.ended = t
            before -= v
            message[-1] = float(np.linalg.norm(before) > self.early() * np.linalg.norm(v))


@dataclass(frozen=True)
class ConsensusDescent(_Descent):
    """Noisy consensus gradient descent, then consensus [SKD]."""

    step: float | None = field(
        default=None, metadata={"minimum": 0.0, "help": "first, largest step; default 2/(mu+L), or 1/Lipschitz"}
    )
    step_decay: Decay = field(
        default="auto",
        metadata={"help": "harmonic: min(step, c/t); sqrt: step/sqrt(t); auto: harmonic if mu > 0, else sqrt"},
    )
    noise_schedule: NoiseSchedule = field(
        default="optimal", metadata={"help": "noise over the rounds: least error; the paper's t^(-3/4); all the same"}
    )
    consensus_rounds: int | None = field(
        default=None, metadata={"minimum": 0, "help": "the last rounds, of consensus alone; default a third"}
    )
    tolerance: float = field(
        default=0.0, metadata={"minimum": 0.0, "help": "end the consensus when nobody moves by more, relatively"}
    )

    def early(self) -> float:
        """Return the tolerance."""
        return self.tolerance

    def plan(self, terms: Terms) -> tuple[Array, Array]:
        """Return the steps (7) and the noise (9)."""
        C = terms.rounds // 3 if self.consensus_rounds is None else self.consensus_rounds
        if terms.rounds <= C:
            raise ConfigError(
                f"expected fewer consensus rounds than the {terms.rounds} rounds of the run, found {C}: "
                "the rounds before them do the work"
            )
        t = np.arange(1.0, terms.rounds - C + 1.0)
        first, mu = _first_step(terms, self.step), terms.curvature_floor + terms.strong_convexity
        if self.step_decay == "harmonic" or (self.step_decay == "auto" and mu > 0.0):
            if mu == 0.0:
                raise ConfigError("harmonic steps need strong convexity, found none: add an l2 penalty, or decay sqrt")
            L = math.inf if terms.smoothness is None else terms.smoothness + terms.strong_convexity
            steps = np.minimum(first, (1.0 / mu + 1.0 / L) / 2.0 / t)  # (7)
        else:
            steps = np.full_like(t, first) if self.step_decay == "constant" else first / np.sqrt(t)
        if self.noise_schedule == "optimal":
            scales = np.sqrt(steps / _reach(terms, steps))  # (9)
        else:
            scales = t**-0.75 if self.noise_schedule == "paper" else np.ones_like(t)
        return steps, scales / scales[0]


@dataclass(frozen=True)
class PlainDescent(ConsensusDescent):
    """Consensus gradient descent in one stage [NO]."""

    consensus_rounds: int | None = field(
        default=0, metadata={"minimum": 0, "help": "the last rounds, of consensus alone; default a third"}
    )


@dataclass(frozen=True)
class GeometricDescent(_Descent):
    """Consensus gradient descent with geometric steps and Laplace noise [HMV]."""

    mechanisms: ClassVar[tuple[str, ...]] = ("laplace", "gaussian")

    step: float | None = field(
        default=None, metadata={"minimum": 0.0, "help": "first, largest step; default 2/(mu+L), or 1/Lipschitz"}
    )
    step_ratio: float = field(default=0.8, metadata={"minimum": 0.0, "help": "q: each step over the one before"})
    noise_ratio: float = field(default=0.9, metadata={"minimum": 0.0, "help": "p: the same for the noise; q < p < 1"})

    def plan(self, terms: Terms) -> tuple[Array, Array]:
        """Return step q^(t-1) and p^(t-1)."""
        q, p = self.step_ratio, self.noise_ratio
        if not 0.0 < q < p < 1.0:
            raise ConfigError(f"expected a step ratio q and a noise ratio p with 0 < q < p < 1, found {q} and {p}")
        first = _first_step(terms, self.step)
        most = 1 + math.floor(math.log(1e-6) / math.log(q))  # later steps change nothing
        t = np.arange(min(terms.rounds, most), dtype=np.float64)
        return first * q**t, p**t


def _first_step(terms: Terms, step: float | None) -> float:
    """Return the given step, or that of (7)."""
    if step is not None:
        if not step > 0.0:
            raise ConfigError(f"expected a step > 0, found {step}")
        return step
    if terms.smoothness is None:
        return 1.0 / terms.lipschitz
    return 2.0 / (terms.curvature_floor + terms.smoothness + 2.0 * terms.strong_convexity)


def _reach(terms: Terms, steps: Array) -> Array:
    """Return W_t of (8), and at least 1/T: constant steps forget the first rounds so well that any noise would do."""
    keep = np.maximum(1.0 - (terms.curvature_floor + terms.strong_convexity) * steps[1:], 0.0)
    products: Array = np.cumprod(np.append(1.0, keep[::-1]))[::-1]
    return np.maximum(products, 1.0 / len(steps))


def _sensitivity(terms: Terms, eta: float) -> float:
    return eta * terms.gradient_sensitivity * (1.0 + _SLACK)


def _rounding(terms: Terms, z: Array, eta: float) -> float:
    """Return how far rounding can move (1) on one of two shards away from (1) on the other."""
    return 2.0 * (terms.dimension + 16) * 2.0**-52 * (math.sqrt(np.dot(z, z)) + eta * terms.lipschitz)


def _prox(agent: Agent, v: Array, eta: float, out: Array) -> None:
    """Write the prox of eta (l1 |.|_1 + indicator of X) at v; for eta = 0 the projection.

    The dual step at v with weights A = eta and 1 - eta l2 is argmin <v, x> + |x|^2 / 2 + eta l1 |x|_1 over X: minus the
    prox, because all of h is even.
    """
    agent.penalty.dual_step(v, eta, 1.0 - eta * agent.terms.strong_convexity, out=out)
    np.negative(out, out=out)
