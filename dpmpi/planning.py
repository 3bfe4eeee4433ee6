"""Noise from a privacy target, and privacy from what was released: one source for plan, run and verify."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

from dpmpi.config import Config
from dpmpi.errors import ConfigError
from dpmpi.privacy import accountants, calibration, theorems
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.problem import Batch


def noise_levels(config: Config, records: Sequence[int], active: Sequence[int]) -> list[float]:
    """Return the noise of every rank that meets --epsilon and --delta, given its records and active rounds.

    Each rank composes over its own active rounds only: the schedule is public, so it hides nothing, but who is silent
    pays nothing.
    """
    if config.epsilon is None:
        raise ConfigError("a noise level is calibrated to --epsilon, which is not given")
    if config.calibration == "theorem":
        return [_theorem_noise(config, min(records), sum(active) / (len(active) * config.rounds))] * len(records)
    algorithm, batch, epsilon = config.make_algorithm(), Batch.parse(config.batch), config.epsilon

    @cache  # ranks with as many records and rounds need the same noise
    def level(count: int, rounds: int) -> float:
        calibration.check_delta(config.delta, count, config.allow_large_delta)
        sampling = batch.sampling(count)
        releases = sum(k for _, k in algorithm.releases(rounds))
        if releases == 0:
            return 0.0
        sensitivity = 2.0 * config.lipschitz / sampling.expected
        return calibration.calibrate("gaussian", sensitivity, sampling, releases, epsilon, config.delta)

    return [level(count, rounds) for count, rounds in zip(records, active, strict=True)]


def _theorem_noise(config: Config, records: int, share: float) -> float:
    if config.epsilon is None:
        raise ConfigError("--calibration theorem takes --epsilon")
    if config.algorithm == "sampled-dda":
        return theorems.node_sampling_sigma(
            config.lipschitz, config.rounds, records, share, config.epsilon, config.delta
        )
    return theorems.liu2022_sigma(config.lipschitz, config.rounds, records, config.epsilon, config.delta)


def spent_epsilon(spending: Mapping[ReleaseEvent, int], delta: float) -> float | None:
    """Return the certified epsilon of what was released; None if it is infinite."""
    epsilon = accountants.certified_epsilon(spending, delta)
    return epsilon if math.isfinite(epsilon) else None
