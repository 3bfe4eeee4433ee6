"""The contracts of the transport under mpirun: every test runs on all ranks at once."""

import time

import numpy as np
import pytest

from dpmpi.algorithms import ALGORITHMS
from dpmpi.errors import NeighbourSilent, ProtocolError
from dpmpi.network.channel import ChannelSpec
from dpmpi.network.graph import make_graph
from dpmpi.network.schedule import make_schedule
from dpmpi.network.transport.meter import Meter
from dpmpi.network.transport.mpi import MpiTransport
from dpmpi.privacy.mechanisms import make_mechanism
from dpmpi.problem.penalties import Regulariser
from dpmpi.rng import insecure_key
from dpmpi.testing import random_shards, simulate, usual_task

pytestmark = pytest.mark.mpi(min_size=4)


ALL_RECORDS = {"admm", "pvp-admm", "dvp-admm", "r-admm", "rcd"}
"""Methods that take no batches."""
CASES = [
    (name, batch)
    for name in sorted(ALGORITHMS)
    for batch in ("full", "1", "8")
    if batch == "full" or name not in ALL_RECORDS
]


@pytest.mark.parametrize(("name", "batch"), CASES)
def test_bits_are_those_of_loopback(world, on_all, name, batch):
    n, algorithm = world.size, ALGORITHMS[name]()
    kind = algorithm.mechanisms[0]
    settings = {
        "schedule": make_schedule(
            make_graph("complete", n, 0), "metropolis", 1 if algorithm.schedule == "sampled" else None, 1
        ),
        "loss": "mean" if name == "one-shot" else "logistic",
        "penalty": Regulariser(l2=0.01), "batch": batch, "seed": 5,
        "mechanism": lambda rank, width: make_mechanism(kind, 0.3, insecure_key(5, rank), width),
    }  # fmt: skip
    shards, expected, found = random_shards(n, 20, 37, seed=2), np.zeros(37), np.zeros(37)
    alone = simulate(algorithm, shards, 30, **settings)
    alone.model(alone.seats[world.rank], expected)
    engine = simulate(algorithm, shards, 30, transport=Meter(world), **settings)
    engine.model(engine.seats[0], found)
    on_all(np.array_equal(found, expected), "other bits than loopback")
    on_all(np.abs(found).max() > 0)
    on_all(engine.seats[0].agent.active_rounds == alone.seats[world.rank].agent.active_rounds)


@pytest.mark.parametrize("loss", ["softmax", "huber", "poisson"])
@pytest.mark.parametrize("name", ["momentum", "dp-dda", "dp-dgd", "ip-admm"])
def test_bits_of_other_tasks_are_those_of_loopback(world, on_all, name, loss):
    n, algorithm, task = world.size, ALGORITHMS[name](), usual_task(loss)
    settings = {
        "graph": "complete", "loss": loss, "batch": "8", "seed": 5, "lipschitz": 0.7,
        "mechanism": lambda rank, width: make_mechanism("gaussian", 0.3, insecure_key(5, rank), width),
    }  # fmt: skip
    shards, length = random_shards(n, 20, 37, 2, task), 37 * task.scores
    expected, found = np.zeros(length), np.zeros(length)
    alone = simulate(algorithm, shards, 20, **settings)
    alone.model(alone.seats[world.rank], expected)
    engine = simulate(algorithm, shards, 20, transport=Meter(world), **settings)
    engine.model(engine.seats[0], found)
    on_all(np.array_equal(found, expected), "other bits than loopback")
    on_all(np.abs(found).max() > 0)


@pytest.fixture(params=["through the first", "by slices"])
def few(request, monkeypatch):
    """Both ways of collectives: where all say little, and where they say much."""
    if request.param == "by slices":
        monkeypatch.setattr("dpmpi.network.mpi_collectives.FEW_BYTES", 0)


@pytest.mark.usefixtures("few")
def test_total_adds_up_in_rank_order_and_agrees_everywhere(world, on_all):
    parts = [np.random.default_rng(rank).standard_normal(1001) * 10.0**rank for rank in range(world.size)]
    expected = parts[0].copy()
    for part in parts[1:]:
        expected += part
    buffer = parts[world.rank].copy()
    world.total(buffer)
    on_all(np.array_equal(buffer, expected))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("times", [1, 1000])
def test_collect_keeps_order_and_text(world, on_all, times):
    texts = world.collect(["ä" * world.rank * times])
    on_all(texts == ["ä" * rank * times for rank in range(world.size)], f"{texts!s:.200}")


