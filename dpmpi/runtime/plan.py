"""What every rank will release and send, from settings and public facts alone: the one source for all commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from dpmpi.core import Array, Audience, Mechanism, Method, Terms
from dpmpi.errors import ConfigError
from dpmpi.network.schedule import SampledSchedule, StaticSchedule
from dpmpi.privacy import calibration, theorems
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.releases import cache_file, later_releases, tally
from dpmpi.privacy.theorems import Claim
from dpmpi.problem.batches import Batch
from dpmpi.problem.local_problem import LocalProblem, MeanProblem
from dpmpi.problem.rows import Rows
from dpmpi.rng import PrivateStream
from dpmpi.runtime.config import Config
from dpmpi.runtime.derived import FARTHEST_MOMENTUM, derivation, derive, flow_time, noise_rate, weights
from dpmpi.runtime.settings import Settings
from dpmpi.runtime.verdict import Figures, Verdict, verdict


@dataclass(frozen=True)
class Plan:
    """What is known before a run: enough to say what every rank will release, send and pay."""

    settings: Settings
    schedule: StaticSchedule | SampledSchedule
    records: tuple[int, ...]
    active: tuple[int, ...]
    """In how many rounds each rank is active."""
    dimension: int

    @property
    def config(self) -> Config:
        """The configuration, with what `auto` became."""
        return self.settings.config

    @property
    def method(self) -> Method:
        """The method with its hyperparameters."""
        return self.settings.method

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.schedule.size

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.settings.rounds

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """What each rank's mean loss counts in the objective, 1 in the mean."""
        return tuple(weights(self.settings, self.records))

    @property
    def lipschitz(self) -> float:
        """The norm bound L of one record's gradient."""
        return self.settings.lipschitz(self.dimension)

    @property
    def width(self) -> int:
        """The length of a released vector."""
        return self.method.width(self.dimension)

    @property
    def share(self) -> float:
        """The fraction of ranks that are active in a round, over the whole run."""
        return sum(self.active) / (len(self.active) * self.rounds)

    def terms(self, rank: int, active_rounds: int | None = None) -> Terms:
        """Return the public facts about a rank; `active_rounds` replaces what the schedule says."""
        settings, penalty = self.settings, self.settings.penalty
        smoothness, floor = settings.curvature
        static, degrees = isinstance(self.schedule, StaticSchedule), self.schedule.graph.degrees
        return Terms(
            rounds=self.rounds,
            active_rounds=self.active[rank] if active_rounds is None else active_rounds,
            size=self.ranks,
            degree=degrees[rank] if static else 0,
            max_degree=max(degrees) if static else 0,
            dimension=self.dimension,
            lipschitz=self.lipschitz,
            sampling=settings.drawn.sampling(self.records[rank]),
            smoothness=smoothness,
            curvature_floor=floor,
            strong_convexity=penalty.l2,
            l1=penalty.l1,
            bounded=penalty.domain is not None,
            mixing=self.schedule.beta() if static and self.method.accelerates() else 1.0,
            weight=self.weights[rank],
            largest_weight=max(self.weights),
        )

    def derivation(self) -> str | None:
        """Return what was derived of the settings, in words; None if everything was given."""
        return derivation(self.settings, self.method.counts(self.terms(0)))

    def verdict(self) -> Verdict | None:
        """Return what to expect of the run; None without noise or classes."""
        config, L = self.config, self.lipschitz
        nu = noise_rate(self.settings, self.records, L)
        if not nu or not self.settings.classifies:
            return None
        flows = [self.method.flow(self.terms(rank)) for rank in range(self.ranks)]
        return verdict(
            Figures(
                ranks=self.ranks,
                records=sum(self.records),
                smallest=min(self.records),
                dimension=self.dimension,
                clip=L,
                nu=nu,
                share=config.smaller_class,
                flow=max((flow for flow in flows if flow is not None), default=None),
                advised=min(flow_time(config.loss, L, nu, self.dimension), FARTHEST_MOMENTUM),
                epsilon=config.epsilon,
                delta=config.delta or 1e-5,
            )
        )

    def check(self) -> None:
        """Raise `ConfigError` for what the records, the method or the way to speak do not allow."""
        for count in self.records:
            self.settings.drawn.check(count)
        for terms in {self.terms(rank) for rank in range(self.ranks)}:
            self.method.check(terms)
        self.settings.messages.check(self)

    def releases(self, terms: Terms, sigma: float) -> list[tuple[ReleaseEvent, int]]:
        """Return all releases of a rank under noise `sigma`, (event, how many times) in order of time."""
        price = self.settings.noise.price(sigma, self.width)
        return [
            (price.event(r.sensitivity, terms.sampling, r.scale, r.extra, inside=r.inside), r.count)
            for r in self.method.releases(terms)
            if r.count
        ]

    def release_count(self, rank: int, active_rounds: int | None = None) -> int:
        """Return how many releases a rank makes."""
        return sum(release.count for release in self.method.releases(self.terms(rank, active_rounds)))

    def problem(self, rank: int, rows: Rows, labels: Array, key: bytes) -> LocalProblem | MeanProblem:
        """Return the problem of a rank with this key."""
        return self.settings.problem(rows, labels, PrivateStream(key, "batch"), self.weights[rank])

    def mechanism(self, sigma: float, key: bytes) -> Mechanism:
        """Return the mechanism of a rank with this key, whose noise has the standard deviation `sigma`."""
        return self.settings.noise.mechanism(sigma, key, self.width, self.ranks)

    def claim(self) -> Claim:
        """Return the facts that a theorem speaks of, for the rank with the fewest records."""
        config, rank = self.config, min(range(len(self.records)), key=self.records.__getitem__)
        planned = list(self.method.releases(self.terms(rank)))
        L = self.lipschitz * self.weights[rank]
        return Claim(planned, L, self.rounds, self.records[rank], self.share, config.delta)

    def claimed_epsilon(self, sigma: float) -> float | None:
        """Return the epsilon that the paper's theorem claims for this noise, or None where it says nothing."""
        return theorems.theorem_epsilon(self.config.algorithm, self.claim(), sigma)

    def messages(self, rank: int, active_rounds: int | None = None) -> int:
        """Return how many messages a rank sends at most."""
        return round(count_sent(self.sent(rank, active_rounds), self._peers(rank))[0])

    def payload_bytes(self, rank: int) -> int:
        """Return how many bytes of numbers a rank sends at most."""
        return round(count_sent(self.sent(rank), self._peers(rank))[1])

    def bytes(self) -> int:
        """Return how many bytes all ranks send at most, trailers and seals included."""
        overhead = self.settings.messages.overhead
        return sum(self.payload_bytes(rank) + overhead * self.messages(rank) for rank in range(self.ranks))

    def sent(self, rank: int, active_rounds: int | None = None) -> list[tuple[Audience, int, int]]:
        """Return the most messages of a rank: to whom, bytes of numbers in each, and how many times."""
        messages, parts = self.settings.messages, self.method.exchanges(self.terms(rank, active_rounds))
        return [(part.audience, messages.payload_bytes(part.length), messages.hops * part.count) for part in parts]

    def _peers(self, rank: int) -> dict[str, int]:
        near = self.terms(rank).degree if isinstance(self.schedule, StaticSchedule) else 1
        return {"everyone": self.ranks - 1, "neighbours": near}


