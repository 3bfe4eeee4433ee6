"""Ranks that die, are told to stop, or are all killed, under a real mpirun: what the others do, and what is left.

A rank dies in an exact round (dpmpi.commands.chaos.rank). Going on without it takes Open MPI 5 with ULFM.
"""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import needs
import numpy as np
import pytest
from groups import run_group
from launcher import MPIRUN, finish, survivors, wait_until
from launcher import start as mpirun_start

from dpmpi.commands.chaos.checks import undisturbed
from dpmpi.commands.chaos.faults import Fault, Start
from dpmpi.commands.verify import verify
from dpmpi.privacy.ledger import recorded_spending
from dpmpi.runtime.flags import parse

pytestmark = needs.mpi
tolerant = needs.open_mpi()  # surviving a death takes its ULFM

DATA = ("--data", "synthetic:samples=3000,features=10", "--loss", "logistic", "--noise", "0.02", "--quiet")
LIMIT = 120


def start(ranks, plan, *flags, ulfm=True):
    """Start a run, disturbed as the plan says, in a process group of its own."""
    return mpirun_start(ranks, plan, "--", *flags, program=("-m", "dpmpi.commands.chaos.rank"), ulfm=ulfm)


def planned(tmp_path, ranks, *faults, name="plan"):
    one = Start(tmp_path / f"{name}.json", tuple(range(ranks)), faults)
    one.write()
    return one.file


def kill(rank, round_, moment="send", step=0):
    return Fault("kill", rank, round_, moment, step)


def carried(plan, rank):
    return Start.read(plan).record(rank).releases


def furthest(plan):
    return max(record.round for record in Start.read(plan).records().values())


def charged(run, rank):
    return recorded_spending(run / "ledger" / f"rank-{rank:03d}.jsonl").total()


def summary(run):
    return json.loads((run / "summary.json").read_text())


def survive(tmp_path, ranks, *faults, flags, lost):
    """Run with faults; check who is left, what it found, and the books. Returns the summary."""
    plan, run = planned(tmp_path, ranks, *faults), tmp_path / "run"
    done = finish(start(ranks, plan, *DATA, *flags, "--out", run), LIMIT)
    assert done.code == 0, done.err
    assert wait_until(lambda: not survivors(tmp_path), 20)
    found = summary(run)
    names = [rank for rank in range(ranks) if rank not in lost]
    assert (found["lost"], found["ranks"], found["ranks_at_start"]) == (sorted(lost), ranks - len(lost), ranks)
    assert found["privacy"]["epsilon"] >= found["privacy"]["epsilon_lost"] > 0  # `verify` holds it against the ledgers
    assert [record["rank"] for record in found["per_rank"]] == names
    assert found["starts"] >= 2
    assert [one.problems for one in verify(run)] == [()] * ranks
    for rank in range(ranks):
        assert charged(run, rank) >= carried(plan, rank) > 0
    objective, _ = undisturbed(parse([*DATA, *flags]), ranks, names)
    assert found["objective"] == pytest.approx(objective, rel=0.05)
    return found


KINDS = {
    "dp-dda": ["--algorithm", "dp-dda", "--graph", "ring", "--rounds", "200"],
    "ip-admm": ["--algorithm", "ip-admm", "--graph", "complete", "--rounds", "60"],
    "sampled-dda": ["--algorithm", "sampled-dda", "--graph", "complete", "--rounds", "300"],
}


@tolerant
@pytest.mark.parametrize("algorithm", sorted(KINDS))
def test_the_others_go_on_without_a_killed_rank(tmp_path, algorithm):
    survive(tmp_path, 4, kill(2, 40, "wait"), flags=KINDS[algorithm], lost=[2])


@tolerant
def test_the_others_go_on_without_the_first_rank(tmp_path):
    survive(tmp_path, 4, kill(0, 80, "aside"), flags=KINDS["dp-dda"], lost=[0])


@tolerant
def test_two_deaths_one_after_the_other(tmp_path):
    found = survive(tmp_path, 5, kill(1, 50), kill(4, 150, "wait"), flags=KINDS["sampled-dda"], lost=[1, 4])
    assert found["starts"] == 3


@tolerant
def test_a_death_while_the_others_regroup(tmp_path):
    survive(
        tmp_path, 6, kill(1, 50), kill(3, 1, "regroup", 7), flags=KINDS["dp-dda"] + ["--graph", "complete"], lost=[1, 3]
    )


@tolerant
def test_a_death_that_cuts_a_path_leaves_the_longer_end(tmp_path):
    flags = ["--algorithm", "dp-dda", "--graph", "path", "--rounds", "200"]
    survive(tmp_path, 5, kill(1, 60), flags=flags, lost=[0, 1])


