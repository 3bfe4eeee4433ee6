"""What runs cost: the rehearsal against scalar ones, the fit against its own model, counts against real runs."""

import dataclasses
import json
from itertools import pairwise, product

import needs
import numpy as np
import pytest
from launcher import mpirun

from dpmpi.algorithms import ALGORITHMS
from dpmpi.commands.dispatch import main as command
from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.network.graph import make_graph
from dpmpi.network.schedule import SampledSchedule
from dpmpi.run import main as run
from dpmpi.runtime.cost import model as costs
from dpmpi.runtime.cost.dry_run import Cores, Hosts, everyone_waits, neighbours_wait, pairs_wait
from dpmpi.runtime.cost.fit import Fit, fit, load, store
from dpmpi.runtime.cost.model import Pattern, pattern_of, predicted_rows, seconds, sizes

ALONE = Hosts(1, 1)


# --- the rehearsal ---------------------------------------------------------------------------------------------------


def edges(name, n):
    return np.array(make_graph(name, n, 0).edges, np.int64).reshape(-1, 2)


def scalar_rounds(near, work, transit, rounds):
    """Equations (1), (2) with a core for each rank, one rank after the other."""
    done = [0.0] * len(near)
    for _ in range(rounds):
        sent = [d + w for d, w in zip(done, work, strict=True)]
        done = [max([sent[i], *(sent[j] + transit for j in peers)]) for i, peers in enumerate(near)]
    return max(done)


@pytest.mark.parametrize("name", ["ring", "star", "grid", "erdos-renyi:p=0.4"])
def test_ranks_with_a_core_each(name):
    n, graph = 12, make_graph(name, 12, 0)
    work = np.random.default_rng(2).uniform(0.5, 2.0, n)
    near = [graph.neighbours(i) for i in range(n)]
    for rounds in (1, 7, 40):
        found = neighbours_wait(edges(name, n), work, 0.3, ALONE, rounds)
        assert found == pytest.approx(scalar_rounds(near, work.tolist(), 0.3, rounds), rel=1e-12)
    everyone = [[j for j in range(n) if j != i] for i in range(n)]
    found = everyone_waits(work, 0.3, ALONE, 7)
    assert found == pytest.approx(scalar_rounds(everyone, work.tolist(), 0.3, 7), rel=1e-12)


def test_long_runs_go_on_at_the_same_pace():
    """Equal work: a round takes u + tau, however many there are; many more than are rehearsed."""
    u = np.full(9, 0.25)
    assert neighbours_wait(edges("ring", 9), u, 0.05, ALONE, 10_000) == pytest.approx(10_000 * 0.3, rel=1e-9)
    assert everyone_waits(u, 0.0, Hosts(9, 2), 10_000) == pytest.approx(10_000 * 0.25 * 5, rel=1e-9)
    assert neighbours_wait(np.empty((0, 2), np.int64), np.array([0.5]), 0.1, ALONE, 300) == pytest.approx(150.0)


