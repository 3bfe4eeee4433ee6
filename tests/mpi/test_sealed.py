"""Sealed messages under mpirun: the bits of loopback, and eight manipulations on their way, none of which gets through.

Rank 1 is the place where messages are manipulated: a layer between its seals and MPI changes what it sends to others.
"""

import time

import numpy as np
import pytest
from sealing import repeatable_keys

from dpmpi.algorithms import ALGORITHMS
from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.keys import Session
from dpmpi.crypto.seal import SealedPair
from dpmpi.errors import ProtocolError, SealBroken
from dpmpi.network.channel import ChannelSpec
from dpmpi.network.transport.meter import Meter
from dpmpi.network.transport.sealed import SealedTransport
from dpmpi.privacy.mechanisms import SumMechanism, make_mechanism
from dpmpi.problem.penalties import Regulariser
from dpmpi.rng import insecure_key
from dpmpi.testing import random_shards, shared, simulate

pytestmark = pytest.mark.mpi(min_size=4)

CULPRIT, OTHER = 1, 3
PAYLOAD = 80
SECONDS = 5.0


def pairs_of(rank, session, size):
    """The ends of one rank's sealed pairs, under keys that every rank can repeat."""
    return {peer: SealedPair(session, rank, peer, keys) for peer, keys in repeatable_keys(session, size)[rank].items()}


def sealed(inside, rank, session):
    return SealedTransport(inside, {rank: pairs_of(rank, session, inside.size)})


# --- bits ------------------------------------------------------------------------------------------------------------


def models(engine, rank):
    out = np.zeros(11)
    engine.model(engine.seats[rank], out)
    return out


@pytest.mark.parametrize("graph", ["ring", "complete"])
@pytest.mark.parametrize("name", ["dp-dda", "sampled-dda", "admm"])
def test_bits_are_those_of_plain_loopback(world, on_all, name, graph):
    algorithm, n = ALGORITHMS[name](), world.size
    settings = {
        "graph": graph, "loss": "logistic", "penalty": Regulariser(l2=0.01), "seed": 5,
        "mechanism": lambda rank, m: make_mechanism(algorithm.mechanisms[0], 0.3, insecure_key(5, rank), m),
    }  # fmt: skip
    shards = random_shards(n, 20, 11, seed=2)
    expected = models(simulate(algorithm, shards, 20, **settings), world.rank)
    transport = sealed(Meter(world), world.rank, Session(name.encode(), 0))
    found = models(simulate(algorithm, shards, 20, transport=transport, **settings), 0)
    on_all(np.array_equal(found, expected), "other bits than loopback")
    on_all(np.abs(found).max() > 0)


@pytest.mark.parametrize("seals", [False, True])
@pytest.mark.parametrize("noise", ["local", "sum"])
@pytest.mark.parametrize("mode", ["full", "expanded"])
def test_shares_have_the_bits_of_loopback(world, on_all, mode, noise, seals):
    algorithm, n = ALGORITHMS["dp-dda"](), world.size

    def mechanism(rank, m):
        key = insecure_key(5, rank)
        return SumMechanism(0.3, n, 40, key, m) if noise == "sum" else make_mechanism("gaussian", 0.3, key, m)

    settings = {"graph": "complete", "exchange": shared(mode, noise_tail=100.0), "mechanism": mechanism}
    shards = random_shards(n, 20, 11, seed=2)
    expected = models(simulate(algorithm, shards, 15, **settings), world.rank)
    transport = sealed(world, world.rank, Session(b"shares", 0)) if seals else world
    found = models(simulate(algorithm, shards, 15, transport=transport, **settings), 0)
    on_all(np.array_equal(found, expected), "other bits than loopback")
    on_all(np.abs(found).max() > 0)


# --- manipulations ---------------------------------------------------------------------------------------------------


class Meddler:
    """Between rank 1's seals and MPI: `meddle(channel, payloads)` changes what it sends in round 2.

    `payloads` are the sealed bytes without trailers, by receiver; those of round 1 are kept in `before`, and what was
    received in round 1 in `heard`.
    """

    def __init__(self, inside, meddle):
        self.inside = inside
        self.meddle = meddle
        self.before = {}
        self.heard = {}

    def start(self, channel):
        payloads = dict(zip(channel.peers, channel.outgoing[channel.turn], strict=True))
        if channel.round == 2:
            self.meddle(self, payloads)
        else:
            self.before = {peer: payload.copy() for peer, payload in payloads.items()}
        self.inside.start(channel)

    def wait(self, channel):
        self.inside.wait(channel)
        self.heard = {peer: payload.copy() for peer, payload in zip(channel.peers, channel.incoming, strict=True)}

    def __getattr__(self, name):
        return getattr(self.inside, name)


def flip_a_bit(meddler, payloads):
    for k, payload in enumerate(payloads.values()):  # in the text, in the tag, in between
        payload[[0, -1, PAYLOAD - 1, PAYLOAD][k % 4]] ^= 1 << k


def cut_the_tail(meddler, payloads):
    """MPI messages have a fixed size here, so what is cut off arrives as zeros."""
    for payload in payloads.values():
        payload[-SEAL_BYTES:] = 0


def cut_the_text(meddler, payloads):
    """A word less of text, the tag moved up behind it, zeros for what is missing."""
    for payload in payloads.values():
        payload[PAYLOAD - 8 : -8] = payload[PAYLOAD:].copy()
        payload[-8:] = 0


def replay(meddler, payloads):
    for peer, payload in payloads.items():
        payload[:] = meddler.before[peer]