@tolerant
def test_noise_inside_a_sum_is_that_of_those_who_are_left(tmp_path):
    flags = "--algorithm dp-dda --graph complete --rounds 100 --exchange shares --noise-in sum --colluders 1"
    found = survive(tmp_path, 4, kill(3, 40), flags=flags.split(), lost=[3])
    # Each rank's part of the noise is for the n - c honest ones: the events it charges are those of the same sum.
    events = recorded_spending(tmp_path / "run" / "ledger" / "rank-000.jsonl")
    assert {event.noise for event in events} == {"discrete-gaussian"}
    assert [event.scale for event in events] == [pytest.approx(0.02)]
    assert found["privacy"]["private"] is True
    assert found["privacy"]["colluders"] == 1


@tolerant
def test_a_corrupt_message_ends_all_ranks_with_its_name(tmp_path):
    plan, run = planned(tmp_path, 4, Fault("corrupt", 2, 30, "payload", 12345)), tmp_path / "run"
    done = finish(start(4, plan, *DATA, "--rounds", 10**6, "--no-evaluate", "--seal", "--out", run), LIMIT)
    assert done.code not in (0, None)
    [line] = done.own_lines()
    assert "could not open the message of rank 2 in round 30" in line
    assert wait_until(lambda: not survivors(tmp_path), 20)
    assert not (run / "summary.json").exists()


@needs.open_mpi()  # what a launcher passes on differs
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_run_that_is_told_to_stop_can_be_resumed(tmp_path, number):
    run, plan = tmp_path / "run", planned(tmp_path, 4)
    settings = "--rounds 3000 --checkpoint-every 1000 --evaluate 1000 --insecure-noise-seed 5"
    flags = [*DATA, *settings.split()]
    process = start(4, plan, *flags, "--out", run, ulfm=False)
    assert wait_until(lambda: furthest(plan) >= 200, LIMIT), process.poll()
    os.kill(process.pid, number)
    done = finish(process, LIMIT)
    assert not (run / "summary.json").exists()
    if number == signal.SIGUSR1:
        assert done.code == 75
        [line] = done.own_lines()
        assert f"--resume {run}" in line
    else:  # mpirun drops what ranks say after it, has a code of its own, and kills ranks that are not quick enough
        assert done.code != 0
    assert wait_until(lambda: not survivors(tmp_path), 20)
    again = planned(tmp_path, 4, name="again")
    done = finish(start(4, again, "--resume", run, ulfm=False), LIMIT)
    assert done.code == 0, done.err
    assert summary(run)["starts"] == 2
    assert furthest(again) == 3000
    _, models = undisturbed(parse(flags), 4, range(4))
    np.testing.assert_array_equal(np.load(run / "model.npz")["x_rank"], models)


def kill_everything(marker):
    while alive := survivors(marker):
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def test_all_processes_are_killed_and_the_resumed_run_has_the_same_bits(tmp_path):
    run, plan = tmp_path / "run", planned(tmp_path, 4)
    flags = [*DATA, "--rounds", "2000", "--checkpoint-every", "100", "--evaluate", "500", "--insecure-noise-seed", "5"]
    process = start(4, plan, *flags, "--out", run, ulfm=False)
    assert wait_until(lambda: furthest(plan) >= 450, LIMIT), process.poll()
    kill_everything(tmp_path)
    finish(process, LIMIT)
    assert not (run / "summary.json").exists()
    for file in (run / "checkpoint").iterdir():
        assert file.stat().st_mode & 0o077 == 0
    for rank in range(4):
        assert carried(plan, rank) <= charged(run, rank) <= carried(plan, rank) + 100
    again = planned(tmp_path, 4, name="again")
    done = finish(start(4, again, "--resume", run, ulfm=False), LIMIT)
    assert done.code == 0, done.err
    _, models = undisturbed(parse(flags), 4, range(4))
    np.testing.assert_array_equal(np.load(run / "model.npz")["x_rank"], models)
    assert not (run / "checkpoint").exists()


def test_without_fault_tolerance_a_death_ends_all_and_the_run_can_be_resumed(tmp_path):
    run, plan = tmp_path / "run", planned(tmp_path, 4, kill(2, 130, "wait"))
    flags = [*DATA, "--rounds", "300", "--checkpoint-every", "50"]
    done = finish(start(4, plan, *flags, "--out", run, ulfm=False), LIMIT)
    assert done.code not in (0, None)
    assert wait_until(lambda: not survivors(tmp_path), 20)
    for rank in range(4):
        assert charged(run, rank) >= carried(plan, rank) >= 100
    shutil.copytree(run, tmp_path / "damaged")
    again = planned(tmp_path, 4, name="again")
    done = finish(start(4, again, "--resume", run, ulfm=False), LIMIT)
    assert done.code == 0, done.err
    assert [one.problems for one in verify(run)] == [()] * 4
    for rank in range(4):
        assert charged(run, rank) >= carried(plan, rank) + carried(again, rank)
    damage(tmp_path / "damaged")
    done = finish(start(4, again, "--resume", tmp_path / "damaged", ulfm=False), LIMIT)
    assert done.code == 1
    assert any("is damaged or no checkpoint" in line for line in done.own_lines()), done.err