@pytest.mark.parametrize(("n", "hosts"), [(7, Hosts(7, 2)), (12, Hosts(5, 3)), (20, Hosts(20, 1)), (9, Hosts(2, 1))])
def test_cores_serve_who_asks_first(n, hosts):
    """Whoever is being served, at every moment no core idles while somebody of its host waits who asked before."""
    draw = np.random.default_rng(3)
    ready, work = draw.uniform(0.0, 9.0, n), draw.uniform(0.5, 3.0, n)
    end = Cores(n, hosts).work(ready, work)
    begin = end - work
    assert (begin >= ready - 1e-12).all()
    for rank in range(n):
        host = [other for other in range(n) if other // hosts.ranks == rank // hosts.ranks]
        busy = [other for other in host if begin[other] < begin[rank] < end[other] - 1e-12]
        assert len(busy) < hosts.cores
        if begin[rank] > ready[rank] + 1e-12:  # it waited: just before, all cores were taken, by those who asked before
            before = [o for o in host if begin[o] < begin[rank] - 1e-12 and end[o] >= begin[rank] - 1e-12]
            assert len(before) == hosts.cores
            assert max(ready[before]) <= ready[rank]


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_a_crowded_host_is_as_fast_as_its_cores(graph):
    """No schedule beats the work divided by the cores; a greedy one is slower by the longest chain at most."""
    n, rounds, u, hosts = 15, 40, 0.1, Hosts(15, 4)
    found = neighbours_wait(edges(graph, n), np.full(n, u), 0.0, hosts, rounds)
    assert n * rounds * u / hosts.cores <= found * (1 + 1e-12)
    assert found <= n * rounds * u / hosts.cores + rounds * u


@pytest.mark.parametrize("per_round", [1, 3])
def test_sampled_edges_with_a_core_each(per_round):
    n, rounds, u, tau = 11, 1500, 0.2, 0.03
    schedule = SampledSchedule(make_graph("erdos-renyi:p=0.5", n, 1), per_round, 4)
    meetings = sorted(
        {(t, *sorted((rank, near.peers[0]))) for rank in range(n) for t, near in schedule.rounds(rank, 1, rounds + 1)}
    )
    assert len(meetings) == per_round * rounds
    done = [0.0] * n
    for _, i, j in meetings:
        a, b = done[i] + u, done[j] + u
        done[i], done[j] = max(a, b + tau), max(b, a + tau)
    assert pairs_wait(schedule, u, tau, ALONE, rounds) == pytest.approx(max(done), rel=1e-12)


def test_sampled_edges_on_crowded_hosts():
    """Rounds that share no rank run at the same time, as far as there are cores."""
    n, rounds, u = 20, 4000, 0.01
    schedule = SampledSchedule(make_graph("complete", n, 0), 1, 0)
    alone, crowded = (pairs_wait(schedule, u, 0.0, hosts, rounds) for hosts in (ALONE, Hosts(n, 2)))
    total = 2 * rounds * u / 2
    assert max(total, alone) <= crowded * (1 + 1e-12)
    assert crowded <= total + alone  # Graham's bound for greedy schedules
    assert alone < 0.5 * rounds * u  # several are under way at once


# --- the fit ---------------------------------------------------------------------------------------------------------

TRUE = Fit(2e-5, 3e-5, 7e-6, 5e-10, 4e-5, 9e-5, 6e-5, 8e-10, 2e-9, 1e-8, 5e-8)

TALKS = [(peers, size) for peers in ("ring", "complete") for size in (144, 16016, 160016)]
COMPUTES = [(9, 72, 0, 0), (9000, 72_000, 0, 0), (2000, 10**6, 0, 0), (2000, 0, 10**5, 0), (9000, 72_000, 0, 9000)]


def row_of(fit, ranks, cores, talk=None, compute=None):
    """What a machine that is exactly as equations (1) and (2) say would measure."""
    crowding = max(0.0, 1 - cores / ranks) ** 2
    peers, size = (0, 0) if talk is None else ({"ring": min(2, ranks - 1), "complete": ranks - 1}[talk[0]], talk[1])
    m, full, sampled, noised = compute or (0, 0, 0, 0)
    core = 0.0
    if talk is not None:
        core += fit.overhead_seconds + fit.switch_seconds * crowding
        core += peers * (fit.latency_seconds + size * fit.seconds_per_byte)
    if compute is not None:
        core += fit.round_overhead_seconds + full * fit.gradient_seconds_per_number
        core += sampled * fit.batch_seconds_per_number + m * fit.step_seconds_per_number
        core += noised * fit.noise_seconds_per_number + (fit.nap_seconds * crowding if talk is not None else 0.0)
    clock = core * ranks / cores if ranks > cores else core + fit.transit_seconds
    return {
        "ranks": ranks, "ranks_per_host": ranks, "cores_per_host": cores, "peers": peers, "bytes": size, "full": full,
        "sampled": sampled, "coordinates": m, "noised": noised, "seconds": clock, "core_seconds": core,
    }  # fmt: skip


def rows_of(fit, ranks, cores=2):
    talks = [row_of(fit, ranks, cores, talk=talk) for talk in TALKS]
    computes = [row_of(fit, ranks, cores, compute=compute) for compute in COMPUTES]
    return talks + computes + [row_of(fit, ranks, cores, ("ring", 16016), compute) for compute in COMPUTES[2:4]]


def test_the_fit_finds_the_constants_of_its_own_model():
    found = fit([row for n in (2, 4, 8, 16) for row in rows_of(TRUE, n)])
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(TRUE), rel=1e-6)
    for n in (12, 20):
        for row in rows_of(TRUE, n)[:6]:
            told = found.exchange(np.array([row["peers"]]), row["bytes"], Hosts(n, 2))
            assert told[0] == pytest.approx(row["core_seconds"], rel=1e-6)
    expected = 6e-5 + (8e-10 * 300 + 1e-8) * 70
    assert found.computing(Sampling("full", 300.0, 300), 70, noise=False) == pytest.approx(expected, rel=1e-6)
    expected = 6e-5 + (2e-9 * 20 + 1e-8 + 5e-8) * 70
    assert found.computing(Sampling("poisson", 20.0, 300), 70, noise=True) == pytest.approx(expected, rel=1e-6)


