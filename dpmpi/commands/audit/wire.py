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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmpi.algorithms.dda import DpDda
from dpmpi.commands.audit.statistics import Bound, Signal, likelihood, one_run_bound, scores, two_world_bound
from dpmpi.core import Agent, Array, Mechanism, Problem
from dpmpi.errors import ConfigError
from dpmpi.network.channel import Channel, Neighbourhood, Transport
from dpmpi.network.collective import on_first_rank
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.privacy.releases import Recorder
from dpmpi.problem.rows import Dense, Rows
from dpmpi.rng import fresh_key, public_generator, rank_key
from dpmpi.runtime.assembly import build_agent
from dpmpi.runtime.engine import Engine, Seat
from dpmpi.runtime.output.progress import Progress
from dpmpi.runtime.plan import Plan, make_plan, noise_levels
from dpmpi.runtime.settings import Settings

VICTIM = 0
FEATURES = 2
LABEL = 1e100
"""So large that no model comes near: the clipped gradient has norm L and the sign of -label."""


MakeProblem = Callable[[Plan, Rows, Array, bytes], Problem]
MakeMechanism = Callable[[Plan, float, bytes], Mechanism]


class ReleaseTap:
    """A transport that rebuilds the victim's releases, by (1) and (2), from what crosses its link."""

    def __init__(self, inside: Transport, rounds: Sequence[tuple[int, Neighbourhood]], weights: Array) -> None:
        self.inside, self._near, self._weights = inside, [near for _, near in rounds], weights
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
        settings: Settings,
        transport: Transport,
        records: int,
        make_problem: MakeProblem = Plan.problem,
        make_mechanism: MakeMechanism = Plan.mechanism,
    ) -> None:
        algorithm, n = settings.method, transport.size
        if not isinstance(algorithm, DpDda):
            name = settings.config.algorithm
            raise ConfigError(f"the audit reads the wire of dda, dp-dda and sampled-dda, found {name}")
        if n < 2:
            raise ConfigError("the audit reads a wire: start it as mpirun -n 4 python -m dpmpi audit, or --loopback 4")
        plan = make_plan(settings, settings.schedule(n), [records] * n, 1)
        self.plan, self.config, self.schedule = plan, plan.config, plan.schedule
        if plan.active[VICTIM] == 0:
            raise ConfigError(f"rank {VICTIM} never speaks in {self.config.rounds} rounds: give --rounds more")
        plan.settings.drawn.check(records)
        self.records, self.algorithm = records, algorithm
        self.sigmas: list[float] = on_first_rank(transport, lambda: noise_levels(plan))
        rounds = list(self.schedule.rounds(VICTIM, 1, self.config.rounds + 1))
        a = np.array([float(t) if algorithm.weighting == "linear" else 1.0 for t, _ in rounds])
        self.tap: Any = ReleaseTap(transport, rounds, a)
        self._exchanges = {rank: PlainExchange(self.tap, rank, n) for rank in transport.ranks}
        self._make_problem, self._make_mechanism = make_problem, make_mechanism
        self._runs = 0
        self.listens = VICTIM in transport.ranks
        self.progress = Progress(0, shown=False)
        """Shows how far all runs are together."""
        self.recorder = Recorder()
        """What the victim's first run charged; all runs charge the same."""

    def agents(self, rows: Rows, labels: Array) -> Iterator[Agent]:
        """Yield the agents here: this shard on the victim, zeros elsewhere, and fresh keys."""
        plan = dataclasses.replace(self.plan, dimension=rows.dimension)
        silent = Dense(np.zeros((self.records, rows.dimension))), np.zeros(self.records)
        for rank in self.tap.ranks:
            key = rank_key(self.config.insecure_noise_seed, self._runs * plan.ranks + rank)
            problem = self._make_problem(plan, *((rows, labels) if rank == VICTIM else silent), key)
            mechanism = self._make_mechanism(plan, self.sigmas[rank], key)
            charges = self.recorder if rank == VICTIM and self._runs == 0 else Recorder()
            yield build_agent(plan, rank, key, problem, mechanism, charges=charges)

    def run(self, rows: Rows, labels: Array, watched: int) -> Array:
        """Run all rounds with this shard on the victim, zeros elsewhere; return its releases, as the wire tells them.

        Row k holds the first `watched` coordinates of the victim's k-th release; zeros where the victim is not here.
        """
        rounds = self.config.rounds
        agents = self.agents(rows, labels)
        seats = [Seat(agent, self.algorithm.start(agent), self._exchanges[agent.rank]) for agent in agents]
        self.tap.listen(watched)
        engine = Engine(self.algorithm, self.schedule, self.tap, seats)
        for last in self.progress.pieces(0, rounds):
            engine.advance(last)
            self.progress.update(self._runs * rounds + last)
        self._runs += 1
        return np.asarray(self.tap.releases)


