"""Consensus gradient descent: `dgd`, and `dp-dgd` with a second stage of consensus alone.

Both run (1) to (6) of `bases/consensus_descent.py`; `dgd` has no stage II unless asked for one. With mu and L the
strong convexity and smoothness of f_i + l2 |.|^2 / 2 and c = (1/mu + 1/L) / 2 as in [SKD] Theorem 2,

    eta_t = min(step, c/t),   step = 2/(mu + L);  for a loss that is not smooth 1/L = 0 in c, step = 1/Lipschitz   (7)

the cap being what keeps ill-conditioned problems from overshooting. Noise of round t reaches the result with the factor

    W_t = prod_{s > t} (1 - mu eta_s)   at most,                                                           (8)

and sum_t W_t^2 M_t^2 is least, for a given sum of (eta_t / M_t)^2, that is for a given privacy, with

    M_t^2 = constant * eta_t / W_t.                                                                        (9)

For mu << L and eta_t = c/t that is the t^(-3/2) of [SKD] Theorem 2; for mu = L, as for the mean, it is t^(-2).

[SKD], [NO] see `bases/consensus_descent.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dpmpi.algorithms.bases.consensus_descent import STEP_HELP, ConsensusDescent, first_step
from dpmpi.core import Array, Terms, hyperparameter
from dpmpi.errors import ConfigError

CONSENSUS_HELP = "the last rounds, of consensus alone; default a third"


@dataclass(frozen=True)
class DpDgd(ConsensusDescent):
    """Noisy consensus gradient descent, then consensus [SKD]."""

    usual_rounds: ClassVar[int] = 200

    step: float | None = hyperparameter(None, STEP_HELP, minimum=0.0)
    step_decay: Literal["auto", "harmonic", "sqrt", "constant"] = hyperparameter(
        "auto", "harmonic: min(step, c/t); sqrt: step/sqrt(t); auto: harmonic if mu > 0, else sqrt"
    )
    noise_schedule: Literal["optimal", "paper", "constant"] = hyperparameter(
        "optimal", "noise over the rounds: least error; the paper's t^(-3/4); all the same"
    )
    consensus_rounds: int | None = hyperparameter(None, CONSENSUS_HELP, minimum=0)
    tolerance: float = hyperparameter(0.0, "end the consensus when nobody moves by more, relatively", minimum=0.0)

    def early(self) -> float:
        """Return the tolerance."""
        return self.tolerance

    def plan(self, terms: Terms) -> tuple[Array, Array]:
        """Return the steps (7) and the noise (9)."""
        C = terms.rounds // 3 if self.consensus_rounds is None else self.consensus_rounds
        if terms.rounds <= C:
            raise ConfigError(
                f"expected fewer consensus rounds than the {terms.rounds} rounds of the run, found {C}: "
                "lower --consensus-rounds"
            )
        t = np.arange(1.0, terms.rounds - C + 1.0)
        first, mu = first_step(terms, self.step), terms.curvature_floor + terms.strong_convexity
        if self.step_decay == "harmonic" or (self.step_decay == "auto" and mu > 0.0):
            if mu == 0.0:
                raise ConfigError(
                    "expected strong convexity for harmonic steps, found none: add an l2 penalty, or decay sqrt"
                )
            steepest = terms.largest_smoothness
            L = math.inf if steepest is None else steepest + terms.strong_convexity
            steps = np.minimum(first, (1.0 / mu + 1.0 / L) / 2.0 / t)  # (7)
        else:
            steps = np.full_like(t, first) if self.step_decay == "constant" else first / np.sqrt(t)
        if self.noise_schedule == "optimal":
            scales = np.sqrt(steps / _reach(mu, steps))  # (9)
        else:
            scales = t**-0.75 if self.noise_schedule == "paper" else np.ones_like(t)
        return steps, scales / scales[0]


@dataclass(frozen=True)
class Dgd(DpDgd):
    """Consensus gradient descent in one stage [NO]."""

    consensus_rounds: int | None = hyperparameter(0, CONSENSUS_HELP, minimum=0)


def _reach(mu: float, steps: Array) -> Array:
    """Return W_t of (8), and at least 1/T: constant steps forget the first rounds so well that any noise would do."""
    keep = np.maximum(1.0 - mu * steps[1:], 0.0)
    products: Array = np.cumprod(np.append(1.0, keep[::-1]))[::-1]
    return np.maximum(products, 1.0 / len(steps))
