"""Every party starts its own ranks: `dpmpi join`, in real processes that no common launcher started."""

import functools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import needs
import numpy as np
import pytest
from launcher import finish, wait_until
from parties import AGREED, SUMS, Consortium, kill_party

SEEDED = "insecure-noise-seed = 5\n"
SLOW = "rounds = 1000000\n"
pytestmark = needs.mpi


def model(folder):
    return np.load(folder / "run/model.npz")["x"]


def summary(folder):
    return json.loads((folder / "run/summary.json").read_text())


def in_one_process(consortium, tmp_path):
    """The same run on loopback, for its bits."""
    shards = tmp_path / "shards"
    shards.mkdir()
    for first, count in consortium.parties.items():
        for rank in range(first, first + count):
            (shards / f"{rank}.npz").symlink_to(consortium.own(first) / f"shard-{rank}.npz")
    agreed = consortium.own(0) / "agreed.toml"
    command = [sys.executable, "-m", "dpmpi.run", f"--loopback={consortium.size}", f"--config={agreed}"]
    command += ["--seal", f"--data=shards:{shards}/{{rank}}.npz", f"--out={tmp_path}/one/run"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return model(tmp_path / "one")


METHODS = {
    "noise in the sum": 'algorithm = "dp-dda"\nrounds = 30\n' + SUMS,
    "sealed plain messages": 'algorithm = "ip-admm"\nrounds = 10\ngraph = "complete"\n',
    "gossip on a ring": 'algorithm = "momentum"\nrounds = 20\ngraph = "ring"\n',
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_parties_that_start_on_their_own_compute_the_bits_of_one_process(tmp_path, method):
    consortium = Consortium(tmp_path, 3, AGREED + SEEDED + method)
    ended = consortium.run(order=(2, 0, 1))
    assert [one.code for one in ended.values()] == [0, 0, 0], [one.err for one in ended.values()]
    expected = in_one_process(consortium, tmp_path)
    for rank in range(3):
        own = consortium.own(rank)
        np.testing.assert_array_equal(model(own), expected)
        assert summary(own)["ranks"] == 3
        assert sorted(path.name for path in (own / "run/ledger").glob("*.jsonl")) == [f"rank-{rank:03d}.jsonl"]
        assert "results           run" in ended[rank].out  # every party has the table at its own terminal


def test_a_party_may_have_several_ranks(tmp_path):
    consortium = Consortium(tmp_path, 4, AGREED + SEEDED + METHODS["gossip on a ring"], parties={0: 1, 1: 2, 3: 1})
    ended = consortium.run()
    assert [one.code for one in ended.values()] == [0, 0, 0], [one.err for one in ended.values()]
    np.testing.assert_array_equal(model(consortium.own(1)), in_one_process(consortium, tmp_path))


def test_strangers_at_the_port_do_not_keep_the_parties_from_meeting(tmp_path):
    consortium = Consortium(tmp_path, 3, AGREED + "rounds = 30\n" + SUMS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meet, stop = f"tcp://127.0.0.1:{port}", threading.Event()

    def bother():
        while not stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), 5) as connection:
                    connection.sendall(os.urandom(random.randrange(200)))
            except OSError:
                pass
            time.sleep(0.02)

    stranger = threading.Thread(target=bother)
    stranger.start()
    try:
        north = consortium.start(0, meet=meet)
        impostor = consortium.start(1, "--epsilon", "9", "--out", "other", meet=meet)  # a right key, other settings
        refused = finish(impostor, 60)
        started = {0: north, 1: consortium.start(1, meet=meet), 2: consortium.start(2, meet=meet)}
        ended = {rank: finish(process, 60) for rank, process in started.items()}
    finally:
        stop.set()
        stranger.join()
    assert refused.code == 2
    assert "expected the settings of rank 0, found others on rank 1 (Site B)" in refused.err
    assert "turned away 127.0.0.1: expected the settings of rank 0" in ended[0].err
    assert "turned away 127.0.0.1: it said nothing that a rank says" in ended[0].err
    assert [one.code for one in ended.values()] == [0, 0, 0], [one.err for one in ended.values()]


def begun(consortium, rank, words="checkpoint"):
    """Whether a party has come far enough."""
    return any((consortium.own(rank) / "run" / words).glob("*.state"))


def check_ledgers(consortium):
    """Let the first party verify the whole run: the parties exchange their ledgers."""
    own = consortium.own(0)
    for rank in range(1, consortium.size):
        theirs = consortium.own(rank) / f"run/ledger/rank-{rank:03d}.jsonl"
        (own / f"run/ledger/rank-{rank:03d}.jsonl").symlink_to(theirs)
    command = [sys.executable, "-m", "dpmpi", "verify", "run"]
    checked = subprocess.run(command, cwd=own, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.splitlines()[-1] == f"{consortium.size} of {consortium.size} ledgers check out"  # none absent
    assert summary(own)["privacy"]["epsilon"] <= 1.0


def test_a_killed_party_is_named_by_all_and_the_run_goes_on_by_resume(tmp_path):
    consortium = Consortium(tmp_path, 3, AGREED + "rounds = 2000\n" + SUMS)
    started = {rank: consortium.start(rank, "--checkpoint-every", "50") for rank in range(3)}
    wait_until(lambda: begun(consortium, 1), 40)
    kill_party(started[1])
    finish(started[1], 20)
    begin = time.monotonic()
    ended = {rank: finish(started[rank], 40) for rank in (0, 2)}
    assert time.monotonic() - begin < 20  # the lifeline tells, before the deadline
    for one in ended.values():
        assert one.code == 1
        assert "rank 1 (Site B) was lost" in one.err
        assert "go on with --resume run" in one.err
        assert "Traceback" not in one.err
    (tmp_path / "meet").unlink()
    again = consortium.run("--resume", "run")
    assert [one.code for one in again.values()] == [0, 0, 0], [one.err for one in again.values()]
    check_ledgers(consortium)


def test_an_interrupted_party_ends_all_with_one_line_each(tmp_path):
    consortium = Consortium(tmp_path, 3, AGREED + SLOW + SUMS)
    started = {rank: consortium.start(rank) for rank in range(3)}
    wait_until(lambda: all((consortium.own(rank) / "run/ledger").is_dir() for rank in range(3)), 40)
    time.sleep(0.5)
    os.kill(started[2].pid, signal.SIGINT)
    ended = {rank: finish(process, 40) for rank, process in started.items()}
    assert ended[2].code == 130
    assert "interrupted" in ended[2].own_lines()[-1]
    for rank in (0, 1):
        assert ended[rank].code == 1
        assert "rank 2 (Site C) was lost" in ended[rank].err
    assert not any("Traceback" in one.err or "BAD TERMINATION" in one.out for one in ended.values())


def test_a_party_that_never_comes_is_named(tmp_path):
    consortium = Consortium(tmp_path, 3)
    started = {rank: consortium.start(rank, "--wait", "3") for rank in (0, 1)}
    ended = {rank: finish(process, 40) for rank, process in started.items()}
    for one in ended.values():
        assert one.code == 1
        assert "waited 3 s for rank 2 (Site C)" in one.err


WRONG = {
    "expected sealed messages": ["--no-seal"],
    "expected an address such as tcp://": ["--meet", "tcp://nowhere"],
    "expected ranks from 0 to 2": ["--rank", "3"],
    "expected --keys DIR": None,
    "expected an address such as tcp://10.0.0.1:7000": ["--meet", "10.0.0.1:7000"],
    "expected --interface among lo": ["--interface", "wg9"],
    "unknown flag --epsilonn": ["--epsilonn", "1"],
    "expected the key that the roster has for rank 0": ["--keys", "wrong"],
}


@pytest.mark.parametrize(("expected", "flags"), WRONG.items(), ids=WRONG)
def test_wrong_flags_are_one_line(tmp_path, expected, flags):
    consortium = Consortium(tmp_path, 3)
    command = consortium.command(0, *(flags or []), meet="meet")
    if flags is None:
        at = command.index("--keys")
        del command[at : at + 2]
    if flags == ["--keys", "wrong"]:
        subprocess.run([sys.executable, "-m", "dpmpi", "keys", "make", "3", tmp_path / "party-0/wrong"], check=True)
        (tmp_path / "party-0/wrong/rank-001.key").replace(tmp_path / "party-0/wrong/rank-000.key")
    done = subprocess.run(command, cwd=consortium.own(0), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert expected in done.stderr


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda shard: shard.unlink(), "cannot read the shard of rank 1: no such file shard-1.npz"),
        (lambda shard: np.savez(shard, X=np.ones((9, 5)), y=np.arange(9.0)), "expected class labels -1/+1 or 0/1"),
        (lambda shard: shard.write_text("no archive"), "shard-1.npz"),
    ],
    ids=["none", "labels", "rubbish"],
)
def test_a_shard_that_cannot_be_used_is_said_before_the_others_are_met(tmp_path, spoil, said):
    consortium = Consortium(tmp_path, 3, parties={0: 2, 2: 1})
    spoil(consortium.own(0) / "shard-1.npz")
    command = consortium.command(0, meet=tmp_path / "meet")
    done = subprocess.run(command, cwd=consortium.own(0), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert said in done.stderr
    assert not (tmp_path / "meet").exists()


@needs.open_mpi()
def test_another_mpi_is_named_at_once(tmp_path):
    consortium = Consortium(tmp_path, 3)
    command = [sys.executable, *consortium.command(0, meet="meet")[1:]]
    done = subprocess.run(command, cwd=consortium.own(0), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    said = r"expected MPICH, which lets parties meet that started apart, found Open MPI v[\w.]+: make an environment"
    assert re.search(said, done.stderr)
    assert "dpmpi[mpich]" in done.stderr


@pytest.mark.slow
def test_fifty_starts_in_any_order_and_with_delays(tmp_path):
    consortium, chance = Consortium(tmp_path, 4, AGREED + "rounds = 10\n" + SUMS), random.Random(4)
    for start in range(50):
        started = {}
        for rank in chance.sample(range(4), 4):
            started[rank] = consortium.start(rank, "--out", f"run-{start}", meet=tmp_path / f"meet-{start}")
            time.sleep(chance.choice((0.0, 0.05, 0.5, 1.5)))
        ended = {rank: finish(process, 60) for rank, process in started.items()}
        assert [one.code for one in ended.values()] == [0] * 4, (start, [one.err for one in ended.values()])


@pytest.mark.slow
def test_twenty_parties_of_five_are_killed_at_random_rounds(tmp_path):
    chance = random.Random(5)
    for attempt in range(20):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        consortium = Consortium(folder, 5, AGREED + "rounds = 1500\n" + SUMS)
        started = {rank: consortium.start(rank, "--checkpoint-every", "20") for rank in range(5)}
        dead = chance.randrange(5)
        wait_until(functools.partial(begun, consortium, dead), 60)
        time.sleep(chance.uniform(0.0, 0.5))
        kill_party(started[dead])
        ended = {rank: finish(process, 60) for rank, process in started.items()}
        for rank, one in ended.items():
            if rank != dead:
                assert one.code == 1, (attempt, one.out, one.err)
                assert f"rank {dead} (Site {chr(65 + dead)}) was lost" in one.err, (attempt, one.err)
        (folder / "meet").unlink()
        again = consortium.run("--resume", "run")
        assert [one.code for one in again.values()] == [0] * 5, (attempt, [one.err for one in again.values()])
        check_ledgers(consortium)
