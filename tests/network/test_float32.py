"""Numbers that travel as float32: what is rounded, who sees it, and what it costs."""

import json
import tracemalloc
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import needs
import numpy as np
import pytest
from launcher import mpirun

from dpmpi.algorithms import ALGORITHMS
from dpmpi.core import Gather, Method, Mix, NeighbourSum, Sum, public
from dpmpi.errors import ConfigError
from dpmpi.network.channel import TRAILER_BYTES
from dpmpi.network.exchange.plain import PlainExchange
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.network.sums import payload_of
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.network.transport.meter import Meter
from dpmpi.run import main as run
from dpmpi.runtime.flags import parse
from dpmpi.testing import check_no_leak, random_shards, simulate

NARROW = partial(PlainExchange, wire="float32")
WHY = "a constant"


def value(rank, t, length=7):
    return np.random.default_rng([rank, t]).standard_normal(length) * 10.0 ** (rank - 2)


@dataclass(frozen=True)
class Talk(Method):
    """Says one of each in every round, and keeps the answers."""

    def start(self, agent):
        return []

    def round(self, agent, state, t):
        v, near = value(agent.rank, t), value(agent.rank, t)
        plus = public(value(agent.rank, -t % 100), because=WHY)
        mixed = (yield Mix(public(v, because=WHY))).copy()
        moved = (yield Mix(public(v, because=WHY), plus=plus, times=0.3)).copy()
        total = (yield Sum(public(v, because=WHY))).copy()
        assert (v == value(agent.rank, t)).all()  # what is mixed and summed is left as it is
        around = (yield NeighbourSum(public(near, because=WHY))).copy()
        heard = {j: h.copy() for j, h in (yield Gather(public(v, because=WHY))).items()}
        state.append((mixed, moved, total, around, near, heard, v))

    def model(self, agent, state, t, out):
        out.fill(0.0)

    def releases(self, terms):
        return []


def cut(v):
    """The float32 next to v that is not further from zero."""
    near = v.astype(np.float32)
    return np.where(np.abs(near.astype(float)) > np.abs(v), np.nextafter(near, np.float32(0)), near).astype(float)


def added(terms):
    total = np.zeros_like(terms[0])
    for term in terms:
        total += term
    return total


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_everybody_computes_with_what_was_sent(graph):
    """To the last bit: products and sums of float32 numbers, taken in float64 and in rank order."""
    n = 5
    engine = simulate(Talk(), random_shards(n, 3, 7, 0), 3, graph=graph, exchange=NARROW)
    W = mixing_matrix(make_graph(graph, n, 0), "metropolis")
    for t in (1, 2, 3):
        V = [value(rank, t) for rank in range(n)]
        P = [value(rank, -t % 100) * 0.3 + V[rank] for rank in range(n)]
        for i, seat in enumerate(engine.seats):
            mixed, moved, total, around, near, heard, own = seat.state[t - 1]
            peers = make_graph(graph, n, 0).neighbours(i)
            group = sorted((i, *peers))
            np.testing.assert_array_equal(
                mixed, added([W[i, j] * V[j].astype(np.float32).astype(float) for j in group])
            )
            np.testing.assert_array_equal(
                moved, added([W[i, j] * P[j].astype(np.float32).astype(float) for j in group])
            )
            np.testing.assert_array_equal(total, added([v.astype(np.float32).astype(float) for v in V]))
            np.testing.assert_array_equal(around, added([cut(V[j]) for j in peers]))
            np.testing.assert_array_equal(near, cut(V[i]))  # its own is what the neighbours have
            np.testing.assert_array_equal(own, cut(V[i]))
            for j in peers:
                np.testing.assert_array_equal(heard[j], cut(V[j]))


def test_vectors_stay_in_their_domain():
    """A rank that was inside a ball or box is there after its vector was sent."""
    x = np.random.default_rng(0).standard_normal((50, 7))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert (np.linalg.norm([cut(row) for row in x], axis=1) <= np.linalg.norm(x, axis=1)).all()
    assert (np.linalg.norm(x.astype(np.float32).astype(float), axis=1) > 1 + 1e-9).any()  # as rounding would not


def test_half_the_bytes():
    assert [payload_of(m, "float32") for m in (1, 2, 7, 2000)] == [8, 8, 32, 8000]
    assert [payload_of(m, "float64") for m in (1, 2, 7, 2000)] == [8, 16, 56, 16000]
    sent = {}
    for wire in ("float64", "float32"):
        meter = Meter(LoopbackTransport(4))
        exchange = partial(PlainExchange, wire=wire)
        simulate(ALGORITHMS["dda"](), random_shards(4, 5, 200, 0), 6, transport=meter, exchange=exchange)
        sent[wire] = sum(t.bytes_sent for rank in range(4) for t in meter.traffic(rank).values())
    assert sent["float64"] == 4 * 2 * 6 * (8 * 200 + TRAILER_BYTES)
    assert sent["float32"] == 4 * 2 * 6 * (4 * 200 + TRAILER_BYTES)


