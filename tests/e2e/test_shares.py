"""Shared and sealed runs as a user starts them, and what becomes of them when messages are manipulated on their way."""

import json
import time

import needs
import numpy as np
import pytest
from launcher import mpirun, survivors, wait_until

from dpmpi.commands.dispatch import main as command
from dpmpi.privacy.ledger import recorded_runs
from dpmpi.run import main

pytestmark = needs.mpi

DATA = ("--data", "synthetic:samples=500,features=9", "--no-evaluate")
ROUNDS = 20


def loopback(out, *flags, ranks=5):
    assert main(list(map(str, ["--loopback", ranks, *flags, "--out", out]))) == 0
    return models(out)


def models(out):
    with np.load(out / "model.npz") as model:
        return model["x_rank" if "x_rank" in model else "x"].copy()


def summary(out):
    return json.loads((out / "summary.json").read_text())


@pytest.fixture
def keys(tmp_path):
    assert command(["keys", "make", "5", str(tmp_path / "keys")]) == 0
    return tmp_path / "keys"


# --- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "known"), [("full", True), ("expanded", False)])
def test_shared_admm_is_plain_admm_up_to_rounding(tmp_path, keys, mode, known):
    flags = ["--algorithm", "admm", "--loss", "logistic", "--graph", "complete", *DATA, "--rounds", ROUNDS]
    shares = [*flags, "--exchange", "shares", "--share-mode", mode, *(["--keys", keys] if known else [])]
    done = mpirun(5, *shares, "--out", tmp_path / "mpi")
    assert done.code == 0, done.err
    found, plain = models(tmp_path / "mpi"), loopback(tmp_path / "plain", *flags)
    assert 0 < np.abs(found - plain.mean(axis=0)).max() <= (ROUNDS * 5 + 1) * 2.0**-41
    np.testing.assert_array_equal(found, loopback(tmp_path / "one", *shares))
    assert np.abs(plain).max() > 1e-3
    secrecy = {"exchange": "shares", "shares": mode, "sealed": mode == "full"}
    identities = "roster" if known else "drawn for the run: against listeners only"
    assert summary(tmp_path / "mpi")["secrecy"] == secrecy | {"identities": identities}


def test_a_sealed_run_has_the_bits_of_a_plain_one(tmp_path, keys):
    flags = ["--algorithm", "dp-dda", "--graph", "ring", *DATA, "--rounds", ROUNDS, "--batch", 16]
    noise = ["--noise", 0.1, "--insecure-noise-seed", 3]
    done = mpirun(5, *flags, *noise, "--seal", "--keys", keys, "--out", tmp_path / "mpi")
    assert done.code == 0, done.err
    np.testing.assert_array_equal(models(tmp_path / "mpi"), loopback(tmp_path / "one", *flags, *noise))
    sent = summary(tmp_path / "mpi")["communication"]
    assert sent["tag_bytes"] == 16 * sent["messages"] == 16 * 5 * 2 * ROUNDS


@pytest.mark.parametrize(("graph", "route"), [("complete", "butterfly"), ("ring", "auto")])
def test_noise_inside_the_sum_over_mpi(tmp_path, graph, route):
    flags = [
        "--algorithm",
        "dp-dda",
        "--graph",
        graph,
        "--route",
        route,
        *DATA,
        "--rounds",
        ROUNDS,
        "--exchange",
        "shares",
    ]
    inside = [*flags, "--noise-in", "sum", "--colluders", 1, "--noise", 0.1, "--insecure-noise-seed", 3]
    done = mpirun(5, *inside, "--out", tmp_path / "mpi")
    assert done.code == 0, done.err
    found = models(tmp_path / "mpi")
    np.testing.assert_array_equal(found, loopback(tmp_path / "one", *inside))
    assert np.abs(found - loopback(tmp_path / "exact", *flags)).max() > 1e-3


# --- errors ----------------------------------------------------------------------------------------------------------

REFUSED = {
    "a path": (5, ["--graph", "path", "--share-mode", "full"], "stays connected without any 1 ranks"),
    "two ranks": (2, ["--graph", "complete"], "expected at least 3 ranks for shares"),
    "a look at each vector": (5, ["--algorithm", "ldp-gd", "--graph", "complete"], "ldp-gd looks at each"),
}


def refused(done, reason, out):
    assert done.code == 2, done.err
    [line] = done.own_lines()
    assert reason in line
    assert "Traceback" not in done.err
    assert not out.exists()


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_sums_that_would_show_more_are_refused(tmp_path, what):
    ranks, flags, reason = REFUSED[what]
    done = mpirun(ranks, *flags, *DATA, "--exchange", "shares", "--out", tmp_path / "run")
    refused(done, reason, tmp_path / "run")


