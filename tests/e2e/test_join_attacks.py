"""Attacks on `dpmpi join` in real processes: every party ends with one line, and none waits past the deadline."""

import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import needs
import numpy as np
from groups import start_group
from launcher import finish, survivors, wait_until
from parties import AGREED, SUMS, Consortium, descendants, kill_party, python

from dpmpi.commands.join.flags import parse
from dpmpi.network.meeting_point import where_to
from dpmpi.network.rendezvous.guest import Guest

QUICK = AGREED.replace("deadline = 20.0", "deadline = 8.0")
pytestmark = needs.mpi


def complaints(ended):
    """What a party says at its end: its own lines but for who came."""
    return [line for line in ended.own_lines() if " is here, from " not in line and " listens at " not in line]


def only_introduced(consortium, rank, monkeypatch):
    """A guest with a party's true key, which introduces itself and does not go on to MPI; and the ports that it got."""
    monkeypatch.chdir(consortium.own(rank))
    meet = consortium.folder / "meet"
    joining = parse(consortium.command(rank, meet=meet)[4:])
    guest = Guest(joining.papers(0), joining.place(0), joining.patience)
    return guest, guest.meet(lambda: where_to(str(meet)), lambda text: None)


def test_ctrl_c_while_a_party_waits_for_the_others(tmp_path):
    consortium = Consortium(tmp_path, 3)
    process, meet = consortium.start(0), consortium.folder / "meet"
    assert wait_until(meet.exists, 60)
    os.kill(process.pid, signal.SIGINT)
    ended = finish(process, 20)
    assert ended.code in (
        130,
        -signal.SIGINT,
    )  # Python ends by the signal itself if a class was being made; 130 to shells
    assert complaints(ended) == ["dpmpi: interrupted"]
    assert "Traceback" not in ended.err
    assert wait_until(lambda: not survivors(tmp_path), 10)


def test_ctrl_c_while_mpi_connects(tmp_path, monkeypatch):
    """MPI does not return to Python there."""
    consortium = Consortium(tmp_path, 3)  # with a deadline of 20 s
    started = {rank: consortium.start(rank) for rank in (0, 1)}
    guest, _ = only_introduced(consortium, 2, monkeypatch)
    time.sleep(1)
    begin = time.monotonic()
    os.kill(started[1].pid, signal.SIGINT)
    ended = {rank: finish(process, 30) for rank, process in started.items()}
    assert time.monotonic() - begin < 12
    assert (ended[0].code, ended[1].code) == (1, 130)
    assert complaints(ended[1]) == ["dpmpi: interrupted"]
    [line] = complaints(ended[0])
    assert line.startswith("dpmpi: rank 0, while starting: rank 1 (Site B) ended early (exit code 130)")
    guest.leave(0)


def test_a_party_that_never_comes_to_mpi_is_named_at_the_deadline(tmp_path, monkeypatch):
    consortium = Consortium(tmp_path, 3, QUICK)
    started = {rank: consortium.start(rank) for rank in (0, 1)}
    guest, _ = only_introduced(consortium, 2, monkeypatch)
    ended = {rank: finish(process, 40) for rank, process in started.items()}
    said = [complaints(one) for one in ended.values()]
    assert [one.code for one in ended.values()] == [1, 1]
    assert [len(lines) for lines in said] == [1, 1]
    assert any("waited 8 s for rank 2 (Site C) to connect by MPI" in lines[0] for lines in said)
    guest.leave(0)


STRANGER = """
import sys, time
from mpi4py import MPI
met = MPI.COMM_SELF.Connect(sys.argv[1]).Merge(True)
for _ in range(2):
    met.Dup()  # as a rank does
print("merged", met.Get_rank(), flush=True)
last = met.Dup()
while True:
    last.Iprobe()
    time.sleep(0.01)
"""


def test_a_stranger_at_an_mpi_port_gets_nowhere(tmp_path, monkeypatch):
    """MPI takes whoever knows the name of the port; without the key of the roster it cannot take part."""
    consortium = Consortium(tmp_path, 3, QUICK)
    started = {rank: consortium.start(rank) for rank in (0, 1)}
    guest, ports = only_introduced(consortium, 2, monkeypatch)
    mpi = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "HYDRA_LAUNCHER": "fork"}
    (tmp_path / "stranger.py").write_text(STRANGER)
    launcher = [Path(python()).with_name("mpiexec"), "-n", "1", python(), tmp_path / "stranger.py", ports[2]]
    stranger = start_group(launcher, env={**os.environ, **mpi})
    ended = {rank: finish(process, 60) for rank, process in started.items()}
    kill_party(stranger)
    assert "merged 2" in finish(stranger, 20).out
    for one in ended.values():
        assert one.code == 1
        assert len(complaints(one)) == 1, one.err
        assert not (consortium.own(0) / "run/ledger").exists()
    guest.leave(0)