@pytest.mark.parametrize("name", ["dp-dda", "admm", "ldp-gd", "dp-admm", "ldp-admm"])
def test_nothing_leaks_on_a_narrow_wire(name):
    settings = {"graph": "complete"} if name == "ldp-gd" else {}
    loss = "hinge" if name in ("dp-dda", "dp-admm") else "logistic"
    check_no_leak(ALGORITHMS[name], exchange=NARROW, loss=loss, **settings)


@pytest.mark.parametrize("name", ["dda", "admm", "dgd"])
def test_the_error_floor_of_exact_methods(name):
    """Without noise the models differ by a few roundings, that is by about 1e-7 of their size."""
    loss = {"loss": "logistic"} if name == "admm" else {}
    models = []
    for exchange in (PlainExchange, NARROW):
        engine = simulate(ALGORITHMS[name](), random_shards(4, 30, 6, 1), 300, exchange=exchange, **loss)
        out = np.zeros(6)
        engine.model(engine.seats[2], out)
        models.append(out)
    wide, narrow = models
    error = np.linalg.norm(wide - narrow) / np.linalg.norm(wide)
    assert 0 < error < 1e-6


def test_no_vector_is_allocated_in_a_round():
    m = 200_000
    pool = cycle([np.zeros(4 * m + TRAILER_BYTES, np.uint8) for _ in range(40)])

    class Pooled(LoopbackTransport):
        def start(self, channel):
            for peer in channel.peers:
                copy = next(pool)
                np.copyto(copy, channel.messages[0])
                self._mail[channel.rank, peer, channel.tag].append(copy)

    @dataclass(frozen=True)
    class Everything(Talk):
        def start(self, agent):
            return np.full((2, agent.dimension), float(agent.rank))

        def round(self, agent, state, t):
            x, out = public(state[0], because=WHY), state[1]
            yield Mix(x, out=out)
            yield Mix(x, out=out, plus=x, times=0.5)
            yield NeighbourSum(x, out=out)
            yield Gather(x)

    transport = Pooled(3)
    engine = simulate(Everything(), random_shards(3, 2, m, 0), 2, transport=transport, exchange=NARROW)
    tracemalloc.start()
    engine.advance(8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * m / 4


def test_shares_are_not_floats():
    assert parse(["--wire", "float32"]).digest() != parse([]).digest()  # it changes the result
    with pytest.raises(ConfigError, match="--wire float32 is for plain messages"):
        parse(["--wire", "float32", "--exchange", "shares"])
    with pytest.raises(ConfigError, match="--wire is one of float64, float32"):
        parse(["--wire", "float16"])


@needs.mpi
@pytest.mark.parametrize("flags", ["--algorithm dp-dda --seal", "--algorithm admm --loss logistic"])
def test_bits_are_those_of_loopback(tmp_path, flags):
    data = "--data synthetic:samples=60,features=9 --rounds 20 --noise 0.1 --insecure-noise-seed 3 --wire float32"
    flags = [*data.split(), *flags.split(), "--no-evaluate", "--quiet"]
    done = mpirun(3, *flags, "--out", tmp_path / "mpi", limit=60)
    assert done.code == 0, done.err
    assert run([*flags, "--loopback", "3", "--out", str(tmp_path / "one")]) == 0
    with np.load(tmp_path / "mpi" / "model.npz") as mpi, np.load(tmp_path / "one" / "model.npz") as one:
        np.testing.assert_array_equal(mpi["x_rank"], one["x_rank"])
        assert np.abs(mpi["x_rank"]).max() > 0
    found, told = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("mpi", "one"))
    assert found["communication"] == told["communication"]
    assert found["cost"]["work_seconds"] > 0
    waits = [json.loads((tmp_path / "mpi" / "waits" / f"rank-00{rank}.json").read_text()) for rank in range(3)]
    for record, waited in zip(found["per_rank"], waits, strict=True):
        assert waited["rank"] == record["rank"]
        assert abs(waited["started"] - found["started"]) < 10.0  # ranks begin together, but not at the same instant
        total = sum(sum(bucket.values()) for bucket in waited["buckets"])
        assert total == pytest.approx(record["seconds"]["wait"], abs=1e-3)