@pytest.mark.parametrize("roots", [(0,), (1, 3)])
def test_gather_brings_rows_to_those_who_ask(world, on_all, roots):
    rows = world.gather(np.full(5, float(world.rank)), roots)
    on_all((rows is None) == (world.rank not in roots))
    on_all(rows is None or rows[:, 0].tolist() == list(range(world.size)))


@pytest.mark.usefixtures("few")
def test_words_add_up_modulo_2_to_the_64(world, on_all):
    words = np.full(7, 2**63 + world.rank, np.uint64)
    world.add_up(words)
    expected = sum(2**63 + rank for rank in range(world.size)) % 2**64
    on_all(words.tolist() == [expected] * 7, str(words))


def test_every_rank_gets_its_own_bytes(world, on_all):
    told = world.swap([b"%d to %d" % (world.rank, peer) * peer for peer in range(world.size)])
    on_all(told == [b"%d to %d" % (peer, world.rank) * world.rank for peer in range(world.size)], str(told))
    come = world.swap_alike([bytes([world.rank, peer]) for peer in range(world.size)])
    on_all(come() == [bytes([peer, world.rank]) for peer in range(world.size)])


def exchange_once(transport, rounds=(1, 1)):
    """Ranks 0 and 1 exchange one message, stamped with the given rounds."""
    rank = transport.rank
    channel = transport.channel(ChannelSpec(rank, [1 - rank], 80, tag=7))
    channel.outgoing[0][0][:] = rank + 1
    transport.start(channel.stamp(rounds[rank], 0))
    transport.wait(channel)
    return channel


def test_waiting_is_put_down_to_the_late_neighbour(world, on_all):
    meter, late = Meter(world), 2
    channel = meter.channel(ChannelSpec(world.rank, [r for r in range(world.size) if r != world.rank], 80, tag=6))
    world.barrier()
    if world.rank == late:
        time.sleep(0.3)
    meter.start(channel.stamp(1, 0))
    meter.wait(channel)
    traffic = meter.traffic(world.rank)
    slowest = max(traffic, key=lambda peer: traffic[peer].wait_seconds)
    on_all(late in (world.rank, slowest), str(traffic))
    on_all(all(t.bytes_sent == 96 for t in traffic.values()))


def test_a_message_of_another_round_is_refused(world, on_all):
    error = None
    if world.rank < 2:
        try:
            exchange_once(world, rounds=(4, 5))
        except ProtocolError as caught:
            error = str(caught)
    on_all(world.rank > 1 or (error is not None and f"from rank {1 - world.rank}" in error), str(error))


def test_a_silent_neighbour_is_named_after_the_deadline(world, on_all):
    """Rank 0 waits for a rank that never speaks; the receive stays posted on a communicator of its own."""
    impatient = MpiTransport(world._mpi, world._world, deadline=0.3)
    error = ""
    if world.rank == 0:
        channel = impatient.channel(ChannelSpec(0, [3], 80, tag=1))
        impatient.start(channel.stamp(17, 2))
        try:
            impatient.wait(channel)
        except NeighbourSilent as caught:
            error = str(caught)
    on_all(world.rank != 0 or "in round 17, hop 2, tag 1 for rank 3" in error, error)
    if world.rank == 3:  # let the exchange complete, so that MPI can end
        channel = impatient.channel(ChannelSpec(3, [0], 80, tag=1))
        impatient.start(channel.stamp(17, 2))
        impatient.wait(channel)
    world.barrier()


def test_disjoint_edges_of_different_rounds_overlap(world, on_all):
    """Edge (0, 1) does not finish its round 1 before edge (2, 3) has finished its rounds 2 to 6.

    Rank 0 holds its message of round 1 back until rank 2 reports, outside of the rounds, that round 6 is over. If a
    round were a barrier, nobody could go on.
    """
    comm = world.bare_communicator()
    if world.rank < 4:
        partner = world.rank ^ 1
        channel = world.channel(ChannelSpec(world.rank, [partner], 80, tag=9))
        rounds = [1] if world.rank < 2 else [2, 3, 4, 5, 6]
        for t in rounds:
            if world.rank == 0:
                report = np.zeros(1)
                request = comm.Irecv(report, 2)
                world._finish(request, "the report of rank 2")
            channel.flip()
            world.start(channel.stamp(t, 0))
            world.wait(channel)
        if world.rank == 2:
            comm.Send(np.ones(1), 0)
    on_all(True)