def test_rubbish_at_the_mpi_port_of_a_run(tmp_path):
    """It is thrown at libfabric, before and during the rounds: the run goes on."""
    consortium = Consortium(tmp_path, 3, QUICK + "rounds = 300\n" + SUMS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop, thrown = threading.Event(), []

    def throw():
        while not stop.wait(0.02):
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as connection:
                    connection.sendall(os.urandom(200))
                    thrown.append(1)
            except OSError:
                continue

    thread = threading.Thread(target=throw)
    thread.start()
    try:
        started = {rank: consortium.start(rank, "--interface", "lo") for rank in (1, 2)}
        started[0] = consortium.start(0, "--interface", "lo", "--ports", f"{port}-{port}")
        ended = {rank: finish(process, 60) for rank, process in started.items()}
    finally:
        stop.set()
        thread.join()
    assert thrown
    assert [one.code for one in ended.values()] == [0, 0, 0], [one.err for one in ended.values()]


def test_the_first_party_may_have_several_ranks(tmp_path):
    consortium = Consortium(tmp_path, 3, AGREED + "rounds = 20\n" + SUMS, parties={0: 2, 2: 1})
    ended = consortium.run()
    assert [one.code for one in ended.values()] == [0, 0], [one.err for one in ended.values()]
    models = [np.load(consortium.own(first) / "run/model.npz")["x"] for first in consortium.parties]
    np.testing.assert_array_equal(*models)


def test_a_refused_party_of_several_ranks_says_so_once(tmp_path):
    consortium = Consortium(tmp_path, 3, parties={0: 1, 1: 2})
    north = consortium.start(0)
    refused = finish(consortium.start(1, "--epsilon", "3"), 40)
    os.kill(north.pid, signal.SIGTERM)
    assert finish(north, 20).code == 130
    assert refused.code == 2
    assert len(complaints(refused)) == 1
    assert "rank 0 (Site A) refuses: expected the settings of rank 0" in complaints(refused)[0]


def name_of(pid):
    return Path(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]).name


def test_a_party_whose_launcher_is_killed_says_so(tmp_path):
    consortium = Consortium(tmp_path, 3)
    process = consortium.start(0)
    assert wait_until((tmp_path / "meet").exists, 30)
    [launcher] = [pid for pid in descendants(process.pid) if name_of(pid) == "mpiexec"]
    os.kill(launcher, signal.SIGKILL)
    ended = finish(process, 20)
    assert ended.code == 137
    assert complaints(ended) == ["dpmpi: expected mpiexec to end by itself, found it ended by signal 9: start again"]
    assert wait_until(lambda: not survivors(tmp_path), 10)


def interrupted_run(tmp_path):
    """Three parties, one of them killed after some checkpoints; and party 1's folder as it was a while before."""
    consortium = Consortium(tmp_path, 3, AGREED + "rounds = 3000\n" + SUMS)
    started = {rank: consortium.start(rank, "--checkpoint-every", "50") for rank in range(3)}
    folder = consortium.own(1) / "run/checkpoint"
    assert wait_until(lambda: any(folder.glob("*.state")), 40)
    shutil.copytree(folder, tmp_path / "older")
    newest = max(path.name for path in folder.glob("*.state"))
    assert wait_until(lambda: not (folder / newest).exists(), 40)  # old ones are removed
    kill_party(started[2])
    for process in started.values():
        finish(process, 40)
    (tmp_path / "meet").unlink()
    return consortium


def test_a_party_with_older_or_other_files_cannot_resume_and_is_named(tmp_path):
    consortium = interrupted_run(tmp_path)
    own = consortium.own(1) / "run"
    true = tmp_path / "true"
    shutil.copytree(own / "checkpoint", true)

    def older():
        shutil.rmtree(own / "checkpoint")
        shutil.copytree(tmp_path / "older", own / "checkpoint")

    def edited():
        for path in (own / "checkpoint").glob("*.state"):
            path.write_bytes(path.read_bytes()[:-5] + b"other")

    for change in (older, edited):
        change()
        ended = consortium.run("--resume", "run")
        assert [one.code for one in ended.values()] == [1, 1, 1], [one.err for one in ended.values()]
        for one in ended.values():
            assert "for every rank, found none for rank 1" in complaints(one)[-1]
        shutil.rmtree(own / "checkpoint")
        shutil.copytree(true, own / "checkpoint")
        (tmp_path / "meet").unlink()
    again = consortium.run("--resume", "run")
    assert [one.code for one in again.values()] == [0, 0, 0], [one.err for one in again.values()]
