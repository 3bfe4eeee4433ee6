"""The noise that every rank needs for what a plan says it will release, and what it has released before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from dpmpi.core import Terms
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.privacy import calibration, theorems
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.releases import cache_file, later_releases, tally
from dpmpi.privacy.spending import charged_to

if TYPE_CHECKING:
    from dpmpi.runtime.plan import Plan


@frozen
class Spent:
    """What a rank has charged before the run went on, and how many of its planned releases that made."""

    charged: Mapping[ReleaseEvent, int]
    made: int


def noise_levels(plan: Plan, spent: Sequence[Spent] = (), *, cached: bool = True) -> list[float]:
    """Return the noise of every rank that meets --epsilon and --delta, given its records and active rounds.

    Each rank composes over its own active rounds only: the schedule is public, so it hides nothing, but who is silent
    pays nothing. A run that goes on after a failure has `spent` something, more than planned if rounds are repeated:
    the noise of what is still to come makes up for it where that is possible. When a rank fails is not a function of
    the records, so the composition is no more adaptive than that of the plan. With `cached` false nothing is believed
    that an earlier process found.
    """
    config, records, epsilon = plan.config, plan.records, plan.config.epsilon
    cache_ = cache_file() if cached else None
    if epsilon is not None or config.noise:
        for count in sorted(set(records)):
            calibration.check_delta(config.delta, count, config.allow_large_delta)
    if epsilon is None:
        return [config.noise or 0.0] * len(records)
    if config.calibration == "theorem":
        return [theorems.theorem_noise(config.algorithm, plan.claim(), epsilon)] * len(records)

    @cache  # ranks in the same position need the same noise
    def level(terms: Terms) -> float:
        if not plan.releases(terms, 1.0):
            # A rank that is never active releases nothing; the noise of one round keeps its figures finite.
            terms = dataclasses.replace(terms, active_rounds=1)
        return calibration.calibrate(
            lambda sigma: tally(plan.releases(terms, sigma)), epsilon, config.delta, cache=cache_
        )

    def level_after(terms: Terms, before: Spent) -> float:
        charged = charged_to(before.charged, "training")
        if not charged or not later_releases(plan.releases(terms, 1.0), before.made):
            return level(terms)

        def left(sigma: float) -> Mapping[ReleaseEvent, int]:
            return tally(later_releases(plan.releases(terms, sigma), before.made))

        try:
            return calibration.calibrate(left, epsilon, config.delta, cache=cache_, spent=charged)
        except (ConfigError, ArithmeticError, ValueError):  # what is charged leaves too little: the summary says so
            return level(terms)

    after = [level_after(plan.terms(rank), one) for rank, one in enumerate(spent)]
    levels = after or plan.of_ranks(level)
    return plan.settings.noise.common(levels)
