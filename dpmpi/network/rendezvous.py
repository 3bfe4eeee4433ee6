"""How ranks that start on their own find each other: a small TCP service of rank 0, and a lifeline to every other rank.

Rank 0 listens. Every other rank connects, and both prove who they are before anything else is said:

    rank 0 -> k    MAGIC, nonce a                                                                          (1)
    k -> rank 0    card: k, the ranks of its party, nonce b, digest of its settings, hello of k            (2)
    rank 0 -> k    the hello of rank 0, or a refusal in words                                              (3)

The hellos are those of `crypto/keys.py`, signed by identities of the roster, for the session

    run = SHA-256(JOIN | a | b | digest | k | first rank of k's party | number of its ranks)               (4)

A hello that was recorded at another start, or made with another key, for another rank or for other settings, does not
verify. Whoever sends anything else is named by its address and dropped; the others do not wait for it. From (3) on
every frame is sealed under the keys of the pair, in order. When all ranks have come, rank 0 hands out the ports where
the parties meet in MPI. All that is agreed on here is agreed on again, rank by rank, when the ranks meet
(`handshake.meet`): this service decides who takes part, not what is computed.

The connections stay open as lifelines. A rank that ends well says so; one whose connection breaks, that ends early, or
that is not heard for the deadline is lost, and rank 0 tells all the others which. No frame carries anything of the
records: kinds, rank numbers, ports and exit codes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.keys import HELLO_BYTES, Handshake, Identity, Roster, Session, hello_bytes, verify_hello
from dpmpi.crypto.seal import SealedPair
from dpmpi.errors import ConfigError, DpmpiError, NeighbourSilent, ProtocolError, SealBroken

MAGIC = b"dpmpi join 1\n"
NONCE_BYTES = 32
LONGEST_FRAME = 1 << 16
INTRODUCTION_SECONDS = 10.0
"""How long somebody who connects may take to say who it is."""
RETRY_SECONDS = 0.25
"""Between two attempts to reach rank 0, which may not have started yet."""
BEATS = 4
"""Frames to be heard within the deadline: one that is lost makes nobody lost."""
NEWS_SECONDS = 10.0
"""Between two lines on who has not come yet."""
STRANGERS = 64
"""Connections that may introduce themselves at a time."""
MOST_NAMED = 50
"""Strangers that are named: a scan of ports does not fill the terminal."""

_ADDRESS = re.compile(r"tcp://(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:/\[\]]+)):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Place:
    """Where a rank sits: its number, the ranks of its party, and the ranks of the run."""

    rank: int
    first: int
    count: int
    size: int

    def check(self) -> None:
        """Raise `ConfigError` for ranks that the run does not have."""
        if not 0 <= self.first < self.first + self.count <= self.size:
            raise ConfigError(
                f"expected ranks from 0 to {self.size - 1}, found {self.first} to {self.first + self.count - 1}: "
                "check --rank, --of and -n"
            )


@dataclass(frozen=True)
class Papers:
    """What a rank shows and expects to see: its identity, the roster with its names, the digest of its settings."""

    identity: Identity
    roster: Roster
    names: Sequence[str]
    digest: str

    def call(self, rank: int) -> str:
        """Return a rank as messages call it."""
        name = self.names[rank] if rank < len(self.names) else ""
        return f"rank {rank} ({name})" if name else f"rank {rank}"


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `tcp://host:port`, `tcp://[::1]:port`; raise `ConfigError`."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"]) < 1 << 16:
        raise ConfigError(
            f"expected an address such as tcp://10.0.0.1:7000 or tcp://[fd00::1]:7000, found {text!r:.80}"
        )
    return found["six"] or found["host"], int(found["port"])


def format_address(host: str, port: int) -> str:
    """Return the inverse of `parse_address`."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


