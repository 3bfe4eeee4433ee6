"""Runs for the audit: shards with canaries, and a tap that rebuilds the victim's releases from the wire.

The first rank holds a *gradient canary*: a record u = (1, 0, ...) whose label is so large that its clipped gradient is
+L u or -L u, whatever the model is. The two labels are two adjacent shards, as far apart as records can be. The other
records are *silent* (gradient 0) or *opposed* (gradient -L u: the worst case of batches of a fixed size, in which a
record that is not drawn leaves its place to another). Everything else is a run: the same problem, agents, releases,
exchange, transport and noise.

The adversary reads the first rank's link: what it sends, m(t), and what its neighbours send to it, m_k(t). Dual
averaging sends m(t) = z(t) + a_t s(t) with s(t) the release, and z is made of earlier messages, which were seen:

    z(t+1) = W_00 m(t) + sum_k W_0k m_k(t),   over the rounds in which the rank is active, z = 0 before (1)
    s(t)   = (m(t) - z(t)) / a_t                                                                        (2)
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpmpi.agreement import on_first
from dpmpi.algorithms.dual_averaging import DualAveraging
from dpmpi.audit.statistics import Bound, Signal, likelihood, one_run_bound, scores, two_world_bound
from dpmpi.config import Config
from dpmpi.core import Agent, Array, Event, Mechanism, Problem
from dpmpi.engine import Engine, Seat
from dpmpi.errors import ConfigError
from dpmpi.exchange.plain import PlainExchange
from dpmpi.losses import LOSSES
from dpmpi.penalties import parse_penalty
from dpmpi.planning import noise_levels, prospect_of, schedule_of
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem import Batch, LocalProblem
from dpmpi.rng import PrivateStream, fresh_key, public_generator, rank_key
from dpmpi.rows import Dense, Rows
from dpmpi.wire import Channel, Neighbourhood, Transport

VICTIM = 0
FEATURES = 2
LABEL = 1e100
"""So large that no model comes near: the clipped gradient has norm L and the sign of -label."""


class Watch(Protocol):
    """Shows how far the runs are, e.g. `progress.Progress`."""

    def pieces(self, done: int, stop: int) -> Iterator[int]:
        """Yield the rounds up to which to run next."""
        ...

    def update(self, done: int) -> None:
        """Note that so many rounds, over all runs, are complete."""
        ...


MakeProblem = Callable[[Rows, Array, Config, bytes], Problem]
MakeMechanism = Callable[[float, bytes, int], Mechanism]


def local_problem(rows: Rows, labels: Array, config: Config, key: bytes) -> Problem:
    """Return the problem of a run with the squared loss."""
    batch = Batch.parse(config.batch)
    return LocalProblem(rows, labels, LOSSES["squared"], batch, config.lipschitz, PrivateStream(key, "batch"))


def gaussian(sigma: float, key: bytes, dimension: int) -> Mechanism:
    """Return the mechanism of a run."""
    return make_mechanism("gaussian" if sigma else "none", sigma, key, dimension)


@dataclass
class Tally:
    """Charges in memory: the events that a ledger would hold."""

    spent: Counter[ReleaseEvent]

    def charge(self, event: Event, round_: int) -> None:
        """Count the event."""
        if not isinstance(event, ReleaseEvent):
            raise ConfigError(f"expected a release event, found {type(event).__name__}")
        self.spent[event] += 1


class Tap:
    """A transport that rebuilds the victim's releases, by (1) and (2), from what crosses its link."""

    def __init__(self, inside: Transport, rounds: Sequence[tuple[int, Neighbourhood]], weights: Array) -> None:
        self.inside = inside
        self._near = [near for _, near in rounds]
        self._weights = weights
        self.listen(0)

    def listen(self, coordinates: int) -> None:
        """Start anew: watch the first `coordinates` of every message of a run."""
        self.releases: Array = np.zeros((len(self._near), coordinates))
        self._sent: Array = np.zeros(coordinates)
        self._last: Channel | None = None
        self._count = 0

    def start(self, channel: Channel) -> None:
        """Note the message, then send it."""
        if channel.rank == VICTIM:
            self._hear(channel)
        self.inside.start(channel)

    def _hear(self, channel: Channel) -> None:
        k, width = self._count, self._sent.size
        sent = channel.messages[0].view(np.float64)[:width]
        released = self.releases[k]
        released[:] = sent
        if self._last is not None:  # its incoming buffers still hold the previous exchange
            near = self._near[k - 1]
            released -= near.self_weight * self._sent
            for weight, payload in zip(near.weights, self._last.incoming, strict=True):
                released -= weight * payload.view(np.float64)[:width]  # (1)
        released /= self._weights[k]  # (2)
        self._sent[:] = sent
        self._last = channel
        self._count += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


