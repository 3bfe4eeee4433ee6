"""Where the time goes: the time line of waits, and what a rank spends on noise, ledger and secrecy."""

import tracemalloc

import numpy as np
import pytest

from dpmpi.core import Agent, Query, Sampling
from dpmpi.core import agent as core
from dpmpi.errors import BudgetExceeded
from dpmpi.network.channel import ChannelSpec
from dpmpi.network.transport import meter as metering
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.network.transport.meter import BUCKETS, FIRST_WIDTH, Meter, Timeline


def overlap(intervals, width):
    """How many seconds of the intervals lie in each bucket, interval by interval and bucket by bucket."""
    return [sum(max(0.0, min(b, (k + 1) * width) - max(a, k * width)) for a, b in intervals) for k in range(BUCKETS)]


@pytest.mark.parametrize("length", [1.0, 4.0, 50.0, 1000.0])
def test_a_time_line_holds_every_second_where_it_was(length):
    draw = np.random.default_rng(1)
    edges = np.sort(draw.uniform(0.0, length, 400)).reshape(-1, 2)
    edges[7] = edges[7, 0], edges[7, 0] + length / 3  # one wait over many buckets
    line = Timeline(100.0)
    for begin, end in edges.tolist():
        line.add((0, 1), 100.0 + begin, 100.0 + end)
    reached = edges[:, 1].max()
    assert BUCKETS * line.width > reached
    assert line.width == FIRST_WIDTH or BUCKETS * line.width / 2 <= reached  # no wider than it has to be
    np.testing.assert_allclose(line.rows[0, 1], overlap(edges.tolist(), line.width), atol=1e-9)


def test_a_time_line_does_not_grow():
    line, t = Timeline(0.0), 0.0
    for _ in range(100):
        line.add((0, 1), t, t + 0.01)
        t += 0.5
    tracemalloc.start()
    for _ in range(20_000):
        line.add((0, 1), t, t + 0.01)
        t += 0.5
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000


class Late(LoopbackTransport):
    """Every wait takes a second of a made-up clock; every other one was for the second peer."""

    now = 0.0
    waits = 0

    def wait(self, channel):
        self.now += 1.0
        self.waits += 1
        channel.awaited = 1 if self.waits % 2 else None


def test_waits_are_told_by_peer_and_add_up(monkeypatch):
    late = Late(4)
    monkeypatch.setattr(metering, "perf_counter", lambda: late.now)
    monkeypatch.setattr(metering.time, "time", lambda: 5000.0)
    meter = Meter(late)
    meter.begin()
    channel = meter.channel(ChannelSpec(2, (0, 3), 8))
    other = meter.channel(ChannelSpec(1, (0,), 8))
    for _ in range(10):
        meter.wait(channel)
    late.waits = 1
    meter.wait(other)
    told = meter.waits(2, names=(10, 11, 12, 13))
    assert (told["rank"], told["started"], told["width"]) == (12, 5000.0, 1 / 16)
    assert len(told["buckets"]) == 160
    assert told["buckets"][0] == {"13": pytest.approx(1 / 16)}  # the first, third, ... wait was for rank 3
    assert told["buckets"][16] == {"10": pytest.approx(1 / 32), "13": pytest.approx(1 / 32)}  # the second for either
    traffic = meter.traffic(2)
    assert {peer: t.wait_seconds for peer, t in traffic.items()} == {0: pytest.approx(2.5), 3: pytest.approx(7.5)}
    for name, peer in (("10", 0), ("13", 3)):
        total = sum(bucket.get(name, 0.0) for bucket in told["buckets"])
        assert total == pytest.approx(traffic[peer].wait_seconds)
    assert meter.traffic(1)[0].wait_seconds == pytest.approx(1.0)


class Slow:
    """A mechanism and a ledger that take their time, on a made-up clock."""

    hides = False
    cancels = False
    sigma = 1.0

    def __init__(self):
        self.now = 0.0

    def event(self, query, scale=1.0):
        return None

    def charge(self, event, round_):
        self.now += 1.0
        if round_ == 2:
            raise BudgetExceeded("spent")

    def perturb(self, value, scale=1.0):
        self.now += 10.0

    def part(self, scale=1.0):
        self.now += 100.0
        return np.zeros(1, np.int64)

    def through(self, value, solve, scale=1.0):
        self.now += 1000.0
        solve(value)


def test_releases_are_timed_by_what_they_do(monkeypatch):
    slow = Slow()
    monkeypatch.setattr(core, "perf_counter", lambda: slow.now)
    agent = Agent(0, 1.0, None, None, None, slow, slow, None, round=1)
    query = Query(np.zeros(1), 1.0, Sampling("full", 1.0, 1))
    agent.release(query)
    assert (agent.clock.ledger, agent.clock.noise) == (1.0, 10.0)

    def solve(value):
        slow.now += 1e6

    agent.release_inside(query, solve)
    assert (agent.clock.ledger, agent.clock.noise) == (2.0, 1010.0)  # the minimisation is no noise
    slow.hides = True
    agent.release(query)
    assert (agent.clock.ledger, agent.clock.noise) == (3.0, 1110.0)
    slow.hides, agent.round = False, 2
    agent.release(query)
    assert (agent.clock.ledger, agent.clock.noise) == (4.0, 1110.0)  # refused: no noise was drawn