class _Wire:
    """Frames over a connection: a length, then so many bytes; sealed once both sides have proven who they are."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._pair: SealedPair | None = None
        self._sealed = self._opened = 0
        self._lock = threading.Lock()

    def seal(self, pair: SealedPair) -> None:
        self._pair = pair

    def send(self, content: bytes) -> None:
        with self._lock:
            if self._pair is not None:
                self._sealed += 1
                out = bytearray(len(content) + SEAL_BYTES)
                self._pair.seal(bytearray(content), out, self._sealed, 0)
                content = bytes(out)
            self.connection.sendall(struct.pack(">I", len(content)) + content)

    def receive(self) -> bytes:
        """Return the next frame; raise `ConnectionError` at the end, `SealBroken` for a changed one."""
        (length,) = struct.unpack(">I", self._exactly(4))
        if length > LONGEST_FRAME:
            raise ConnectionError(f"a frame of {length} bytes")
        content = self._exactly(length)
        if self._pair is None:
            return content
        self._opened += 1
        out = bytearray(max(0, length - SEAL_BYTES))
        self._pair.open(bytearray(content), out, self._opened, 0)
        return bytes(out)

    def say(self, kind: str, **facts: Any) -> None:
        self.send(json.dumps({"kind": kind, **facts}).encode())

    def hear(self) -> dict[str, Any]:
        try:
            said = json.loads(self.receive())
            if isinstance(said, dict) and isinstance(said.get("kind"), str):
                return said
        except (ValueError, RecursionError):
            pass
        raise ConnectionError("something else than a frame")

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = self.connection.recv(count - len(parts))
            if not part:
                raise ConnectionError("the end")
            parts += part
        return parts

    def close(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self.connection.close()


def _session(papers: Papers, a: bytes, b: bytes, place: Place) -> Session:
    """Return (4)."""
    numbers = struct.pack(">QQQ", place.rank, place.first, place.count)
    return Session(hashlib.sha256(b"dpmpi join" + a + b + bytes.fromhex(papers.digest) + numbers).digest(), 0)


@dataclass(frozen=True)
class Patience:
    """How many seconds a rank waits for the others."""

    arrival: float
    """Until all have come."""
    silence: float
    """Until one of which nothing is heard is lost."""


@dataclass
class Lifeline:
    """What this rank knows of the others while the run lasts."""

    papers: Papers
    place: Place
    patience: Patience
    lost: str | None = None
    """Which rank was lost, in words; None while all is well."""
    on_loss: Callable[[str], None] | None = None
    """Called once, from a thread, when a rank is lost."""
    _ended: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Raise `ProtocolError` if a rank was lost."""
        if self.lost is not None:
            raise ProtocolError(self.lost)

    def mark_lost(self, text: str) -> bool:
        """Remember the first loss; return whether this is it."""
        with self._guard:
            if self._ended or self.lost is not None:
                return False
            self.lost = text
        if self.on_loss is not None:
            self.on_loss(text)
        return True

    def leave(self, code: int) -> None:
        """Tell the others that this rank is through (code 0), or that it ends early."""
        raise NotImplementedError


class Guest(Lifeline):
    """The lifeline of any rank but the first."""

    _wire: _Wire

    def meet(self, address: Callable[[], tuple[str, int] | None], news: Callable[[str], None]) -> dict[int, str]:
        """Go to rank 0, prove who this is, and return the ports of all parties by their first ranks, when all came.

        `address` returns where rank 0 listens, None while that is not known.
        """
        end = time.monotonic() + self.patience.arrival
        wire = self._introduced(address, end, news)
        self._wire = wire
        wire.connection.settimeout(self.patience.silence)
        threading.Thread(target=_beat, args=(self, lambda: [wire]), daemon=True).start()
        try:
            ports = self._ports(news)
        except BaseException:
            self._ended = True
            wire.close()
            raise
        threading.Thread(target=self._listen, daemon=True).start()
        return ports

    def _ports(self, news: Callable[[str], None]) -> dict[int, str]:
        """Wait for what rank 0 hands out."""
        while True:
            try:
                said = self._wire.hear()
            except (OSError, SealBroken) as error:
                raise ProtocolError(f"{self.papers.call(0)} was lost while the ranks met") from error
            if said["kind"] == "waiting" and self.place.rank == self.place.first:
                news(str(said.get("text"))[:500])
            elif said["kind"] == "lost":
                raise ProtocolError(str(said.get("text"))[:500])
            elif said["kind"] == "ports":
                return {int(first): str(port) for first, port in said["ports"].items()}

    def leave(self, code: int) -> None:
        """Tell rank 0, who tells the others."""
        self._ended = True
        with suppress(OSError):
            self._wire.say("bye" if code == 0 else "end", code=code)
            self._wire.connection.shutdown(socket.SHUT_WR)

    def _introduced(
        self, address: Callable[[], tuple[str, int] | None], end: float, news: Callable[[str], None]
    ) -> _Wire:
        """Return a connection on which both sides have proven who they are."""
        told, who, why = time.monotonic(), self.papers.call(0), "it has not said where it is"
        while True:
            try:
                where = address()
                if where is not None:
                    return self._introduce(_Wire(socket.create_connection(where, INTRODUCTION_SECONDS)))
            except OSError as error:
                why = f"{format_address(*where) if where else 'the address'}: {error.strerror or error}"
            if time.monotonic() > end:
                raise NeighbourSilent(
                    f"waited {self.patience.arrival:g} s for {who} ({why}): has it started, is its port open (--wait "
                    "SECONDS waits longer)?"
                )
            if time.monotonic() - told > NEWS_SECONDS and self.place.rank == self.place.first:
                told = time.monotonic()
                news(f"waiting for {who}, {self.patience.arrival - (end - told):.0f} s ({why})")
            time.sleep(RETRY_SECONDS)

    def _introduce(self, wire: _Wire) -> _Wire:
        """Run (1) to (3)."""
        papers, place = self.papers, self.place
        try:
            greeting = wire.receive()
            if greeting[: len(MAGIC)] != MAGIC or len(greeting) != len(MAGIC) + NONCE_BYTES:
                raise ConfigError("expected rank 0 at the address of --meet, found another service: check the address")
            a, b = greeting[len(MAGIC) :], os.urandom(NONCE_BYTES)
            session = _session(papers, a, b, place)
            hand = Handshake(session, place.rank, papers.identity)
            card = {"rank": place.rank, "first": place.first, "count": place.count, "size": place.size}
            wire.say("card", **card, nonce=b.hex(), digest=papers.digest, hello=hand.hello.hex())
            said = wire.hear()
            if said["kind"] != "hello":
                refused = ConfigError(f"{papers.call(0)} refuses: {str(said.get('text'))[:500]}")
                refused.told = True
                raise refused
            other = verify_hello(hello_bytes(said.get("hello"), 0), session, 0, papers.roster)
            wire.seal(SealedPair(session, place.rank, 0, hand.keys(other).purpose(b"join")))
        except BaseException:
            wire.close()
            raise
        return wire

    def _listen(self) -> None:
        """Hear of losses until the end."""
        while not self._ended:
            try:
                said = self._wire.hear()
            except (OSError, SealBroken):
                self.mark_lost(f"{self.papers.call(0)} was lost")
                break
            if said["kind"] == "lost":
                self.mark_lost(str(said.get("text"))[:500])
                break
            if said["kind"] == "bye":
                self._ended = True
        self._wire.close()


