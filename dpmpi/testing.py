"""Contracts that every algorithm keeps, for our tests and for those of anyone who adds a method.

`check_no_leak` and `check_sensitivity` run an algorithm in-process on small adversarial data; `check_mechanism` and
`check_ledger` look at the two other things that a privacy claim rests on. They take a factory, so that nothing is
carried over from one run to the next:

    def test_my_method() -> None:
        check_no_leak(MyMethod)
        check_sensitivity(MyMethod)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpmpi.core import Agent, Algorithm, Array, Channel, Event, Mechanism, Query, Sampling, Transport
from dpmpi.engine import Engine, Seat
from dpmpi.exchange.plain import PlainExchange
from dpmpi.graphs import make_graph
from dpmpi.losses import LOSSES
from dpmpi.penalties import Regulariser
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import recorded_spending
from dpmpi.privacy.mechanisms import DeafMechanism, NoNoise
from dpmpi.problem import Batch, LocalProblem
from dpmpi.rng import PrivateStream, insecure_key
from dpmpi.rows import Dense, Rows
from dpmpi.schedules import SampledSchedule, StaticSchedule, make_schedule
from dpmpi.transport.loopback import LoopbackTransport

Records = tuple[Rows, Array]
MakeMechanism = Callable[[int, int], Mechanism]


@dataclass
class Recorder:
    """Charges that remember every event and its round."""

    charged: list[tuple[int, Event]] = field(default_factory=list)

    def charge(self, event: Event, round_: int) -> None:
        """Remember the charge."""
        self.charged.append((round_, event))


@dataclass
class Tap:
    """A transport that keeps a copy of every message that is sent through it."""

    inside: Transport
    heard: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    """(rank, round, hop, message)"""

    def start(self, channel: Channel) -> None:
        """Note the message, then send it."""
        self.heard.append((channel.rank, channel.round, channel.hop, channel.message.tobytes()))
        self.inside.start(channel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


def simulate(  # noqa: PLR0913 - the settings of a run
    algorithm: Algorithm[Any],
    shards: Sequence[Records],
    rounds: int,
    *,
    schedule: StaticSchedule | SampledSchedule | None = None,
    loss: str = "hinge",
    penalty: Regulariser = Regulariser(l2=0.01),  # noqa: B008 - frozen
    batch: str = "full",
    lipschitz: float = 1.0,
    mechanism: MakeMechanism = lambda rank, dimension: NoNoise(),
    seed: int = 0,
    tap: Callable[[Transport], Any] | None = None,
) -> Engine:
    """Run an algorithm on loopback over the given shards and return its engine after the last round."""
    n = len(shards)
    transport: Any = LoopbackTransport(n)
    if tap is not None:
        transport = tap(transport)
    if schedule is None:
        sampled = getattr(algorithm, "schedule", "static") == "sampled"
        schedule = make_schedule(make_graph("ring", n, 0), "metropolis", 1 if sampled else None, 0)
    seats = []
    for rank, (rows, labels) in enumerate(shards):
        stream = PrivateStream(insecure_key(seed, rank), "batch")
        problem = LocalProblem(rows, labels, LOSSES[loss], Batch.parse(batch), lipschitz, stream)
        agent = Agent(
            rank, n, rows.dimension, schedule.share, problem, penalty, mechanism(rank, rows.dimension), Recorder()
        )
        seats.append(Seat(agent, algorithm.start(agent), PlainExchange(transport, rank, n)))
    engine = Engine(algorithm, schedule, transport, seats)
    engine.advance(rounds)
    return engine


def random_shards(n: int, records: int, dimension: int, seed: int) -> list[Records]:
    """Return dense shards of unit-norm rows with random labels."""
    draw = np.random.default_rng(seed)
    shards: list[Records] = []
    for _ in range(n):
        X = draw.standard_normal((records, dimension))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        shards.append((Dense(X), draw.choice([-1.0, 1.0], records)))
    return shards


def deaf(rank: int, dimension: int) -> DeafMechanism:
    """Return a mechanism whose output ignores its query: noise alone."""
    return DeafMechanism(0.1, PrivateStream(insecure_key(0, rank), "noise"), dimension)


def check_no_leak(
    make: Callable[[], Algorithm[Any]], *, n: int = 5, rounds: int = 12, batch: str = "full", loss: str = "hinge"
) -> None:
    """Raise AssertionError if a byte on the wire depends on the data other than through a release.

    The mechanism is deaf, so releases carry nothing. Whatever still differs between two unrelated data sets got out by
    another way.
    """

    def wire(seed: int) -> list[tuple[int, int, int, bytes]]:
        taps: list[Tap] = []

        def tap(transport: Transport) -> Tap:
            taps.append(Tap(transport))
            return taps[0]

        shards = random_shards(n, 30, 7, seed)
        simulate(make(), shards, rounds, batch=batch, loss=loss, mechanism=deaf, tap=tap)
        return sorted(taps[0].heard)

    first, second = wire(1), wire(2)
    if len(first) != len(second):
        raise AssertionError(f"the number of messages depends on the data: {len(first)} and {len(second)}")
    for one, other in zip(first, second, strict=True):
        if one != other:
            rank, round_, hop, _ = one
            raise AssertionError(f"what rank {rank} sends in round {round_}, hop {hop} depends on unreleased data")


def check_sensitivity(
    make: Callable[[], Algorithm[Any]],
    *,
    n: int = 3,
    rounds: int = 6,
    batch: str = "full",
    loss: str = "hinge",
    lipschitz: float = 1.0,
) -> None:
    """Raise AssertionError if replacing one record moves a query further than it declared.

    The neighbouring records are adversarial: opposite, huge, zero and aligned with each other. The mechanism is deaf,
    so both runs are at the same point when they ask, and the batches hold the same positions.
    """
    m, victim = 7, 1
    extreme = [scale * np.eye(m)[0] for scale in (1.0, -1.0, 1e6, 0.0)] + [np.full(m, 1e3)]
    records = [(row, label) for row in extreme for label in (-1.0, 1.0)]

    def queries(position: int, row: Array, label: float) -> list[tuple[Array, float]]:
        shards = random_shards(n, 10, m, 3)
        X = shards[victim][0].matrix.copy()  # type: ignore[union-attr]
        y = shards[victim][1].copy()
        X[position], y[position] = row, label
        shards[victim] = (Dense(X), y)
        asked: list[tuple[Array, float]] = []


        class Listening(DeafMechanism):
            def event(self, query: Query, scale: float = 1.0) -> ReleaseEvent:
                asked.append((query.value.copy(), query.sensitivity))
                return super().event(query, scale)

        def mechanism(rank: int, dimension: int) -> Mechanism:
            stream = PrivateStream(insecure_key(0, rank), "noise")
            return (Listening if rank == victim else DeafMechanism)(0.1, stream, dimension)

        simulate(make(), shards, rounds, batch=batch, loss=loss, lipschitz=lipschitz, mechanism=mechanism)
        return asked

    for position in (0, 9):
        runs = [queries(position, row, label) for row, label in records]
        for i, one in enumerate(runs):
            for j, other in enumerate(runs[:i]):
                for k, ((value, bound), (neighbour, _)) in enumerate(zip(one, other, strict=True)):
                    moved = float(np.linalg.norm(value - neighbour))
                    if moved > bound * (1 + 1e-9):
                        raise AssertionError(
                            f"query {k} moved by {moved:.6g}, but declares a sensitivity of {bound:.6g}: record "
                            f"{position} was {records[i]} and {records[j]}"
                        )


def check_mechanism(make: Callable[[int], Mechanism], *, dimension: int = 4000) -> None:
    """Raise AssertionError if a mechanism does not add the noise that its event declares, afresh each time.

    `make(dimension)` returns a new mechanism. Four things are looked at: the spread of the noise against the event's
    scale, its independence of the value, its freshness from call to call, and whether the low bits of the output tell
    which value was noised. The bounds are wide enough to fail a right mechanism once in a million times.
    """
    calls, bound = 8, 6.0 / np.sqrt(8 * dimension)
    query = Query(np.zeros(dimension), 1.0, Sampling("full", 10.0, 10))
    noises: dict[float, Array] = {}
    for value in (0.0, 1.0 / 3.0):
        mechanism, rows = make(dimension), []
        for _ in range(calls):
            mechanism.prepare()
            mechanism.event(query)
            query.value.fill(value)
            mechanism.perturb(query.value)
            rows.append(query.value.copy())
        noises[value] = np.array(rows)
    event: Any = make(dimension).event(query)
    spread = {"gaussian": 1.0, "discrete-gaussian": 1.0, "laplace": np.sqrt(2.0)}.get(event.noise)
    for value, outputs in noises.items():
        noise = outputs - value
        if spread is not None and abs(noise.std() / (spread * event.scale) - 1.0) > 2 * bound:
            found = noise.std() / spread
            raise AssertionError(f"the event declares noise of scale {event.scale:.4g}, found {found:.4g}")
        if abs(noise.mean()) > bound * noise.std():
            raise AssertionError(f"the noise on value {value:.3g} is not centred: mean {noise.mean():.3g}")
        for lag in range(1, calls):
            correlation = float(np.mean(noise[lag:] * noise[:-lag]) / noise.var())
            if abs(correlation) > 6.0 / np.sqrt((calls - lag) * dimension):
                raise AssertionError(f"noise is reused: calls {lag} apart correlate with {correlation:.2f}")
    steps = [_common_step(outputs) for outputs in noises.values()]
    if steps[0] != steps[1] or steps[0] < 1e-9 * event.scale:
        raise AssertionError(
            f"the low bits tell values apart: multiples of {steps[0]:.3g} for one value, {steps[1]:.3g} for another"
        )


def _common_step(outputs: Array) -> float:
    """Return the largest power of two that all outputs are multiples of."""
    mantissas, exponents = np.frexp(outputs[outputs != 0])
    integers = np.ldexp(mantissas, 53).astype(np.int64)
    trailing = np.log2((integers & -integers).astype(np.float64))
    return float(2.0 ** np.min(exponents - 53 + trailing))


def check_ledger(make: Callable[[Path, int], Any], folder: Path) -> None:
    """Raise AssertionError if a ledger can say less than was charged to it.

    `make(path, expected)` returns a new ledger in a file: anything with `charge(event, round)` and `close()`. Before
    every charge returns, the file must hold it; the chain must hold at every moment; a ledger that is not closed counts
    at least what was charged, and one that is closed counts exactly that.
    """
    events = [ReleaseEvent("gaussian", scale, 1.0, Sampling("full", 10.0, 10)) for scale in (1.0, 2.0)]
    for closed in (False, True):
        path = folder / f"check-{closed}.jsonl"
        ledger, made = make(path, 400), 0
        for t in range(1, 400):
            ledger.charge(events[t % 97 == 0], t)
            made += 1
            found = recorded_spending(path).total()
            if found < made:
                raise AssertionError(f"after {made} charges the file holds {found}: not durable before the release")
        if closed:
            ledger.close()
            found = recorded_spending(path).total()
            if found != made:
                raise AssertionError(f"a closed ledger holds {found} charges, made were {made}")
