"""The checks of `dpmpi chaos`, each against another way to find the same, and its hooks without MPI."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmpi.commands.chaos import checks
from dpmpi.commands.chaos import command as chaos
from dpmpi.commands.chaos import promises as chaos_promises
from dpmpi.commands.chaos import rank as chaos_rank
from dpmpi.commands.chaos import start as chaos_start
from dpmpi.commands.chaos import transport as chaos_transport
from dpmpi.commands.chaos.faults import (
    KINDS,
    MOMENTS,
    PAYLOAD,
    REGROUP,
    TRAILER,
    Fault,
    Start,
    draw,
    parse_kinds,
    parse_victims,
)
from dpmpi.commands.chaos.start import Ended, processes, run_start
from dpmpi.commands.chaos.transport import Injector
from dpmpi.core import Sampling
from dpmpi.errors import ConfigError
from dpmpi.network.channel import TRAILER_BYTES, Channel, ChannelSpec
from dpmpi.network.graph import Graph, make_graph
from dpmpi.network.launcher import Launcher
from dpmpi.network.schedule import make_schedule
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import Ledger, recorded_spending
from dpmpi.rng import public_generator
from dpmpi.run import main as run
from dpmpi.runtime.flags import parse
from dpmpi.runtime.settings import Settings

SEEDED = ("--noise", "0.1", "--insecure-noise-seed", "3")
SMALL = ["--data", "synthetic:samples=120,features=4", "--rounds", "12", "--quiet"]


def loopback(folder, ranks, *flags):
    assert run([*SMALL, *flags, "--loopback", str(ranks), "--out", str(folder)]) == 0
    return json.loads((folder / "summary.json").read_text())


# --- what is drawn ---------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.sampled_from(KINDS), st.integers(3, 30), st.integers(4, 400), st.integers(1, 4), st.integers(0, 3), st.data())
def test_faults_are_possible_and_depend_on_the_seed_alone(kind, ranks, rounds, low, more, data):
    seed = data.draw(st.integers(0, 10**6))
    first, again = (draw(public_generator(seed, "chaos", 3), kind, ranks, rounds, (low, low + more)) for _ in range(2))
    assert first == again
    if kind == "restart":
        assert 0 <= first[0].round < rounds
        return
    victims = [fault.rank for fault in first]
    assert len(set(victims)) == len(victims)
    assert set(victims) <= set(range(ranks))
    assert all(1 <= fault.round <= rounds for fault in first)
    if kind == "kill":
        assert min(low, (ranks - 1) // 2) <= len(victims) <= low + more
        assert 2 * len(victims) < ranks
        assert first[0].moment in MOMENTS
        assert all(fault.moment in (*MOMENTS, REGROUP) for fault in first[1:])
    else:
        assert len(victims) == 1


def test_all_moments_and_all_numbers_of_victims_are_drawn():
    drawn = [draw(public_generator(5, "chaos", k), "kill", 20, 300, (1, 3)) for k in range(200)]
    assert {len(faults) for faults in drawn} == {1, 2, 3}
    assert {fault.moment for faults in drawn for fault in faults} == {*MOMENTS, REGROUP}
    assert {faults[0].rank for faults in drawn} == set(range(20))


def test_kinds_and_victims_are_parsed():
    assert parse_kinds("kill,slow") == ("kill", "slow")
    assert parse_victims("2") == (2, 2)
    assert parse_victims("1-3") == (1, 3)
    for wrong in ("0", "3-1", "-1", "1-2-3", "a", ""):
        with pytest.raises(ConfigError, match="--victims"):
            parse_victims(wrong)
    with pytest.raises(ConfigError, match="did you mean kill"):
        parse_kinds("kil")


def test_a_record_outlives_its_rank(tmp_path):
    start = Start(tmp_path / "start-0.json", (0, 4), (Fault("kill", 4, 7),))
    start.write()
    assert Start.read(start.file) == start
    child = os.fork()
    if child == 0:
        injector = Injector(start.record(4), start.faults)
        injector.record.tolerant = True
        injector.record.speaks(7, 9)
        injector.before_send(Channel(ChannelSpec(4, (0,), 8)).stamp(7, 0))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    found = start.record(4)
    assert (found.round, found.releases, found.tolerant) == (7, 9, True)
    assert list(start.fired()) == [4]
    assert abs(found.fired - time.time()) < 60


# --- who goes on -----------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw):
    size = draw(st.integers(3, 8))
    pairs = list(itertools.combinations(range(size), 2))
    edges = draw(st.sets(st.sampled_from(pairs), min_size=size - 1))
    return Graph("drawn", size, tuple(sorted(edges)))


@settings(deadline=None)
@given(graphs(), st.data())
def test_whoever_is_left_after_deaths_in_any_order_is_expected(graph, data):
    net = networkx.Graph(graph.edges)
    net.add_nodes_from(range(graph.size))
    start = max(networkx.connected_components(net), key=lambda part: (len(part), -min(part)))
    dead = data.draw(st.lists(st.sampled_from(sorted(start)), min_size=1, max_size=3, unique=True))
    named = sorted(start)
    within = graph.induced(named)
    expected = {
        tuple(named[k] for k in group)
        for group in checks.possible_survivors(within, [named.index(rank) for rank in dead])
    }
    for order in itertools.permutations(dead):
        for cut in range(len(order) + 1):
            alive = set(start)
            for together in (order[:cut], *([rank] for rank in order[cut:])):
                if alive.isdisjoint(together):
                    continue
                left = alive - set(together)
                if 2 * len(left) < len(alive) or (2 * len(left) == len(alive) and min(alive) not in left):
                    alive = set()  # too few to know that they are not those who were cut off
                    break
                parts = networkx.connected_components(net.subgraph(left))
                alive = max(parts, key=lambda part: (len(part), -min(part)))
            assert tuple(sorted(alive)) in expected
    for group in expected:
        assert not set(group) & set(dead)
        assert not group or networkx.is_connected(net.subgraph(group))


def test_a_death_on_a_path_leaves_the_longer_end():
    assert checks.possible_survivors(make_graph("path", 7, 0), [2]) == {(3, 4, 5, 6)}
    assert checks.possible_survivors(make_graph("path", 7, 0), [2, 4]) == {(0, 1), (5, 6)}
    assert checks.possible_survivors(make_graph("path", 7, 0), [1], fewest=5) == {(2, 3, 4, 5, 6)}
    assert checks.possible_survivors(make_graph("path", 7, 0), [2], fewest=5) == {()}
    assert checks.possible_survivors(make_graph("ring", 5, 0), []) == {(0, 1, 2, 3, 4)}
    assert checks.possible_survivors(make_graph("complete", 4, 0), [0, 1]) == {(), (2, 3)}  # together, one by one


def test_a_summary_with_the_wrong_survivors_is_found():
    config = parse(["--graph", "path"])

    def summary(names, lost):
        return {"per_rank": [{"rank": k} for k in names], "lost": lost, "ranks_at_start": 5}

    assert checks.wrong_survivors(summary([2, 3, 4], [0, 1]), config, 5, [1]) is None
    assert "expected [(2, 3, 4)]" in checks.wrong_survivors(summary([0, 2, 3, 4], [1]), config, 5, [1])
    assert "says lost [1]" in checks.wrong_survivors(summary([2, 3, 4], [1]), config, 5, [1])


# --- the undisturbed run ---------------------------------------------------------------------------------------------


def test_the_undisturbed_run_of_all_ranks_is_the_run(tmp_path):
    flags = ["--noise", "0.1", "--insecure-noise-seed", "3", "--graph", "ring"]
    summary = loopback(tmp_path / "run", 4, *flags)
    objective, models = checks.undisturbed(parse([*SMALL, *flags]), 4, range(4))
    assert objective == summary["objective"]
    assert checks.wrong_bits(tmp_path / "run", models) is None
    models[2, 1] = np.nextafter(models[2, 1], 1.0)
    assert "differ" in checks.wrong_bits(tmp_path / "run", models)


@pytest.mark.parametrize("algorithm", ["dda", "admm"])
def test_the_undisturbed_run_of_some_ranks_is_a_run_on_their_shards_alone(tmp_path, algorithm):
    names = [0, 1, 2, 5]
    graph = make_graph("ring", 6, 0).induced(names)
    command = ["data", "shard", "synthetic:samples=120,features=4", "--ranks", "6", "--loss", "logistic"]
    subprocess.run(
        [sys.executable, "-m", "dpmpi", *command, "--out", str(tmp_path / "all-{rank}.npz")], check=True, timeout=60,
        capture_output=True,
    )  # fmt: skip
    for k, name in enumerate(names):
        (tmp_path / f"all-{name}.npz").rename(tmp_path / f"some-{k}.npz")
    (tmp_path / "edges").write_text("".join(f"{i} {j}\n" for i, j in graph.edges))
    flags = ["--algorithm", algorithm, "--loss", "logistic", "--test-fraction", "0"]
    here = ["--data", f"shards:{tmp_path}/some-{{rank}}.npz", "--graph", f"file:{tmp_path}/edges", "--evaluate", "12"]
    summary = loopback(tmp_path / "run", 4, *flags, *here)
    objective, models = checks.undisturbed(parse([*SMALL, *flags, "--graph", "ring"]), 6, names)
    assert objective == pytest.approx(summary["objective"], rel=1e-12)
    np.testing.assert_allclose(np.load(tmp_path / "run" / "model.npz")["x_rank"], models, rtol=1e-10, atol=1e-14)


def test_an_objective_elsewhere_is_found():
    for found in (0.96, 1.04):
        assert checks.wrong_objective(found, iter([1.0]), 0.05) == (None, [1.0])
    wrong, some = checks.wrong_objective(1.06, itertools.repeat(1.0), 0.05)
    assert "and 5% away" in wrong
    assert some == [1.0] * checks.REFERENCES


def test_noise_alone_breaks_no_objective_and_a_spoilt_run_does():
    """Undisturbed runs that differ by far more than the slack: none is called wrong, and one far off is."""
    draw = np.random.default_rng(0)

    def normals():
        while True:
            yield 1.0 + 0.2 * draw.standard_normal()

    told = [checks.wrong_objective(next(normals()), normals(), 0.05)[0] for _ in range(2000)]
    assert sum(wrong is not None for wrong in told) <= 4
    assert all(checks.wrong_objective(4.0, normals(), 0.05)[0] is not None for _ in range(200))


def test_the_spread_is_that_of_other_noise():
    """At a small epsilon the objective of each noise is elsewhere; a model of nothing but noise is still found."""
    config = parse([*SMALL, "--loss", "logistic", "--noise", "0.04", "--insecure-noise-seed", "3", "--graph", "ring"])
    objectives = list(checks.undisturbed_objectives(config, 4, range(4)))
    assert max(objectives) > 1.05 * min(objectives)
    assert objectives[0] == checks.undisturbed(config, 4, range(4))[0]
    for seed in (3, 30):  # the run's own noise, and other
        found = checks.undisturbed(replace(config, insecure_noise_seed=seed), 4, range(4))[0]
        assert checks.wrong_objective(found, iter(objectives), 0.05)[0] is None
    spoilt = checks.undisturbed(replace(config, noise=50.0), 4, range(4))[0]
    assert checks.wrong_objective(spoilt, iter(objectives), 0.05)[0] is not None


# --- books -----------------------------------------------------------------------------------------------------------


def test_a_ledger_that_says_too_little_or_too_much_is_found(tmp_path):
    config = parse([])
    with Ledger(tmp_path / "ledger" / "rank-000.jsonl", {"run": "a"}) as ledger:
        for t in range(10):
            ledger.charge(ReleaseEvent("gaussian", 1.0, 1.0, Sampling("full", 5, 5)), t)
    assert checks.wrong_counts(tmp_path, config, {0: 10}) is None
    assert "charged 10 releases, but the wire carried 11" in checks.wrong_counts(tmp_path, config, {0: 11})
    assert checks.wrong_counts(tmp_path, config, {0: 8}, {0: 2}) is None
    assert "2 may be in vain" in checks.wrong_counts(tmp_path, config, {0: 7}, {0: 2})
    assert "charged 0 releases" in checks.wrong_counts(tmp_path, config, {1: 1})


def test_the_releases_between_two_checkpoints(tmp_path):
    summary = loopback(tmp_path / "run", 4, "--noise", "0.1")
    config = parse([*SMALL, "--noise", "0.1", "--checkpoint-every", "5"])
    assert checks.releases_of_an_interval(config, 4, summary) == dict.fromkeys(range(4), 5)
    assert checks.releases_of_an_interval(replace(config, checkpoint_every="5s"), 4, summary) is None
    sampled = replace(config, algorithm="sampled-dda", graph="complete")
    active = [[t for t, _ in Settings.of(sampled).schedule(4).rounds(rank, 1, 13)] for rank in range(4)]
    expected = {r: max(sum(lo < t <= lo + 5 for t in mine) for lo in (0, 5, 10)) for r, mine in enumerate(active)}
    assert checks.releases_of_an_interval(sampled, 4, summary) == expected


# --- a rank that stands still ----------------------------------------------------------------------------------------


def rounds_begun(schedule, rounds, stopped, stuck):
    """Drive flows that only say 'here' in each of their rounds until none can go on; the stopped one does not begin."""
    transport, begun = LoopbackTransport(schedule.size), dict.fromkeys(range(schedule.size), 0)

    def flow(rank):
        for t, near in schedule.rounds(rank, 1, rounds + 1):
            if rank == stopped and t >= stuck:
                return
            begun[rank] = t
            channel = Channel(ChannelSpec(rank, near.peers, 8)).stamp(t, 0)
            transport.start(channel)
            while not transport.done(channel):
                yield
            transport.total(np.zeros(0))

    flows, idle = deque(flow(rank) for rank in range(schedule.size)), 0
    before = None
    while flows and idle < 2 * len(flows):
        one = flows.popleft()
        before = dict(begun)
        try:
            next(one)
            flows.append(one)
        except StopIteration:
            pass
        idle = 0 if begun != before else idle + 1
    return begun


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["ring", "complete", "path", "grid"]), st.booleans(), st.integers(0, 50), st.integers(1, 30))
def test_the_reach_of_the_others_is_where_flows_get_stuck(kind, sampled, seed, stuck):
    schedule = make_schedule(make_graph(kind, 6, seed), "metropolis", 1 if sampled else None, seed)
    stopped = seed % 6
    real = rounds_begun(schedule, 40, stopped, stuck)
    found = checks.reach(schedule, 40, stopped, stuck, 0)
    for rank in set(range(6)) - {stopped}:
        assert found[rank] == (real[rank] if real[rank] >= stuck else 0)


def test_a_standstill_spreads_by_one_neighbour_a_round_on_a_ring():
    schedule = make_schedule(make_graph("ring", 9, 0), "metropolis", None, 0)
    found = checks.reach(schedule, 100, 4, 20, 0)
    assert [found[rank] for rank in (3, 2, 1, 0)] == [20, 21, 22, 23]
    assert max(checks.reach(schedule, 100, 4, 20, 7).values()) == 21  # all ranks evaluate after round 21
    pause = found | {4: 20}
    assert checks.idle_ranks(schedule, 100, 4, pause, 0) is None
    assert "rank 1 could begin round 22" in checks.idle_ranks(schedule, 100, 4, pause | {1: 21}, 0)


def test_the_rank_that_all_wait_for_is_found():
    def record(rank, **waits):
        return {"rank": rank, "neighbours": {peer[1:]: {"wait_seconds": wait} for peer, wait in waits.items()}}

    ranks = [record(0, r1=1.0, r2=1.5), record(1, r0=0.2, r2=0.4), record(2, r1=1.0, r0=0.9)]
    assert checks.most_waited_for({"per_rank": ranks}) == 1


# --- faults on a transport -------------------------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path):
    start = Start(tmp_path / "start-0.json", (0,))
    start.write()
    return start.record(0)


def disturbed(folder, injector, *flags, code=0):
    """Run three agents in one process, which have a transport and a record together."""
    words = [*SMALL, "--noise", "0.1", *flags, "--loopback", "3", "--out", str(folder)]
    assert run(words, wrap=injector.wrap, attend=injector.attend) == code


@pytest.mark.parametrize(
    "flags", ["dp-dda", "sampled-dda", "pvp-admm", "r-admm", "dp-dda --exchange shares --noise-in sum", "dp-dda --seal"]
)
def test_what_is_counted_on_the_wire_is_what_an_undisturbed_run_charges(tmp_path, record, flags):
    words = f"--graph complete --loss logistic --algorithm {flags}".split()
    disturbed(tmp_path / "run", Injector(record), *words)
    charged = sum(recorded_spending(path).total() for path in (tmp_path / "run" / "ledger").glob("*.jsonl"))
    assert record.releases == charged > 0
    assert record.round == 12


@pytest.mark.parametrize("flags", [[], ["--exchange", "shares", "--noise-in", "sum"]], ids=["local", "in the sum"])
def test_a_rank_without_budget_puts_nothing_on_the_wire(tmp_path, record, flags):
    disturbed(tmp_path / "run", Injector(record), "--budget", "0", "--delta", "1e-3", *flags)
    assert record.releases == 0
    assert record.round == 12


def test_a_disturbed_run_is_the_run_as_long_as_nothing_happens(tmp_path, record):
    """The layers around transport and mechanism change no bit of the models."""
    flags = ["--insecure-noise-seed", "3"]
    disturbed(tmp_path / "layers", Injector(record), *flags)
    loopback(tmp_path / "plain", 3, "--noise", "0.1", *flags)
    one, other = (np.load(tmp_path / name / "model.npz")["x_rank"] for name in ("layers", "plain"))
    assert (one == other).all()


class Died(Exception):
    pass


def dies(monkeypatch):
    def died():
        raise Died

    monkeypatch.setattr(chaos_transport, "die", died)


@pytest.mark.parametrize("moment", ["send", "wait", "aside"])
def test_a_rank_dies_at_its_moment(tmp_path, record, monkeypatch, moment):
    dies(monkeypatch)
    disturbed(tmp_path / "run", Injector(record, [Fault("kill", 0, 5, moment)]), "--evaluate", "6", code=1)
    # Three agents in one process: the first that comes to round 5 has not sent, has sent, or all are at the evaluation.
    assert record.round == {"send": 4, "wait": 5, "aside": 6}[moment]
    assert record.fired is not None


class Shrinking(LoopbackTransport):
    """Loses nobody, and asks who is left, as MPI's does."""

    def shrink(self, wrap):
        living = wrap(Shrinking(self.size))
        return living, list(range(len(living.collect(["0"] * self.size))))


