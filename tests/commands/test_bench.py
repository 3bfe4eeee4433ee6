"""What `python -m dpmpi bench` times is what it says, and its ratios are those of its figures."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import needs
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from launcher import MPIRUN, mpirun, survivors, wait_until

from dpmpi.commands.bench import command as bench
from dpmpi.commands.bench import memory as bench_memory
from dpmpi.commands.bench import parts as bench_parts
from dpmpi.commands.bench import starts as bench_starts
from dpmpi.commands.bench.parts import alternate
from dpmpi.commands.bench.rows import (
    EXPANDED,
    FULL,
    PLAIN,
    RATIOS,
    SEALED,
    Ciphered,
    Consensus,
    Totals,
    condense,
    dense_data,
    kinds_for,
    ratios,
    sparse_data,
)
from dpmpi.commands.bench.starts import Starter, consensus_of_peer, judge, measure_targets
from dpmpi.commands.bench.tables import BEGIN, END, draw, put, table, tables
from dpmpi.crypto import sealing_speed
from dpmpi.crypto.seal import SealedPair, position
from dpmpi.crypto.sealing_speed import sealing_seconds
from dpmpi.errors import INTERRUPTED, ConfigError
from dpmpi.network.graph import make_graph, mixing_matrix
from dpmpi.network.handshake import agree_on_secrets
from dpmpi.network.launcher import Launcher
from dpmpi.network.route import Routes
from dpmpi.network.schedule import StaticSchedule
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.network.transport.meter import Meter
from dpmpi.problem import rows as rows_module
from dpmpi.problem.batches import Batch
from dpmpi.problem.local_problem import LocalProblem
from dpmpi.problem.losses import LOSSES, Hinge
from dpmpi.problem.rows import Csr, Dense
from dpmpi.rng import PrivateStream
from dpmpi.runtime.engine import Engine, Seat

M, RANKS, ROUNDS = 5, 4, 3
DOCS = Path(__file__).parents[2] / "docs"


def run(method, messages):
    """Return the models of all ranks and what rank 0 sent: (messages, payload, shares, seals)."""
    transport, schedule = LoopbackTransport(RANKS), StaticSchedule(make_graph("ring", RANKS, 0))
    meter, secrets = Meter(transport), agree_on_secrets(transport)
    carrier = messages.carrier(meter, secrets)
    agents = [SimpleNamespace(rank=rank, dimension=M, round=0, active_rounds=0) for rank in range(RANKS)]
    routes = Routes(make_graph("complete", RANKS, 0))
    exchanges = [messages.exchange(carrier, rank, secrets, routes=routes) for rank in range(RANKS)]
    seats = [Seat(agent, method.start(agent), one) for agent, one in zip(agents, exchanges, strict=True)]
    engine = Engine(method, schedule, carrier, seats)
    engine.advance(ROUNDS)
    requests = [seat.state[0] if isinstance(seat.state, tuple) else seat.state for seat in seats]
    models = np.array([request.out for request in requests])
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
    "into", [pytest.param(True, marks=needs.encryption_in_place(sealing_speed.WRITES_INTO)), False]
)
def test_the_bare_cipher_encrypts_and_decrypts_as_many_messages_as_travel(monkeypatch, into):
    called = []

    class Library:
        def __init__(self, key):
            self.inside = AESGCM(key)

        def __getattr__(self, name):
            return lambda *args: called.append((name, len(args[1]))) or getattr(self.inside, name)(*args)

    monkeypatch.setattr(sealing_speed, "WRITES_INTO", into)
    monkeypatch.setattr(sealing_speed, "AESGCM", Library)
    models, sent = run(Ciphered(2), PLAIN)
    plain, same = run(Consensus(), PLAIN)
    assert (models == plain).all()
    assert sent == same
    end, messages = "_into" * into, 2 * ROUNDS * RANKS
    made = 2 * RANKS * (not into)  # what is decrypted is encrypted once
    assert called.count((f"encrypt{end}", 8 * M)) == messages + made
    assert called.count((f"decrypt{end}", 8 * M + 16)) == messages


@pytest.mark.parametrize(
    ("config", "hops", "tags"), [(PLAIN, 1, 0), (EXPANDED, 1, 0), (FULL, 2, 16)], ids=["plain", "expanded", "full"]
)
def test_totals_add_up_the_same_vectors_in_every_round(config, hops, tags):
    """Each rank's vector is its number, so that the sums are exact: 0 + 1 + ... + (n - 1)."""
    models, sent = run(Totals(), config)
    assert (models == RANKS * (RANKS - 1) / 2).all()
    messages = (RANKS - 1) * ROUNDS * hops
    assert sent == (messages, messages * 8 * M, (hops - 1) * messages // 2 * 8 * M, messages * tags)


# --- ratios and tables -----------------------------------------------------------------------------------------------

SECONDS = {
    "bare exchange": 2.0, "bare gradient": 3.0, "bare noise": 5.0, "mix": 7.0, "dda": 11.0, "dp-dda": 13.0,
    "sealed mix": 17.0, "sum": 19.0, "expanded sum": 23.0, "full sum": 29.0, "bare sparse gradient": 31.0,
    "sparse dp-dda": 37.0, "sealed dp-dda": 41.0, "mix + AES-GCM": 43.0, "Allreduce": 47.0, "Iallreduce": 53.0,
    "expanded sum of all masks": 59.0, "ring sum": 61.0, "expanded ring sum": 67.0, "expanded torus sum": 71.0,
}  # fmt: skip


def test_ratios_are_quotients():
    expected = {
        "mix / bare exchange": 7 / 2, "dda / bare parts": 11 / 5, "dp-dda / bare parts": 13 / 10,
        "sparse dp-dda / bare parts": 37 / 38, "sealed mix / mix": 17 / 7, "sealed dp-dda / dp-dda": 41 / 13,
        "sealed mix / mix + AES-GCM": 17 / 43, "expanded sum / sum": 23 / 19, "full sum / sum": 29 / 19,
        "expanded sum / Allreduce": 23 / 47,
        "Iallreduce / Allreduce": 53 / 47, "sum / Iallreduce": 19 / 53, "expanded sum / Iallreduce": 23 / 53,
        "expanded sum of all masks / expanded sum": 59 / 23, "ring sum / mix": 61 / 7,
        "expanded ring sum / ring sum": 67 / 61, "expanded torus sum / expanded ring sum": 71 / 67,
    }  # fmt: skip
    assert ratios(SECONDS) == expected
    assert {name for parts in RATIOS.values() for name in parts} == set(SECONDS) == set(kinds_for(9))
    fewer = {name: value for name, value in SECONDS.items() if "sum" not in name and name != "bare noise"}
    assert set(ratios(fewer)) == {
        "mix / bare exchange", "dda / bare parts", "sealed mix / mix", "sealed mix / mix + AES-GCM",
        "sealed dp-dda / dp-dda", "Iallreduce / Allreduce",
    }  # fmt: skip


def test_a_ratio_is_the_median_over_the_turns_and_not_that_of_medians():
    found = condense({"bare exchange": [1.0, 10.0, 100.0], "mix": [3.0, 11.0, 50.0]})
    assert found == {"seconds": {"bare exchange": 10.0, "mix": 11.0}, "ratios": {"mix / bare exchange": 1.1}}


def test_sums_are_left_out_where_they_hide_nothing():
    assert "sum" in kinds_for(2)
    assert "full sum" not in kinds_for(2)
    assert "full sum" in kinds_for(3)


def result():
    runs = [
        {"ranks": n, "mpi": "x", "dimensions": {str(m): {"seconds": {"mix": n * m * 1e-6}, "ratios": {}}}}
        for n, m in ((4, 100), (20, 2000))
    ]
    runs[1]["dimensions"]["100"] = {"seconds": {"mix": 1e-4, "sum": 2e-4}, "ratios": {"mix / bare exchange": 1.25}}
    machine = {"cores": 2, "processor": "p", "mpi": "m", "python": "3", "numpy": "2", "load": 0.5}
    return {"machine": machine, "runs": runs}


def test_tables_have_a_row_for_each_kind_and_a_column_for_each_number_of_ranks():
    text = tables(result())
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert ["m = 100, us a round", "4 ranks", "20 ranks"] in rows
    assert ["mix", "400.0", "100.0"] in rows
    assert ["sum", "", "200.0"] in rows
    assert ["mix / bare exchange", "", "1.25"] in rows
    assert ["mix", "40000.0"] in rows
    assert len({len(line) for line in table(("a", "bcd"), [("efg", "h")]).splitlines()}) == 1


def test_drawings_show_rounds_a_second(tmp_path):
    paths = draw(result(), tmp_path / "new")
    texts = {path.name: path.read_text() for path in paths}
    assert set(texts) == {"growth-dimension.svg", "growth-ranks.svg"}
    for number in ("mix: 25<", "mix: 1e+04<", "sum: 5000<"):  # 20 ranks: 1 / (20 * 2000 us), 1 / 100 us, 1 / 200 us
        assert number in texts["growth-dimension.svg"]
    assert "mix: 25<" in texts["growth-ranks.svg"]
    assert "sum:" not in texts["growth-ranks.svg"]


def test_the_page_shows_what_the_bench_wrote():
    """docs/performance.md quotes tables; they must be those of docs/performance.json."""
    page = (DOCS / "performance.md").read_text()
    assert put(page, tables(json.loads((DOCS / "performance.json").read_text()))) == page
    assert put(f"a\n{BEGIN}\n\nold\n\n{END}\nb\n", "| new |\n") == f"a\n{BEGIN}\n\n| new |\n\n{END}\nb\n"
    with pytest.raises(ConfigError, match="begin of what bench wrote"):
        put("no marks", "")


def test_starts_of_earlier_benches_are_shown():
    """They had one number of ranks."""
    old = {"ranks": 20, "seconds": {"bare ranks": 1.97, "dpmpi": 1.87}, "ratio": 0.95}
    machine = json.loads((DOCS / "performance.json").read_text())["machine"]
    rows = [line.split() for line in tables({"machine": machine, "startup": old}).splitlines()]
    assert ["|", "dpmpi", "|", "1.87", "|"] in rows
    assert ["|", "ratio", "|", "0.95", "|"] in rows


# --- targets ---------------------------------------------------------------------------------------------------------


def test_a_target_is_met_at_its_limit():
    assert [judge("x", r, "<=", 1.2)["verdict"] for r in (1.2, 1.21, None)] == ["pass", "FAIL", "not measured"]
    assert [judge("x", r, ">=", 6.0)["verdict"] for r in (6.0, 5.99)] == ["pass", "FAIL"]
    assert judge("x", 2.0, "<=", 1.0) == {
        "name": "x", "ratio": 2.0, "bound": "<=", "limit": 1.0, "verdict": "FAIL",
    }  # fmt: skip


def test_targets_judge_what_was_measured(monkeypatch):
    peer = {"round": 10.0, "start": 40.0}
    one = starter("mpirun -n {ranks}", 1.0)

    def rounds(self, ranks, dimension, *flags):
        if ranks == 50 or dimension != 2000:
            assert flags[-1] == "Iallreduce,expanded sum"
        return {
            "seconds": {"mix": ranks / 10}, "ratios": {"mix / bare exchange": ranks, "dp-dda / bare parts": ranks + 1,
            "expanded sum / Iallreduce": dimension / ranks},
        }  # fmt: skip

    monkeypatch.setattr(Starter, "rounds", rounds)
    monkeypatch.setattr(bench_starts, "gradient", lambda m, mb, turns: {"dense": {"speed_of_bare": m}})
    monkeypatch.setattr(bench_starts, "consensus_of_peer", lambda *_: (peer["start"], peer["round"]))
    monkeypatch.setattr(bench_starts, "start_run", lambda starter, ranks: ranks)
    measured = measure_targets(one, 640.0, 2, "python")
    found = {target["name"]: (target["ratio"], target["bound"], target["limit"]) for target in measured["targets"]}
    assert found == {
        "gradient, speed of BLAS, m = 100": (100, ">=", 0.8),
        "gradient, speed of BLAS, m = 2000": (2000, ">=", 0.8),
        "gradient, speed of BLAS, m = 47236": (47236, ">=", 0.8),
        "mix / bare exchange, 4 ranks, m = 2000": (4, "<=", 1.2),
        "mix / bare exchange, 20 ranks, m = 2000": (20, "<=", 1.2),
        "dp-dda / bare parts, 4 ranks, m = 2000": (5, "<=", 1.2),
        "dp-dda / bare parts, 20 ranks, m = 2000": (21, "<=", 1.2),
        "expanded sum / Iallreduce, 20 ranks, m = 2000": (100, "<=", 2.5),
        "expanded sum / Iallreduce, 50 ranks, m = 2000": (40, "<=", 2.5),
        "expanded sum / Iallreduce, 20 ranks, m = 47236": (2361.8, "<=", 2.0),
        "DISROPT round / mix, 4 ranks, m = 2000": (25, ">=", 6.0),
        "DISROPT round / mix, 20 ranks, m = 2000": (5, ">=", 6.0),
        "DISROPT start / start, 20 ranks": (2, ">=", 3.0),
    }
    assert [one["ranks"] for one in measured["peer"]] == [4, 20]
    without = measure_targets(one, 640.0, 2, None)
    assert [t["name"] for t in without["targets"]] == [t["name"] for t in measured["targets"]]
    assert [t["verdict"] for t in without["targets"] if "DISROPT" in t["name"]] == ["not measured"] * 3
    assert "peer" not in without


# --- gradients -------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(["hinge", "huber", "logistic", "poisson", "squared"]),
    st.lists(st.tuples(st.floats(), st.sampled_from([-1.0, 1.0])), min_size=1, max_size=20),
)
def test_slopes_in_place_are_the_same_numbers(name, pairs):
    scores, labels = (np.array(column) for column in zip(*pairs, strict=True))
    for loss in (LOSSES[name], Hinge().smoothed(0.1)):
        with np.errstate(all="ignore"):
            expected, out = loss.slope(scores, labels), scores.copy()
            loss.to_slope(out, labels)
        np.testing.assert_array_equal(out, expected)  # not near: the same, NaN where there is NaN


