"""Contracts that every algorithm keeps, for our tests and for those of anyone who adds a method.

`check_no_leak` and `check_sensitivity` run an algorithm in-process on small adversarial data; `check_mechanism` and
`check_ledger` look at the two other things that a privacy claim rests on. They take a factory, so that nothing is
carried over from one run to the next:

    def test_my_method() -> None:
        check_no_leak(MyMethod)
        check_sensitivity(MyMethod)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmpi.core import Agent, Array, Event, Mechanism, Query, Sampling
from dpmpi.crypto.shares import PairwiseMasks
from dpmpi.engine import Engine, Seat
from dpmpi.exchange.plain import PlainExchange
from dpmpi.exchange.shares import SharesExchange
from dpmpi.graphs import make_graph
from dpmpi.methods import Method
from dpmpi.penalties import Regulariser
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import recorded_spending
from dpmpi.privacy.mechanisms import DeafMechanism, NoNoise, make_mechanism, pricing
from dpmpi.problem import Batch, make_problem, make_terms, mean_lipschitz
from dpmpi.rng import PrivateStream, insecure_key
from dpmpi.rows import Dense, Rows
from dpmpi.schedules import SampledSchedule, StaticSchedule, make_schedule
from dpmpi.transport.loopback import LoopbackTransport
from dpmpi.wire import Channel, Exchange, Transport

if TYPE_CHECKING:
    from dpmpi.crypto.keys import PairKeys, Session

Records = tuple[Rows, Array]
MakeMechanism = Callable[[int, int], Mechanism]
MakeExchange = Callable[[Transport, int, int], Exchange]


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
    graph: str = "ring",
    schedule: StaticSchedule | SampledSchedule | None = None,
    loss: str = "hinge",
    penalty: Regulariser = Regulariser(l2=0.01),  # noqa: B008 - frozen
    batch: str = "full",
    lipschitz: float = 1.0,
    radius: float = 1.0,
    mechanism: MakeMechanism = lambda rank, dimension: NoNoise(),
    seed: int = 0,
    tap: Callable[[Transport], Any] | None = None,
    make_agent: type[Agent] = Agent,
    transport: Transport | None = None,
    exchange: MakeExchange = PlainExchange,
) -> Engine:
    """Run an algorithm over the shards of all ranks, on loopback by default; return its engine after the last round.

    `radius` bounds the records of the mean loss, whose L follows from it; for other losses, rows are taken to have norm
    at most 1.
    """
    n = len(shards)
    transport = transport or LoopbackTransport(n)
    if tap is not None:
        transport = tap(transport)
    if schedule is None:
        sampled = algorithm.schedule == "sampled"
        schedule = make_schedule(make_graph(graph, n, 0), "metropolis", 1 if sampled else None, 0)
    seats, active = [], schedule.active_counts(1, rounds + 1).tolist()
    for rank in transport.ranks:
        rows, labels = shards[rank]
        drawn = Batch.parse(batch)
        L = mean_lipschitz(radius, rows.dimension) if loss == "mean" else lipschitz
        problem = make_problem(rows, labels, loss, drawn, L, PrivateStream(insecure_key(seed, rank), "batch"), radius)
        terms = make_terms(
            rank=rank, schedule=schedule, rounds=rounds, active_rounds=active[rank], dimension=rows.dimension,
            lipschitz=L, sampling=drawn.sampling(rows.count), loss=loss, normalized=True, penalty=penalty,
            bounded=penalty.domain is not None,
        )  # fmt: skip
        algorithm.check(terms)
        agent = make_agent(
            rank, schedule.share, terms, problem, penalty, mechanism(rank, algorithm.width(rows.dimension)), Recorder(),
            PrivateStream(insecure_key(seed, rank), "weights"),
        )  # fmt: skip
        seats.append(Seat(agent, algorithm.start(agent), exchange(transport, rank, n)))
    engine = Engine(algorithm, schedule, transport, seats)
    engine.advance(rounds)
    return engine


def shared(mode: str = "expanded", bits: int = 40, seed: int = 0, noise_tail: float = 0.0) -> MakeExchange:
    """Return what makes exchanges of secret shares, "expanded" or "full", that the seed repeats: for tests."""

    def make(transport: Transport, rank: int, size: int) -> SharesExchange:
        masks = None
        if mode == "expanded":
            pairs = {j: (min(rank, j), max(rank, j)) for j in range(size) if j != rank}
            drawn = {j: PrivateStream(insecure_key(seed, a), f"pair {b}").words(4) for j, (a, b) in pairs.items()}
            masks = PairwiseMasks(rank, size, {j: words.tobytes() for j, words in drawn.items()})
        stream = PrivateStream(insecure_key(seed, rank), "shares")
        return SharesExchange(transport, rank, size, bits=bits, stream=stream, masks=masks, noise_tail=noise_tail)

    return make


def repeatable_keys(session: Session, size: int) -> dict[int, dict[int, PairKeys]]:
    """Return the keys of every pair of ranks after a handshake whose secrets everybody can repeat: for tests."""
    from dpmpi.crypto.keys import Handshake, Identity, verify_hello  # noqa: PLC0415 - slow, and few tests need it

    hands = [
        Handshake(session, rank, Identity(insecure_key(0, rank)), insecure_key(session.incarnation + 1, rank))
        for rank in range(size)
    ]
    greetings = [verify_hello(hand.hello, session, rank, None) for rank, hand in enumerate(hands)]
    return {rank: {p.rank: hands[rank].keys(p) for p in greetings if p.rank != rank} for rank in range(size)}


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


class DeafAgent(Agent):
    """An agent that charges its queries and then empties them: what a deaf mechanism is to noise inside a sum."""

    def _admits(self, query: Query, scale: float, part: int) -> bool:
        admitted = super()._admits(query, scale, part)
        query.value.fill(0.0)
        return admitted


def check_no_leak(make: Callable[[], Method], *, n: int = 5, rounds: int = 12, **settings: Any) -> None:
    """Raise AssertionError if a byte on the wire depends on the data other than through a release.

    The mechanism is deaf, so releases carry nothing. Whatever still differs between two unrelated data sets got out by
    another way. `settings` are those of `simulate`; for noise inside a sum they hold a `SumMechanism` and `DeafAgent`.
    """
    settings = {"mechanism": deaf} | settings

    def wire(seed: int) -> list[tuple[int, int, int, bytes]]:
        taps: list[Tap] = []

        def tap(transport: Transport) -> Tap:
            taps.append(Tap(transport))
            return taps[0]

        simulate(make(), random_shards(n, 30, 7, seed), rounds, tap=tap, **settings)
        return sorted(taps[0].heard)

    first, second = wire(1), wire(2)
    if len(first) != len(second):
        raise AssertionError(f"the number of messages depends on the data: {len(first)} and {len(second)}")
    for one, other in zip(first, second, strict=True):
        if one != other:
            rank, round_, hop, _ = one
            raise AssertionError(f"what rank {rank} sends in round {round_}, hop {hop} depends on unreleased data")


@dataclass
class _Asked:
    """A query as it was asked: its parts, and what it declared."""

    sensitivity: float
    parts: list[Array]


class _Listening(Agent):
    """An agent that remembers its queries."""

    asked: list[_Asked]

    def _admits(self, query: Query, scale: float, part: int) -> bool:
        if part == 0:
            self.asked = [*getattr(self, "asked", []), _Asked(query.sensitivity, [])]
        self.asked[-1].parts.append(query.value.copy())
        return super()._admits(query, scale, part)


def check_sensitivity(
    make: Callable[[], Method], *, n: int = 3, rounds: int = 6, lipschitz: float = 1.0, **settings: Any
) -> None:
    """Raise AssertionError if replacing one record moves a query further than it declared.

    The neighbouring records are adversarial: opposite, huge, zero and aligned with each other. The mechanism is deaf,
    so both runs are at the same point when they ask, and the batches hold the same positions. `settings` are those of
    `simulate`. Methods that rely on a bound of the rows' norm are shown rows scaled to it.
    """
    m, victim = 7, 1
    extreme = [scale * np.eye(m)[0] for scale in (1.0, -1.0, 1e6, 0.0)] + [np.full(m, 1e3)]
    if settings.pop("normalized", False):
        extreme = [row / max(1.0, float(np.linalg.norm(row))) for row in extreme]
    records = [(row, label) for row in extreme for label in (-1.0, 1.0)]

    def queries(position: int, row: Array, label: float) -> list[_Asked]:
        shards = random_shards(n, 10, m, 3)
        X = shards[victim][0].matrix.copy()  # type: ignore[union-attr]
        y = shards[victim][1].copy()
        X[position], y[position] = row, label
        shards[victim] = (Dense(X), y)
        engine = simulate(
            make(), shards, rounds, mechanism=deaf, lipschitz=lipschitz, make_agent=_Listening, **settings
        )
        agent: Any = engine.seats[victim].agent
        asked: list[_Asked] = agent.asked
        return asked

    for position in (0, 9):
        runs = [queries(position, row, label) for row, label in records]
        for i, one in enumerate(runs):
            for j, other in enumerate(runs[:i]):
                for k, (mine, yours) in enumerate(zip(one, other, strict=True)):
                    moved = math.hypot(
                        *(float(np.linalg.norm(a - b)) for a, b in zip(mine.parts, yours.parts, strict=True))
                    )
                    if moved > mine.sensitivity * (1 + 1e-9):
                        raise AssertionError(
                            f"query {k} moved by {moved:.6g}, but declares a sensitivity of {mine.sensitivity:.6g}: "
                            f"record {position} was {records[i]} and {records[j]}"
                        )


def check_releases(make: Callable[[], Method], *, n: int = 5, rounds: int = 12, **settings: Any) -> None:
    """Raise AssertionError if a run charges other events, or in another order, than the method foresaw.

    Noise is calibrated to, and ledgers are written ahead by, what `releases` says.
    """
    algorithm = make()
    kind = algorithm.mechanisms[0]

    def noisy(rank: int, dimension: int) -> Mechanism:
        return make_mechanism(kind, 0.3, insecure_key(0, rank), dimension)

    engine = simulate(algorithm, random_shards(n, 30, 7, 1), rounds, mechanism=noisy, **settings)
    for seat in engine.seats:
        agent = seat.agent
        price = pricing(kind, 0.3, algorithm.width(agent.dimension))
        foreseen = [
            price.event(planned.sensitivity, agent.terms.sampling, planned.scale, planned.extra)
            for planned in algorithm.releases(agent.terms)
            for _ in range(planned.count)
        ]
        charged = [event for _, event in agent.charges.charged]  # type: ignore[attr-defined]
        if charged != foreseen:
            first = next(k for k in range(10**9) if charged[k : k + 1] != foreseen[k : k + 1])
            raise AssertionError(
                f"rank {agent.rank} charged {len(charged)} releases, foreseen were {len(foreseen)}; number {first} is "
                f"{charged[first : first + 1]}, foreseen was {foreseen[first : first + 1]}"
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
