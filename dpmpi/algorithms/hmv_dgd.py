"""Consensus gradient descent with geometric steps and Laplace noise.

(1) to (4) of `bases/consensus_descent.py` with

    eta_t = step q^(t-1),   M_t ~ p^(t-1),   0 < q < p < 1                                                 (7)

[HMV]: the sum of eta_t / M_t converges, so that any number of rounds has a finite pure epsilon. Steps below a millionth
of the first are not taken; what is left of the run is stage II.

Settings from public facts. All steps together go step/(1 - q) far, and noise reaches the result about as it is, so that
(9) of `dgd.py` with W_t = 1, M_t^2 ~ eta_t, has the least error. With tau = `Facts.flow`, how far to go,

    T = clip(3 tau / step, 40, 300),   q = 1 - max(3/T, step/tau),   p = sqrt(q)                            (8)

and all but exp(-3) of the way is gone in T rounds. Without noise: T = 40, q = 0.8.

Changed: [HMV] protects a rank's whole function; here it is one record, as everywhere else.

[HMV] Huang, Mitra, Vaidya. Differentially private distributed optimization. ICDCN 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from dpmpi.algorithms.bases.consensus_descent import STEP_HELP, ConsensusDescent, first_step
from dpmpi.core import Array, Facts, Terms, four_digits, hyperparameter, rounds_to_go
from dpmpi.errors import ConfigError

USUAL_RATIO = 0.8
"""q without noise."""


@dataclass(frozen=True)
class HmvDgd(ConsensusDescent):
    """Consensus gradient descent with geometric steps and noise [HMV]."""

    usual_rounds: ClassVar[int] = 40
    mechanisms: ClassVar[tuple[str, ...]] = ("laplace", "gaussian")

    step: float | None = hyperparameter(None, STEP_HELP, minimum=0.0)
    step_ratio: float | None = hyperparameter(
        None, "q: each step over the one before; auto: by --epsilon, 0.8 without noise", minimum=0.0
    )
    noise_ratio: float | None = hyperparameter(None, "p: the same for the noise; q < p < 1; auto: sqrt(q)", minimum=0.0)

    def fitting_rounds(self, facts: Facts) -> int:
        """Return T of (8)."""
        return rounds_to_go(facts, facts.longest_step / 3.0, 40, 300) if facts.noise else self.usual_rounds

    def fitted(self, facts: Facts) -> Self:
        """Return the method with q of (8), where it is not given and there is noise."""
        if self.step_ratio is not None or not facts.noise:
            return self
        left = max(3.0 / facts.rounds, (self.step or facts.longest_step) / facts.flow)
        return replace(self, step_ratio=four_digits(1.0 - min(left, 0.5)))

    def plan(self, terms: Terms) -> tuple[Array, Array]:
        """Return (7)."""
        q = USUAL_RATIO if self.step_ratio is None else self.step_ratio
        p = math.sqrt(q) if self.noise_ratio is None else self.noise_ratio
        if not 0.0 < q < p < 1.0:
            raise ConfigError(
                f"expected a step ratio q and a noise ratio p with 0 < q < p < 1, found {q} and {p}: "
                "set --step-ratio and --noise-ratio"
            )
        first = first_step(terms, self.step)
        most = 1 + math.floor(math.log(1e-6) / math.log(q))  # later steps change nothing
        t = np.arange(min(terms.rounds, most), dtype=np.float64)
        return first * q**t, p**t