def canary_shard(records: int, sign: int, opposed: bool) -> tuple[Rows, Array]:
    """Return a shard whose first record has gradient sign * L u; the others -L u if `opposed`, else 0."""
    X, y = np.zeros((records, FEATURES)), np.zeros(records)
    X[0, 0], y[0] = 1.0, -sign * LABEL
    if opposed:
        X[1:, 0], y[1:] = 1.0, LABEL
    return Dense(X), y


def canary_signal(settings: Settings, records: int, sigma: float, opposed: bool) -> Signal:
    """Return the signal of the canary of `canary_shard` in a release."""
    sampling, L = settings.drawn.sampling(records), settings.config.lipschitz
    g = L / sampling.expected
    return Signal(-L, 2 * g, 0.0, sampling.rate, sigma) if opposed else Signal(0.0, g, -g, sampling.rate, sigma)


@dataclass(frozen=True)
class Worlds:
    """The scores of the runs in the two worlds, and the bound that they give."""

    plus: dict[str, Array]
    minus: dict[str, Array]
    bound: Bound

    @property
    def epsilon(self) -> float:
        """The bound."""
        return self.bound.epsilon

    def evidence(self) -> dict[str, Any]:
        """Return the rule that tells the worlds apart and how often it was right, JSON-ready."""
        counts = {name: getattr(self.bound, name) for name in ("trials", "hits", "false_alarms")}
        return dataclasses.asdict(self.bound.rule) | counts


def audit_runs(laboratory: Laboratory, runs: int, confidence: float = 0.95, *, opposed: bool) -> Worlds | None:
    """Run both worlds `runs` times; return scores and bound where the victim is, None elsewhere."""
    config, records = laboratory.config, laboratory.records
    signal = canary_signal(laboratory.plan.settings, records, laboratory.sigmas[VICTIM], opposed)
    found: dict[int, list[dict[str, float]]] = {1: [], -1: []}
    shards = {sign: canary_shard(records, sign, opposed) for sign in found}
    for _ in range(runs):
        for sign, world in found.items():
            releases = laboratory.run(*shards[sign], 1)
            if laboratory.listens:
                world.append(scores(releases[:, 0], signal))
    if not laboratory.listens:
        return None
    plus, minus = ({name: np.array([run[name] for run in world]) for name in world[0]} for world in found.values())
    return Worlds(plus, minus, two_world_bound(plus, minus, config.delta, confidence))


@dataclass(frozen=True)
class Guesses:
    """What was guessed from one run, and the bound that it gives."""

    canaries: int
    guesses: int
    right: int
    epsilon: float

    def evidence(self) -> dict[str, Any]:
        """Return the counts, JSON-ready."""
        return {"canaries": self.canaries, "guesses": self.guesses, "right": self.right}


def audit_one_run(laboratory: Laboratory, canaries: int, guesses: int, confidence: float = 0.95) -> Guesses | None:
    """Run once with many canaries of random sign, one a coordinate; guess the signs of the clearest ones.

    Returns None where the victim is not.
    """
    config, records = laboratory.config, laboratory.records
    seed = config.insecure_noise_seed
    draw = public_generator(int.from_bytes(fresh_key(), "little") if seed is None else seed, "canaries")
    signs = np.where(draw.random(canaries) < 0.5, -1.0, 1.0)
    X, y = np.zeros((records, canaries)), np.zeros(records)
    X[:canaries], y[:canaries] = np.eye(canaries), -signs * LABEL
    releases = laboratory.run(Dense(X), y, canaries)
    if not laboratory.listens:
        return None
    score = likelihood(releases, canary_signal(laboratory.plan.settings, records, laboratory.sigmas[VICTIM], False))
    clearest = np.argsort(-np.abs(score), kind="stable")[:guesses]
    right = int(np.count_nonzero(score[clearest] * signs[clearest] > 0))
    return Guesses(canaries, guesses, right, one_run_bound(canaries, guesses, right, config.delta, confidence))
