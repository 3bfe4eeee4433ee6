"""Noise from a privacy target, charges from a budget, privacy from what was released: one source for all commands."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dpmpi import claims
from dpmpi.claims import Claim
from dpmpi.config import Config, shown
from dpmpi.core import Terms
from dpmpi.data import Source, parse_source
from dpmpi.errors import ConfigError
from dpmpi.exchange.plain import payload_bytes
from dpmpi.graphs import make_graph
from dpmpi.methods import Audience, Method
from dpmpi.penalties import parse_penalty
from dpmpi.privacy import accountants, calibration, filters
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.mechanisms import pricing, sum_pricing
from dpmpi.problem import Batch, make_terms, mean_lipschitz
from dpmpi.schedules import SampledSchedule, StaticSchedule, make_schedule
from dpmpi.wire import SEAL_BYTES, TRAILER_BYTES

LARGEST_BUDGET = 1e300
"""Beyond it an epsilon promises nothing, and integers are no floats any more."""


def source_of(config: Config) -> Source:
    """Return where the records of a run come from."""
    return parse_source(
        config.data, samples=config.samples, normalize=config.normalize, test_fraction=config.test_fraction,
        seed=config.seed, loss=config.loss, dimension=config.dimension,
    )  # fmt: skip


def schedule_of(config: Config, ranks: int, members: Sequence[int] | None = None) -> StaticSchedule | SampledSchedule:
    """Return who talks to whom in which round of a run that began with so many ranks, of which the members are left."""
    graph = make_graph(config.graph, ranks, config.seed)
    if members is not None and len(members) < ranks:
        graph = graph.induced(members)
    sampled = config.make_algorithm().schedule == "sampled"
    return make_schedule(graph, config.weights, (config.sample_edges or 1) if sampled else None, config.seed)


@dataclass(frozen=True)
class Prospect:
    """What is known before a run: enough to say what every rank will release."""

    config: Config
    schedule: StaticSchedule | SampledSchedule
    records: tuple[int, ...]
    active: tuple[int, ...]
    """In how many rounds each rank is active."""
    dimension: int
    lipschitz: float

    @cached_property
    def method(self) -> Method:
        """The algorithm with its hyperparameters."""
        return self.config.make_algorithm()

    @property
    def kind(self) -> str:
        """The kind of noise."""
        if self.config.noise_in == "sum":
            return "discrete-gaussian"
        return self.config.mechanism or self.method.mechanisms[0]

    @property
    def share(self) -> float:
        """The fraction of ranks that are active in a round, over the whole run."""
        return sum(self.active) / (len(self.active) * self.config.rounds)

    def terms(self, rank: int, active_rounds: int | None = None) -> Terms:
        """Return the public facts about a rank; `active_rounds` replaces what the schedule says."""
        config, penalty = self.config, parse_penalty(self.config.penalty, self.config.domain)
        return make_terms(
            rank=rank, schedule=self.schedule, rounds=config.rounds, dimension=self.dimension,
            active_rounds=self.active[rank] if active_rounds is None else active_rounds,
            lipschitz=self.lipschitz, sampling=Batch.parse(config.batch).sampling(self.records[rank]),
            loss=config.loss, normalized=config.normalize, penalty=penalty, bounded=config.domain is not None,
        )  # fmt: skip

    def check(self) -> None:
        """Raise `ConfigError` for what the algorithm cannot do."""
        for terms in {self.terms(rank) for rank in range(self.schedule.size)}:
            self.method.check(terms)

    def events(self, terms: Terms, sigma: float) -> list[tuple[ReleaseEvent, int]]:
        """Return all releases of a rank under noise `sigma`, (event, how many times) in order of time."""
        width = self.method.width(self.dimension)
        if self.config.noise_in == "sum":
            price = sum_pricing(sigma, self.config.share_bits, width)
        else:
            price = pricing(self.kind, sigma, width)
        return [
            (price.event(r.sensitivity, terms.sampling, r.scale, r.extra), r.count)
            for r in self.method.releases(terms)
            if r.count
        ]

    def planned_releases(self, rank: int, active_rounds: int | None = None) -> int:
        """Return how many releases a rank makes."""
        return sum(release.count for release in self.method.releases(self.terms(rank, active_rounds)))

    def claim(self) -> Claim:
        """Return what a theorem may speak of: the rank with the fewest records."""
        config, rank = self.config, min(range(len(self.records)), key=self.records.__getitem__)
        planned = list(self.method.releases(self.terms(rank)))
        return Claim(planned, self.lipschitz, config.rounds, self.records[rank], self.share, config.delta)

    def messages(self, rank: int, active_rounds: int | None = None) -> int:
        """Return how many messages a rank sends at most."""
        terms = self.terms(rank, active_rounds)
        sent = sum(self._peers(terms, part.audience) * part.count for part in self.method.exchanges(terms))
        return sent * self._hops

    def payload_bytes(self, rank: int) -> int:
        """Return how many bytes of numbers a rank sends at most."""
        terms = self.terms(rank)
        parts = self.method.exchanges(terms)
        numbers = [(self._peers(terms, part.audience) * part.count, part.length) for part in parts]
        return sum(sent * payload_bytes(length, self.config.wire) for sent, length in numbers) * self._hops

    @property
    def _hops(self) -> int:
        """Full shares travel before their sums do."""
        return 2 if self.config.full_shares else 1

    @property
    def message_overhead(self) -> int:
        """The bytes of a message beside its numbers: the trailer, and the seal if there is one."""
        return TRAILER_BYTES + (SEAL_BYTES if self.config.sealed else 0)

    def _peers(self, terms: Terms, audience: Audience) -> int:
        if audience == "everyone":
            return terms.size - 1
        return terms.degree if isinstance(self.schedule, StaticSchedule) else 1


def prospect_of(
    config: Config, schedule: StaticSchedule | SampledSchedule, records: Sequence[int], dimension: int,
    radius: float | None, done: Sequence[int] = (), since: int = 0,
) -> Prospect:  # fmt: skip
    """Return the prospect of a run, `--batch auto` resolved; `radius` bounds the records of the mean problem.

    A run that goes on after round `since` has seen the ranks active in `done` rounds each.
    """
    active = schedule.active_counts(since + 1, config.rounds + 1).tolist()
    if done:
        active = [before + after for before, after in zip(done, active, strict=True)]
    lipschitz = config.lipschitz if radius is None else mean_lipschitz(radius, dimension)
    full = dataclasses.replace(config, batch="full") if config.batch == "auto" else config
    found = Prospect(full, schedule, tuple(records), tuple(active), dimension, lipschitz)
    if config.batch != "auto":
        return found
    if config.epsilon is None:
        raise ConfigError("--batch auto is chosen for a privacy target: give --epsilon, or a batch")
    q, busiest = min(records), max(range(len(active)), key=active.__getitem__)
    b = calibration.auto_batch(q, found.planned_releases(busiest), config.epsilon, config.delta)
    if b >= q:
        return found
    return dataclasses.replace(found, config=dataclasses.replace(config, batch=f"poisson:{b}"))


def tally(events: Iterable[tuple[ReleaseEvent, int]]) -> Counter[ReleaseEvent]:
    """Return how often each event occurs."""
    found: Counter[ReleaseEvent] = Counter()
    for event, count in events:
        found[event] += count
    return found


@dataclass(frozen=True)
class Spent:
    """What a rank has charged before the run went on, and how many of its planned releases that made."""

    charged: Mapping[ReleaseEvent, int]
    made: int


def after(planned: Iterable[tuple[ReleaseEvent, int]], made: int) -> list[tuple[ReleaseEvent, int]]:
    """Return the planned releases without the first `made` ones."""
    left = []
    for event, count in planned:
        gone = min(count, made)
        made -= gone
        if count > gone:
            left.append((event, count - gone))
    return left


def noise_levels(prospect: Prospect, spent: Sequence[Spent] = ()) -> list[float]:
    """Return the noise of every rank that meets --epsilon and --delta, given its records and active rounds.

    Each rank composes over its own active rounds only: the schedule is public, so it hides nothing, but who is silent
    pays nothing. A run that goes on after a failure has `spent` something, more than planned if rounds are repeated:
    the noise of what is still to come makes up for it where that is possible. When a rank fails is not a function of
    the records, so the composition is no more adaptive than that of the plan.
    """
    config, records = prospect.config, prospect.records
    if config.epsilon is not None or config.noise:
        for count in sorted(set(records)):
            calibration.check_delta(config.delta, count, config.allow_large_delta)
    if config.epsilon is None:
        return [config.noise or 0.0] * len(records)
    if config.calibration == "theorem":
        return [claims.prescribed_noise(config.algorithm, prospect.claim(), config.epsilon)] * len(records)
    epsilon = config.epsilon

    @cache  # ranks in the same position need the same noise
    def level(terms: Terms) -> float:
        if not prospect.events(terms, 1.0):
            # A rank that is never active releases nothing; the noise of one round keeps its figures finite.
            terms = dataclasses.replace(terms, active_rounds=1)
        return calibration.calibrate(
            lambda sigma: tally(prospect.events(terms, sigma)), epsilon, config.delta, cache=cache_file()
        )

    def level_after(terms: Terms, before: Spent) -> float:
        if not before.charged or not after(prospect.events(terms, 1.0), before.made):
            return level(terms)
        try:
            return calibration.calibrate(
                lambda sigma: tally(after(prospect.events(terms, sigma), before.made)), epsilon, config.delta,
                cache=cache_file(), spent=before.charged,
            )  # fmt: skip
        except (ConfigError, ArithmeticError, ValueError):  # what is charged leaves too little: the summary says so
            return level(terms)

    levels = [
        level_after(prospect.terms(rank), spent[rank]) if spent else level(prospect.terms(rank))
        for rank in range(len(records))
    ]
    return [max(levels)] * len(records) if config.noise_in == "sum" else levels  # one sum, one noise


def claimed_epsilon(prospect: Prospect, sigma: float) -> float | None:
    """Return what the paper's theorem claims for this noise, or None where it says nothing."""
    return claims.claimed_epsilon(prospect.config.algorithm, prospect.claim(), sigma)


