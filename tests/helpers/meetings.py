"""A meeting of ranks in this process, and strangers who come to it."""

import contextlib
import socket
import struct
import threading
import time

from dpmpi.crypto.keys import Identity
from dpmpi.errors import ProtocolError
from dpmpi.network.rendezvous.guest import Guest
from dpmpi.network.rendezvous.host import Host
from dpmpi.network.rendezvous.papers import Papers, Patience, Place

SIZE = 3
DIGEST = "ab" * 32
QUICK = Patience(arrival=20.0, silence=5.0)


class Meeting:
    """Rank 0 of a meeting in this process, with the identities of all."""

    def __init__(self, patience=QUICK, size=SIZE, count=1, identities=None):
        self.identities = identities or [Identity() for _ in range(size)]
        self.roster = tuple(identity.public for identity in self.identities)
        self.size, self.patience, self.news = size, patience, []
        self.host = Host(self.papers(0), Place(0, 0, count, size), patience)
        self.where = self.host.open("127.0.0.1", 0)
        self.found = self.error = None
        self.sockets, self.guests = [self.host._server], []
        self.thread = threading.Thread(target=self._meet, daemon=True)
        self.thread.start()

    def _meet(self):
        try:
            self.found = self.host.meet(self.news.append)
            self.host.hand_out({first: f"port {first}" for first in self.found if first})
        except Exception as error:
            self.error = error

    def papers(self, rank, identity=None, digest=DIGEST, roster=None):
        return Papers(identity or self.identities[rank], roster or self.roster, ("North", "South", "West"), digest)

    def guest(self, rank, first=None, count=1, size=None, **papers):
        place = Place(rank, rank if first is None else first, count, size or self.size)
        self.guests.append(Guest(self.papers(rank, **papers), place, self.patience))
        return self.guests[-1]

    def end(self):
        """Leave no connection and no thread behind."""
        self.host.leave(0)
        for wire in [*self.host._seats.values(), *(one._wire for one in self.guests if hasattr(one, "_wire"))]:
            wire.close()
        for one in self.guests:
            one._ended = True

    def meet(self, guest):
        return guest.meet(lambda: self.where, self.news.append)

    def in_background(self, *guests):
        """Let guests meet; return what they got, by rank, when `join` is called."""
        got = {}

        def go(guest):
            try:
                got[guest.place.rank] = self.meet(guest)
            except Exception as error:
                got[guest.place.rank] = error

        threads = [threading.Thread(target=go, args=(guest,), daemon=True) for guest in guests]
        for thread in threads:
            thread.start()

        def join():
            for thread in threads:
                thread.join(20)
            self.thread.join(20)
            return got

        return join

    def heard(self, words, seconds=10.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(words in line for line in self.news):
                return True
            time.sleep(0.01)
        raise AssertionError(f"{words!r} is not among {self.news}")


def frame(content):
    return struct.pack(">I", len(content)) + content


def stranger(where, *said, listen=True):
    """Connect, say something, and return all that is answered."""
    with socket.create_connection(where, 10) as connection:
        for part in said:
            connection.sendall(part)
        heard = b""
        while listen:
            part = connection.recv(4096)
            if not part:
                break
            heard += part
        return heard


def quietly(function, *arguments):
    with contextlib.suppress(ProtocolError, OSError):
        function(*arguments)


def lost(line, seconds=10.0):
    """What a lifeline says of a loss, within so many seconds."""
    end = time.monotonic() + seconds
    while line.lost is None and time.monotonic() < end:
        time.sleep(0.01)
    return line.lost


def met(meeting):
    """Guests 1 and 2 of a meeting at which all have come."""
    guests = [meeting.guest(1), meeting.guest(2)]
    meeting.in_background(*guests)()
    return guests