def plain_gradient(matrix, labels, loss, x):
    """The mean of clipped subgradients, one record at a time."""
    g = np.zeros(matrix.shape[1])
    for a, y in zip(matrix, labels, strict=True):
        one = LOSSES[loss].slope(a @ x, y) * a
        g += one * min(1.0, 1.0 / max(np.linalg.norm(one), 1e-300))
    return g / len(labels)


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared"])
@pytest.mark.parametrize("way", ["blocks", "wide", "sparse", "compiled"])
def test_every_way_to_a_gradient_gives_the_same(loss, way, monkeypatch):
    rng = np.random.default_rng(3)
    matrix = rng.normal(size=(40, 30)) * (rng.random((40, 30)) < 0.3)
    matrix[[0, 7, 39]] = 0.0
    labels, x = rng.choice([-1.0, 1.0], 40), rng.normal(size=30)
    if way in ("blocks", "wide"):
        monkeypatch.setattr(rows_module, "BLOCK_BYTES", 8 * 30 * (16 if way == "blocks" else 15))
        rows = Dense(matrix)
        assert rows._pass_rows == (16 if way == "blocks" else 40)
    else:
        if way == "sparse":
            monkeypatch.setattr(rows_module, "compiled_loops", lambda: None)
        at = np.nonzero(matrix)
        rows = Csr(np.searchsorted(at[0], np.arange(41)), at[1], matrix[at], 30)
    problem = LocalProblem(rows, labels, LOSSES[loss], Batch.parse("full"), 1.0, PrivateStream(bytes(32), "batch"))
    for _ in range(2):
        found = problem.subgradient(x).value
        np.testing.assert_allclose(found, plain_gradient(matrix, labels, loss, x), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("make", "bytes_an_entry"), [(dense_data, 8), (sparse_data, 16)])