@pytest.mark.parametrize(("step", "done"), [(0, []), (1, []), (2, ["shrink"]), (3, ["shrink", "vote"])])
def test_a_rank_dies_while_the_others_regroup(record, monkeypatch, step, done):
    dies(monkeypatch)
    transport, survived = Injector(record, [Fault("kill", 0, 1, REGROUP, step)]).wrap(Shrinking(1)), []
    transport.vote(np.zeros(1))  # nothing happens before a death

    def regroup():
        living, _ = transport.shrink()
        survived.append("shrink")
        living.vote(np.zeros(1))
        survived.append("vote")
        living.start(Channel(ChannelSpec(0, (), 8)).stamp(1, 0))

    with pytest.raises(Died):
        regroup()
    assert survived == done


class Sending(LoopbackTransport):
    """Copies what it sends, so that it has left at once."""

    def sent(self, channel):
        return True


@pytest.mark.parametrize("part", [TRAILER, PAYLOAD])
@pytest.mark.parametrize("bit", [0, 77, 10**9 + 7])
def test_one_bit_of_one_message_is_changed_on_its_way(record, part, bit):
    inside = Sending(3)
    transport = Injector(record, [Fault("corrupt", 0, 5, part, bit)]).wrap(inside)
    for t in (4, 5, 6):
        sender = Channel(ChannelSpec(0, (1, 2), 40, distinct=True))
        for message in sender.outgoing[0]:
            message[:] = 7
        sender.stamp(t, 0)
        clean = [message.copy() for message in sender.messages]
        transport.start(sender)
        arrived = [inside._mail[0, peer, 0].popleft() for peer in (1, 2)]
        wrong = [np.unpackbits(a ^ b) for a, b in zip(arrived, clean, strict=True)]
        assert sum(map(np.sum, wrong)) == (1 if t == 5 else 0)
        if t == 5:
            [place] = np.flatnonzero(sum(wrong))
            assert (place >= 8 * (len(clean[0]) - TRAILER_BYTES)) == (part == TRAILER)
        for message, before in zip(sender.messages, clean, strict=True):
            np.testing.assert_array_equal(message, before)


