"""Ranks are lost, the others go on: on a graph of their own, towards their own optimum, within the same target."""

import dataclasses
import re
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
from plans import settings_of

from dpmpi.errors import DataError, DpmpiError, ProtocolError, RankLost
from dpmpi.network.graph import Graph, make_graph
from dpmpi.network.handshake import meet
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.privacy.ledger import recorded_spending
from dpmpi.privacy.releases import spent_epsilon
from dpmpi.problem.losses import LOSSES
from dpmpi.problem.optimum import find_optimum
from dpmpi.runtime import failure, process
from dpmpi.runtime.assembly import assemble, claim_of, open_ledgers
from dpmpi.runtime.evaluation import Evaluator
from dpmpi.runtime.job import Past
from dpmpi.runtime.output.directory import RunDirectory
from dpmpi.runtime.output.summary import rank_record, summarise
from dpmpi.runtime.recovery.resume import check_crowd, lost_charges, quorate
from dpmpi.runtime.recovery.snapshot import capture
from dpmpi.runtime.signals import Signals

ORIGIN, LEFT = 6, (0, 1, 3, 4, 5)


def regrouped(tmp_path, *flags, rounds, at, names=LEFT):
    """Run up to `at` on all ranks, then go on without some of them; return the job of those who are left."""
    data = ("--data", "synthetic:samples=300,features=4", "--loss", "logistic", "--penalty", "l2:0.05", "--seed", "3")
    data += ("--lipschitz", "1")  # clips nothing
    settings = settings_of(*data, "--rounds", rounds, *flags)
    with ExitStack() as stack:
        job = assemble(settings, LoopbackTransport(ORIGIN), lambda rank: tmp_path / f"{rank}.jsonl", stack)
        open_ledgers(job, stack)
        job.engine.advance(at)
        facts = [{"shard": shard.fingerprint} for shard in job.shards]
        kept = [capture(seat, at, repeatable=False) for seat in job.engine.seats]
    snapshots = {k: dataclasses.replace(kept[name], facts=facts[name]) for k, name in enumerate(names)}
    shards = [job.shards[name] for name in names]
    past = Past(ORIGIN, names, job.run, at, snapshots, shards, 1, job.most_charged())
    with ExitStack() as stack:
        transport = LoopbackTransport(len(names))
        left = assemble(settings, transport, lambda name: tmp_path / f"{name}.jsonl", stack, past=past)
        open_ledgers(left, stack)
        left.engine.regroup()
        left.engine.advance(rounds)
    return job, left


CONVERGING = [
    # Dual averages do not forget: what the lost rank said in the first quarter keeps its share of all weights, 1/16.
    ("dda", ("--gamma", "1"), 3000, 1 / 16),
    ("dgd", (), 3000, 2e-3), ("admm", (), 400, 1e-6), ("ip-admm", (), 600, 1e-6),
    ("dp-admm", ("--graph", "complete"), 600, 1e-6), ("ldp-admm", ("--graph", "complete"), 600, 1e-4),
    ("r-admm", ("--graph", "complete"), 800, 1e-5), ("rcd", ("--graph", "complete"), 400, 1e-6),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "flags", "rounds", "close"), CONVERGING, ids=[case[0] for case in CONVERGING])
