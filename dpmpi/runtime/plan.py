"""What every rank will release and send, from settings and public facts alone: the one source for all commands."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

from dpmpi.core import Array, Exchanges, Mechanism, Method, Terms
from dpmpi.core.frozen import frozen
from dpmpi.crypto.ring import WORD_BITS
from dpmpi.errors import ConfigError
from dpmpi.network.route import Routes
from dpmpi.network.schedule import SampledSchedule, StaticSchedule
from dpmpi.privacy import calibration, theorems
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.theorems import Claim
from dpmpi.problem.batches import Batch
from dpmpi.problem.local_problem import LocalProblem, MeanProblem
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Positions, Rows
from dpmpi.rng import PrivateStream
from dpmpi.runtime.config import Config
from dpmpi.runtime.derived import derivation, derive, weights
from dpmpi.runtime.held_out import HeldOut, evaluation_noise
from dpmpi.runtime.messages import Way
from dpmpi.runtime.noise import Pairs
from dpmpi.runtime.noise_levels import noise_levels
from dpmpi.runtime.options import AUTO
from dpmpi.runtime.plugins import blamed
from dpmpi.runtime.settings import Settings

T = TypeVar("T")
LEAST_BITS = 8
"""Of a shared sum, if nobody gives them."""


@frozen
class Plan:
    """What is known before a run: enough to say what every rank will release, send and pay."""

    settings: Settings
    schedule: StaticSchedule | SampledSchedule
    records: tuple[int, ...]
    active: tuple[int, ...]
    """In how many rounds each rank is active."""
    dimension: int
    held_out: HeldOut | None = None
    """The private evaluations; None if there are none."""

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

    @cached_property
    def routes(self) -> Routes:
        """The routes of sums over all ranks."""
        return Routes(self.schedule.graph, self.config.route)

    @cached_property
    def partners(self) -> Counter[int]:
        """With how many others each rank shares a mask."""
        return Counter(rank for pair in self.settings.messages.pairs(self.schedule.graph) for rank in pair)

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
        active = self.active[rank] if active_rounds is None else active_rounds
        facts = active, self._degrees[rank], self.records[rank], self.weights[rank]
        found = self._known_terms.get(facts)
        if found is None:
            found = self._known_terms[facts] = self._terms(*facts)
        return found

    @cached_property
    def kinds(self) -> tuple[Terms, ...]:
        """The terms of all ranks; those of ranks that are alike once."""
        return tuple({id(terms): terms for terms in map(self.terms, range(self.ranks))}.values())

    def of_ranks(self, told: Callable[[Terms], T]) -> list[T]:
        """Return for each rank what is told of its terms, which is asked once for ranks that are alike."""
        known = {id(terms): told(terms) for terms in self.kinds}
        return [known[id(self.terms(rank))] for rank in range(self.ranks)]

    @cached_property
    def _degrees(self) -> Sequence[int]:
        return self.schedule.degrees if isinstance(self.schedule, StaticSchedule) else (0,) * self.ranks

    @cached_property
    def _known_terms(self) -> dict[tuple[int, int, int, float], Terms]:
        return {}

    def _terms(self, active_rounds: int, degree: int, records: int, weight: float) -> Terms:
        settings, penalty = self.settings, self.settings.penalty
        plain = penalty if type(penalty) is Regulariser else None
        smoothness, floor = settings.curvature
        static = isinstance(self.schedule, StaticSchedule)
        return Terms(
            rounds=self.rounds,
            active_rounds=active_rounds,
            size=self.ranks,
            degree=degree,
            max_degree=max(self._degrees),
            dimension=self.dimension,
            lipschitz=self.lipschitz,
            sampling=settings.drawn.sampling(records),
            smoothness=smoothness,
            curvature_floor=floor,
            strong_convexity=plain.l2 if plain else 0.0,
            l1=plain.l1 if plain else 0.0,
            bounded=plain is not None and plain.domain is not None,
            own_penalty=plain is None,
            mixing=self.schedule.beta() if static and self.method.accelerates() else 1.0,
            weight=weight,
            largest_weight=max(self.weights),
            scores=settings.scores,
            integrable=settings.integrable,
        )

    def derivation(self) -> str | None:
        """Return the derived settings in words; None if everything was given."""
        typed = self.settings.typed
        found = derivation(self.settings, [self.method.counts(terms) for terms in self.kinds])
        told = typed is not None and typed.weigh == AUTO and self.config.weigh == "precision"
        if not told or max(self.weights) < 1.1 * min(self.weights):  # who is alike counts alike, or nearly
            return found
        return ", ".join(filter(None, (found, "weights by precision")))

    def check(self) -> None:
        """Raise `ConfigError` for what the records, the method or the way to speak do not allow."""
        for count in self.records:
            self.settings.drawn.check(count)
        with blamed():
            for terms in self.kinds:
                self.method.check(terms)
                list(self.method.releases(terms))
                self.method.exchanges(terms)
        self.settings.messages.check(self)

    def releases(self, terms: Terms, sigma: float) -> list[tuple[ReleaseEvent, int]]:
        """Return all releases of a rank under noise `sigma`, (event, how many times) in order of time."""
        price = self.settings.noise.price(sigma, self.width)
        return [
            (price.event(r.sensitivity, terms.sampling, r.scale, r.extra, inside=r.inside), r.count)
            for r in self.method.releases(terms)
            if r.count
        ]

    @cached_property
    def noise_scales(self) -> tuple[float, float]:
        """The least and the largest noise of a release of any rank, relative to the run's."""
        scales = [r.scale for terms in self.kinds for r in self.method.releases(terms) if r.count] or [1.0]
        return min(scales), max(scales)

    def longest_release(self, rank: int) -> float:
        """Return the norm bound of what a rank releases, before its noise: a gradient, or its step times it.

        A record moves the mean over b records by 2 L/b at most; it is L at most, or q/b times that in a batch that may
        hold all q records.
        """
        terms = self.terms(rank)
        drawn = terms.sampling
        most = drawn.records if drawn.kind == "poisson" else drawn.expected
        moved = max((release.sensitivity for release in self.method.releases(terms)), default=0.0)
        return most * max(moved, terms.gradient_sensitivity) / 2.0

    def release_count(self, rank: int, active_rounds: int | None = None) -> int:
        """Return how many releases a rank makes."""
        return sum(release.count for release in self.method.releases(self.terms(rank, active_rounds)))

    def problem(
        self, rank: int, rows: Rows, labels: Array, key: bytes, persons: Positions | None = None
    ) -> LocalProblem | MeanProblem:
        """Return the problem of a rank with this key; `persons` says whose each record is."""
        return self.settings.problem(rows, labels, PrivateStream(key, "batch"), self.weights[rank], persons)

    def mechanism(self, sigma: float, key: bytes, seat: Pairs | None = None) -> Mechanism:
        """Return the mechanism of a rank with this key, whose noise has the standard deviation `sigma`."""
        noise = self.settings.noise
        return noise.paired(noise.mechanism(sigma, key, self.width, self.ranks), key, seat)

    def claim(self) -> Claim:
        """Return the facts that a theorem speaks of, for the rank whose records weigh most: the fewest, if they tie."""
        config, heaviest = (
            self.config,
            [float(f"{w / q:.12g}") for w, q in zip(self.weights, self.records, strict=True)],
        )
        rank = max(range(self.ranks), key=lambda i: (heaviest[i], -self.records[i]))
        planned = list(self.method.releases(self.terms(rank)))
        L = self.lipschitz * self.weights[rank]
        return Claim(planned, L, self.rounds, self.records[rank], self.share, config.delta)

    def claimed_epsilon(self, sigma: float) -> float | None:
        """Return the epsilon that the paper's theorem claims for this noise, or None where it says nothing."""
        return theorems.theorem_epsilon(self.config.algorithm, self.claim(), sigma)

    def messages(self, rank: int, active_rounds: int | None = None) -> int:
        """Return how many messages a rank sends at most."""
        return count_sent(self.sent(rank, active_rounds), self._one_exchange(rank))[0]

    def payload_bytes(self, rank: int) -> int:
        """Return how many bytes of numbers a rank sends at most."""
        return count_sent(self.sent(rank), self._one_exchange(rank))[1]

    def bytes(self) -> int:
        """Return how many bytes all ranks send at most, trailers and seals included."""
        overhead = self.settings.messages.overhead
        return sum(self.payload_bytes(rank) + overhead * self.messages(rank) for rank in range(self.ranks))

    def sent(self, rank: int, active_rounds: int | None = None) -> list[tuple[Way, int, int]]:
        """Return the most exchanges of a rank: which way, bytes of numbers in a vector, and how many times."""
        messages, parts = self.settings.messages, list(self.method.exchanges(self.terms(rank, active_rounds)))
        if self.held_out is not None:
            parts.append(Exchanges("everyone", self.held_out.width, self.held_out.count()))
        return [
            (way, messages.payload_bytes(part.length), part.count)
            for part in parts
            for way in messages.ways(part.audience)
        ]

    def _one_exchange(self, rank: int) -> Callable[[str, int], tuple[int, int]]:
        """Return a function that counts the messages and bytes of numbers that a rank sends for one vector."""
        near = self.terms(rank).degree if isinstance(self.schedule, StaticSchedule) else 1
        some = self.partners[rank]

        def count(way: str, size: int) -> tuple[int, int]:
            if way == "sum":
                found = self.routes.sent(rank, size)
                return found.messages, found.payload
            peers = some if way == "partners" else near
            return peers, peers * size

        return count