def spent_epsilon(spending: Mapping[ReleaseEvent, int], delta: float, *, cached: bool = True) -> float | None:
    """Return the certified epsilon of what was released; None if it is infinite, or too large to be computed."""
    try:
        epsilon = accountants.certified_epsilon(spending, delta, cache=cache_file() if cached else None)
    except (ArithmeticError, ValueError, MemoryError):  # losses beyond what the accountant's grid can hold
        return None
    return epsilon if math.isfinite(epsilon) else None


def live_epsilon(spending: Mapping[Any, int], delta: float) -> float | None:
    """Return the certified epsilon so far where it has a closed form, which takes no import; None elsewhere."""
    if all(event.noise == "gaussian" and event.sampling.kind == "full" for event in spending):
        return spent_epsilon(spending, delta)
    return None


def cache_file() -> Path:
    """Return where this user's figures are kept: the accountant takes seconds, and runs repeat."""
    return Path("~/.cache/dpmpi/accountant.json").expanduser()


def read_budget(config: Config, rank: int) -> float | None:
    """Return what a rank may spend: from --budget itself, or from a TOML file that may be the rank's own."""
    if config.budget is None:
        return None
    import tomllib  # noqa: PLC0415 - budgets only

    try:
        value: object = float(config.budget)
    except ValueError:
        path = Path(config.budget.replace("{rank}", str(rank)))
        try:
            value = tomllib.loads(path.read_text(encoding="utf-8")).get("epsilon")
        except (OSError, ValueError, RecursionError) as error:  # broken TOML or UTF-8, brackets without end
            reason = shown(str(error))
            raise ConfigError(f"--budget: expected a number or a TOML file, cannot read {path}: {reason}") from error
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{path}: expected epsilon = a number, got {shown(value)}") from None
    if not isinstance(value, int | float) or not 0 <= value <= LARGEST_BUDGET:
        raise ConfigError(f"a budget is an epsilon from 0 to {LARGEST_BUDGET:g}, got {shown(value)} for rank {rank}")
    return float(value)


