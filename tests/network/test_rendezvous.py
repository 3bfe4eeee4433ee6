"""Ranks that find each other by TCP: who is let in, who is turned away, and how a loss is told."""

import json
import os
import socket
import struct
import threading
import time

import pytest
from meetings import Meeting, frame, lost, met, quietly, stranger

from dpmpi.crypto.keys import Handshake, Identity
from dpmpi.errors import ConfigError, NeighbourSilent, ProtocolError, SealBroken
from dpmpi.network.rendezvous.papers import MAGIC, Patience, Place, format_address, parse_address


@pytest.fixture
def meeting():
    made = Meeting()
    yield made
    made.end()


def test_ranks_come_in_any_order_and_get_the_ports(meeting):
    got = meeting.in_background(meeting.guest(2), meeting.guest(1))()
    assert got == {1: {1: "port 1", 2: "port 2"}, 2: {1: "port 1", 2: "port 2"}}
    assert sorted(meeting.found) == [0, 1, 2]
    assert any("rank 1 (South) is here" in line for line in meeting.news)


def test_a_party_of_several_ranks():
    meeting = Meeting(size=4)
    got = meeting.in_background(meeting.guest(1), meeting.guest(2, count=2), meeting.guest(3, first=2, count=2))()
    assert got[3] == {1: "port 1", 2: "port 2"}
    assert {first: place.count for first, place in meeting.found.items()} == {0: 1, 1: 1, 2: 2}
    meeting.end()


def test_parties_that_overlap_are_refused():
    meeting = Meeting()
    got = meeting.in_background(meeting.guest(1, count=2), meeting.guest(2))()
    assert isinstance(meeting.error, ConfigError)
    assert all(isinstance(one, ProtocolError) for one in got.values())
    meeting.end()


STRANGE = {
    "random bytes": [os.urandom(500)],
    "nothing, as a port scan": [],
    "a web browser": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    "a huge frame": [struct.pack(">I", 1 << 31)],
    "no JSON": [frame(b"\xff\xfe")],
    "deep JSON": [frame(b"[" * 60000)],
    "no card": [frame(b'{"kind": "card"}')],
    "wrong types": [frame(json.dumps({"kind": "card", "rank": [], "first": 1, "count": 1, "size": 3}).encode())],
}


@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE)
def test_strangers_are_named_and_dropped_and_the_others_meet(meeting, said):
    stranger(meeting.where, *said, listen=bool(said))
    meeting.heard("turned away 127.0.0.1")
    got = meeting.in_background(meeting.guest(1), meeting.guest(2))()
    assert got[1] == got[2] == {1: "port 1", 2: "port 2"}


def test_strangers_who_say_nothing_do_not_keep_the_others_waiting(meeting):
    silent = [socket.create_connection(meeting.where, 10) for _ in range(20)]
    begin = time.monotonic()
    got = meeting.in_background(meeting.guest(1), meeting.guest(2))()
    assert got[1] == {1: "port 1", 2: "port 2"}
    assert time.monotonic() - begin < 8  # less than one introduction may take
    for connection in silent:
        connection.close()