def test_a_slow_rank_sleeps_in_every_round_from_its_own_on(record, monkeypatch):
    slept = []
    monkeypatch.setattr(chaos_transport.time, "sleep", slept.append)
    transport = Injector(record, [Fault("slow", 0, 3, seconds=0.02)]).wrap(LoopbackTransport(2))
    for t in range(1, 6):
        transport.start(Channel(ChannelSpec(0, (1,), 8)).stamp(t, 0))
        assert (record.fired is None) == (t < 3)
    assert slept == [0.02] * 3


def test_a_rank_is_stopped_from_beside_and_goes_on(tmp_path):
    fault = Fault("stop", 0, 20, seconds=0.4, every=0.8)
    start = Start(tmp_path / "start-0.json", (0, 1), (fault,))
    start.write()
    start.record(1).speaks(33, 0)
    child = os.fork()
    if child == 0:
        chaos_rank.pause_from_beside(fault, start)
        record = start.record(0)
        for step in range(200):
            record.speaks(step, 0)
            time.sleep(0.005)
        os._exit(0)
    record, longest, since, before = start.record(0), 0.0, time.monotonic(), -1
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if record.round != before:
            before, since = record.round, time.monotonic()
        longest = max(longest, time.monotonic() - since)
        time.sleep(0.005)
    assert record.round == 199
    assert longest > 0.35
    told = start.pauses()[0]
    assert told[1] == 33
    assert 20 <= told[0] < 199