@tolerant
@pytest.mark.parametrize("ulfm", [True, False])
def test_the_chaos_command_stops_a_rank_and_nobody_waits_for_what_it_does_not_need(tmp_path, ulfm):
    command = [sys.executable, "-m", "dpmpi", "chaos", "--runs", "1", "--ranks", "4", "--kind", "stop", "--seed", "3"]
    if not ulfm:
        command += ["--launcher", f"{MPIRUN} -n {{ranks}}"]
    flags = [*DATA, "--algorithm", "sampled-dda", "--graph", "complete", "--rounds", "400", "--no-evaluate"]
    done = run_group([*command, "--out", str(tmp_path / "out"), "--", *flags], LIMIT)
    assert done.code == 0, done.out + done.err
    assert "1 of 1 runs kept all promises" in done.out
    [found] = json.loads((tmp_path / "out" / "chaos.json").read_text())["runs"]
    assert len(found["notes"]["pauses"]) >= 1
    assert found["promises"]["others"] is None
    assert survivors(tmp_path) == []


def damage(run):
    """Change one byte in each of one rank's checkpoints."""
    for path in (run / "checkpoint").glob("rank-001-*.state"):
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    assert Path(run / "checkpoint" / "manifest.json").exists()


@tolerant
@pytest.mark.parametrize("flags", ["--resume nowhere", "--config nowhere", "--rounds 0"])
def test_one_rank_alone_fails_for_all_when_a_run_is_refused(tmp_path, flags):
    """Open MPI's mpirun may lock up when many ranks fail at once, if it lets the others live."""
    rank = f"{sys.executable} -m dpmpi.run {flags}; code=$?; echo $code > code-$OMPI_COMM_WORLD_RANK; exit $code"
    done = run_group([MPIRUN, "--with-ft", "ulfm", "-n", "4", "sh", "-c", rank], LIMIT, cwd=tmp_path)
    assert done.code == 2
    assert len(done.own_lines()) == 1, done.err
    codes = {int(file.name[-1]): int(file.read_text()) for file in tmp_path.glob("code-?")}
    assert codes.pop(0) == 2
    assert set(codes.values()) <= {0}  # some may have been ended before they knew


@tolerant
def test_a_death_in_the_last_agreement_leaves_nobody_behind(tmp_path):
    """Some have heard that all are through, and others have not: all go on together, or none."""
    program = Path(__file__).parents[1] / "helpers/dies_waiting.py"

    def run(victim, when, out):
        command = [MPIRUN, "--with-ft", "ulfm", "-n", "6", sys.executable, str(program), str(victim), str(when), "--"]
        flags = [*DATA, *KINDS["dp-dda"], "--rounds", "30", "--evaluate", "15", "--deadline", "20", "--quiet"]
        return run_group([*command, *map(str, flags), "--out", str(out)], 100)

    done = run(0, 0, tmp_path / "whole")
    waits = int(re.search(r"^waits (\d+)$", done.out, re.MULTILINE)[1])
    for when in (waits - 1, waits):
        done = run(3, when, tmp_path / "run")
        assert done.code == 0, done.err
        assert len(json.loads((tmp_path / "run" / "summary.json").read_text())["per_rank"]) == 5


@tolerant
@pytest.mark.parametrize("ulfm", [True, False], ids=["with ulfm", "without"])
def test_a_rank_that_falls_silent_and_lives_ends_the_run(tmp_path, ulfm):
    plan, run = planned(tmp_path, 4), tmp_path / "run"
    flags = (*DATA, *KINDS["dp-dda"], "--rounds", "10000000", "--no-evaluate", "--deadline", "3", "--out", run)
    process = start(4, plan, *flags, ulfm=ulfm)
    assert wait_until(lambda: furthest(plan) > 10, LIMIT)
    for pid in survivors(run):
        if b"OMPI_COMM_WORLD_RANK=2\0" in Path(f"/proc/{pid}/environ").read_bytes():
            os.kill(pid, signal.SIGSTOP)
    done = finish(process, LIMIT)
    assert done.code not in (0, None), done.err
    assert done.seconds < LIMIT - 20
    assert "rank 2 is silent and waits for nobody" in (run / "ended.txt").read_text()
    assert wait_until(lambda: not survivors(run), 20)