OWN_KEYS = """
import os, sys
from dpmpi.run import main

# Each rank is told of a folder of its own, as on hosts without a common file system.
folder = sys.argv.pop(1)
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
sys.exit(main([*sys.argv[1:], "--keys", f"{folder}/{rank}"]))
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("roster.toml", "3/roster.toml, found none that can be read"),
        ("rank-003.key", "3/rank-003.key, found none that can be read"),
    ],
)
def test_a_file_that_only_one_rank_lacks_ends_all(tmp_path, keys, name, reason):
    script = tmp_path / "own_keys.py"
    script.write_text(OWN_KEYS)
    for rank in range(5):
        folder = tmp_path / "hosts" / str(rank)
        folder.mkdir(parents=True)
        for file in ("roster.toml", f"rank-{rank:03d}.key"):
            (folder / file).write_bytes((keys / file).read_bytes())
            (folder / file).chmod(0o600)
    (tmp_path / "hosts" / "3" / name).unlink()
    flags = [*DATA, "--rounds", 3, "--seal", "--out", tmp_path / "run"]
    done = mpirun(5, tmp_path / "hosts", *flags, program=(str(script),))
    refused(done, reason, tmp_path / "run")


# --- manipulations ---------------------------------------------------------------------------------------------------

MEDDLING = """
import sys, time
from pathlib import Path
import numpy as np
import dpmpi.runtime.process
from dpmpi.crypto.seal import SealedPair
from dpmpi.run import main
from dpmpi.network.handshake import meet
from dpmpi.network.transport.mpi import MpiTransport

# What rank 2 sends in round 7 is changed between its seals and MPI. The run has a first incarnation, whose keys are
# agreed on and then given up, as after a restart.
how, note = sys.argv[1], Path(sys.argv[2])
del sys.argv[1:3]
CULPRIT, ROUND = 2, 7
secrets, before, heard = [], {}, {}
start, wait = MpiTransport.start, MpiTransport.wait

def twice(*told):
    meetings = [meet(*told) for _ in range(2)]
    secrets[:] = [meeting.secrets for meeting in meetings]
    return meetings[1]

def resealed(sender, peer, incarnation, round_, out):
    pair = SealedPair(secrets[incarnation].session, sender, peer, secrets[incarnation].keys[CULPRIT][peer])
    pair.seal(np.zeros(len(out) - 16, np.uint8), out, round_, 0)

def meddle(payloads):
    first, second = sorted(payloads)[:2]
    if how == "swap":
        payloads[first][:], payloads[second][:] = payloads[second].copy(), payloads[first].copy()
    elif how == "wrong receiver":
        payloads[first][:] = payloads[second]
    for peer, out in payloads.items():
        if how == "bit flip":
            out[5] ^= 4
        elif how == "truncation":
            out[-24:] = 0
        elif how == "replay":
            out[:] = before[peer]
        elif how == "wrong round":
            resealed(CULPRIT, peer, 1, ROUND + 1, out)
        elif how == "forged sender":
            out[:] = heard[next(other for other in heard if other != peer)]
        elif how == "stale incarnation":
            resealed(CULPRIT, peer, 0, ROUND, out)

def meddling(self, channel):
    if self.rank == CULPRIT:
        payloads = dict(zip(channel.peers, channel.outgoing[channel.turn], strict=True))
        if channel.round == ROUND:
            meddle(payloads)
            note.write_text(str(time.time()))
        before.update({peer: out.copy() for peer, out in payloads.items()})
    start(self, channel)

def listening(self, channel):
    wait(self, channel)
    if self.rank == CULPRIT:
        heard.update({peer: got.copy() for peer, got in zip(channel.peers, channel.incoming, strict=True)})

dpmpi.runtime.process.meet = twice
MpiTransport.start, MpiTransport.wait = meddling, listening
sys.exit(main())
"""

CONTENT = ("bit flip", "truncation", "wrong round", "stale incarnation")
PLACE = ("replay", "swap", "wrong receiver", "forged sender")


@pytest.mark.parametrize("how", [*CONTENT, *PLACE, "nothing"])
def test_a_manipulated_message_ends_the_whole_run_and_nothing_is_used(tmp_path, how):
    script, note, out = tmp_path / "meddling.py", tmp_path / "note", tmp_path / "run"
    script.write_text(MEDDLING)
    flags = [*DATA, "--graph", "complete", "--rounds", 10**6 if how != "nothing" else 9, "--noise", 1, "--seal"]
    done = mpirun(5, how, note, *flags, "--out", out, program=(str(script),))
    seconds = time.time() - float(note.read_text())
    if how == "nothing":
        assert done.code == 0, done.err
        assert (out / "model.npz").exists()
        return
    assert done.code not in (0, None)
    assert seconds < 30.0  # long before anybody's deadline of 120 s
    assert wait_until(lambda: not survivors(tmp_path), 20)
    [line] = done.own_lines()
    assert ", round 7: rank " in line
    assert " could not open the message of rank 2 in round 7, hop 0: it was changed, or belongs to another" in line
    assert "Traceback" not in done.err
    assert not (out / "summary.json").exists()
    assert not (out / "model.npz").exists()
    for ledger in (out / "ledger").glob("*.jsonl"):
        [(_, spending, _)] = recorded_runs(ledger)
        assert spending.total() >= 6  # the rounds that all ranks have spoken in
