"""One run: many canaries of random sign, one a coordinate, guessed from a single run of dual averaging.

The adversary reads what the victim sends, m(t), and what it is sent, m_k(t). Dual averaging sends
m(t) = z(t) + a_t s(t) with s(t) the release, and z is made of earlier messages:

    z(t+1) = W_00 m(t) + sum_k W_0k m_k(t),   over the rounds in which the rank is active, z = 0 before (1)
    s(t)   = (m(t) - z(t)) / a_t                                                                        (2)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpmpi.algorithms.dda import DpDda
from dpmpi.commands.audit.laboratory import Laboratory, ManyCanaries
from dpmpi.commands.audit.listening import VICTIM, Heard
from dpmpi.commands.audit.score import likelihood
from dpmpi.commands.audit.statistics import one_run_bound
from dpmpi.core import Array
from dpmpi.core.frozen import frozen
from dpmpi.data.source import SourceOptions
from dpmpi.errors import ConfigError
from dpmpi.rng import public_generator
from dpmpi.runtime.messages import PlainMessages

SHARPEST = 1e-3
"""Below this fraction of the signal, noise counts as so much in the likelihood: it must not divide by zero."""


@frozen
class Guesses:
    """What was guessed from one run, and the bound that it gives."""

    canaries: int
    guesses: int
    right: int
    epsilon: float

    def evidence(self) -> dict[str, Any]:
        """Return the counts, JSON-ready."""
        return {"canaries": self.canaries, "guesses": self.guesses, "right": self.right}


def audit_one_run(laboratory: Laboratory, guesses: int, confidence: float) -> Guesses | None:
    """Run once with a canary in each coordinate; guess the signs of the clearest ones. None where the victim is not."""
    settings, config, canaries = laboratory.settings, laboratory.config, laboratory.canary.dimension
    if not (isinstance(settings.method, DpDda) and isinstance(settings.messages, PlainMessages)):
        found = f"{config.algorithm} with {settings.messages.name} messages"
        raise ConfigError(f"expected dual averaging with plain messages for --one-run, found {found}: leave it out")
    draw = public_generator(laboratory.seed(), "canaries")
    signs = np.where(draw.random(canaries) < 0.5, -1.0, 1.0)
    if laboratory.bait is None:
        raise ConfigError("expected records with labels for --one-run, found points: leave it out")
    source = ManyCanaries(SourceOptions(), laboratory.canary.records, tuple(signs), laboratory.bait)
    heard = laboratory.run(source, config.insecure_noise_seed)
    if not laboratory.listens:
        return None
    shift = laboratory.plan.terms(VICTIM).gradient_sensitivity / 2.0
    sigma = max(laboratory.sigma, SHARPEST * shift)
    score = likelihood(releases(laboratory, heard).T / sigma, shift / sigma, -shift / sigma, laboratory.rate)
    clearest = np.argsort(-np.abs(score), kind="stable")[:guesses]
    right = int(np.count_nonzero(score[clearest] * signs[clearest] > 0))
    return Guesses(canaries, guesses, right, one_run_bound(canaries, guesses, right, config.delta, confidence))


def releases(laboratory: Laboratory, heard: Heard) -> Array:
    """Return the victim's releases, one a row, as the wire tells them."""
    method, plan = laboratory.settings.method, laboratory.plan
    linear = isinstance(method, DpDda) and method.weighting == "linear"
    z, found = np.zeros(plan.dimension), []
    rounds = plan.schedule.rounds(VICTIM, 1, plan.rounds + 1)
    for (t, near), sent, received in zip(rounds, heard.sent, heard.received, strict=True):
        found.append((sent - z) / (t if linear else 1))  # (2)
        z = near.self_weight * sent
        for weight, vector in zip(near.weights, received, strict=True):
            z = z + weight * vector  # (1)
    return np.array(found)