class Host(Lifeline):
    """The service of rank 0, and its lifelines to all others."""

    def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen at an address, at any port for 0; return the address."""
        try:
            family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = socket.socket(family, kind)
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._server.bind(where)
            self._server.listen(STRANGERS)
        except OSError as error:
            raise ConfigError(
                f"expected an address of this machine to listen at, found {format_address(host, port)}: "
                f"{error.strerror or error}"
            ) from error
        self._seats: dict[int, _Wire] = {}
        self._parties: dict[int, Place] = {}
        self._taken: set[int] = set()
        self._gone: set[int] = set()
        self._met = False
        self._turned_away = 0
        self._news: Callable[[str], None] = lambda text: None
        self._open = True
        self._strangers = threading.Semaphore(STRANGERS)
        return host, int(self._server.getsockname()[1])

    def meet(self, news: Callable[[str], None]) -> dict[int, Place]:
        """Wait until all ranks have come; return the parties by their first ranks."""
        self._news = news
        begin = told = time.monotonic()
        threading.Thread(target=self._welcome, daemon=True).start()
        threading.Thread(target=_beat, args=(self, lambda: list(self._seats.values())), daemon=True).start()
        while missing := [rank for rank in range(self.place.count, self.place.size) if rank not in self._seats]:
            time.sleep(0.02)
            self.check()
            now = time.monotonic()
            who = "; ".join(map(self.papers.call, missing[:5])) + (" and others" if len(missing) > 5 else "")
            if now - begin > self.patience.arrival:
                text = f"waited {self.patience.arrival:g} s for {who}: has it started (--wait SECONDS waits longer)?"
                self._tell("lost", text=text)
                raise NeighbourSilent(text)
            if now - told > NEWS_SECONDS:
                told = now
                news(f"waiting for {who}, {now - begin:.0f} s")
                self._tell("waiting", text=f"waiting for {who}, {now - begin:.0f} s")
        parties = {0: Place(0, 0, self.place.count, self.place.size)}
        for rank, place in sorted(self._parties.items()):
            parties.setdefault(place.first, place)
            if parties[place.first].count != place.count or not place.first <= rank < place.first + place.count:
                text = f"expected the ranks of a party to tell the same of it, found others on {self.papers.call(rank)}"
                self._tell("lost", text=text)
                raise ConfigError(text)
        if sum(place.count for place in parties.values()) != self.place.size:
            text = f"expected parties of {self.place.size} ranks in all, found overlapping ones: check --rank and -n"
            self._tell("lost", text=text)
            raise ConfigError(text)
        return dict(sorted(parties.items()))

    def hand_out(self, ports: dict[int, str]) -> None:
        """Tell all ranks the ports of the parties, by their first ranks."""
        self._met = True
        self._tell("ports", ports=ports)

    def leave(self, code: int) -> None:
        """Tell all others."""
        self._ended = True
        call = self.papers.call(0)
        if code == 0:
            self._tell("bye")
        else:
            self._tell("lost", text=f"{call} ended early (exit code {code}): it says why at its own terminal")
        self._open = False
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def mark_lost(self, text: str) -> bool:
        """Remember the first loss, and tell all others of it."""
        first = super().mark_lost(text)
        if first:
            self._tell("lost", text=text)
        return first

    def _tell(self, kind: str, **facts: Any) -> None:
        for rank, wire in list(self._seats.items()):
            if rank not in self._gone:
                with suppress(OSError):
                    wire.say(kind, **facts)

    def _welcome(self) -> None:
        """Take connections until the end, each in a thread of its own."""
        while self._open:
            try:
                connection, where = self._server.accept()
            except OSError:
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(_Wire(connection), str(where[0])), daemon=True).start()

    def _serve(self, wire: _Wire, where: str) -> None:
        """Let somebody introduce itself; then be its lifeline."""
        wire.connection.settimeout(INTRODUCTION_SECONDS)
        rank = None
        try:
            rank = self._seat(wire, where)
        except (OSError, DpmpiError, ValueError, TypeError, KeyError, struct.error) as error:
            reason = str(error) if isinstance(error, DpmpiError) else "it said nothing that a rank says"
            self._turned_away += 1
            if self._turned_away <= MOST_NAMED:
                self._news(f"turned away {where}: {reason}")
            wire.close()
        finally:
            self._strangers.release()
        if rank is not None:
            self._attend(wire, rank)
            wire.close()

    def _seat(self, wire: _Wire, where: str) -> int:
        """Run (1) to (3) for one connection; return the rank, or refuse and raise."""
        papers, a = self.papers, os.urandom(NONCE_BYTES)
        wire.send(MAGIC + a)
        card = wire.hear()
        place = Place(*(int(card[name]) for name in ("rank", "first", "count", "size")))
        rank, b = place.rank, bytes.fromhex(card["nonce"])
        hello = hello_bytes(card["hello"], rank)
        if len(b) != NONCE_BYTES or len(hello) != HELLO_BYTES:
            raise ValueError
        refusal = self._refusal(place, str(card["digest"]))
        if refusal is not None:
            wire.say("refused", text=refusal)
            raise ConfigError(refusal)
        session = _session(papers, a, b, place)
        try:
            greeting = verify_hello(hello, session, rank, papers.roster)
        except SealBroken as error:
            wire.say("refused", text=str(error))
            raise
        with self._guard:
            taken = rank in self._taken
            self._taken.add(rank)
        if taken:
            text = f"expected one {papers.call(rank)}, found a second one: is it started twice?"
            wire.say("refused", text=text)
            raise ConfigError(text)
        try:
            hand = Handshake(session, 0, papers.identity)
            wire.say("hello", hello=hand.hello.hex())
            wire.seal(SealedPair(session, 0, rank, hand.keys(greeting).purpose(b"join")))
        except BaseException:
            self._taken.discard(rank)
            raise
        self._seats[rank], self._parties[rank] = wire, place
        self._news(f"{papers.call(rank)} is here, from {where}")
        return rank

    def _refusal(self, place: Place, digest: str) -> str | None:
        """Return why a rank cannot take part, before its signature is looked at; None if it can."""
        mine, who = self.place, self.papers.call(place.rank)
        if place.size != mine.size:
            return f"expected a run of {mine.size} ranks, found --of {place.size} on {who}: start all of them alike"
        if not mine.count <= place.rank < mine.size:
            return f"expected ranks from {mine.count} to {mine.size - 1}, found {place.rank}: check --rank"
        if digest != self.papers.digest:
            return f"expected the settings of rank 0, found others on {who}: start all of them alike"
        return None

    def _attend(self, wire: _Wire, rank: int) -> None:
        """Be the lifeline of a rank until it ends."""
        wire.connection.settimeout(self.patience.silence)
        call = self.papers.call(rank)
        while True:
            try:
                said = wire.hear()
            except (OSError, SealBroken):
                self._left(rank, f"{call} was lost")
                return
            if said["kind"] == "bye":
                self._gone.add(rank)
                return
            if said["kind"] == "end":
                code = int(said.get("code", 1))
                self._left(rank, f"{call} ended early (exit code {code}): it says why at its own terminal")
                return

    def _left(self, rank: int, text: str) -> None:
        """Note that a rank is gone: its place is free while the ranks meet, and the run ends after that."""
        with self._guard:
            waiting = not self._met
            if waiting:
                self._seats.pop(rank, None)
                self._taken.discard(rank)
            else:
                self._gone.add(rank)
        if waiting:
            self._news(f"{text}; waiting for it")
        else:
            self.mark_lost(text)


def _beat(line: Lifeline, wires: Callable[[], Sequence[_Wire]]) -> None:
    """Let the others hear of this rank often enough."""
    while not line._ended and line.lost is None:
        time.sleep(line.patience.silence / BEATS)
        for wire in wires():
            with suppress(OSError):
                wire.say("beat")
