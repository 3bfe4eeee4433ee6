"""Rank 0: the service at which all others introduce themselves, and its lifelines to them."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from dpmpi.crypto.keys import HELLO_BYTES, Handshake, hello_bytes, verify_hello
from dpmpi.crypto.seal import SealedPair
from dpmpi.errors import ConfigError, DpmpiError, NeighbourSilent, SealBroken
from dpmpi.network.rendezvous.door import Door
from dpmpi.network.rendezvous.lifeline import INTRODUCTION_SECONDS, NEWS_SECONDS, Lifeline, early_end
from dpmpi.network.rendezvous.papers import MAGIC, NONCE_BYTES, Papers, Place, arrange, format_address
from dpmpi.network.rendezvous.wire import Wire

MOST_SHOWN = 5
"""Missing ranks that are named in one line."""
BREATH_SECONDS = 0.1
"""Before the next attempt to take a connection, where there are no more file handles."""


@dataclass
class Host(Lifeline):
    """The service of rank 0, and its lifelines to all others."""

    _seats: dict[int, Wire] = field(default_factory=dict)
    _places: dict[int, Place] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)
    """Ranks that have proven who they are; they get their seats in a moment."""
    _gone: set[int] = field(default_factory=set)
    _refused: dict[int, str] = field(default_factory=dict)
    """Why ranks that have proven who they are were turned away; they may come again, with what is right."""
    _met: bool = False
    """Whether all have come: from then on a rank that goes is lost, before that it may come again."""
    _door: Door = field(default_factory=Door)
    _news: Callable[[str], None] = print
    _server: socket.socket = field(init=False)

    def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen at an address, at any port for 0; return the address."""
        try:
            family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = socket.socket(family, kind)
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._server.bind(where)
            self._server.listen(socket.SOMAXCONN)
        except OSError as error:
            raise ConfigError(
                f"expected an address of this machine to listen at, found {format_address(host, port)}: "
                f"{error.strerror or error}"
            ) from error
        return host, int(self._server.getsockname()[1])

    def meet(self, news: Callable[[str], None]) -> dict[int, Place]:
        """Wait until all ranks have come; return the parties by their first ranks."""
        self._news = news
        begin = told = time.monotonic()
        known = ""
        threading.Thread(target=self._welcome, daemon=True).start()
        threading.Thread(target=self._beat, args=(lambda: list(self._seats.values()),), daemon=True).start()
        while missing := self._missing():
            shown = "; ".join(map(self._call, missing[:MOST_SHOWN]))
            who = shown + (" and others" if len(missing) > MOST_SHOWN else "")
            if who != known:
                known = who
                self._tell("missing", text=who)
            time.sleep(0.02)
            now = time.monotonic()
            if now - begin > self.patience.arrival:
                away = any(rank not in self._refused for rank in missing)
                asked = ": has it started (--wait SECONDS waits longer)?" if away else ""
                text = f"waited {self.patience.arrival:g} s for {who}{asked}"
                self._tell("lost", text=text)
                raise NeighbourSilent(text)
            if now - told > NEWS_SECONDS:
                told = now
                news(f"waiting for {who}, {now - begin:.0f} s")
                self._tell("waiting", text=f"waiting for {who}, {now - begin:.0f} s")
        try:
            return arrange(self._places, self.place, self.papers)
        except ConfigError as error:
            self._tell("lost", text=str(error))
            raise

    def _call(self, rank: int) -> str:
        """Return a missing rank as messages call it, and why it was turned away."""
        why = self._refused.get(rank)
        return self.papers.call(rank) + ("" if why is None else f", which came and was turned away ({why})")

    def _missing(self) -> list[int]:
        """Return the ranks that have not come. When there are none, all have met, whatever happens next."""
        with self._guard:
            missing = [rank for rank in range(1, self.place.size) if rank not in self._seats]
            self._met = not missing
            return missing

    def hand_out(self, ports: dict[int, str]) -> None:
        """Tell all ranks the ports of the parties, by their first ranks."""
        self._tell("ports", ports=ports)

    def leave(self, code: int) -> None:
        """Tell all others."""
        self._ended = True
        if code == 0:
            self._tell("bye")
        else:
            self._tell("lost", text=early_end(self.papers.call(0), code))
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

    # --- who comes ---------------------------------------------------------------------------------------------------

    def _welcome(self) -> None:
        """Take connections until the end, each in a thread of its own."""
        while not self._ended:
            try:
                connection, where = self._server.accept()
            except OSError:  # somebody hung up first, or there are no more handles
                time.sleep(BREATH_SECONDS)
                continue
            wire = Wire(connection, time.monotonic() + INTRODUCTION_SECONDS)
            self._door.enter(wire, str(where[0]))
            threading.Thread(target=self._serve, args=(wire, str(where[0])), daemon=True).start()

    def _serve(self, wire: Wire, where: str) -> None:
        """Let somebody introduce itself; then be its lifeline."""
        rank = None
        try:
            rank = self._seat(wire, where)
        except (OSError, DpmpiError, ValueError, TypeError, LookupError, ArithmeticError, struct.error) as error:
            reason = str(error) if isinstance(error, DpmpiError) else "it said nothing that a rank says"
            if not self._ended:
                self._door.turned_away(f"turned away {where}: {reason}", self._news)
        finally:
            self._door.leave(wire)
            if rank is None:
                wire.close()
        if rank is not None:
            self._attend(wire, rank)
            wire.close()

    def _seat(self, wire: Wire, where: str) -> int:
        """Run (1) to (3) for one connection; return the rank, or refuse and raise."""
        papers, a = self.papers, os.urandom(NONCE_BYTES)
        wire.send(MAGIC + a)
        card = wire.hear()
        place = Place(*(_whole(card[name]) for name in ("rank", "first", "count", "size")))
        rank, b = place.rank, bytes.fromhex(card["nonce"])
        hello = hello_bytes(card["hello"], rank)
        if len(b) != NONCE_BYTES or len(hello) != HELLO_BYTES:
            raise ValueError
        try:
            self._check(place, card["digest"])
            session = papers.session(a, b, place)
            greeting = verify_hello(hello, session, rank, papers.roster)
            self._take(rank)
        except DpmpiError as error:
            text = str(error)
            wire.say("refused", text=text, signature=papers.sign_refusal(a, b, text))
            if rank not in self._taken and _has_its_key(papers, (a, b, place), card["digest"], hello):
                self._refused[rank] = text
            raise
        try:
            hand = Handshake(session, 0, papers.identity)
            wire.say("hello", hello=hand.hello.hex())
            wire.seal(SealedPair(session, 0, rank, hand.keys(greeting).purpose(b"join")), self.patience.silence)
        except BaseException:
            self._taken.discard(rank)
            raise
        self._news(f"{papers.call(rank)} is here, from {where}")
        with self._guard:
            self._seats[rank], self._places[rank] = wire, place
            self._refused.pop(rank, None)
        return rank

    def _check(self, place: Place, digest: object) -> None:
        """Raise `ConfigError` for a card that does not fit, before its signature is looked at."""
        mine, who = self.place, self.papers.call(place.rank)
        if place.size != mine.size:
            raise ConfigError(
                f"expected a run of {mine.size} ranks, found --of {place.size} on {who}: start all of them alike"
            )
        if not 0 < place.rank < mine.size:
            raise ConfigError(f"expected ranks from 1 to {mine.size - 1}, found {place.rank}: check --rank")
        place.check()
        if digest != self.papers.digest:
            hint = "compare the agreed file, flags, roster and --resume"
            raise ConfigError(f"expected the settings of rank 0, found others on {who}: {hint}")

    def _take(self, rank: int) -> None:
        """Give a rank its seat; raise `ConfigError` if it has one."""
        with self._guard:
            taken = rank in self._taken
            self._taken.add(rank)
        if taken:
            raise ConfigError(f"expected one {self.papers.call(rank)}, found a second one: is it started twice?")

    # --- and who goes ------------------------------------------------------------------------------------------------

    def _attend(self, wire: Wire, rank: int) -> None:
        """Be the lifeline of a rank until it ends."""
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
                self._left(rank, early_end(call, said.get("code")))
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
        if not waiting:
            self.mark_lost(text)
        elif not self._ended:
            self._news(f"{text}; waiting for it")


def _has_its_key(papers: Papers, met: tuple[bytes, bytes, Place], digest: str, hello: bytes) -> bool:
    """Return whether a rank has signed a hello with the settings that it shows, which are other than the host's."""
    try:
        session = replace(papers, digest=digest).session(*met)
        verify_hello(hello, session, met[2].rank, papers.roster)
    except (DpmpiError, ValueError, TypeError, LookupError):
        return False
    return True


def _whole(number: object) -> int:
    """Return a number of a card; raise `ValueError` for anything else, and for those that no run has."""
    if isinstance(number, int) and abs(number) < 1 << 31:
        return number
    raise ValueError("expected a small whole number")
