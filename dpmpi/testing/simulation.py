"""Runs of a method in one process, for contracts and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpmpi.core import Agent, Array, Mechanism, Method, Penalty, Query
from dpmpi.crypto.mask_graph import Pair, partners
from dpmpi.crypto.shares import PairwiseMasks
from dpmpi.network.channel import Channel, Exchange, Transport
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.network.exchange.shares import SharesExchange
from dpmpi.network.graph import Graph, make_graph
from dpmpi.network.route import Routes
from dpmpi.network.schedule import SampledSchedule, StaticSchedule, make_schedule
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.mechanisms import DeafMechanism, NoiseMechanism, NoNoise, make_mechanism
from dpmpi.privacy.releases import Recorder
from dpmpi.problem.losses import MEAN, Loss, parse_loss
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense, Positions, Rows
from dpmpi.problem.task import Task
from dpmpi.rng import PrivateStream, insecure_key
from dpmpi.runtime.assembly import build_agent
from dpmpi.runtime.config import Config
from dpmpi.runtime.engine import Engine, Seat
from dpmpi.runtime.plan import make_plan
from dpmpi.runtime.settings import Settings

Records = tuple[Rows, Array]
MakeMechanism = Callable[[int, int], Mechanism]
MakeExchange = Callable[[Transport, int, int], Exchange]


@dataclass
class Tap:
    """A transport that keeps a copy of every message that is sent through it."""

    inside: Any
    heard: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    """(rank, round, hop, message)"""

    def start(self, channel: Channel) -> None:
        """Note the messages, those that are the same for all once, then send them."""
        for message in channel.messages if channel.distinct else channel.messages[:1]:
            self.heard.append((channel.rank, channel.round, channel.hop, message.tobytes()))
        self.inside.start(channel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


def simulate(  # noqa: PLR0913 - the settings of a run
    algorithm: Method,
    shards: Sequence[Records],
    rounds: int,
    *,
    graph: str | Graph = "ring",
    schedule: StaticSchedule | SampledSchedule | None = None,
    loss: str | Loss = "hinge",
    task: Task | None = None,
    penalty: Penalty = Regulariser(l2=0.01),  # noqa: B008 - frozen
    batch: str = "full",
    lipschitz: float = 1.0,
    radius: float = 1.0,
    mechanism: MakeMechanism = lambda rank, dimension: NoNoise(),
    weigh: str = "records",
    persons: Sequence[Positions] | None = None,
    most: int = 1,
    seed: int = 0,
    make_agent: Callable[..., Agent] = Agent,
    transport: Transport | None = None,
    exchange: MakeExchange = PlainExchange,
    stop: int | None = None,
) -> Engine:
    """Run an algorithm over the shards of all ranks, on loopback by default; return its engine after the last round.

    `stop` is the round to stop after, of the `rounds` that the agents know of; by default the last. `radius` bounds the
    records of the mean loss, whose L follows from it; for other losses, rows are taken to have norm at most 1. `task`
    is what the labels of the loss are: by default that of `usual_task`. `persons` says for each rank whose its records
    are, at most `most` of one: events price all of them at once.
    """
    n = len(shards)
    transport = transport or LoopbackTransport(n)
    if schedule is None:
        edges = make_graph(graph, n, 0) if isinstance(graph, str) else graph
        schedule = make_schedule(edges, "metropolis", 1 if algorithm.schedule == "sampled" else None, 0)
    text = Config(algorithm="dp-dda", rounds=rounds, batch=batch, lipschitz=lipschitz, intercept="none", weigh=weigh)
    settings = replace(Settings.of(text), method=algorithm, regulariser=penalty)
    if loss == MEAN:
        settings = replace(settings, loss=None, radius=radius)
    else:
        made = parse_loss(loss) if isinstance(loss, str) else loss
        task = task or usual_task(made)
        settings = replace(settings, loss=made.for_task(task), known_task=task)
    dimension = settings.dimension(shards[0][0].dimension)
    plan = make_plan(settings, schedule, [rows.count for rows, _ in shards], dimension)
    plan.check()
    algorithm = plan.method
    seats = []
    for rank in transport.ranks:
        key = insecure_key(seed, rank)
        noise, whose = mechanism(rank, plan.width), None if persons is None else persons[rank]
        problem = plan.problem(rank, *shards[rank], key, whose)
        if isinstance(noise, NoiseMechanism):
            noise.price = replace(noise.price, records=most)
        agent = build_agent(plan, rank, key, problem, noise, charges=Recorder(), make=make_agent)
        seats.append(Seat(agent, algorithm.start(agent), exchange(transport, rank, n)))
    engine = Engine(algorithm, schedule, transport, seats)
    engine.advance(rounds if stop is None else stop)
    return engine


def models(engine: Engine) -> Array:
    """Return the models of all ranks after the completed rounds, one a row."""
    out = np.zeros((len(engine.seats), engine.seats[0].agent.dimension))
    for row, seat in zip(out, engine.seats, strict=True):
        engine.model(seat, row)
    return out


def routed(routes: Routes, wire: str = "float64") -> MakeExchange:
    """Return a maker of plain exchanges whose sums travel along these routes."""
    return lambda transport, rank, size: PlainExchange(transport, rank, size, wire, routes)


def shared(
    mode: str = "expanded",
    bits: int = 40,
    seed: int = 0,
    noise_tail: float = 0.0,
    *,
    routes: Routes | None = None,
    pairs: Sequence[Pair] | None = None,
) -> MakeExchange:
    """Return a maker of exchanges of secret shares, "expanded" or "full", that the seed repeats: for tests.

    Sums travel along the routes, by default directly; `pairs` share masks, by default all.
    """

    def make(transport: Transport, rank: int, size: int) -> SharesExchange:
        others = tuple(j for j in range(size) if j != rank) if pairs is None else partners(pairs, rank)
        hide: Any = (PrivateStream(insecure_key(seed, rank), "shares"), others)
        if mode == "expanded" and others:
            ends = {j: (min(rank, j), max(rank, j)) for j in others}
            drawn = {j: PrivateStream(insecure_key(seed, a), f"pair {b}").words(4) for j, (a, b) in ends.items()}
            hide = PairwiseMasks(rank, {j: words.tobytes() for j, words in drawn.items()})
        return SharesExchange(transport, rank, routes, bits=bits, hide=hide, noise_tail=noise_tail)

    return make


def usual_task(loss: str | Loss) -> Task:
    """Return a task that a loss is for: two classes, three, numbers in [-1, 1], or counts up to 20."""
    made = Loss() if loss == MEAN else parse_loss(loss) if isinstance(loss, str) else loss
    kinds: dict[str, Task] = {
        "binary": Task(),
        "multiclass": Task("multiclass", ("0", "1", "2")),
        "regression": Task("regression", ()),
        "counts": Task("counts", (), 0.0, 20.0),
    }
    return kinds[made.kinds[0]]


def task_of(settings: Mapping[str, Any]) -> Task:
    """Return the task of the settings of `simulate`."""
    return settings.get("task") or usual_task(settings.get("loss", "hinge"))


def labels_of(task: Task) -> Array:
    """Return labels of the loss, the most different ones first and last."""
    if task.kind == "multiclass":
        return np.arange(float(task.scores))
    return np.arange(task.high + 1.0) if task.kind == "counts" else np.array([-1.0, 1.0])


def random_shards(n: int, records: int, dimension: int, seed: int, task: Task | None = None) -> list[Records]:
    """Return dense shards of unit-norm rows with random labels, by default -1 and +1."""
    draw = np.random.default_rng(seed)
    shards: list[Records] = []
    for _ in range(n):
        X = draw.standard_normal((records, dimension))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        shards.append((Dense(X), draw.choice(labels_of(task or Task()), records)))
    return shards


def deaf(rank: int, dimension: int) -> DeafMechanism:
    """Return a mechanism whose output ignores its query: noise alone."""
    return DeafMechanism(0.1, PrivateStream(insecure_key(0, rank), "noise"), dimension)


def noisy(kind: str, sigma: float = 0.3, seed: int = 0) -> MakeMechanism:
    """Return a factory of mechanisms of a kind, whose noise the seed repeats: for tests."""
    return lambda rank, dimension: make_mechanism(kind, sigma, insecure_key(seed, rank), dimension)


class DeafAgent(Agent):
    """An agent that charges its queries and then empties them: what a deaf mechanism is to noise inside a sum."""

    def _admits(self, query: Query, scale: float, part: int) -> bool:
        admitted = super()._admits(query, scale, part)
        query.value.fill(0.0)
        return admitted


@dataclass
class Asked:
    """A query as it was asked: its parts, and the sensitivity that it declared."""

    sensitivity: float
    parts: list[Array]


class Listening(Agent):
    """An agent that remembers its queries, and is its own witness."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.witness = self
        self.told = 0
        """How often the witness was told something."""
        self.asked: list[Asked] = []
        self.uncharged = 0
        """Releases before the first that was charged."""

    def saw(self, output: Array, low: Array, high: Array, scale: float, reach: float) -> None:
        """Count what the witness is told."""
        self.told += 1

    def _admits(self, query: Query, scale: float, part: int) -> bool:
        if part == 0:
            self.asked.append(Asked(query.sensitivity, []))
        if self.asked:
            self.asked[-1].parts.append(query.value.copy())
        else:
            self.uncharged += 1
        return super()._admits(query, scale, part)