def count_sent(
    sent: Iterable[tuple[str, int, float]], one_exchange: Callable[[str, int], tuple[float, float]]
) -> tuple[int, int]:
    """Return the messages and bytes of what is sent: which way, bytes in a vector, and how many times.

    `one_exchange` tells the messages and bytes of one vector: one rank's, or those of all.
    """
    each = [(times, *one_exchange(way, size)) for way, size, times in sent]
    return round(sum(k * messages for k, messages, _ in each)), round(sum(k * size for k, _, size in each))


def make_plan(
    settings: Settings,
    schedule: StaticSchedule | SampledSchedule,
    records: Sequence[int],
    dimension: int,
    *,
    done: Sequence[int] = (),
    since: int = 0,
    held_out: Sequence[int] = (),
) -> Plan:
    """Return the plan of a run as `_planned` does; in narrow words with the most --share-bits that leave room."""
    config = settings.config
    narrow = config.share_bits is None and config.noise_in == "sum" and config.word_bits < WORD_BITS

    def planned(settings: Settings) -> Plan:
        return _planned(settings, schedule, records, dimension, done=done, since=since, held_out=held_out)

    for bits in range(config.fraction_bits, LEAST_BITS - 1, -1) if narrow else ():
        try:
            found = planned(settings.with_share_bits(bits))
            found.check()
            found.settings.noise.check_room(found, max(noise_levels(found)))
        except ConfigError:
            continue
        return found
    return planned(settings)  # whose refusal, if nothing fits, names what else would do