class Laboratory:
    """Runs an algorithm again and again over made-up shards, and listens; all processes do the same together."""

    def __init__(
        self,
        config: Config,
        transport: Transport,
        records: int,
        make_problem: MakeProblem = local_problem,
        make_mechanism: MakeMechanism = gaussian,
    ) -> None:
        algorithm, n = config.make_algorithm(), transport.size
        if not isinstance(algorithm, DualAveraging):
            raise ConfigError(f"the audit reads the wire of dda, dp-dda and sampled-dda, found {config.algorithm}")
        if n < 2:
            raise ConfigError("the audit reads a wire: start it as mpirun -n 4 python -m dpmpi audit, or --loopback 4")
        self.schedule = schedule_of(config, n)
        prospect = prospect_of(config, self.schedule, [records] * n, 1, None)
        active = list(prospect.active)
        if active[VICTIM] == 0:
            raise ConfigError(f"rank {VICTIM} never speaks in {config.rounds} rounds: give --rounds more")
        config = prospect.config
        Batch.parse(config.batch).check(records)
        self.config, self.records, self.algorithm = config, records, algorithm
        self.active: list[int] = active
        self.prospect = prospect
        self.sigmas: list[float] = on_first(transport, lambda: noise_levels(prospect))
        rounds = list(self.schedule.rounds(VICTIM, 1, config.rounds + 1))
        a = np.array([float(t) if algorithm.weighting == "linear" else 1.0 for t, _ in rounds])
        self.tap: Any = Tap(transport, rounds, a)
        self._exchanges = {rank: PlainExchange(self.tap, rank, n) for rank in transport.ranks}
        self._penalty = parse_penalty(config.penalty, config.domain)
        self._make_problem, self._make_mechanism = make_problem, make_mechanism
        self._silent: Dense | None = None
        self._runs = 0
        self.listens = VICTIM in transport.ranks
        self.spending: Counter[ReleaseEvent] = Counter()
        """What the victim's first run charged; all runs charge the same."""

    def run(self, rows: Rows, labels: Array, watched: int, progress: Watch | None = None) -> Array:
        """Run all rounds with this shard on the victim, zeros elsewhere; return its releases, as the wire tells them.

        Row k holds the first `watched` coordinates of the victim's k-th release; zeros where the victim is not here.
        """
        config, n, m = self.config, self.tap.size, rows.dimension
        if self._silent is None or self._silent.dimension != m:
            self._silent = Dense(np.zeros((self.records, m)))
        seats = []
        for rank in self.tap.ranks:
            key = rank_key(config.insecure_noise_seed, self._runs * n + rank)
            mine = (rows, labels) if rank == VICTIM else (self._silent, np.zeros(self.records))
            problem = self._make_problem(*mine, config, key)
            mechanism = self._make_mechanism(self.sigmas[rank], key, m)
            tally = Tally(self.spending if rank == VICTIM and self._runs == 0 else Counter())
            terms = dataclasses.replace(self.prospect.terms(rank), dimension=m)
            agent = Agent(
                rank, self.schedule.share, terms, problem, self._penalty, mechanism, tally,
                PrivateStream(key, "weights"),
            )  # fmt: skip
            seats.append(Seat(agent, self.algorithm.start(agent), self._exchanges[rank]))
        self.tap.listen(watched)
        engine = Engine(self.algorithm, self.schedule, self.tap, seats)
        if progress is None:
            engine.advance(config.rounds)
        else:
            for last in progress.pieces(0, config.rounds):
                engine.advance(last)
                progress.update(self._runs * config.rounds + last)
        self._runs += 1
        return np.asarray(self.tap.releases)


