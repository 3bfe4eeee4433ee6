"""Multi-step linearised ADMM: several noisy proximal gradient steps between two exchanges.

With p_i, gamma_i, s_i, d_i as in `bases/consensus_admm.py` (w_i there is the mean (3) below), and r = 1 ... l counting
the inner steps of a round from v_i, D_r = 2 rho d_i + eta_r, a round of agent i is

    g    = noised gradient of f_i at v_i over a batch                                               (1)
    v_i <- argmin_v <g, v> + h(v) - <p_i, v> + rho d_i |v|^2 + (eta_r/2) |v - v_i|^2
         = prox_{h / D_r}((p_i + eta_r v_i - g) / D_r)                                              (2)
    w_i <- mean of v_i over the l steps                                                             (3)

and w_i goes to the neighbours; the next round starts from the last v_i. (2) is Eqs. (12), (13a) of [HG20]. With
`regulariser = linearised`, as printed there, h is replaced by its subgradient at v_i:

    v_i <- (p_i + eta_r v_i - g - l2 v_i - l1 sign(v_i)) / D_r                                      (2')

Privacy: the data enter only through (1), l releases in every round; the rest is post-processing. Noise of deviation
sigma on (1) is noise of deviation sigma / (D_r + l2) on v_i in (2), sigma / D_r in (2'): in law, what (13b) and (14) of
[HG20] add. For l1 terms and domains it differs: the prox comes after the noise, so that v_i stays sparse or feasible.

One noise per round (`inner_noise = once`). All steps of a round start from the public w_i and use the gradient over all
records without noise; only the mean (3) is released. Let e_r be the distance of the v_i for two shards that differ in
one of m records, e_0 = 0, and E_r = D_r + l2 in (2), D_r in (2'). prox_{h/D} multiplies distances by D / (D + l2) or
less. A convex, beta-smooth f has <d, G> >= |G|^2 / beta for d = v - v', G = grad f(v) - grad f(v'), so that

    |eta d - G|^2 = eta^2 |d|^2 - 2 eta <d, G> + |G|^2 <= eta^2 |d|^2    if eta >= beta/2,           (4)

while at the same point the gradients of the two shards differ by at most 2 L / m. Hence
e_r <= (eta_r e_{r-1} + 2 L / m) / E_r, and for constant eta, with c = eta / E, the mean (3) moves by at most

    (e_1 + ... + e_l) / l = 2 L / (m E) sum_{j=1}^l (1 - c^j) / (l (1 - c)).                       (5)

Clipping keeps slopes monotone, so f_i stays convex and smooth; with K scores it must not clip at all. In (2') the
argument needs eta >= (beta + l2)/2 and no l1. The noise on (3) has deviation sigma / E_1, so that for l = 1 both kinds
of noise are the same.

Corrected from [HG20]: (11), (12) have <grad, v_i - w>; the gradient has to multiply w - v_i, or the steps climb. (18)
lacks the gradient sign, and its denominator's eta^{k,r} is eta^{k,r+1}. (23) lets eta start again in every round (r is
the inner counter); `eta_growth = sqrt` counts all inner steps of the run. The model is by default the mean of w_i over
the second half of the rounds; (22), over all of them, is `average = mean`.

[HG20] see `bases/consensus_admm.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dpmpi.algorithms.bases import consensus_admm as admm
from dpmpi.core import (
    Agent,
    Array,
    Facts,
    Planned,
    Query,
    Steps,
    Terms,
    combine,
    held_back,
    hyperparameter,
    rounds_to_go,
)
from dpmpi.errors import ConfigError


@dataclass
class State(admm.State):
    """What an agent carries from round to round."""

    v: Array
    """The last inner iterate."""
    sum: Array


@dataclass(frozen=True)
class IpAdmm(admm.ConsensusAdmm):
    """Multi-step linearised ADMM [HG20]."""

    usual_rounds: ClassVar[int] = 8
    state: ClassVar[Any] = State

    inner_steps: int = hyperparameter(
        10,
        "gradient steps between two exchanges",
        minimum=1,
        maximum=10_000,
        beyond="each is a pass over the batch, noised and charged; give more --rounds, after which ranks exchange",
    )
    inner_noise: Literal["each", "once"] = hyperparameter(
        "each", "noise on every inner gradient, or once per round on the mean iterate"
    )
    regulariser: Literal["exact", "linearised"] = hyperparameter(
        "exact", "the penalty in an inner step: by its proximal operator or its subgradient"
    )
    eta: float | None = hyperparameter(None, admm.ETA_HELP, minimum=0.0)
    eta_growth: Literal["auto", "constant", "sqrt"] = hyperparameter("auto", admm.GROWTH_HELP)

    def fitting_rounds(self, facts: Facts) -> int:
        """Return the rounds in which inner steps of about 1/beta go as far as the noise allows."""
        if not facts.noise:
            return self.usual_rounds
        return rounds_to_go(facts, self.inner_steps * facts.longest_step / 2.0, self.usual_rounds, 100)

    def check(self, terms: Terms) -> None:
        """Raise `ConfigError` for what the method cannot work with."""
        super().check(terms)
        admm.positive("eta", self.proximal(terms, 1))
        if self.regulariser == "linearised" and terms.bounded:
            raise ConfigError("expected no --domain with --regulariser linearised, found one: use --regulariser exact")
        if terms.own_penalty and (self.regulariser == "linearised" or self.inner_noise == "once"):
            raise ConfigError(
                "expected a penalty l2, l1, elastic or none with --regulariser linearised or --inner-noise once, found "
                "one of your own: leave these out"
            )
        if self.inner_noise == "once":
            beta = admm.smooth(terms, "--inner-noise once")
            admm.check_integrable(terms, "--inner-noise once")
            admm.full_batch(terms, "--inner-noise once")
            if self.regulariser == "linearised":
                beta += terms.strong_convexity
                if terms.l1 > 0.0:
                    raise ConfigError(
                        "expected no l1 term with --inner-noise once and --regulariser linearised, found one: "
                        "use --regulariser exact"
                    )
            if self.proximal(terms, 1) < beta / 2.0:
                raise ConfigError(
                    f"expected --eta of at least {beta / 2.0:g}, half of the curvature, with --inner-noise once, "
                    f"found {self.proximal(terms, 1):g}: leave it out for the default"
                )

    def proximal(self, terms: Terms, step: int) -> float:
        """Return eta_r for the step-th inner step of the run."""
        return admm.grown(admm.own_curvature(terms) if self.eta is None else self.eta, self.eta_growth, terms, step)

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return rho and the first eta, where they are derived."""
        return super().counts(terms) | ({"eta": self.proximal(terms, 1)} if self.eta is None else {})

    def flow(self, terms: Terms) -> float:
        """Return how far the inner steps go, each 1/D_r long."""
        coupling, steps = 2.0 * self.penalty(terms) * terms.degree, terms.active_rounds * self.inner_steps
        return held_back(sum(1.0 / (coupling + self.proximal(terms, r)) for r in range(1, steps + 1)), terms)

    def releases(self, terms: Terms) -> Iterator[Planned]:
        """Return every inner gradient, or one mean iterate in every round."""
        if self.inner_noise == "each":
            yield Planned(terms.gradient_sensitivity, count=terms.active_rounds * self.inner_steps)
        else:
            for t in range(1, terms.active_rounds + 1):
                yield Planned(*self.mean_sensitivity(terms, t))

    def mean_sensitivity(self, terms: Terms, t: int) -> tuple[float, float]:
        """Return how far one record moves the mean (3) of round t, by (5), and 1 / E_1."""
        e = total = first = 0.0
        for r in range(1, self.inner_steps + 1):
            eta = self.proximal(terms, (t - 1) * self.inner_steps + r)
            E = 2.0 * self.penalty(terms) * terms.degree + eta
            E += terms.strong_convexity if self.regulariser == "exact" else 0.0
            e = (eta * e + terms.gradient_sensitivity) / E
            total += e
            first = first or 1.0 / E
        return total / self.inner_steps * (1.0 + 1e-9), first

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run the inner steps of round t, then tell the neighbours."""
        terms, once = agent.terms, self.inner_noise == "once"
        self.attract(agent, state)
        state.sum.fill(0.0)
        if once:
            np.copyto(state.v, state.w)
        for r in range(1, self.inner_steps + 1):
            gradient = agent.problem.subgradient(state.v)
            g = gradient.value if once else agent.release(gradient).value  # (1)
            self._step(agent, state, g, self.proximal(terms, (t - 1) * self.inner_steps + r))
            state.sum += state.v
        state.sum /= self.inner_steps  # (3)
        if once:
            sensitivity, scale = self.mean_sensitivity(terms, t)
            agent.release(Query(state.sum, sensitivity, terms.sampling), scale)
            if terms.bounded:
                np.copyto(state.scratch, state.sum)
                agent.penalty.project(state.scratch, state.sum)
        if not once or agent.stopped is None:  # a rank that may not speak any more stays where it is
            np.copyto(state.w, state.sum)
        yield from self.spread(agent, state, t)

    def _step(self, agent: Agent, state: State, g: Array, eta: float) -> None:
        """Move v_i by (2) or (2'), given the gradient, whose buffer is used up."""
        terms, v, scratch = agent.terms, state.v, state.scratch
        D = 2.0 * self.penalty(terms) * terms.degree + eta
        linearised = self.regulariser == "linearised"
        kept = eta - (terms.strong_convexity if linearised else 0.0)
        combine(g, (-1.0, g), (1.0, state.pull), (kept, v), scratch=scratch)
        if linearised and terms.l1 > 0.0:
            np.sign(v, out=scratch)
            combine(g, (1.0, g), (-terms.l1, scratch), scratch=scratch)
        g /= D
        if linearised:
            np.copyto(v, g)  # (2')
        else:
            agent.penalty.prox(g, 1.0 / D, out=v)  # (2)