def test_measurements_add_up_in_a_file(tmp_path):
    file = tmp_path / "there" / "costs.json"
    other = dataclasses.replace(TRUE, latency_seconds=1e-3)
    store(rows_of(TRUE, 2) + rows_of(other, 8), file)
    found = store(rows_of(TRUE, 4) + rows_of(TRUE, 8), file)  # those of 8 ranks are replaced
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(TRUE), rel=1e-6)
    assert load(file) == found


@pytest.mark.parametrize("text", [None, "{", "[]", '{"fit": {}, "rows": []}', '{"rows": [{"ranks": "many"}]}'])
def test_files_that_hold_no_costs(tmp_path, text):
    file = tmp_path / "costs.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match="bench --fit") as caught:
        load(file)
    assert "\n" not in str(caught.value)


def test_a_fit_needs_every_kind():
    for rows in ([], rows_of(TRUE, 4)[:6], rows_of(TRUE, 4)[6:11]):
        with pytest.raises(ConfigError, match="exchanges and rounds"):
            fit(rows)


MEASURE = """
import json, sys
from pathlib import Path
from dpmpi.runtime.cost.timing import fit_here
from dpmpi.network.transport.mpi import open_world
world = open_world()
text = fit_here(world, Path(sys.argv[1]), turns=1, turn_seconds=0.01)
if world.rank == 0:
    print(text)
world.close()
"""


@needs.mpi
def test_measuring_under_mpirun(tmp_path):
    file = tmp_path / "costs.json"
    done = mpirun(3, file, program=("-c", MEASURE), limit=60)
    assert done.code == 0, done.err
    rows, found = json.loads(file.read_text())["rows"], load(file)
    exchanges = [(row["peers"], row["bytes"]) for row in rows if not row["coordinates"]]
    assert exchanges == 2 * [(2, 144), (2, 16016), (2, 160016)]  # ring and complete are the same on 3 ranks
    whole = [(row["bytes"], row["coordinates"]) for row in rows if row["peers"] and row["coordinates"]]
    assert all(size == 8 * m + 16 for size, m in whole)
    assert len(rows) == len(exchanges) + 2 * len(whole) + 3
    assert all(row["ranks"] == row["ranks_per_host"] == 3 for row in rows)
    assert min(row[name] for row in rows for name in ("core_seconds", "seconds")) > 0
    assert fit(rows) == found
    shown = " ".join(done.out.split())
    assert f"gradient seconds per number {1e9 * found.gradient_seconds_per_number:.3g} ns" in shown
    assert min(found.gradient_seconds_per_number, found.batch_seconds_per_number, found.noise_seconds_per_number) > 0


# --- counts against real runs ----------------------------------------------------------------------------------------