def swap(meddler, payloads):
    """Round 2's messages to two receivers change places; the others get their own."""
    one, other = payloads[0], payloads[OTHER]
    one[:], other[:] = other.copy(), one.copy()


def send_to_another(meddler, payloads):
    payloads[0][:] = payloads[OTHER]


def seal_for_another_round(meddler, payloads):
    """With the true keys: the seal holds, but not here. The trailer says round 2."""
    for peer, pair in pairs_of(CULPRIT, meddler.session, meddler.size).items():
        pair.seal(np.zeros(PAYLOAD, np.uint8), payloads[peer], 3, 0)


def forge_the_sender(meddler, payloads):
    """What rank 3 itself would say to each at this place, now from rank 1; to rank 3 its own words."""
    for peer, pair in pairs_of(OTHER, meddler.session, meddler.size).items():
        if peer in payloads:
            pair.seal(np.zeros(PAYLOAD, np.uint8), payloads[peer], 2, 0)
    payloads[OTHER][:] = meddler.heard[OTHER]


def use_a_stale_incarnation(meddler, payloads):
    stale = Session(meddler.session.run, meddler.session.incarnation - 1)
    for peer, pair in pairs_of(CULPRIT, stale, meddler.size).items():
        pair.seal(np.zeros(PAYLOAD, np.uint8), payloads[peer], 2, 0)


EVERYBODY = None
MANIPULATIONS = [
    (flip_a_bit, EVERYBODY),
    (cut_the_tail, EVERYBODY),
    (cut_the_text, EVERYBODY),
    (replay, EVERYBODY),
    (swap, {0, OTHER}),
    (send_to_another, {0}),
    (seal_for_another_round, EVERYBODY),
    (forge_the_sender, EVERYBODY),
    (use_a_stale_incarnation, EVERYBODY),
]


@pytest.mark.parametrize(("meddle", "receivers"), MANIPULATIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_manipulated_message_does_not_open(world, on_all, meddle, receivers):
    """Its receivers name sender and round at once, and find nothing of it; the others notice nothing."""
    rank, size = world.rank, world.size
    session = Session(meddle.__name__.encode(), 7)
    meddler = Meddler(world, meddle)
    meddler.session = session
    transport = sealed(meddler if rank == CULPRIT else world, rank, session)
    peers = [peer for peer in range(size) if peer != rank]
    channel = transport.channel(ChannelSpec(rank, peers, PAYLOAD, tag=5))
    error = None
    for t in (1, 2):
        channel.outgoing[channel.flip()][0][:] = 10 * t + rank
        world.barrier()
        begin = time.monotonic()
        transport.start(channel.stamp(t, 0))
        try:
            transport.wait(channel)
        except SealBroken as caught:
            error = str(caught)
        on_all(error is None or t == 2, f"round 1: {error}")
        on_all(time.monotonic() - begin < SECONDS, "too late")
    fooled = rank != CULPRIT and (receivers is EVERYBODY or rank in receivers)
    expected = f"rank {rank} could not open the message of rank {CULPRIT} in round 2, hop 0: "
    on_all((error is not None) == fooled, f"{error}")
    on_all(not fooled or str(error).startswith(expected), str(error))
    heard = dict(zip(peers, channel.incoming, strict=True))
    if fooled:
        on_all(not heard[CULPRIT].any(), "something of the message was left")
    else:
        on_all(all((payload == 20 + peer).all() for peer, payload in heard.items()), "other messages than were sent")


def test_a_message_that_is_really_shorter_is_refused(world, on_all):
    """MPI lets a sender say less than the receiver has room for: then the trailer is that of the round before."""
    rank, size = world.rank, world.size

    class Short(Meddler):
        def start(self, channel):
            if channel.round == 1:
                self.inside.start(channel)
                return
            world._startall(channel.handle.receives)
            for peer, message in zip(channel.peers, channel.messages, strict=True):
                world._rounds.Send(message[: PAYLOAD // 2], peer, channel.tag)

    transport = sealed(Short(world, None) if rank == CULPRIT else world, rank, Session(b"short", 0))
    channel = transport.channel(ChannelSpec(rank, [peer for peer in range(size) if peer != rank], PAYLOAD, tag=4))
    error = None
    for t in (1, 2):
        channel.flip()
        transport.start(channel.stamp(t, 0))
        try:
            transport.wait(channel)
        except (ProtocolError, SealBroken) as caught:
            error = str(caught)
        on_all(error is None or t == 2, f"round 1: {error}")
    named = error is not None and f"rank {rank} expected round 2, hop 0 from rank {CULPRIT}, found round 1" in error
    on_all(named == (rank != CULPRIT), str(error))


def test_meddling_is_seen_by_nobody_without_seals(world, on_all):
    """The counterpart: the same flipped bits in plain messages arrive as if they had been meant."""
    rank, size = world.rank, world.size
    transport = Meddler(world, flip_a_bit) if rank == CULPRIT else world
    peers = [peer for peer in range(size) if peer != rank]
    channel = transport.channel(ChannelSpec(rank, peers, PAYLOAD + SEAL_BYTES, tag=3, distinct=True))
    for t in (1, 2):
        channel.flip()
        transport.start(channel.stamp(t, 0))
        transport.wait(channel)
    changed = {peer for peer, payload in zip(peers, channel.incoming, strict=True) if payload.any()}
    on_all(changed == (set() if rank == CULPRIT else {CULPRIT}), str(changed))