# --- starting and ending processes -----------------------------------------------------------------------------------


def started(template, tmp_path, limit=20.0, **more):
    return run_start(Launcher(template), Start(tmp_path / "start-0.json", (0, 1)), [], limit, **more)


def test_processes_that_are_left_are_found_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos_start, "LINGER_SECONDS", 0.3)
    ended = started("sh -c 'setsid sleep 77 & echo dpmpi: bye >&2; exit 3'", tmp_path)
    assert ended.code == 3
    assert len(ended.left) == 1
    assert ended.said == ("dpmpi: bye",)
    entry = Path(f"/proc/{ended.left[0]}/cmdline")
    assert not entry.exists() or not entry.read_bytes()  # nobody, or a dead one whose parent has not looked yet


@pytest.mark.parametrize(
    ("said", "words"),
    [("-----\nnot enough slots\nuse others", "not enough slots"), ("x\ndpmpi: lost 3\ndpmpi: bye", "dpmpi: bye")],
)
def test_the_last_words_are_ours_or_the_launchers(tmp_path, said, words):
    (tmp_path / "words").write_text(said)
    ended = started(f"sh -c 'cat {tmp_path}/words >&2; exit 1'", tmp_path)
    assert ended.last_words == words
    assert chaos_promises._not_finished(ended, 60.0) == f"exit code 1: {words}"


