"""Consensus gradient descent with geometric steps and Laplace noise.

(1) to (4) of `bases/consensus_descent.py` with

    eta_t = step q^(t-1),   M_t ~ p^(t-1),   0 < q < p < 1                                                 (7)

[HMV]: the sum of eta_t / M_t converges, so that any number of rounds has a finite pure epsilon. Steps below a millionth
of the first are not taken; what is left of the run is stage II.

Changed: [HMV] protects a rank's whole function; here it is one record, as everywhere else.

[HMV] Huang, Mitra, Vaidya. Differentially private distributed optimization. ICDCN 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpmpi.algorithms.bases.consensus_descent import STEP_HELP, ConsensusDescent, first_step
from dpmpi.core import Array, Terms, hyperparameter
from dpmpi.errors import ConfigError


@dataclass(frozen=True)
class HmvDgd(ConsensusDescent):
    """Consensus gradient descent with geometric steps and noise [HMV]."""

    usual_rounds: ClassVar[int] = 40
    mechanisms: ClassVar[tuple[str, ...]] = ("laplace", "gaussian")

    step: float | None = hyperparameter(None, STEP_HELP, minimum=0.0)
    step_ratio: float = hyperparameter(0.8, "q: each step over the one before", minimum=0.0)
    noise_ratio: float = hyperparameter(0.9, "p: the same for the noise; q < p < 1", minimum=0.0)

    def plan(self, terms: Terms) -> tuple[Array, Array]:
        """Return (7)."""
        q, p = self.step_ratio, self.noise_ratio
        if not 0.0 < q < p < 1.0:
            raise ConfigError(
                f"expected a step ratio q and a noise ratio p with 0 < q < p < 1, found {q} and {p}: "
                "set --step-ratio and --noise-ratio"
            )
        first = first_step(terms, self.step)
        most = 1 + math.floor(math.log(1e-6) / math.log(q))  # later steps change nothing
        t = np.arange(min(terms.rounds, most), dtype=np.float64)
        return first * q**t, p**t