KINDS = {
    "plain": "",
    "float32": "--wire float32",
    "sealed": "--seal",
    "sealed float32": "--seal --wire float32",
    "expanded shares": "--exchange shares",
    "full shares": "--exchange shares --share-mode full",
    "sampled": "--algorithm sampled-dda --graph ring",
    "two sampled edges": "--algorithm sampled-dda --sample-edges 2",
    "to everyone": "--algorithm dp-admm --graph ring",
    "blocks to everyone": "--algorithm rcd --loss logistic",
    "a grid": "--graph grid",
    "two stages": "--algorithm dp-dgd --loss logistic --graph erdos-renyi:p=0.7",
}


def made(tmp_path, n, flags):
    out = tmp_path / f"run-{n}"
    arguments = f"--loopback {n} --data synthetic:samples=300,features=9 --rounds 12 --graph complete --no-evaluate"
    assert run([*arguments.split(), *flags.split(), "--quiet", "--out", str(out)]) == 0
    return json.loads((out / "summary.json").read_text())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_foreseen_bytes_are_those_that_were_sent(tmp_path, capsys, kind):
    found = {n: made(tmp_path, n, KINDS[kind]) for n in (5, 8)}
    for own, other in ((5, 8), (8, 5), (5, 5)):
        [row] = predicted_rows(found[own], [other])
        sent = found[other]["communication"]
        assert (row["messages"], row["bytes"]) == (sent["messages"], sent["bytes"])
        assert row["seconds"] is None  # agents in one process say nothing about processes
    capsys.readouterr()
    plan = "plan --ranks 5 --data synthetic:samples=300,features=9 --rounds 12 --graph complete --json --predict"
    assert command([*plan.split(), *KINDS[kind].split(), "--costs", str(stored(tmp_path))]) == 0
    told = json.loads(capsys.readouterr().out)
    sent = found[5]["communication"]
    assert (told["messages"], told["bytes"]) == (sent["messages"], sent["bytes"])
    assert told["predicted"]["rows"][0]["bytes"] == sent["bytes"]
    assert told["predicted"]["rows"][0]["seconds"] > 0


EXCHANGES = ("--wire float32", "--seal", "--exchange shares", "--exchange shares --share-mode full --seal")
PROBLEM = "--loss logistic --data synthetic:samples=60,features=9"
OTHER = {"one-shot": "--loss mean --data mean:samples=60,dimension=9"}
REFUSED = (
    "stays connected without any 1 ranks",
    "looks at each neighbour's vector",
    "mixes pairs",
    "hear from all others",
    "over all ranks",
)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_plan_cost_model_and_meter_count_the_same_messages(tmp_path, capsys, algorithm):
    agreed = 0
    for number, (graph, how) in enumerate(product(("ring", "star", "complete"), EXCHANGES)):
        jobs, flags = [], f"--algorithm {algorithm} --graph {graph} {how} {OTHER.get(algorithm, PROBLEM)}"
        words = f"{flags} --loopback 5 --rounds 4 --no-evaluate --quiet --out {tmp_path}/{number}"
        if run(words.split(), attend=jobs.append):
            said = capsys.readouterr().err
            assert any(reason in said for reason in REFUSED), said
            continue
        [job], ranks = jobs, range(5)
        sent = [job.meter.traffic(rank).values() for rank in ranks]
        messages = [sum(one.messages_sent for one in each) for each in sent]
        payload = [sum(one.payload_bytes_sent for one in each) for each in sent]
        assert [job.plan.messages(rank) for rank in ranks] == messages
        assert [job.plan.payload_bytes(rank) for rank in ranks] == payload
        total = sum(one.bytes_sent for each in sent for one in each)
        assert pattern_of(job.plan).count(5) == (sum(messages), total)
        assert sum(messages) > 0
        agreed += 1
    assert agreed >= 2


def stored(tmp_path):
    store([row for n in (2, 4, 8) for row in rows_of(TRUE, n)], tmp_path / "costs.json")
    return tmp_path / "costs.json"