def filter_order(planned: Sequence[tuple[ReleaseEvent, int]], budget: float, delta: float) -> int:
    """Return the Renyi order for a ledger that is to go on over runs: fixed by the first of them, once and for all."""
    if not planned or any(event.noise == "none" for event, _ in planned):
        return 2
    return max(2, math.ceil(filters.filter_order(tally(planned), budget, delta)))


def allowance(
    planned: Sequence[tuple[ReleaseEvent, int]], earlier: Mapping[ReleaseEvent, int], budget: float, delta: float,
    order: int, own: Mapping[ReleaseEvent, int] | None = None,
) -> int:  # fmt: skip
    """Return how many of the planned releases, in their order, a budget allows.

    `own` is what this very run has charged before a failure: fixed by it and by the plan, so it composes with it. On a
    fresh ledger everything is fixed before the run, so the certified accountant decides. After earlier runs, whose
    results may have led to this one, composition is adaptive and a filter decides: Gaussian where all releases are
    unsampled Gaussian ones, else Renyi at the order that the ledger fixed when it began.
    """
    own = own or {}
    events = [event for event, _ in planned] + [*earlier, *own]
    if not planned or any(event.noise == "none" for event in events):
        return 0  # what was said without noise has spent every budget
    if not earlier:
        low, high = 0, sum(count for _, count in planned)
        while low < high:
            middle = (low + high + 1) // 2
            charges = _first(planned, middle) + Counter(own)
            fits = accountants.certified_epsilon(charges, delta, cache=cache_file()) <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low
    gaussian = all(event.noise == "gaussian" and event.sampling.kind == "full" for event in events)
    filter_ = filters.GaussianFilter(budget, delta) if gaussian else filters.RdpFilter(budget, delta, float(order))
    left = filter_.budget - sum(filter_.cost(e, count) for e, count in (*earlier.items(), *own.items()))
    allowed = 0
    for event, count in planned:
        cost = filter_.cost(event)
        fitting = min(count, math.floor(left / cost)) if left > 0 and 0 < cost < math.inf else 0
        allowed, left = allowed + fitting, left - fitting * cost
        if fitting < count:
            break
    return allowed


def _first(planned: Sequence[tuple[ReleaseEvent, int]], wanted: int) -> Counter[ReleaseEvent]:
    """Return the tally of the first `wanted` releases."""
    found: Counter[ReleaseEvent] = Counter()
    for event, count in planned:
        found[event] += min(count, wanted)
        wanted -= min(count, wanted)
        if wanted == 0:
            break
    return found