def test_the_survivors_reach_their_own_optimum(algorithm, flags, rounds, close, tmp_path):
    _, job = regrouped(tmp_path, "--algorithm", algorithm, *flags, rounds=rounds, at=rounds // 4)
    loss, extended = LOSSES["logistic"], job.settings.extended
    shards = [(extended(shard.rows), shard.labels) for shard in job.shards]
    tests = [(extended(shard.test_rows), shard.test_labels) for shard in job.shards]
    weights, dimension = job.plan.weights, job.plan.dimension
    optimum = find_optimum(shards, len(LEFT), loss, job.settings.penalty, dimension, job.meter.total, weights=weights)
    found = Evaluator(job.engine, tests, job.settings.penalty, optimum.x).evaluate()
    start = np.log(2.0)
    assert abs(found.objective - optimum.value) < close * (start - optimum.value)


@pytest.mark.parametrize("flags", [
    ("--algorithm", "dp-dda"),
    ("--algorithm", "sampled-dda", "--graph", "complete"),
    ("--algorithm", "dp-dda", "--batch", "10"),
    ("--algorithm", "ip-admm"),
    ("--algorithm", "dp-dda", "--graph", "complete", "--exchange", "shares", "--noise-in", "sum"),
    ("--algorithm", "dp-dda", "--seal"),
], ids=" ".join)  # fmt: skip
def test_the_target_holds_over_the_loss(flags, tmp_path):
    before, job = regrouped(tmp_path, *flags, "--epsilon", "1", "--delta", "1e-4", rounds=60, at=30)
    assert job.incarnation == 1
    for name in LEFT:
        epsilon = spent_epsilon(recorded_spending(tmp_path / f"{name}.jsonl"), 1e-4, cached=False)
        assert 0.98 < epsilon <= 1.0
    if "shares" in flags:  # one part of the noise less, so each is larger
        parts = [one.engine.seats[0].agent.mechanism.parts for one in (before, job)]
        assert parts == [ORIGIN - 1, ORIGIN - 2]  # less one that may take its own off again


def test_what_the_lost_have_spent_stays_in_the_figure(tmp_path):
    """The lost rank has the fewest records, so by the same noise it has told the most about each."""
    for rank in range(ORIGIN):
        generator = np.random.default_rng(rank)
        rows = 40 if rank == 2 else 400
        X = generator.normal(size=(rows, 4))
        np.savez(tmp_path / f"{rank}.npz", X=X, y=np.sign(X[:, 0]))
    flags = ("--algorithm", "dp-dda", "--data", f"shards:{tmp_path}/{{rank}}.npz", "--noise", "0.2", "--delta", "1e-4")
    flags += ("--weigh", "ranks")
    before, job = regrouped(tmp_path, *flags, rounds=60, at=30)
    assert sorted(job.past.lost) == [2]
    assert job.past.lost == {2: before.most_charged()[2]}
    assert sum(job.past.lost[2].values()) == 61  # what it could have charged, had it gone on, with its evaluation
    recorded = [recorded_spending(tmp_path / f"{name}.jsonl") for name in range(ORIGIN)]
    spent = [spent_epsilon(charged, 1e-4, cached=False) for charged in recorded]
    records = [rank_record(job, seat, 1.0, 0.0) for seat in job.engine.seats]
    privacy = summarise(job, records, None, None, 0.0, 1.0)["privacy"]
    assert max(spent) == spent[2] < privacy["epsilon"] == privacy["epsilon_lost"]
    assert max(spent[:2] + spent[3:]) < spent[2]
    # A run that is resumed later on finds it in the ledgers of those who are left.
    files = SimpleNamespace(ledger=lambda name: tmp_path / f"{name}.jsonl")
    assert lost_charges(job.config, LoopbackTransport(len(LEFT)), files, LEFT, job.run) == job.past.lost


def test_induced_graphs_and_their_largest_part():
    ring = make_graph("ring", 6, 0)
    path = ring.induced((0, 1, 2, 4, 5))
    assert path.edges == ((0, 1), (0, 4), (1, 2), (3, 4))
    assert path.name == "ring without 1"
    assert path.largest_component() == [0, 1, 2, 3, 4]
    apart = ring.induced((0, 1, 3, 4, 5)).induced((1, 2, 3, 4))
    assert apart.edges == ((1, 2), (2, 3))
    assert apart.largest_component() == [1, 2, 3]
    assert Graph("two pairs", 4, ((0, 1), (2, 3))).largest_component() == [0, 1]
    assert ring.induced(range(6)) == ring


def test_of_two_parts_of_a_cut_network_one_goes_on():
    for size in range(1, 8):
        for part in range(2**size):
            left = [rank for rank in range(size) if part >> rank & 1]
            others = [rank for rank in range(size) if rank not in left]
            assert quorate(left, size) != quorate(others, size)


class LosesARank(LoopbackTransport):
    """A transport on which a rank dies once, when the ledgers have been opened."""

    def __init__(self, size, ledger):
        super().__init__(size)
        self.tolerant, self._ledger, self.lost = True, ledger, False

    def collect(self, texts):
        if self._ledger.exists() and not self.lost:
            self.lost = True
            raise RankLost("a rank has died")
        return super().collect(texts)


def test_who_loses_a_rank_while_the_ledgers_are_opened_goes_on(tmp_path, monkeypatch):
    """The others may have begun: a rank that ended here would be lost to them."""
    went_on = []
    monkeypatch.setattr(process, "go_on_without_the_dead", lambda *told: went_on.append(told) or 0)
    settings, directory = settings_of("--rounds", 5, "--epsilon", 1), RunDirectory(tmp_path / "run")
    world = LosesARank(ORIGIN, directory.ledger(0))
    past = Past.none(ORIGIN)
    meeting = meet(world, claim_of(settings, past))
    assert process.run_once(settings, world, meeting, directory, past, Signals()) == 0
    [(_, trainer, *_)] = went_on
    assert (world.lost, trainer.job.engine.completed, sorted(trainer.job.most_charged())) == (True, 0, list(range(6)))


def test_a_rank_that_ends_while_starting_tells_the_others_that_one_was_lost(monkeypatch):
    told = []

    def keep(_, fail):
        with pytest.raises(DpmpiError) as error:
            fail()
        told.append(error)

    monkeypatch.setattr(failure, "fail_together", keep)
    world = SimpleNamespace(ranks=(2,), shrink=lambda: (LoopbackTransport(1), [0]))
    failure._tell_the_others(world, RankLost("a rank has died"))
    [error] = told
    assert not error.errisinstance(RankLost)  # which a collective would not pass on
    assert "a rank has died" in str(error.value)


def test_others_do_not_hear_what_depends_on_the_records(monkeypatch):
    told = []

    def keep(_, fail):
        with pytest.raises(DpmpiError) as error:
            fail()
        told.append(str(error.value))

    monkeypatch.setattr(failure, "fail_together", keep)
    world = SimpleNamespace(ranks=(2,), shrink=lambda: (LoopbackTransport(1), [0]))
    for error, line in ((DataError("found 17.3 in row 5"), ""), (raised(), r" \(test_regroup.py, line \d+\)")):
        failure._tell_the_others(world, error)
        assert "17.3" not in told[-1]
        assert re.fullmatch(f"rank 2 failed{line}: it says why on its own terminal", told[-1])


def raised():
    """An error that quotes a record, as it is caught."""
    try:
        raise ZeroDivisionError("17.3")
    except ZeroDivisionError as error:
        return error


@pytest.mark.parametrize(("left", "fine"), [(5, True), (4, True), (3, False)])
def test_noise_in_a_sum_goes_on_among_all_but_the_colluders_at_least(left, fine):
    flags = ["--exchange", "shares", "--noise-in", "sum", "--colluders", 1]
    after = Past(5, tuple(range(left)), "run")
    check_crowd(settings_of(), after)  # noise on each rank's own value needs no crowd
    if fine:
        check_crowd(settings_of(*flags), after)
        return
    with pytest.raises(
        ProtocolError, match=r"^expected at least 4 of 5 ranks to go on with noise in the sum, found 3: "
    ):
        check_crowd(settings_of(*flags), after)