def test_a_start_that_does_not_end_is_killed(tmp_path):
    begin = time.monotonic()
    ended = started("sh -c 'sleep 77; true'", tmp_path, limit=0.3)
    assert ended.code is None
    assert not ended.killed
    assert time.monotonic() - begin < 20


def test_everything_is_killed_when_it_is_time_to(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos_start, "secrets", SimpleNamespace(token_hex=lambda _: f"mark of {tmp_path}"))
    ended = started("sh -c 'sleep 77 & sleep 78'", tmp_path, kill_now=lambda seconds, _: seconds > 0.2)
    assert ended.killed
    assert processes(f"mark of {tmp_path}") == []


# --- promises --------------------------------------------------------------------------------------------------------


def setting(tmp_path, *flags, ranks=3):
    given = (*SMALL, *flags)
    return chaos_promises.Setting(ranks, Launcher("none"), given, parse(given), 60.0, 0.05, tmp_path / "out")


def pretend(monkeypatch, more=0, code=0, left=()):
    """Let starts be loopback runs whose ranks say that they put `more` releases on the wire than they charged."""

    def pretended(_launcher, start, flags, _limit, _kill_now):
        start.write()
        assert run([*flags, "--loopback", str(len(start.names))]) == 0
        ledgers = start.file.parent / "run" / "ledger"
        for name, record in start.records().items():
            record.speaks(12, recorded_spending(ledgers / f"rank-{name:03d}.jsonl").total() + more)
        return Ended(code, time.time(), left, ("dpmpi: as it were",))

    monkeypatch.setattr(chaos_promises, "run_start", pretended)


