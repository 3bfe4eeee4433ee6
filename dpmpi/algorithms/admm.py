"""ADMM with exact local minimisation, as it is and with noise on what is sent.

With p_i, s_i, gamma_i as in `bases/consensus_admm.py`, for a penalty h = (l2/2) |w|^2, step (2) of that file is

    x_i  = argmin_w f_i(w) - <p_i, w> + (q_i/2) |w|^2,    q_i = l2 + 2 rho d_i                      (1)
    w_i <- x_i + noise                                                                              (2)

and w_i goes to the neighbours. Without noise this is decentralized consensus ADMM, Eq. (9) of [HG20] after [FCG10];
noise with density ~ exp(-|.|/b) makes it the primal variable perturbation of [ZZ17].

Privacy: (2) is the release; p_i is public. The objective of (1) is mu-strongly convex, mu = c + q_i with c >= 0 the
strong convexity that f_i has for all data (1 for the mean, else 0). Let x, x' be the minimisers for two shards that
differ in one of m_i records, with gradients G, G' of their objectives. Then G(x) = G'(x') = 0, and

    mu |x - x'|^2 <= <G(x) - G(x'), x - x'> = <G'(x') - G(x'), x - x'> <= (2 L / m_i) |x - x'|.

What is computed is at most tau / mu away from the minimiser, and at most 2 tau / mu with the rounding of the few
operations outside the sum over the records (that of the sum is within L, see `problem/local_problem.py`), on either
shard. Hence

    |x - x'| <= (2 L / m_i + 4 tau) / mu.                                                           (3)

By default tau = L / (2000 m_i), which adds a thousandth to (3) and so to the noise. The number of gradients behind x is
a function of L / tau and of the curvature bounds alone (`problem/accelerated_gradient.py`): the number of passes over
the records that (1) takes does not depend on them.

With density ~ exp(-|.|/b) one round costs the pure loss (3)/b, with Gaussian noise of deviation sigma the Gaussian-DP
parameter (3)/sigma.

Changed from [ZZ17]: the own term of (1) and the multiplier use the noisy w_i, as everybody sees it; with the clean x_i
there, later rounds would release what earlier ones hid. (3) is derived above and takes the place of its constants.

[FCG10] Forero, Cano, Giannakis. Consensus-based distributed support vector machines. JMLR 11, 2010.
[ZZ17]  Zhang, Zhu. Dynamic differential privacy for ADMM-based distributed classification learning. IEEE TIFS 12(1),
        2017.
[HG20]  see `dpmpi/algorithms/bases/consensus_admm.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpmpi.algorithms.bases.consensus_admm import LocalMinimisation, State
from dpmpi.core import Agent, Planned, Query, Steps, Terms


@dataclass(frozen=True)
class Admm(LocalMinimisation):
    """Consensus ADMM with exact minimisation; noise, if any, on the iterate."""

    usual_rounds: ClassVar[int] = 10
    mechanisms: ClassVar[tuple[str, ...]] = ("gaussian", "spherical-laplace", "laplace")

    def releases(self, terms: Terms) -> Iterable[Planned]:
        """Return one iterate in every round."""
        return [Planned(self.sensitivity(terms), count=terms.active_rounds)]

    def sensitivity(self, terms: Terms) -> float:
        """Return (3)."""
        return (terms.gradient_sensitivity + 4.0 * self.accuracy(terms)) / self.modulus(terms) * (1.0 + 1e-9)

    def round(self, agent: Agent, state: State, t: int) -> Steps:
        """Run (1) and (2)."""
        terms, x = agent.terms, state.scratch
        self.attract(agent, state)
        np.negative(state.pull, out=state.pull)
        self.minimise(agent, state.pull, out=x)  # (1)
        released = agent.release(Query(x, self.sensitivity(terms), terms.sampling))  # (2)
        if agent.stopped is None:  # a rank that may not speak any more stays where it is
            np.copyto(state.w, released.value)
        yield from self.spread(agent, state, t)


@dataclass(frozen=True)
class PvpAdmm(Admm):
    """Primal variable perturbation [ZZ17]: noise with density ~ exp(-|.|/b) on the iterate."""

    usual_rounds: ClassVar[int] = 1
    mechanisms: ClassVar[tuple[str, ...]] = ("spherical-laplace", "laplace", "gaussian")