def test_data_have_the_size_that_was_asked_for_and_records_of_norm_one(make, bytes_an_entry):
    data = make(1, 300, 0.5)
    np.testing.assert_allclose(data.rows.norms, 1.0, rtol=1e-12)
    assert set(data.labels) == {-1.0, 1.0}
    assert data.rows.nbytes == pytest.approx(0.5e6, rel=0.05)
    assert not np.array_equal(data.labels, make(2, 300, 0.5).labels)
    if isinstance(data.rows, Csr):
        assert data.rows.nbytes == bytes_an_entry * len(data.rows.data) + 8 * (data.rows.count + 1)
        assert (np.diff(data.rows.indptr) == 300 // 7).all()  # Csr itself refuses a column that comes twice


def test_a_gradient_is_compared_with_its_products(monkeypatch):
    values = []

    def timed(steps, turns):
        values.append(steps["gradient"]().value.copy())
        steps["bare"]()
        return {"gradient": np.array([1.0, 2.0, 4.0]), "bare": np.array([3.0, 2.0, 1.0])}

    monkeypatch.setattr(bench_parts, "alternate", timed)
    found = bench_parts.gradient(40, 0.02, turns=3)
    assert set(found) == {"dense", "sparse"}
    for one, value, make in zip(found.values(), values, (dense_data, sparse_data), strict=True):
        assert (one["seconds"], one["bare_seconds"], one["speed_of_bare"]) == (2.0, 2.0, 1.0)
        data, x = make(0, 40, 0.02), np.random.default_rng(1).standard_normal(40)
        matrix = np.stack([data.rows.scores(unit) for unit in np.eye(40)], axis=1)
        np.testing.assert_allclose(value, plain_gradient(matrix, data.labels, "hinge", x), rtol=1e-9, atol=1e-12)


def test_steps_take_turns():
    order = []
    found = alternate({"a": lambda: order.append("a") or time.sleep(0.002), "b": lambda: order.append("b")}, 2, 1e-9)
    assert order == ["a", "a", "b", "b", "a", "b", "a", "b"]
    assert (found["a"] >= 0.002).all()
    assert found["b"].shape == (2,)


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
        nonce, details = position(round_, hop, len(plain))
        assert (len(nonce), len(self._sealed + details)) == (12, 52)

    monkeypatch.setattr(SealedPair, "seal", seal)
    monkeypatch.setattr("dpmpi.crypto.sealing_speed.AESGCM", Library)
    found = sealing_seconds(160, turns=3, repeats=4)
    assert min(found) > 0
    assert ours == [(160, 176)] * 12
    assert [entry[:2] for entry in theirs] == [(160, 52)] * 12
    assert len({nonce for *_, nonce in theirs}) == 12


# --- memory ----------------------------------------------------------------------------------------------------------


def test_the_fit_finds_what_the_memory_is_made_of():
    m, degree = (part.reshape(-1) for part in np.meshgrid([1000.0, 2000.0, 5000.0], [1.0, 2.0, 5.0]))
    growth = (13.0 + 1.5 * degree) * 8 * m + 4096.0
    found = bench_memory.fit(np.stack((m, degree, growth), axis=1))
    assert (found["a"], found["b"], found["c_bytes"]) == pytest.approx((13.0, 1.5, 4096.0), rel=1e-6)
    assert found["largest_error"] < 1e-9
    growth[0] *= 2
    assert bench_memory.fit(np.stack((m, degree, growth), axis=1))["largest_error"] > 0.1


@needs.linux("/proc/self/statm")
def test_resident_bytes_see_an_array():
    before = bench_memory.resident_bytes()
    array = np.ones(8_000_000)  # over 32 MiB, or malloc may take it from what it kept of earlier arrays
    assert bench_memory.resident_bytes() - before == pytest.approx(array.nbytes, rel=0.1)


# --- starting ranks --------------------------------------------------------------------------------------------------


def starter(template="{ranks}", limit=60.0):
    return Starter(Launcher(template), limit)


def test_a_start_that_fails_says_why():
    shell = starter("sh -c")
    assert shell.run(2, ["echo $OPENBLAS_NUM_THREADS $MORE"], {"MORE": "more"}) == "1 more\n"
    with pytest.raises(ConfigError, match=r"ImportError: no such thing \(exit code 3\)"):
        shell.run(2, ["echo first >&2; echo 'ImportError: no such thing' >&2; echo last >&2; exit 3"])


def test_a_bench_that_is_terminated_ends_its_ranks(tmp_path):
    """As `timeout` and batch systems do it: with SIGTERM, not Ctrl-C."""
    words = ["bench", "--ranks", "2", "--launcher", f"sh -c 'sleep 100; true' {tmp_path}"]
    marker = f"sleep 100; true\0{tmp_path}"  # as the words lie in the launcher's command line, not in the bench's
    with subprocess.Popen([sys.executable, "-m", "dpmpi", *words], stderr=subprocess.DEVNULL) as process:
        try:
            assert wait_until(lambda: survivors(marker), 60)
            process.terminate()
            assert process.wait(60) == INTERRUPTED
            assert wait_until(lambda: not survivors(marker), 10)
        finally:
            process.kill()


PEER = """
from mpi4py import MPI
import json, os
class Agent:
    def __init__(self, in_neighbors, out_neighbors, in_weights=None):
        self.communicator = type("C", (), {"comm": MPI.COMM_WORLD})
        self.given = in_neighbors, out_neighbors, in_weights
class Consensus:
    def __init__(self, agent, x):
        rank = MPI.COMM_WORLD.Get_rank()
        with open(os.path.join(os.environ["TOLD"], str(rank)), "w") as file:
            json.dump([*agent.given, x.tolist()], file)
    def run(self, iterations):
        MPI.COMM_WORLD.Barrier()
"""


@needs.mpi
def test_the_peer_averages_on_the_same_ring_with_the_same_weights(tmp_path, monkeypatch):
    folder = tmp_path / "disropt"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "agents.py").write_text(PEER)
    (folder / "algorithms.py").write_text("from disropt.agents import Consensus\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TOLD", str(tmp_path))
    begin = time.time()
    start, seconds = consensus_of_peer(starter(f"{MPIRUN} -n {{ranks}}"), sys.executable, 3, 4, seconds=0.01)
    assert 0 < start < time.time() - begin
    assert 0 < seconds < 1
    for rank in range(3):
        near = StaticSchedule(make_graph("ring", 3, 0)).neighbourhood(rank)
        senders, receivers, weights, x = json.loads((tmp_path / str(rank)).read_text())
        assert senders == receivers == list(near.peers)
        assert {int(k): v for k, v in weights.items()} == dict(zip(near.peers, near.weights, strict=True))
        assert x == [rank] * 4


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "--ranks 1",
        "--ranks 2,x",
        "--dimensions 0",
        "--turns 0",
        "--ranks 2 --launcher no-such-launcher",
        "--rank 2",
        "--only mixx",
        "--page no-such-page",
        "--show no-such-file",
        f"--show {__file__}",
        f"--page {__file__}",
    ],
)
def test_impossible_settings_are_refused_in_one_line(words, monkeypatch):
    for name in list(os.environ):
        if name in bench.RANK_VARIABLES:
            monkeypatch.delenv(name)
    with pytest.raises(ConfigError) as error:
        bench.main(words.split())
    assert "\n" not in str(error.value)


