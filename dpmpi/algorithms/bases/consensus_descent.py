"""Consensus gradient descent with noise on the iterates, in two stages; what `dgd`, `dp-dgd` and `hmv-dgd` share.

Agent i starts from z_i(1) = 0. With w_ij the mixing weights and X the domain, in the T rounds of stage I

    x_i(t)   = Proj_X( z_i(t) - eta_t (g_i + l2 z_i(t)) ),   g_i = gradient of f_i at z_i(t) over a batch     (1)
    y_i(t)   = x_i(t) + n_i(t),   n_i(t) noise of standard deviation M_t                                   (2)
    v_i(t)   = sum_j w_ij y_j(t)                                                                           (3)
    z_i(t+1) = prox of eta_t (l1 |.|_1 + indicator of X) at v_i(t)                                         (4)

(with `mixes` K > 1, (3) is the K accelerated mixes of `bases/accelerated_mixing.py`; without a stage II, v is mixed
`closing_mixes` times after the last round) and in stage II, t > T, pure consensus and no noise:

    v_i(t)   = sum_j w_ij v_j(t-1)                                                                         (5)
    model    = (4) at v_i(t), with eta_T in stage II                                                       (6)

For the local objectives f_i + l2 |.|^2 / 2 and l1 = 0 these are Eqs. (8), (9), (11), (12) of [SKD], where (4) is the
projection; without noise and stage II, gradient descent with consensus [NO]. An l1 penalty acts in (4), on the average.

Privacy: one record moves g_i by at most 2 L / b, and a projection moves no two points apart, so that it moves x_i by
2 L eta_t / b given what was said before. (3) to (6) use y and never x, the self term of (3) included.

Rounding: what is released is the move x_i - (1 - eta_t l2) z_i, the difference of x_i to what is public. It has an
error of at most (m + 16) u (|z_i| + eta L), u = 2^-52, where there is a projection, and of 4 u eta L where there is
none. The declared sensitivity has a slack of 1e-5 for it, and a step that is too small for that (which depends on z_i
and eta_t alone) is not taken: the noise is then added to nothing.

Corrected: [SKD] Algorithm 1, line 8, starts stage II by sending x_i(T) itself, from which everybody can compute the
gradient of round T; and a self term of (3) with x_i in place of y_i undoes the noise in the same way. Stage II projects
its output alone: y lies outside of X, and projecting on the way would move the average. The sensitivity is that of one
record, not of f_i.

[SKD] Showkatbakhsh, Karakus, Diggavi. Differentially private consensus-based distributed optimization. 2019.
[NO]  Nedic, Ozdaglar. Distributed subgradient methods for multi-agent optimization. IEEE TAC 54(1), 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import numpy as np

from dpmpi.algorithms.bases.accelerated_mixing import AcceleratedMixing, accelerate, check_gossip, mix_again
from dpmpi.core import (
    Agent,
    Array,
    Exchanges,
    Gossip,
    Mix,
    Planned,
    Query,
    Sendable,
    Steps,
    Terms,
    combine,
    held_back,
    public,
)
from dpmpi.errors import ConfigError

WHY_PUBLIC = "a weighted sum of noised iterates"
STEP_HELP = "first, largest step; default 2/(mu+L), or 1/Lipschitz"
_SLACK = 1e-5  # of the sensitivity, for rounding


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


class ConsensusDescent(AcceleratedMixing):
    """Rounds (1) to (6), for methods that differ in steps and noise."""

    adds_up: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    step: float | None
    """A field of the methods: the first step, None if it is derived."""

    def early(self) -> float:
        """Return the relative change below which stage II ends; 0: never."""
        return 0.0

    def plan(self, terms: Terms) -> tuple[Array, Array]:
        """Return (eta_1 ... eta_T, noise of the T rounds relative to the first); T is the length."""
        raise NotImplementedError

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for steps that cannot be taken, or leave the domain however small the gradient."""
        if terms.own_penalty:
            raise ConfigError(
                "expected a penalty l2, l1, elastic or none for consensus descent, found one of your own: use dp-dda"
            )
        longest = float(self.plan(terms)[0].max(initial=0.0)) * terms.strong_convexity
        if terms.bounded and longest > 2.0:
            raise ConfigError(f"expected steps of at most 2/l2 in a domain, found {longest:.3g}/l2: lower --step")
        self.check_mixing(terms)

    def releases(self, terms: Terms) -> list[Planned]:
        """Return one release for each round of stage I in which the rank is active."""
        pairs = zip(*(values[: terms.active_rounds].tolist() for values in self.plan(terms)), strict=True)
        runs = ((pair, len(list(run))) for pair, run in groupby(pairs))
        return [Planned(_sensitivity(terms, eta), scale, count) for (eta, scale), count in runs]

    def exchanges(self, terms: Terms) -> list[Exchanges]:
        """Return one message a round, in stage II with one more number if it may end early."""
        T = min(len(self.plan(terms)[0]), terms.active_rounds)
        longer, later = terms.dimension + self.ends_early(), terms.active_rounds - T
        mixes = T * self.mixes_per_release(terms) + (0 if later else self.mixes_at_the_end(terms))
        both = [Exchanges("neighbours", terms.dimension, mixes), Exchanges("neighbours", longer, later)]
        return [messages for messages in both if messages.count]

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return the first step, if it is derived."""
        return super().counts(terms) | ({"step": float(self.plan(terms)[0][0])} if self.step is None else {})

    def flow(self, terms: Terms) -> float:
        """Return how far the steps of stage I go."""
        return held_back(float(self.plan(terms)[0][: terms.active_rounds].sum()), terms)

    def gossip(self, terms: Terms) -> Gossip:
        """Return ones: what is said in (3) is y_j(t) = F(v_j(t-1)) + n_j(t), v_j(t-1) = sum_k w_jk y_k(t-1).

        Without l1 and domain z = v in (4), and (1) is a step F = 1 - eta_t grad(f_j + l2 |.|^2/2), which moves no two
        points apart if eta_t times the curvature is at most 2. Models are v_i(T).
        """
        curvature, (steps, _) = check_gossip(self, terms) + terms.strong_convexity, self.plan(terms)
        if len(steps) < terms.rounds:
            raise ConfigError("the last rounds carry no fresh noise (--consensus-rounds)")
        if not steps.max() * curvature <= 2.0:
            raise ConfigError(
                f"steps may move points apart: the step {steps.max():.4g} is above {2.0 / curvature:.4g}, 2 over the "
                "curvature of loss and penalty (a smaller --step)"
            )
        return Gossip(np.ones(terms.rounds), ends_with_messages=True)

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
            agent.penalty.project(v, state.z, shrink=float(state.steps[t - 2]) * agent.terms.l1)  # (4)
        move = self._descend(agent, state, float(state.steps[t - 1]), float(state.scales[t - 1]))
        K, mixing = self.mixes_per_release(agent.terms), agent.terms.mixing
        if K > 1:
            combine(state.z, (1.0, v), (1.0, move.value))  # z is free until (4); with one mix nobody looks at the move
        yield Mix(public(v, because=WHY_PUBLIC), plus=move, out=v)  # (2), and the first mix of (3)
        yield from accelerate(v, state.z, state.scratch, mixing, K, WHY_PUBLIC)  # (3), the others
        if t == agent.terms.rounds:
            closing = self.mixes_at_the_end(agent.terms)
            yield from mix_again(v, state.z, state.scratch, mixing, closing, WHY_PUBLIC)

    def regroup(self, agent: Agent, state: State) -> Steps:
        """Let nobody rest before everybody was heard of again."""
        state.message[-1] = 1.0
        yield from ()

    def model(self, agent: Agent, state: State, t: int, out: Array) -> None:
        """Write (6) to `out`."""
        eta = float(state.steps[max(1, min(t, len(state.steps))) - 1])
        agent.penalty.project(state.message[:-1], out, shrink=eta * agent.terms.l1)

    def _descend(self, agent: Agent, state: State, eta: float, scale: float) -> Sendable:
        """Write the public part of y of (2) to the message, and return the rest: the noised move."""
        terms, z, y = agent.terms, state.z, state.message[:-1]
        combine(y, (1.0 - eta * terms.strong_convexity, z))
        sensitivity = _sensitivity(terms, eta)
        if terms.bounded and _rounding(terms, z, eta) > _SLACK / 2.0 * sensitivity:
            move = state.scratch
            move.fill(0.0)
        else:
            move = agent.problem.subgradient(z).value
            move *= -eta
            if terms.bounded:
                combine(state.scratch, (1.0, y), (1.0, move))
                agent.penalty.project(state.scratch, move)  # (1)
                move -= y
        # The move is released and not x, so that a rank whose budget is spent takes the public part of the step.
        return agent.release(Query(move, sensitivity, terms.sampling), scale)  # (2)

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


def first_step(terms: Terms, step: float | None) -> float:
    """Return the given step, or 2/(mu + L): mu the least curvature of F, L the largest of any f_i, l2 included."""
    if step is not None:
        if not step > 0.0:
            raise ConfigError(f"expected a step > 0, found {step}: leave out --step for the default")
        return step
    if terms.smoothness is None:
        return 1.0 / terms.lipschitz
    steepest = terms.smoothness * terms.largest_weight
    return 2.0 / (terms.curvature_floor + steepest + 2.0 * terms.strong_convexity)


def _sensitivity(terms: Terms, eta: float) -> float:
    return eta * terms.gradient_sensitivity * (1.0 + _SLACK)


def _rounding(terms: Terms, z: Array, eta: float) -> float:
    """Return how far rounding can move (1) on one of two shards away from (1) on the other."""
    return 2.0 * (terms.dimension + 16) * 2.0**-52 * (math.sqrt(np.dot(z, z)) + eta * terms.own_lipschitz)
