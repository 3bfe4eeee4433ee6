"""Attacks on the meeting of ranks: whoever comes to the port, or sits in rank 0's place, ranks meet or say why not."""

import json
import os
import socket
import struct
import threading
import time

import pytest
from launcher import wait_until
from meetings import QUICK, Meeting, frame, lost, met, quietly, stranger

from dpmpi.crypto.keys import Handshake
from dpmpi.errors import ConfigError, NeighbourSilent, ProtocolError, SealBroken
from dpmpi.network.meeting_point import announce, check_meeting_point, where_to
from dpmpi.network.rendezvous import guest as guest_side
from dpmpi.network.rendezvous import host as host_side
from dpmpi.network.rendezvous.door import MOST_NAMED, STRANGERS, network_of
from dpmpi.network.rendezvous.papers import MAGIC, Patience, Place, arrange, readable

PORTS = {1: "port 1", 2: "port 2"}


@pytest.fixture
def meeting():
    made = Meeting()
    yield made
    made.end()


def all_meet(meeting):
    assert meeting.in_background(meeting.guest(1), meeting.guest(2))() == {1: PORTS, 2: PORTS}


def card(**changed):
    usual = {
        "kind": "card",
        "rank": 1,
        "first": 1,
        "count": 1,
        "size": 3,
        "nonce": "00" * 32,
        "digest": "",
        "hello": "",
    }
    return frame(json.dumps(usual | changed).encode())


CARDS = {
    "infinity": {"rank": float("inf")},
    "not a number": {"rank": float("nan")},
    "a fraction": {"count": 1.5},
    "a huge number": {"size": 10**4000},
    "a negative rank": {"rank": -1},
    "no ranks": {"count": -(2**63)},
    "a nonce of another kind": {"nonce": 7},
    "a hello of another kind": {"hello": [1]},
    "surrogates": {"digest": "\ud800", "hello": "\ud800"},
}


@pytest.mark.parametrize("changed", CARDS.values(), ids=CARDS)
def test_cards_that_no_rank_writes(meeting, changed):
    """A thread that ends by an error of Python's own fails the test."""
    stranger(meeting.where, card(**changed))
    meeting.heard("turned away 127.0.0.1: ")
    all_meet(meeting)


def test_a_frame_that_is_cut(meeting):
    stranger(meeting.where, struct.pack(">I", 100) + b"half", listen=False)
    meeting.heard("turned away 127.0.0.1: it said nothing that a rank says")
    all_meet(meeting)


def test_a_byte_now_and_then_does_not_hold_a_place(monkeypatch):
    """Somebody who is slow on purpose has as long as everybody else, in all."""
    monkeypatch.setattr(host_side, "INTRODUCTION_SECONDS", 1.0)
    meeting = Meeting()
    with socket.create_connection(meeting.where, 10) as connection:
        connection.sendall(struct.pack(">I", 60000))
        begin = time.monotonic()

        def dropped():
            try:
                connection.sendall(b"x")
            except OSError:
                return True
            return False

        assert wait_until(dropped, 20)
        assert time.monotonic() - begin < 15
    all_meet(meeting)
    meeting.end()


def test_strangers_who_hold_all_places_do_not_keep_ranks_out(meeting):
    """They hold them for longer than this test takes: the oldest goes when there are too many."""
    held = [socket.create_connection(meeting.where, 10) for _ in range(2 * STRANGERS)]
    all_meet(meeting)
    assert len(meeting.host._door._waiting) <= STRANGERS
    for connection in held:
        connection.close()


def test_thousands_of_connections_are_named_once(meeting):
    for _ in range(1000):
        socket.create_connection(meeting.where, 10).close()
    all_meet(meeting)
    assert sum("turned away" in line for line in meeting.news) <= 2


def test_no_more_strangers_are_named_than_a_terminal_shows(meeting):
    for size in range(4, MOST_NAMED + 20):
        stranger(meeting.where, card(size=size, hello="00" * 148))
    assert sum("turned away" in line for line in meeting.news) == MOST_NAMED + 1
    assert meeting.news[-1] == "others were turned away, too many to name"
    all_meet(meeting)


def test_the_port_survives_a_lack_of_handles(meeting, monkeypatch):
    class Poor:
        def __init__(self, server):
            self.server, self.left = server, 3

        def accept(self):
            self.left -= 1
            if self.left > 0:
                raise OSError(24, "Too many open files")
            return self.server.accept()

        def __getattr__(self, name):
            return getattr(self.server, name)

    poor = Poor(meeting.host._server)
    monkeypatch.setattr(meeting.host, "_server", poor)
    socket.create_connection(meeting.where, 10).close()  # the thread now asks the poor one
    all_meet(meeting)
    assert poor.left <= 0


def test_networks_of_strangers():
    assert network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("fd00:1:2:3:4::1") == network_of("fd00:1:2:3:ffff::2") != network_of("fd00:1:2:4::1")
    assert network_of("fe80::1%eth0") == "fe80::/64"