@pytest.mark.parametrize(
    ("rank", "changed", "expected"),
    [
        (1, {"identity": Identity()}, "found another one"),
        (1, {"digest": "cd" * 32}, "expected the settings of rank 0, found others on rank 1 (South)"),
        (1, {"size": 4}, "expected a run of 3 ranks, found --of 4"),
        (0, {}, "expected ranks from 1 to 2, found 0"),
    ],
    ids=["a wrong key", "a right key with another config", "another size", "a second rank 0"],
)
def test_a_rank_that_does_not_fit_is_refused_in_words(meeting, rank, changed, expected):
    with pytest.raises(ConfigError, match="refuses: ") as refused:
        meeting.meet(meeting.guest(rank, **changed))
    assert expected in str(refused.value)
    meeting.heard(expected)
    got = meeting.in_background(meeting.guest(1), meeting.guest(2))()
    assert got[2] == {1: "port 1", 2: "port 2"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "which came and was turned away (expected the settings of rank 0, found others on rank 1 (South)"),
        ({"identity": Identity()}, "has it started"),  # a stranger, who may not tell them anything
    ],
    ids=["its key", "another key"],
)
def test_those_who_wait_hear_why_a_rank_was_turned_away(changed, said):
    meeting = Meeting(Patience(arrival=5.0, silence=5.0))
    join = meeting.in_background(meeting.guest(2))
    with pytest.raises(ConfigError, match="refuses: "):
        meeting.meet(meeting.guest(1, digest="cd" * 32, **changed))
    got = join()
    for error in (got[2], meeting.error):
        assert "waited 5 s for rank 1 (South)" in str(error)
        assert said in str(error)
    meeting.end()


def test_a_second_rank_1_is_refused_and_the_first_stays(meeting):
    join = meeting.in_background(meeting.guest(1))
    meeting.heard("rank 1 (South) is here")
    with pytest.raises(ConfigError, match="found a second one"):
        meeting.meet(meeting.guest(1))
    others = meeting.in_background(meeting.guest(2))
    assert join()[1] == others()[2] == {1: "port 1", 2: "port 2"}


def test_a_recorded_hello_is_of_no_use(meeting):
    """Somebody who recorded all that rank 1 said at another start says it again."""
    other = Meeting(identities=meeting.identities)
    said, through = [], socket.create_server(("127.0.0.1", 0))

    def record():
        connection, _ = through.accept()
        server = socket.create_connection(other.where, 10)
        with connection, server:
            connection.sendall(server.recv(4096))
            said.append(connection.recv(4096))
            server.sendall(said[0])
            server.recv(4096)

    threading.Thread(target=record, daemon=True).start()
    guest = meeting.guest(1)
    threading.Thread(target=lambda: quietly(guest.meet, through.getsockname, meeting.news.append), daemon=True).start()
    other.heard("rank 1 (South) is here")
    assert b"refused" in stranger(meeting.where, said[0])
    meeting.heard("turned away 127.0.0.1")
    assert 1 not in meeting.host._seats
    through.close()
    other.end()


def test_a_guest_does_not_believe_somebody_else_at_the_address_of_rank_0():
    meeting = Meeting()
    false = Meeting()  # has another identity for rank 0
    false.roster = (false.roster[0], *meeting.roster[1:])
    false.host.papers = false.papers(0)
    with pytest.raises(SealBroken, match="expected the key that the roster has in the hello of rank 0"):
        meeting.guest(1).meet(lambda: false.where, meeting.news.append)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def other_service():
            with server.accept()[0] as connection:
                connection.sendall(frame(b"220 mail ready"))

        threading.Thread(target=other_service, daemon=True).start()
        with pytest.raises(ConfigError, match="found another service"):
            meeting.guest(1).meet(server.getsockname, meeting.news.append)
    meeting.end()
    false.end()


def test_a_rank_that_never_comes_is_named_by_all():
    meeting = Meeting(Patience(arrival=1.0, silence=5.0))
    got = meeting.in_background(meeting.guest(1))()
    assert isinstance(meeting.error, NeighbourSilent)
    assert "waited 1 s for rank 2 (West)" in str(meeting.error)
    assert "rank 2 (West)" in str(got[1])
    with pytest.raises(NeighbourSilent, match=r"waited 1 s for rank 0 .North."):
        meeting.guest(1).meet(lambda: None, meeting.news.append)
    meeting.end()


def test_a_rank_that_goes_before_all_have_come_may_come_again(meeting):
    first = meeting.guest(1)
    threading.Thread(target=lambda: quietly(meeting.meet, first), daemon=True).start()
    meeting.heard("rank 1 (South) is here")
    meeting.host._seats[1].close()
    meeting.heard("waiting for it")
    got = meeting.in_background(meeting.guest(1), meeting.guest(2))()
    assert got[1] == got[2] == {1: "port 1", 2: "port 2"}