@needs.mpi
def test_the_command_times_every_row():
    arguments = ("--dimensions", 20, "--data-mb", 0.01, "--turns", 1, "--seconds", 0.02, "--json", "-")
    done = mpirun(3, "bench", *arguments, limit=60, program=("-m", "dpmpi"))
    assert done.code == 0, done.err
    found = json.loads(done.out)
    [run] = found["runs"]
    assert run["ranks"] == 3
    one = run["dimensions"]["20"]
    assert list(one["seconds"]) == kinds_for(3)
    assert min(one["seconds"].values()) > 0
    assert one["ratios"] == pytest.approx(ratios(one["seconds"]))
    alone = found["parts"]["20"]
    assert set(alone) == {"gradient", "noise_ns", "sealing_gb_per_second"}
    assert "m = 20, us a round" in tables(found)


@needs.mpi
def test_without_mpirun_it_starts_the_ranks_itself(tmp_path):
    out = tmp_path / "b.json"
    words = ["--ranks", "2", "--dimensions", "20", "--turns", "1", "--seconds", "0.02", "--no-parts"]
    words += ["--only", "mix,bare exchange"]
    environment = {name: value for name, value in os.environ.items() if name not in bench.RANK_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-m", "dpmpi", "bench", *words, "--json", str(out), "--plots", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert [run["ranks"] for run in found["runs"]] == [2]
    assert set(found["runs"][0]["dimensions"]["20"]["seconds"]) == {"mix", "bare exchange"}
    assert done.stdout == tables(found)
    assert "bench: 2 ranks" in done.stderr
    assert {path.name for path in tmp_path.glob("*.svg")} == {"growth-dimension.svg", "growth-ranks.svg"}
    shown = subprocess.run(
        [sys.executable, "-m", "dpmpi", "bench", "--show", str(out)], capture_output=True, text=True, check=True
    )
    assert shown.stdout == done.stdout


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--seconds", "nan"), "--seconds: expected a number above 0, found nan"),
        (("--data-mb", "-1"), "--data-mb: expected a number above 0, found -1"),
        (("--crowd", "0"), "--crowd: expected a whole number of at least 2, found 0"),
        (("--ranks", "4,x"), "--ranks: expected a whole number of at least 2, found x"),
        (("--fit",), "mpirun -n 4 python -m dpmpi bench --fit"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(monkeypatch, flags, expected):
    for name in bench.RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=expected):
        bench.main(flags)