def test_a_stranger_and_a_second_rank_1_after_the_start(meeting):
    south, west = met(meeting)
    stranger(meeting.where, os.urandom(50))
    meeting.heard("turned away 127.0.0.1: it said nothing")
    with pytest.raises(ConfigError, match="found a second one"):
        meeting.meet(meeting.guest(1))
    south.leave(0)
    west.leave(0)
    time.sleep(0.2)
    assert south.lost is west.lost is meeting.host.lost is None


def test_two_runs_of_the_same_parties_do_not_mix(meeting):
    """South goes to the other run: that one has its South, and this one waits for its own."""
    other = Meeting(identities=meeting.identities)
    join = other.in_background(other.guest(1))
    other.heard("rank 1 (South) is here")
    with pytest.raises(ConfigError, match="found a second one"):
        meeting.guest(1).meet(lambda: other.where, meeting.news.append)
    all_meet(meeting)
    other.in_background(other.guest(2))()
    assert join()[1] == PORTS
    other.end()


# --- somebody in rank 0's place --------------------------------------------------------------------------------------


def impostor(answer, nonce=b"a" * 32):
    """A server that greets one guest and answers its card."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server.accept()[0] as connection:
            connection.sendall(frame(MAGIC + nonce))
            length = struct.unpack(">I", connection.recv(4, socket.MSG_WAITALL))[0]
            said = json.loads(connection.recv(length, socket.MSG_WAITALL))
            connection.sendall(frame(json.dumps(answer(said)).encode()))
            connection.recv(1)

    threading.Thread(target=lambda: quietly(serve), daemon=True).start()
    return server


def test_a_refusal_that_rank_0_did_not_sign_is_nobodys(meeting):
    answers = [
        lambda _: {"kind": "refused", "text": "run rm -r\x1b[2J"},
        lambda _: {"kind": "refused", "text": "no", "signature": meeting.identities[1].sign(b"no").hex()},
        lambda _: {"kind": "refused", "text": "no", "signature": 5},
    ]
    for answer in answers:
        with impostor(answer) as server, pytest.raises(ConfigError, match="found somebody without its key") as refused:
            meeting.guest(1).meet(server.getsockname, meeting.news.append)
        assert "rank 0 (North) refuses" not in str(refused.value)
        assert str(refused.value).isprintable()


def test_a_hello_that_comes_back_is_not_rank_0(meeting):
    with impostor(lambda said: {"kind": "hello", "hello": said["hello"]}) as server, pytest.raises(SealBroken):
        meeting.guest(1).meet(server.getsockname, meeting.news.append)


def test_a_hello_of_rank_0_from_an_earlier_meeting_is_of_no_use(meeting):
    """The greeting, and the hello that rank 0 gave to the same guest for it, are said again."""
    papers, nonce = meeting.papers(0), os.urandom(32)
    earlier = Handshake(papers.session(nonce, os.urandom(32), Place(1, 1, 1, 3)), 0, papers.identity).hello
    answer = {"kind": "hello", "hello": earlier.hex()}
    with impostor(lambda _: answer, nonce) as server, pytest.raises(SealBroken, match="is of another run"):
        meeting.guest(1).meet(server.getsockname, meeting.news.append)


def test_a_host_that_says_no_more_does_not_hold_a_guest(monkeypatch):
    """It greets, and then sends a byte now and then."""
    monkeypatch.setattr(guest_side, "INTRODUCTION_SECONDS", 0.5)
    meeting, server = Meeting(Patience(1.5, 5.0)), socket.create_server(("127.0.0.1", 0))

    def serve():
        with server.accept()[0] as connection:
            connection.sendall(struct.pack(">I", 60000))
            while True:
                connection.sendall(b"x")
                time.sleep(0.05)

    threading.Thread(target=lambda: quietly(serve), daemon=True).start()
    begin = time.monotonic()
    with server, pytest.raises(NeighbourSilent, match=r"waited 1.5 s for rank 0"):
        meeting.guest(1).meet(server.getsockname, meeting.news.append)
    assert time.monotonic() - begin < 15
    meeting.end()


def test_rank_0_does_not_write_to_the_terminals_of_others(meeting):
    join = meeting.in_background(meeting.guest(1))
    meeting.heard("rank 1 (South) is here")
    assert wait_until(lambda: 1 in meeting.host._seats, 10)
    meeting.host._tell("waiting", text="\x1b[2Jgone\n" + 9999 * "x")
    meeting.heard("gone")
    assert all(line.isprintable() and len(line) < 600 for line in meeting.news)
    meeting.in_background(meeting.guest(2))()
    assert join()[1] == PORTS
    assert readable("a\x1bb\n") == "a\\x1bb\\n"


@pytest.mark.parametrize("ports", [None, {}, [1], {"x": 1}, {"1": "p", "7": "q"}, {"2": "p"}])
def test_ports_that_cannot_be(meeting, ports):
    def hand_out():
        assert wait_until(lambda: 1 in meeting.host._seats, 10)
        meeting.host._tell("ports", ports=ports)

    threading.Thread(target=hand_out, daemon=True).start()
    with pytest.raises(ProtocolError, match="expected the ports of all parties"):
        meeting.meet(meeting.guest(1))


# --- parties that lie, or leave at the wrong moment ------------------------------------------------------------------


def test_the_party_of_rank_0_may_have_several_ranks():
    meeting = Meeting(size=4, count=2)
    got = meeting.in_background(meeting.guest(1, first=0, count=2), meeting.guest(2), meeting.guest(3))()
    assert got[1] == got[2] == {2: "port 2", 3: "port 3"}
    assert [place.count for place in meeting.found.values()] == [2, 1, 1]
    meeting.end()


LIES = {
    "more ranks than it has": {1: (1, 2), 2: (2, 1)},
    "rank 0's party": {1: (0, 2), 2: (2, 1)},
    "another one's party": {1: (1, 1), 2: (1, 1)},
    "two that contradict": {1: (1, 2), 2: (1, 1)},
    "fewer in all": {1: (1, 1), 2: (1, 2)},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_parties_that_lie_about_their_ranks(meeting, lie):
    places = {rank: Place(rank, first, count, 3) for rank, (first, count) in lie.items()}
    with pytest.raises(ConfigError, match=r"rank [012] \((North|South|West)\)"):
        arrange(places, Place(0, 0, 1, 3), meeting.papers(0))


def test_a_rank_that_leaves_before_the_ports_are_out_is_named_by_all():
    meeting = Meeting()
    meeting.host.hand_out = lambda ports: None  # rank 0 is slow to open them
    south, west = meeting.guest(1), meeting.guest(2)
    meeting.in_background(south)
    join = meeting.in_background(west)
    assert wait_until(lambda: meeting.found, 10)
    south._wire.close()
    assert lost(meeting.host) == "rank 1 (South) was lost"
    assert str(join()[2]) == "rank 1 (South) was lost"
    meeting.end()


def test_a_guest_waits_no_longer_than_it_was_told(meeting, monkeypatch):
    """Rank 0 would wait for the others for longer."""
    monkeypatch.setattr(guest_side, "TURN_SECONDS", 0.5)
    guest = meeting.guest(1)
    guest.patience = Patience(1.0, 5.0)
    with pytest.raises(NeighbourSilent, match=r"waited 1 s for rank 2 \(West\)"):
        meeting.meet(guest)


def test_a_rank_that_sends_pieces_of_frames_is_silent():
    meeting = Meeting(Patience(QUICK.arrival, 1.0))
    south, west = met(meeting)
    south._ended = True  # no beats any more
    stop = threading.Event()

    def trickle():
        south._wire._connection.sendall(struct.pack(">I", 60000))
        while not stop.wait(0.1):
            south._wire._connection.sendall(b"x")

    threading.Thread(target=lambda: quietly(trickle), daemon=True).start()
    assert lost(west, 20) == "rank 1 (South) was lost"
    stop.set()
    meeting.end()


@pytest.mark.parametrize("code", [[], "x", float("inf"), None, 10**9])
def test_exit_codes_that_are_none(meeting, code):
    south, west = met(meeting)
    south._wire.say("end", code=code)
    assert lost(west) == "rank 1 (South) ended early (exit code 1): it says why at its own terminal"


# --- the file with rank 0's address ----------------------------------------------------------------------------------


def test_what_is_no_file_is_no_meeting_point(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for wrong in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match="found something else"):
            where_to(str(wrong))
        with pytest.raises(ConfigError, match="give another --meet"):
            announce(str(wrong), ("x", 7))
    assert where_to(str(tmp_path / "meet")) is None


def test_rank_0_replaces_an_earlier_address_and_no_other_file(tmp_path):
    meet, other = tmp_path / "meet", tmp_path / "agreed.toml"
    for port in (7000, 7001):
        announce(str(meet), ("127.0.0.1", port))
        assert where_to(str(meet)) == ("127.0.0.1", port)
    other.write_text("epsilon = 1\n")
    with pytest.raises(ConfigError, match=r"expected no file at .*agreed.toml, or one with an earlier address"):
        announce(str(other), ("127.0.0.1", 7000))
    assert other.read_text() == "epsilon = 1\n"
    other.write_bytes(b"\xff" * 100_000)
    with pytest.raises(ConfigError, match="expected an address"):
        where_to(str(other))


def test_an_address_without_its_beginning_is_not_taken_for_a_file():
    for wrong in ("127.0.0.1:7000", "north:7000", "http://north:7000", "tcp:north:7000"):
        with pytest.raises(ConfigError, match="expected an address"):
            check_meeting_point(wrong)
    for right in ("tcp://north:7000", "meet", "/shared/run:7", "./a:7"):
        check_meeting_point(right)