def test_a_broken_connection_is_told_to_all(meeting):
    south, west = met(meeting)
    south._wire.close()
    assert lost(meeting.host) == lost(west) == "rank 1 (South) was lost"
    with pytest.raises(ProtocolError, match=r"rank 1 .South. was lost"):
        west.check()


def test_a_rank_that_ends_early_is_told_to_all(meeting):
    south, west = met(meeting)
    south.leave(2)
    assert lost(west) == "rank 1 (South) ended early (exit code 2): it says why at its own terminal"


def test_the_end_of_rank_0_is_told_to_all(meeting):
    south, west = met(meeting)
    meeting.host.leave(1)
    assert lost(south) == lost(west) == "rank 0 (North) ended early (exit code 1): it says why at its own terminal"


def test_silence_is_a_loss():
    meeting = Meeting(Patience(arrival=20.0, silence=1.0))
    south, west = met(meeting)
    south._ended = True  # its heart stops
    assert lost(west) == "rank 1 (South) was lost"
    meeting.end()


def test_an_end_that_is_well_is_no_loss(meeting):
    south, west = met(meeting)
    south.leave(0)
    west.leave(0)
    meeting.host.leave(0)
    time.sleep(0.3)
    assert south.lost is west.lost is meeting.host.lost is None


def test_a_changed_frame_is_a_loss(meeting):
    south, west = met(meeting)
    south._wire._connection.sendall(frame(os.urandom(60)))
    assert lost(west) == "rank 1 (South) was lost"


def test_addresses():
    for host, port in (("10.0.0.1", 7000), ("fd00::1", 1), ("hospital-a.example", 65535)):
        assert parse_address(format_address(host, port)) == (host, port)
    for wrong in (
        "10.0.0.1:7000",
        "tcp://10.0.0.1",
        "tcp://:7000",
        "tcp://x:0",
        "tcp://x:65536",
        "tcp://fd00::1:7",
        "",
    ):
        with pytest.raises(ConfigError, match="expected an address"):
            parse_address(wrong)


def test_the_greeting_says_which_service_it_is(meeting):
    assert stranger(meeting.where, b"\0\0\0\0")[4:].startswith(MAGIC)


def test_frames_hold_no_more_than_kinds_numbers_and_ports(meeting):
    """What is said in clear before the seal: the card, with nothing of the records."""
    said, through = [], socket.create_server(("127.0.0.1", 0))

    def record():
        connection, _ = through.accept()
        server = socket.create_connection(meeting.where, 10)
        with connection, server:
            connection.sendall(server.recv(4096))
            said.append(connection.recv(4096))

    threading.Thread(target=record, daemon=True).start()
    threading.Thread(
        target=lambda: quietly(meeting.guest(1).meet, through.getsockname, meeting.news.append), daemon=True
    ).start()
    end = time.monotonic() + 10
    while not said and time.monotonic() < end:
        time.sleep(0.01)
    card = json.loads(said[0][4:])
    assert set(card) == {"kind", "rank", "first", "count", "size", "nonce", "digest", "hello"}
    through.close()


def test_handshakes_of_other_sessions_do_not_verify(meeting):
    """(4) binds the party's ranks: a hello for a party of one is none for a party of two."""
    a, b, papers = os.urandom(32), os.urandom(32), meeting.papers(1)
    sessions = [
        papers.session(a, b, Place(1, 1, 1, 3)),
        papers.session(a, b, Place(1, 1, 2, 3)),
        papers.session(b, a, Place(1, 1, 1, 3)),
        meeting.papers(1, digest="cd" * 32).session(a, b, Place(1, 1, 1, 3)),
    ]
    assert len({session.run for session in sessions}) == 4
    assert len({Handshake(session, 1, papers.identity).hello for session in sessions}) == 4
