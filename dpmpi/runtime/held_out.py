"""What private evaluations will release: planned from settings and public facts, as training is.

Of N held-out rows over all ranks, rank i releases its counts (model/histogram.py) divided by N, a vector c_i that one
record moves by at most D/N, D of (7) there, under noise of deviation sigma_i; everybody gets their sum. A rank's
held-out rows are charged for that, and for nothing else; its training rows are charged for everything else. The noise
is the smallest that meets the run's own target on the held-out rows,

    sigma_i = min { sigma : epsilon of all evaluations at that noise, delta <= target }                            (1)

The target is --epsilon, or where the noise is given instead what training costs at that noise; not more than the
rank's budget. Noise is Gaussian, discrete inside a sum, and Laplace for delta = 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpmpi.core import Sampling
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.model.histogram import Statistics
from dpmpi.privacy import calibration
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.releases import cache_file, spent_epsilon, tally
from dpmpi.privacy.spending import charged_to
from dpmpi.runtime.noise import LocalNoise, Noise, SumNoise

if TYPE_CHECKING:
    from dpmpi.runtime.noise_levels import Spent
    from dpmpi.runtime.plan import Plan


@frozen
class HeldOut:
    """The private evaluations of a run."""

    statistics: Statistics
    noise: Noise
    rows: tuple[int, ...]
    """The held-out rows of each rank."""
    rounds: tuple[int, ...]
    """After which there is an evaluation."""

    @property
    def total(self) -> int:
        """The held-out rows of all ranks."""
        return sum(self.rows)

    @property
    def width(self) -> int:
        """The length of what is released."""
        return self.statistics.width

    @property
    def sensitivity(self) -> float:
        """How far one record moves what is released."""
        return self.statistics.sensitivity / self.total

    @property
    def largest(self) -> float:
        """The largest entry that a rank may release, before its noise: all of its rows in one cell."""
        return max(self.rows) / self.total

    def sampling(self, rank: int) -> Sampling:
        """Return how rows are drawn: all of them. A rank that has none releases noise as if it had one."""
        rows = max(1, self.rows[rank])
        return Sampling("full", float(rows), rows)

    def event(self, rank: int, sigma: float) -> ReleaseEvent:
        """Return the event that one evaluation charges."""
        return self.noise.price(sigma, self.width).event(self.sensitivity, self.sampling(rank))

    def releases(self, rank: int, sigma: float, after: int = 0) -> list[tuple[ReleaseEvent, int]]:
        """Return a rank's releases for evaluations after round `after`."""
        count = self.count(after)
        return [(self.event(rank, sigma), count)] if count else []

    def count(self, after: int = 0) -> int:
        """Return how many evaluations come after round `after`."""
        return sum(round_ > after for round_ in self.rounds)


def evaluation_noise(noise: Noise, statistics: Statistics, delta: float) -> Noise:
    """Return the noise of evaluations in a run with this noise: where that is, and over held-out rows."""
    if isinstance(noise, SumNoise):
        return dataclasses.replace(noise, rows="held-out")
    kind, ratio = ("gaussian", None) if delta > 0 else ("laplace", statistics.l1_ratio)
    return LocalNoise(kind, ratio, records=noise.records, rows="held-out")


def evaluation_levels(
    plan: Plan,
    sigmas: Sequence[float],
    budgets: Sequence[float | None],
    spent: Sequence[Spent] = (),
    *,
    after: int = 0,
    cached: bool = True,
) -> list[float]:
    """Return the noise (1) of every rank's evaluations; `sigmas` is that of training. Empty if there are none.

    What a run that goes on after round `after` has `spent` on held-out rows counts, and more noise makes up for it
    where that is possible; where it is not, the budget refuses the release.
    """
    held_out, config = plan.held_out, plan.config
    if held_out is None:
        return []
    cache_ = cache_file() if cached else None
    known: dict[object, float] = {}

    def level(rank: int, target: float, before: Mapping[ReleaseEvent, int]) -> float:
        key = (held_out.rows[rank], target, frozenset(before.items()))
        if key not in known:
            count = max(1, held_out.count(after if before else 0))
            known[key] = calibration.calibrate(
                lambda sigma: {held_out.event(rank, sigma): count}, target, config.delta, cache=cache_, spent=before
            )
        return known[key]

    levels = []
    for rank, budget in enumerate(budgets):
        target = _target(plan, rank, sigmas[rank])
        target = target if not budget else min(target, budget)
        before = charged_to(spent[rank].charged, "held-out") if spent else {}
        try:
            levels.append(level(rank, target, before))
        except (ConfigError, ArithmeticError, ValueError):
            if not before:
                raise
            levels.append(level(rank, target, {}))  # what is charged leaves too little: the budget decides
    return held_out.noise.common(levels)


def _target(plan: Plan, rank: int, sigma: float) -> float:
    """Return the epsilon that a rank's evaluations may cost: what its training may."""
    if plan.config.epsilon is not None:
        return plan.config.epsilon
    found = spent_epsilon(tally(plan.releases(plan.terms(rank), sigma)), plan.config.delta)
    if found is None:
        raise ConfigError(
            "expected noise of a finite epsilon for --evaluate private, found too little: give --epsilon, or "
            "--evaluate 0"
        )
    return max(found, 1e-6)