def canary_shard(records: int, sign: int, opposed: bool) -> tuple[Rows, Array]:
    """Return a shard whose first record has gradient sign * L u; the others -L u if `opposed`, else 0."""
    X, y = np.zeros((records, FEATURES)), np.zeros(records)
    X[0, 0], y[0] = 1.0, -sign * LABEL
    if opposed:
        X[1:, 0], y[1:] = 1.0, LABEL
    return Dense(X), y


def canary_signal(config: Config, records: int, sigma: float, opposed: bool) -> Signal:
    """Return what the canary of `canary_shard` does to a release."""
    sampling, L = Batch.parse(config.batch).sampling(records), config.lipschitz
    g = L / sampling.expected
    return Signal(-L, 2 * g, 0.0, sampling.rate, sigma) if opposed else Signal(0.0, g, -g, sampling.rate, sigma)


@dataclass(frozen=True)
class Worlds:
    """The scores of the runs in the two worlds, and the bound that they give."""

    plus: dict[str, Array]
    minus: dict[str, Array]
    bound: Bound


def audit_runs(
    laboratory: Laboratory, runs: int, *, opposed: bool, confidence: float = 0.95, progress: Watch | None = None
) -> Worlds | None:
    """Run both worlds `runs` times; return scores and bound where the victim is, None elsewhere."""
    config, records = laboratory.config, laboratory.records
    signal = canary_signal(config, records, laboratory.sigmas[VICTIM], opposed)
    found: dict[int, list[dict[str, float]]] = {1: [], -1: []}
    shards = {sign: canary_shard(records, sign, opposed) for sign in found}
    for _ in range(runs):
        for sign, world in found.items():
            releases = laboratory.run(*shards[sign], 1, progress)
            if laboratory.listens:
                world.append(scores(releases[:, 0], signal))
    if not laboratory.listens:
        return None
    plus, minus = (
        {name: np.array([run[name] for run in world]) for name in world[0]} for world in (found[1], found[-1])
    )
    return Worlds(plus, minus, two_world_bound(plus, minus, config.delta, confidence))


@dataclass(frozen=True)
class Guesses:
    """What was guessed from one run, and the bound that it gives."""

    canaries: int
    guesses: int
    right: int
    epsilon: float


def audit_one_run(
    laboratory: Laboratory, canaries: int, guesses: int, *, confidence: float = 0.95, progress: Watch | None = None
) -> Guesses | None:
    """Run once with many canaries of random sign, one a coordinate; guess the signs of the clearest ones.

    Returns None where the victim is not.
    """
    config, records = laboratory.config, laboratory.records
    seed = config.insecure_noise_seed
    draw = public_generator(int.from_bytes(fresh_key(), "little") if seed is None else seed, "canaries")
    signs = np.where(draw.random(canaries) < 0.5, -1.0, 1.0)
    X, y = np.zeros((records, canaries)), np.zeros(records)
    X[:canaries], y[:canaries] = np.eye(canaries), -signs * LABEL
    releases = laboratory.run(Dense(X), y, canaries, progress)
    if not laboratory.listens:
        return None
    score = likelihood(releases, canary_signal(config, records, laboratory.sigmas[VICTIM], False))
    clearest = np.argsort(-np.abs(score), kind="stable")[:guesses]
    right = int(np.count_nonzero(score[clearest] * signs[clearest] > 0))
    return Guesses(canaries, guesses, right, one_run_bound(canaries, guesses, right, config.delta, confidence))
