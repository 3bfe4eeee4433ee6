"""How much privacy has been spent while a run is under way, cheaply enough to be looked at every second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpmpi.core.frozen import frozen
from dpmpi.privacy import accountants
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.filters import filter_epsilon
from dpmpi.privacy.releases import first_releases, live_epsilon, tally
from dpmpi.runtime.plan import Plan

MOST_EVENTS = 2000
"""Releases that differ from each other are priced one by one: more of them take too long for a glance."""

Spending = Mapping[Any, int]


@frozen
class Before:
    """What earlier runs have charged to a rank, the Renyi order of its ledger, and its budget for all runs."""

    charged: Spending
    order: int
    budget: float | None


class LiveEpsilon:
    """The largest epsilon of any rank so far: an upper bound.

    What a rank releases until some round is public, so the first rank knows it of all of them. Where there is no closed
    form, releases are composed by Renyi divergence, which takes milliseconds and gives a little more than the certified
    figure at the end; but never more than the epsilon that the noise was calibrated to.
    """

    def __init__(
        self,
        plan: Plan,
        sigmas: Sequence[float],
        own: Callable[[], Sequence[Spending]] = lambda: (),
        before: Sequence[Before] = (),
    ) -> None:
        """Take the noise of all ranks, what tells the charges of the ranks in this process, and what came before."""
        self._plan = plan
        self._own = own
        self._planned = [plan.releases(plan.terms(rank), sigma) for rank, sigma in enumerate(sigmas)]
        cost = [_weight(events) for events in self._planned]
        self._cost = np.array(cost) / np.maximum(plan.active, 1)  # of an active round
        self._before = before if any(one.charged for one in before) else ()
        self._cost_before = np.array([_weight(list(one.charged.items())) for one in self._before])

    @property
    def budget(self) -> float | None:
        """What a rank may spend: its budget if all have the same, or what the noise was calibrated to."""
        config = self._plan.config
        if config.budget is None:
            return config.epsilon
        try:
            return float(config.budget)
        except ValueError:  # in files, one for each rank
            return config.epsilon

    def epsilon(self, done: int) -> float | None:
        """Return the bound after round `done`; None if there is none, or none that is quickly found."""
        delta = self._plan.config.delta
        different = {frozenset(spending.items()) for spending in (*self._foreseen(done), *self._own())}
        found = [_bound(dict(spending), delta) for spending in different]
        known = [epsilon for epsilon in found if epsilon is not None]
        if not known or len(known) < len(found):
            return None
        config = self._plan.config
        calibrated = config.epsilon is not None and config.calibration == "certified"
        ceilings = [self.budget] if calibrated or config.budget is not None else []
        return min(max(known), *(c for c in ceilings if c is not None), math.inf)

    def with_earlier_runs(self, done: int) -> tuple[float | None, float | None]:
        """Return the largest epsilon that a rank has spent in all runs up to round `done`, and its budget for them.

        As the summary has it, by the filter: later runs may have been chosen by earlier ones. A rank stops at its
        budget. None if there were no earlier runs, or if there is no bound.
        """
        if not self._before:
            return None, None
        active = self._plan.schedule.active_counts(1, done + 1)
        rank = int(np.argmax(self._cost * active + self._cost_before))
        one, delta = self._before[rank], self._plan.config.delta
        made = first_releases(self._planned[rank], self._plan.release_count(rank, int(active[rank])))
        total = Counter(tally(made)) + Counter(one.charged)
        if len(total) > MOST_EVENTS:
            return None, one.budget
        found, least = (filter_epsilon(spending, delta, one.order) for spending in (total, one.charged))
        if found is None or one.budget is None or least is None:
            return found, one.budget
        return min(found, max(one.budget, least)), one.budget

    def _foreseen(self, done: int) -> list[Spending]:
        """Return the releases of the rank that has spent most after round `done`."""
        active = self._plan.schedule.active_counts(1, done + 1)
        rank = int(np.argmax(self._cost * active))
        made = self._plan.release_count(rank, int(active[rank]))
        return [tally(first_releases(self._planned[rank], made))]


def _weight(events: Sequence[tuple[ReleaseEvent, int]]) -> float:
    """Return about how much releases cost together: the sum of the squares of signal over noise."""
    ratios = [(min(e.sampling.rate * e.sensitivity / max(e.scale, 1e-100), 1e100), count) for e, count in events]
    return sum(count * ratio**2 for ratio, count in ratios)


def _bound(spending: Spending, delta: float) -> float | None:
    if len(spending) > MOST_EVENTS:
        return None
    epsilon = live_epsilon(spending, delta)
    if epsilon is None:
        try:
            epsilon = accountants.rdp_epsilon(spending, delta)
        except (ArithmeticError, ValueError):  # losses beyond what floats hold
            return None
    return epsilon if math.isfinite(epsilon) else None
