"""Sealed messages on loopback: the same bits, every byte accounted for, and what a listener or meddler gets."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealing import repeatable_keys
from uniformity import looks_uniform

from dpmpi.algorithms import ALGORITHMS
from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.keys import Session
from dpmpi.crypto.seal import SealedPair
from dpmpi.errors import SealBroken
from dpmpi.network.channel import TRAILER_BYTES, ChannelSpec
from dpmpi.network.graph import make_graph
from dpmpi.network.schedule import make_schedule
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.network.transport.meter import Meter
from dpmpi.network.transport.sealed import SealedTransport
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem.penalties import Regulariser
from dpmpi.rng import insecure_key
from dpmpi.testing import Tap, random_shards, shared, simulate

SESSION = Session(b"a run", 0)


def sealed(inside, session=SESSION):
    keys = repeatable_keys(session, inside.size)
    return SealedTransport(
        inside, {i: {j: SealedPair(session, i, j, pair) for j, pair in peers.items()} for i, peers in keys.items()}
    )


def iterates(name, graph, n, transport, seed=0, rounds=6, **more):
    algorithm = ALGORITHMS[name]()
    kind = algorithm.mechanisms[0]
    schedule = make_schedule(
        make_graph(graph, n, seed), "metropolis", 1 if algorithm.schedule == "sampled" else None, seed
    )
    engine = simulate(
        algorithm, random_shards(n, 20, 7, seed), rounds, schedule=schedule, penalty=Regulariser(l2=0.01),
        loss="mean" if name == "one-shot" else "logistic",
        mechanism=lambda rank, m: make_mechanism(kind, 0.3, insecure_key(seed, rank), m), transport=transport, **more,
    )  # fmt: skip
    out = np.zeros((n, 7))
    for row, seat in zip(out, engine.seats, strict=True):
        engine.model(seat, row)
    return out


NEED_ALL = {"ldp-gd", "rcd"}
"""Methods for the complete graph alone."""


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_has_the_bits_of_its_plain_run(name):
    graph = "complete" if name in NEED_ALL else "ring"
    expected = iterates(name, graph, 4, LoopbackTransport(4))
    np.testing.assert_array_equal(iterates(name, graph, 4, sealed(LoopbackTransport(4))), expected)
    assert np.abs(expected).max() > 0


@given(
    st.integers(2, 7), st.sampled_from(["erdos-renyi:p=0.7", "star", "path", "complete"]),
    st.sampled_from(["dp-dda", "ip-admm", "dp-dgd", "sampled-dda", "dp-admm"]), st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None, max_examples=20)
def test_random_graphs_have_the_bits_of_their_plain_runs(n, graph, name, seed):
    plain = iterates(name, graph, n, LoopbackTransport(n), seed, 3)
    np.testing.assert_array_equal(iterates(name, graph, n, sealed(LoopbackTransport(n)), seed, 3), plain)


# --- what is counted -------------------------------------------------------------------------------------------------


class Scales(Tap):
    """Keeps every message by sender, receiver and tag, trailers and seals included."""

    def start(self, channel):
        for peer, message in zip(channel.peers, channel.messages, strict=True):
            self.heard.append((channel.rank, peer, channel.tag, message.tobytes()))
        self.inside.start(channel)


EXCHANGES = {"plain": {}, "expanded": {"exchange": shared("expanded")}, "full": {"exchange": shared("full")}}


@pytest.mark.parametrize("seals", [False, True])
@pytest.mark.parametrize("exchange", sorted(EXCHANGES))
def test_the_meter_splits_what_was_weighed(exchange, seals):
    n, rounds, vector = 5, 6, 8 * 7
    scales = Scales(LoopbackTransport(n))
    meter = Meter(scales)
    iterates("dp-dda", "complete", n, sealed(meter) if seals else meter, rounds=rounds, **EXCHANGES[exchange])
    hops = 2 if exchange == "full" else 1
    for rank in range(n):
        traffic = meter.traffic(rank)
        assert sorted(traffic) == [peer for peer in range(n) if peer != rank]
        for peer, account in traffic.items():
            sent = [message for i, j, _, message in scales.heard if (i, j) == (rank, peer)]
            back = [message for i, j, _, message in scales.heard if (i, j) == (peer, rank)]
            assert account.messages_sent == len(sent) == rounds * hops
            assert account.bytes_sent == sum(map(len, sent))
            assert account.bytes_received == sum(map(len, back))
            assert account.tag_bytes_sent == account.tag_bytes_received == (SEAL_BYTES * len(sent) if seals else 0)
            assert account.trailer_bytes_sent == TRAILER_BYTES * len(sent)
            assert account.payload_bytes_sent == account.payload_bytes_received == vector * len(sent)
            assert account.share_bytes_sent == (vector * rounds if exchange == "full" else 0)
            parts = account.payload_bytes_sent + account.tag_bytes_sent + account.trailer_bytes_sent
            assert parts == account.bytes_sent


# --- what a listener gets --------------------------------------------------------------------------------------------


def test_sealed_messages_look_uniform_and_differ_by_receiver():
    scales = Scales(LoopbackTransport(4))
    n, rounds = 4, 200
    iterates("dp-dda", "complete", n, sealed(scales), rounds=rounds)
    bodies = [message[:-TRAILER_BYTES] for _, _, _, message in scales.heard]
    assert len(set(bodies)) == len(bodies) == n * (n - 1) * rounds
    assert looks_uniform(np.frombuffer(b"".join(bodies), np.uint64))


def test_plain_messages_do_not():
    scales = Scales(LoopbackTransport(4))
    iterates("dp-dda", "complete", 4, scales, rounds=200)
    bodies = [message[:-TRAILER_BYTES] for _, _, _, message in scales.heard]
    assert len(set(bodies)) == len(bodies) // 3
    assert not looks_uniform(np.frombuffer(b"".join(bodies), np.uint64))


# --- what a meddler gets ---------------------------------------------------------------------------------------------


class Meddling(LoopbackTransport):
    """Changes one bit of what rank 1 sends to rank 2 in round 4."""

    def start(self, channel):
        if channel.rank == 1 and channel.round == 4:
            channel.messages[channel.peers.index(2)][3] ^= 16
        super().start(channel)


@pytest.mark.parametrize("exchange", ["plain", "full"])
def test_a_changed_bit_ends_the_run_and_names_sender_receiver_and_round(exchange):
    expected = r"^rank 2 could not open the message of rank 1 in round 4, hop 0: it was changed"
    with pytest.raises(SealBroken, match=expected):
        iterates("dp-dda", "complete", 5, sealed(Meddling(5)), **EXCHANGES[exchange])


def test_without_seals_a_changed_bit_goes_unnoticed():
    """What the test before relies on: the trailer is intact, so only the seal can tell."""
    plain, meddled = (iterates("dp-dda", "complete", 5, kind(5)) for kind in (LoopbackTransport, Meddling))
    assert np.any(plain != meddled)


def test_nothing_of_a_broken_message_is_left():
    transport = sealed(Meddling(3))
    channels = {}
    for rank in range(3):
        peers = [peer for peer in range(3) if peer != rank]
        channel = channels[rank] = transport.channel(ChannelSpec(rank, peers, 40))
        channel.outgoing[0][0][:] = rank + 1
        transport.start(channel.stamp(4, 0))
    with pytest.raises(SealBroken):
        transport.done(channels[2])
    assert channels[2].incoming[0].tolist() == [1] * 40
    assert not channels[2].incoming[1].any()
    assert transport.done(channels[0])
    assert [payload[0] for payload in channels[0].incoming] == [2, 3]


def test_keys_of_another_incarnation_open_nothing():
    inside = LoopbackTransport(3)
    old, new = (sealed(inside, Session(b"a run", incarnation)) for incarnation in (0, 1))
    for transport, rank in ((old, 0), (new, 1)):
        channel = transport.channel(ChannelSpec(rank, [1 - rank], 40))
        transport.start(channel.stamp(1, 0))
    with pytest.raises(SealBroken, match=re.escape("rank 1 could not open the message of rank 0 in round 1, hop 0")):
        new.done(channel)