def test_what_a_rank_reports_adds_up(tmp_path):
    found = made(tmp_path, 4, "--exchange shares --share-mode full --noise 0.1")
    for record in found["per_rank"]:
        for name in ("payload", "share", "tag", "trailer"):
            total = sum(near[f"{name}_bytes_sent"] for near in record["neighbours"].values())
            assert total == record[f"{name}_bytes_sent"] > 0
        for near in record["neighbours"].values():
            parts = near["payload_bytes_sent"] + near["tag_bytes_sent"] + near["trailer_bytes_sent"]
            assert parts == near["bytes_sent"]
        spent = record["seconds"]
        assert sorted(spent) == ["compute", "crypto", "ledger", "noise", "wait"]
        assert sum(spent.values()) == pytest.approx(record["training_seconds"], abs=1e-5)
        assert min(spent["crypto"], spent["ledger"], spent["noise"], record["core_seconds"]) > 0
    plain = made(tmp_path, 3, "")["per_rank"][0]["seconds"]
    assert plain["crypto"] == 0


# --- growing ---------------------------------------------------------------------------------------------------------

RING = Pattern("ring", 8, 0, 100, None, (("neighbours", 416, 1.0),))


def summary_of(pattern, n, fit=TRUE, work=1e-3, hosts=Hosts(8, 2), slower=1.0):  # noqa: B008 - frozen
    """What a run on a machine that is exactly as the model says would report, `slower` by what else runs there."""
    graph = pattern.make_graph(n)
    core = work + costs.exchange_seconds(pattern, n, graph, TRUE, hosts).mean()
    ranks = [{"active_rounds": pattern.rounds, "messages_sent": 1, "bytes_sent": 1, "wait_seconds": 0.0}]
    training = slower * seconds(pattern, n, work, TRUE, hosts)
    return {"cost": costs.own_cost(pattern, [ranks[0] | {"core_seconds": core * pattern.rounds}], hosts, training, fit)}


def test_a_run_predicts_itself_and_others():
    found = predicted_rows(summary_of(RING, 8, slower=3.0))
    assert [row["ranks"] for row in found] == sizes(8) == [8, *costs.SIZES]
    for row in found:
        n = row["ranks"]
        assert row["hosts"] == -(-n // 8)
        assert row["seconds"] == pytest.approx(3.0 * seconds(RING, n, 1e-3, TRUE, Hosts(8, 2)), rel=1e-6)
    u = 1e-3 + TRUE.exchange(np.array([2.0]), 416, Hosts(8, 2))[0] + 9e-5 * (1 - 2 / 8) ** 2
    # 8 ranks on 2 cores: 4 u a round
    assert found[0]["seconds"] == pytest.approx(3.0 * (100 * 4 * u + TRUE.transit_seconds))


def test_without_measured_exchanges_only_runs_alike_are_predicted():
    ring = predicted_rows(summary_of(RING, 8, fit=None))
    assert all(row["seconds"] > 0 for row in ring)
    everyone = dataclasses.replace(RING, graph="complete")
    assert [row["seconds"] is None for row in predicted_rows(summary_of(everyone, 8, fit=None))] == [False] + 9 * [True]
    assert all(row["seconds"] > 0 for row in predicted_rows(summary_of(everyone, 8)))
    assert predicted_rows({"cost": None}) == predicted_rows({}) == []


def test_more_ranks_never_take_less_time_on_one_host():
    times = [seconds(RING, n, 1e-4, TRUE, Hosts(n, 2)) for n in (2, 4, 20, 100, 1000)]
    assert all(a < b for a, b in pairwise(times))


@pytest.mark.parametrize(
    ("graph", "ranks", "expected"),
    [
        ("ring", 50, 50),
        ("complete", 10_000, 10_000 * 9_999 / 2),
        ("random:edges=12", 80, 120),
        ("grid:rows=2,columns=4", 9, 12),
        ("file:nowhere.txt", 9, None),
        ("erdos-renyi:p=0.5", 2000, 0.5 * 2000 * 1999 / 2),
    ],
)
def test_graphs_grow_as_they_are(graph, ranks, expected):
    assert dataclasses.replace(RING, graph=graph).edges(ranks) == expected


def test_a_graph_from_a_file_does_not_grow():
    pattern = dataclasses.replace(RING, graph="file:nowhere.txt")
    assert pattern.count(20) is None
    assert seconds(pattern, 20, 1e-3, TRUE, ALONE) is None
