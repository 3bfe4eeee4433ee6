"""Contracts of a method's hooks: what is foreseen is sent, kept over a restart, right after a death, and in place."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from dpmpi.core import Bytes, Gather, Mix, NeighbourSum, Request, Sum
from dpmpi.errors import CheckpointError
from dpmpi.network.channel import Channel, Neighbourhood, Transport
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.network.graph import make_graph
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.network.transport.meter import Meter
from dpmpi.problem.penalties import Regulariser
from dpmpi.problem.rows import Dense
from dpmpi.runtime.engine import Engine
from dpmpi.runtime.recovery.snapshot import Snapshot, capture, from_bytes, restore, to_bytes
from dpmpi.testing.releases import Make
from dpmpi.testing.simulation import Listening, Records, models, noisy, random_shards, simulate, task_of

_NAMES = {Mix: "mix", NeighbourSum: "neighbour sum", Gather: "gather", Sum: "sum"}


class _Asking:
    """A plain exchange that notes what kinds of requests it serves."""

    def __init__(self, asked: set[str], transport: Transport, rank: int, size: int) -> None:
        self.inside = PlainExchange(transport, rank, size)
        self.asked = asked

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Any:
        self.asked.add(_NAMES[type(request)])
        return self.inside.serve(request, near, round_)


def check_exchanges(make: Make, *, n: int = 5, rounds: int = 12, **settings: Any) -> None:
    """Raise AssertionError if a run sends other messages, or asks for others, than the method foresaw.

    Plans, costs and `verify` count on `exchanges`; what is exposed is decided by `asks`. A method that `ends_early` may
    send less.
    """
    algorithm, asked, meter = make(), set[str](), Meter(LoopbackTransport(n))
    settings |= {"transport": meter, "exchange": partial(_Asking, asked)}
    engine = simulate(algorithm, random_shards(n, 30, 7, 1, task_of(settings)), rounds, **settings)
    if not asked <= {*algorithm.asks}:
        raise AssertionError(f"expected requests {sorted(algorithm.asks)}, found {sorted(asked)}: correct `asks`")
    for seat in engine.seats:
        terms = seat.agent.terms
        foreseen, sent = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        near = terms.degree if algorithm.schedule == "static" else 1
        for part in algorithm.exchanges(terms):
            foreseen[n - 1 if part.audience == "everyone" else near, part.length] += part.count
        for channel in meter.channels:
            if channel.rank == seat.agent.rank and channel.exchanges:
                sent[len(channel.peers), channel.payload_bytes // 8] += channel.exchanges
        if not sent <= foreseen:
            raise AssertionError(
                f"rank {seat.agent.rank} sent {_listed(sent)}, foreseen were {_listed(foreseen)}: correct `exchanges`"
            )
        if sent != foreseen and not algorithm.ends_early():
            raise AssertionError(
                f"rank {seat.agent.rank} sent {_listed(sent)}, fewer than the foreseen {_listed(foreseen)}: correct "
                "`exchanges`, or say so in `ends_early`"
            )


def _listed(messages: Counter[tuple[int, int]]) -> str:
    found = (f"{count} times {length} numbers to {peers}" for (peers, length), count in sorted(messages.items()))
    return ", ".join(found) or "nothing"


def check_resume(make: Make, *, n: int = 5, rounds: int = 12, **settings: Any) -> None:
    """Raise AssertionError if a run that goes on from its snapshot ends elsewhere than one that was not interrupted.

    The state is kept as the bytes of a checkpoint, and the method is made anew: what it carries elsewhere is lost. The
    rounds after the snapshot were run before, so that the first release after it must be charged again.
    """
    shards = random_shards(n, 30, 7, 1, task_of(settings))
    settings = {"mechanism": noisy(make().mechanisms[0])} | settings | {"make_agent": Listening}
    expected = models(simulate(make(), shards, rounds, **settings))
    for cut in (1, rounds // 2, rounds - 1):
        before = simulate(make(), shards, rounds, stop=cut, **settings)
        try:
            kept = [to_bytes(capture(seat, cut, repeatable=True)) for seat in before.seats]
            snapshots = [from_bytes(content, "the state") for content in kept]
        except (TypeError, CheckpointError) as error:
            raise AssertionError(
                f"expected a state that is a dataclass of arrays and numbers, found {error}"
            ) from error
        models(before)
        before.advance(rounds)
        if not np.array_equal(models(before), expected):
            raise AssertionError(
                f"looking at the model after round {cut} changed the run: `model` leaves the state alone"
            )
        after = simulate(make(), shards, rounds, stop=0, **settings)
        _carry_over(after, snapshots)
        after.advance(rounds)
        if not np.array_equal(models(after), expected):
            raise AssertionError(
                f"a run that went on from round {cut} of {rounds} ended with another model: keep all that is carried "
                "from round to round in the state"
            )
        agents: list[Any] = [seat.agent for seat in after.seats]
        if any(agent.uncharged for agent in agents):
            raise AssertionError(
                f"after a restart from round {cut} a release was not charged: begin a new charge in `resume`"
            )


def _carry_over(engine: Engine, snapshots: list[Snapshot]) -> None:
    """Put the agents of an engine that has not begun where the snapshots were taken."""
    for seat, snapshot in zip(engine.seats, snapshots, strict=True):
        restore(seat, snapshot)
        engine.algorithm.resume(seat.state)
    engine.completed = snapshots[0].round


def check_regroup(
    make: Make, *, n: int = 6, rounds: int = 400, at: int = 3, lost: int = 2, close: float = 0.1, **settings: Any
) -> None:
    """Raise AssertionError if the survivors of a death do not end where they would have ended alone.

    Rank `lost`, whose records are unlike the others', dies after round `at`. Without noise and after many rounds the
    others' models must be those of a run that never had it, up to the fraction `close` of what it changes. A method
    that releases nothing after the death cannot forget: its survivors must agree on the mean of what they held.
    """
    settings = dict[str, Any](loss="mean", penalty=Regulariser(l2=0.5), graph="ring") | settings
    shards, left = _unlike_shards(n, lost), [rank for rank in range(n) if rank != lost]
    graph = make_graph(settings.pop("graph"), n, 0)

    def run(shards: list[Records], **more: Any) -> Engine:
        return simulate(make(), shards, rounds, **settings, **more)

    among, mine = graph.induced(left), [shards[rank] for rank in left]
    before = run(shards, graph=graph, stop=at)
    kept = [capture(before.seats[rank], at, repeatable=False) for rank in left]
    after = run(mine, graph=among, stop=0)
    _carry_over(after, kept)
    after.regroup()
    held = models(after)
    after.advance(rounds)
    if any(round_ > at for seat in after.seats for round_, _ in seat.agent.charges.charged):  # type: ignore[attr-defined]
        expected = models(run(mine, graph=among))
        before.advance(rounds)
        scale = float(np.linalg.norm(models(before)[left].mean(axis=0) - expected.mean(axis=0)))
    else:
        expected = np.tile(held.mean(axis=0), (len(left), 1))
        scale = float(np.linalg.norm(held, axis=1).max())
    off = float(np.linalg.norm(models(after) - expected, axis=1).max())
    if not off <= close * scale:
        raise AssertionError(
            f"after the death of a rank in round {at} the others' models are {off:.3g} away from where they would be "
            f"without it, which had moved them by {scale:.3g}: undo in `regroup` what it left behind (multipliers, "
            "sums over neighbours, trackers), or give more `rounds`"
        )


def _unlike_shards(n: int, other: int, records: int = 20, dimension: int = 4) -> list[Records]:
    """Return shards around centres of their own; one rank has its centre on the other side, and other labels."""
    draw = np.random.default_rng(5)
    side, shards = draw.standard_normal(dimension), list[Records]()
    for rank in range(n):
        sign = -1.0 if rank == other else 1.0
        X = draw.standard_normal((records, dimension)) + draw.standard_normal(dimension) + 2.0 * sign * side
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        shards.append((Dense(X), sign * np.sign(X[:, 0])))
    return shards


class _Pooled(LoopbackTransport):
    """Loopback copies every message; here into old buffers, so that what the rest allocates can be seen."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._pools: dict[int, Iterator[Bytes]] = {}

    def start(self, channel: Channel) -> None:
        for peer, message in zip(channel.peers, channel.messages, strict=True):
            if message.size not in self._pools:
                self._pools[message.size] = cycle([np.zeros_like(message) for _ in range(4 * self.size**2)])
            copy = next(self._pools[message.size])
            np.copyto(copy, message)
            self._mail[channel.rank, peer, channel.tag].append(copy)


def check_allocations(make: Make, *, n: int = 3, rounds: int = 60, **settings: Any) -> None:
    """Raise AssertionError if a round allocates a vector of the model's length, once all buffers are there."""
    m, warm = 50_000, rounds // 2
    settings = dict[str, Any](loss="mean", penalty=Regulariser(), transport=_Pooled(n)) | settings
    engine = simulate(make(), random_shards(n, 2, m, 1, task_of(settings)), rounds, stop=warm, **settings)
    tracemalloc.start()
    try:
        engine.advance(rounds)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if peak > 8 * m / 2:
        raise AssertionError(
            f"expected no vector of the model's length to be allocated in a round, found {peak} bytes at {m} features: "
            "keep buffers in the state and write with out="
        )
