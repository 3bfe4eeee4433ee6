"""Engine, plain exchange, loopback and meter."""

import tracemalloc
from collections import Counter
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import pytest

from dpmpi.core import Agent, Gather, Method, Mix, NeighbourSum, Sum, public
from dpmpi.errors import ProtocolError
from dpmpi.network.channel import TRAILER_BYTES, Neighbourhood
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.network.schedule import make_schedule
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.network.transport.meter import Meter
from dpmpi.privacy.mechanisms import NoNoise
from dpmpi.runtime.config import Config
from dpmpi.runtime.engine import Engine, Seat
from dpmpi.runtime.plan import make_plan
from dpmpi.runtime.settings import Settings
from dpmpi.testing import Recorder


@dataclass(frozen=True)
class Talk(Method):
    """Says one of each in every round."""

    length: int = 3

    def start(self, agent):
        return {"mixed": [], "heard": [], "around": [], "sum": []}

    def round(self, agent, state, t):
        v = np.arange(self.length, dtype=float) + 10.0 * agent.rank + 0.1 * t
        state["mixed"].append((yield Mix(public(v, because="a constant"))).copy())
        state["heard"].append({j: h.copy() for j, h in (yield Gather(public(v, because="a constant"))).items()})
        state["around"].append((yield NeighbourSum(public(v, because="a constant"))).copy())
        state["sum"].append((yield Sum(public(v[:2], because="a constant"))).copy())

    def model(self, agent, state, t, out):
        out[:] = 0

    def releases(self, terms):
        return []


def make_engine(algorithm, schedule, transport, dimension=3):
    n = schedule.size
    seats = []
    for rank in range(n):
        plan = make_plan(Settings.of(Config(rounds=1)), schedule, [1] * n, dimension)
        agent = Agent(rank, schedule.share, plan.terms(rank), None, None, NoNoise(), Recorder(), None)
        seats.append(Seat(agent, algorithm.start(agent), PlainExchange(transport, rank, n)))
    return Engine(algorithm, schedule, transport, seats)


@pytest.mark.parametrize("graph", ["ring", "star", "complete", "erdos-renyi:p=0.4"])
def test_requests_get_their_answers(graph):
    n = 6
    schedule = make_schedule(make_graph(graph, n, 1), "metropolis", None, 0)
    engine = make_engine(Talk(), schedule, LoopbackTransport(n))
    engine.advance(3)
    W = mixing_matrix(schedule.graph, "metropolis")
    for t in range(1, 4):
        V = np.arange(3) + 10.0 * np.arange(n)[:, None] + 0.1 * t
        for i, seat in enumerate(engine.seats):
            np.testing.assert_allclose(seat.state["mixed"][t - 1], W[i] @ V, atol=1e-12)
            heard = seat.state["heard"][t - 1]
            assert tuple(heard) == schedule.graph.neighbours(i)
            for j, vector in heard.items():
                np.testing.assert_array_equal(vector, V[j])
            around = sum((V[j] for j in schedule.graph.neighbours(i)), np.zeros(3))
            np.testing.assert_allclose(seat.state["around"][t - 1], around, atol=1e-12)
            np.testing.assert_allclose(seat.state["sum"][t - 1], V[:, :2].sum(axis=0), atol=1e-12)


def test_one_agent_needs_nobody():
    schedule = make_schedule(make_graph("ring", 1, 0), "metropolis", None, 0)
    engine = make_engine(Talk(), schedule, LoopbackTransport(1))
    engine.advance(2)
    np.testing.assert_array_equal(engine.seats[0].state["sum"][0], engine.seats[0].state["mixed"][0][:2])


def test_the_meter_counts_every_message():
    schedule = make_schedule(make_graph("star", 4, 0), "metropolis", None, 0)
    meter = Meter(LoopbackTransport(4))
    make_engine(Talk(), schedule, meter).advance(5)
    hub, leaf = meter.traffic(0), meter.traffic(2)
    assert sorted(hub) == [1, 2, 3]
    # To each neighbour: Mix, Gather and NeighbourSum of 3 numbers; to everyone: Sum of 2.
    assert hub[1].messages_sent == hub[1].messages_received == 5 * 4
    assert hub[1].payload_bytes_sent == 5 * 8 * (3 + 3 + 3 + 2)
    assert hub[1].bytes_sent == hub[1].payload_bytes_sent + 20 * TRAILER_BYTES
    assert leaf[0].bytes_received == hub[2].bytes_sent
    assert leaf[1].messages_sent == 5


def test_sleeping_ranks_send_and_receive_nothing():
    n, rounds = 6, 40
    schedule = make_schedule(make_graph("complete", n, 0), "metropolis", 1, 5)
    meter = Meter(LoopbackTransport(n))
    engine = make_engine(Consensus(), schedule, meter)
    engine.advance(rounds)
    assert sum(seat.agent.active_rounds for seat in engine.seats) == 2 * rounds
    for rank in range(n):
        partners = [near.peers[0] for _, near in schedule.rounds(rank, 1, rounds + 1)]
        traffic = meter.traffic(rank)
        assert {peer: t.messages_sent for peer, t in traffic.items()} == dict(sorted(Counter(partners).items()))
        assert all(t.messages_received == t.messages_sent for t in traffic.values())


def test_a_foreign_message_is_refused():
    transport = LoopbackTransport(2)
    near = [Neighbourhood((1,), (0.5,), 0.5), Neighbourhood((0,), (0.5,), 0.5)]
    flows = []
    for rank, round_ in ((0, 3), (1, 4)):
        exchange = PlainExchange(transport, rank, 2)
        flows.append(exchange.serve(Mix(public(np.zeros(2), because="zero")), near[rank], round_))
    channels = [next(flow) for flow in flows]
    for channel in channels:
        transport.start(channel)
    with pytest.raises(ProtocolError, match="rank 0 expected round 3, hop 0 from rank 1, found round 4"):
        transport.done(channels[0])


@dataclass(frozen=True)
class Consensus(Talk):
    def start(self, agent):
        return np.full(agent.dimension, float(agent.rank))

    def round(self, agent, state, t):
        yield Mix(public(state, because="a constant"), out=state)


@dataclass(frozen=True)
class Quitter(Talk):
    def round(self, agent, state, t):
        if agent.rank == 2 and t == 2:
            return
        yield from super().round(agent, state, t)


def test_a_missing_message_is_named():
    schedule = make_schedule(make_graph("ring", 4, 0), "metropolis", None, 0)
    with pytest.raises(ProtocolError, match=r"expected messages of ranks \[2\] in round 2, hop 0"):
        make_engine(Quitter(), schedule, LoopbackTransport(4)).advance(2)


def test_the_hot_path_allocates_no_vector():
    m = 200_000
    pool = cycle([np.zeros(8 * m + TRAILER_BYTES, np.uint8) for _ in range(20)])

    class Pooled(LoopbackTransport):
        """Loopback copies every message; here into old buffers, so that what the rest allocates can be seen."""

        def start(self, channel):
            for peer in channel.peers:
                copy = next(pool)
                np.copyto(copy, channel.messages[0])
                self._mail[channel.rank, peer, channel.tag].append(copy)

    schedule = make_schedule(make_graph("ring", 3, 0), "metropolis", None, 0)
    engine = make_engine(Consensus(), schedule, Meter(Pooled(3)), m)
    engine.advance(2)
    tracemalloc.start()
    engine.advance(12)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * m / 4