def test_a_run_that_keeps_its_promises(tmp_path, monkeypatch):
    pretend(monkeypatch)
    found = chaos.run_one(setting(tmp_path, *SEEDED), 4, "kill", 1, (1, 1))
    assert found.broken == []
    assert set(found.promises) == {"finished", "survivors", "objective", "counts", "ledgers", "no process left"}


@pytest.mark.parametrize(
    ("how", "promise"), [({"more": 1}, "counts"), ({"code": 9}, "finished"), ({"left": (123,)}, "no process left")]
)
def test_a_broken_promise_is_found(tmp_path, monkeypatch, capsys, how, promise):
    pretend(monkeypatch, **how)
    monkeypatch.chdir(tmp_path)
    assert chaos.main(["--runs", "1", "--ranks", "3", "--out", "out", "--", *SMALL, *SEEDED]) == 1
    told = json.loads((tmp_path / "out" / "chaos.json").read_text())
    [one] = told["runs"]
    assert [name for name, why in one["promises"].items() if why is not None] == [promise]
    assert {name for name, found in told["promises"].items() if found["broken"]} == {promise}
    assert "0 of 1 runs kept all promises" in capsys.readouterr().out


def test_bits_that_differ_after_a_restart_are_found(tmp_path, monkeypatch):
    pretend(monkeypatch)
    one = setting(tmp_path, *SEEDED)
    found = chaos.run_one(one, 0, "restart", 1, (1, 1))
    assert found.broken == []
    assert found.promises["bits"] is None
    one.__dict__["reference"] = one.reference + 1e-15
    assert [line[:5] for line in chaos.run_one(one, 1, "restart", 1, (1, 1)).broken] == ["bits:"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--ranks", "2"], "--ranks 3"),
        (["--kind", "burn"], "--kind"),
        (["--runs", "0"], "--runs of at least 1"),
        (["--within", "nan"], "a number above 0 for --within"),
        (["--", "--out", "x"], "leave out --out"),
        (["--", "--roundss", "3"], "unknown flag"),
        (["--launcher", "'"], "--launcher: expected a command"),
        (["--launcher", "/nowhere/mpirun"], "cannot start /nowhere/mpirun"),
    ],
)
def test_wrong_flags_are_one_line(tmp_path, monkeypatch, flags, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="^[^\n]*" + expected):
        chaos.main(flags)


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        chaos.main(["--help"])
    said = capsys.readouterr().out
    assert "python -m dpmpi chaos --runs 100" in said
    for kind in KINDS:
        assert f"    {kind} " in said