def _planned(
    settings: Settings,
    schedule: StaticSchedule | SampledSchedule,
    records: Sequence[int],
    dimension: int,
    *,
    done: Sequence[int] = (),
    since: int = 0,
    held_out: Sequence[int] = (),
) -> Plan:
    """Return the plan of a run, with `auto` derived; `dimension` is the length of the model.

    A run that goes on after round `since` has seen the ranks active in `done` rounds each. Of each rank's rows
    `held_out` are for private evaluations, if the settings ask for any.
    """
    most = max(schedule.graph.degrees) if isinstance(schedule, StaticSchedule) else 0
    settings = dataclasses.replace(settings, noise=settings.noise.on(schedule.graph))
    with blamed():
        settings = derive(settings, records, dimension, schedule.share, most)
    apart = None
    if settings.evaluating.kind == "private" and any(held_out):
        settings = dataclasses.replace(settings, noise=dataclasses.replace(settings.noise, rows="training"))
        statistics = settings.statistics
        after = tuple(settings.evaluating.rounds(settings.rounds))
        noise = evaluation_noise(settings.noise, statistics, settings.config.delta)
        apart = HeldOut(statistics, noise, tuple(held_out), after)
    elif settings.evaluating.kind == "private" and settings.evaluating.given and held_out:
        raise ConfigError("expected held-out rows for --evaluate private, found none: use a larger --test-fraction")
    config = settings.config
    active = schedule.active_counts(since + 1, settings.rounds + 1).tolist()
    if done:
        active = [before + after for before, after in zip(done, active, strict=True)]
    full = settings if settings.batch is not None else settings.with_batch(Batch("full"))
    found = Plan(full, schedule, tuple(records), tuple(active), dimension, apart)
    if settings.batch is not None or config.epsilon is None:
        return found
    q, busiest = min(records), max(range(len(active)), key=active.__getitem__)
    b = calibration.auto_batch(q, found.release_count(busiest), config.epsilon, config.delta)
    sampled = dataclasses.replace(found, settings=settings.with_batch(Batch("poisson", b)))
    return found if b >= q or (_refused(sampled) and not _refused(found)) else sampled


def _refused(plan: Plan) -> bool:
    """Return whether the method cannot work with the terms: some need all records in every round."""
    try:
        for terms in plan.kinds:
            with blamed():
                plan.method.check(terms)
    except ConfigError:
        return True
    return False