def count_sent(sent: Iterable[tuple[str, int, float]], pairs: Mapping[str, float]) -> tuple[float, float]:
    """Return the messages and bytes of what is sent: to whom, bytes in a message, and how many times.

    `pairs` says how many pairs of a sender and a receiver each audience makes: one rank's, or those of all.
    """
    each = [(times * pairs[audience], size) for audience, size, times in sent]
    return sum(messages for messages, _ in each), sum(messages * size for messages, size in each)


def make_plan(
    settings: Settings,
    schedule: StaticSchedule | SampledSchedule,
    records: Sequence[int],
    dimension: int,
    *,
    done: Sequence[int] = (),
    since: int = 0,
) -> Plan:
    """Return the plan of a run, with `auto` derived; `dimension` is the length of the model.

    A run that goes on after round `since` has seen the ranks active in `done` rounds each.
    """
    settings = derive(settings, records, dimension, schedule.share)
    config = settings.config
    active = schedule.active_counts(since + 1, settings.rounds + 1).tolist()
    if done:
        active = [before + after for before, after in zip(done, active, strict=True)]
    full = settings if settings.batch is not None else settings.with_batch(Batch("full"))
    found = Plan(full, schedule, tuple(records), tuple(active), dimension)
    if settings.batch is not None or config.epsilon is None:
        return found
    q, busiest = min(records), max(range(len(active)), key=active.__getitem__)
    b = calibration.auto_batch(q, found.release_count(busiest), config.epsilon, config.delta)
    return found if b >= q else dataclasses.replace(found, settings=settings.with_batch(Batch("poisson", b)))


@dataclass(frozen=True)
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
        if not before.charged or not later_releases(plan.releases(terms, 1.0), before.made):
            return level(terms)

        def left(sigma: float) -> Mapping[ReleaseEvent, int]:
            return tally(later_releases(plan.releases(terms, sigma), before.made))

        try:
            return calibration.calibrate(left, epsilon, config.delta, cache=cache_, spent=before.charged)
        except (ConfigError, ArithmeticError, ValueError):  # what is charged leaves too little: the summary says so
            return level(terms)

    levels = [
        level_after(plan.terms(rank), spent[rank]) if spent else level(plan.terms(rank)) for rank in range(len(records))
    ]
    return plan.settings.noise.common(levels)
