"""Any rank but the first: it goes to rank 0, proves who it is, and hears of losses."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeAlias

from dpmpi.crypto.keys import Handshake, hello_bytes, verify_hello
from dpmpi.crypto.seal import SealedPair
from dpmpi.errors import ConfigError, NeighbourSilent, ProtocolError, SealBroken
from dpmpi.network.rendezvous.lifeline import INTRODUCTION_SECONDS, NEWS_SECONDS, Lifeline
from dpmpi.network.rendezvous.papers import MAGIC, NONCE_BYTES, format_address, readable
from dpmpi.network.rendezvous.wire import Wire

RETRY_SECONDS = 0.25
"""Between two attempts to reach rank 0, which may not have started yet."""
TURN_SECONDS = 5.0
"""How much longer than rank 0 a guest waits for the others: rank 0 then tells all at once who has not come."""

Address: TypeAlias = Callable[[], tuple[str, int] | None]
"""Returns where rank 0 listens, None while that is not known; an `OSError` says why it is not."""


class Guest(Lifeline):
    """The lifeline of any rank but the first."""

    _wire: Wire

    def meet(self, address: Address, news: Callable[[str], None]) -> dict[int, str]:
        """Go to rank 0, prove who this is, and return the ports of all parties by their first ranks, when all came."""
        end = time.monotonic() + self.patience.arrival
        wire = self._introduced(address, end, news)
        self._wire = wire
        threading.Thread(target=self._beat, args=(lambda: [wire],), daemon=True).start()
        try:
            ports = self._ports(end + TURN_SECONDS, news)
        except BaseException:
            self._ended = True
            wire.close()
            raise
        threading.Thread(target=self._listen, daemon=True).start()
        return ports

    def _introduced(self, address: Address, end: float, news: Callable[[str], None]) -> Wire:
        """Return a connection on which both sides have proven who they are."""
        told, who, why = time.monotonic(), self.papers.call(0), "it has not said where it is"
        while (now := time.monotonic()) < end:
            where = None
            try:
                where = address()
                if where is not None:
                    soon = min(end, now + INTRODUCTION_SECONDS)
                    return self._introduce(Wire(socket.create_connection(where, soon - now), soon), where)
            except OSError as error:
                why = f"{format_address(*where) if where else 'its address'}: {error.strerror or error}"
            if time.monotonic() - told > NEWS_SECONDS and self.place.rank == self.place.first:
                told = time.monotonic()
                news(f"waiting for {who}, {self.patience.arrival - (end - told):.0f} s ({why})")
            time.sleep(RETRY_SECONDS)
        raise NeighbourSilent(
            f"waited {self.patience.arrival:g} s for {who} ({why}): has it started, is its port open (--wait "
            "SECONDS waits longer)?"
        )

    def _introduce(self, wire: Wire, where: tuple[str, int]) -> Wire:
        """Run (1) to (3)."""
        papers, place = self.papers, self.place
        try:
            greeting = wire.receive()
            if greeting[: len(MAGIC)] != MAGIC or len(greeting) != len(MAGIC) + NONCE_BYTES:
                raise ConfigError(
                    f"expected rank 0 of this version at {format_address(*where)}, found another service: check --meet"
                )
            a, b = greeting[len(MAGIC) :], os.urandom(NONCE_BYTES)
            session = papers.session(a, b, place)
            hand = Handshake(session, place.rank, papers.identity)
            card = {"rank": place.rank, "first": place.first, "count": place.count, "size": place.size}
            wire.say("card", **card, nonce=b.hex(), digest=papers.digest, hello=hand.hello.hex())
            said = wire.hear()
            if said["kind"] != "hello":
                text = str(said.get("text"))
                self._refused(text, where, papers.refused_by_host(a, b, text, said.get("signature")))
            other = verify_hello(hello_bytes(said.get("hello"), 0), session, 0, papers.roster)
            wire.seal(SealedPair(session, place.rank, 0, hand.keys(other).purpose(b"join")), self.patience.silence)
        except BaseException:
            wire.close()
            raise
        return wire

    def _refused(self, text: str, where: tuple[str, int], signed: bool) -> NoReturn:
        """Raise `ConfigError` with a refusal; only one that rank 0 has signed is rank 0's."""
        who = self.papers.call(0)
        told = f"{who} refuses: {readable(text)}"
        if not signed:
            told = (
                f"expected {who} at {format_address(*where)}, found somebody without its key, who refuses: "
                f"{readable(text)}: compare rosters and the address"
            )
        refused = ConfigError(told)
        refused.told = True
        raise refused

    def _ports(self, end: float, news: Callable[[str], None]) -> dict[int, str]:
        """Wait for what rank 0 hands out."""
        missing = "the others"
        while True:
            try:
                said = self._wire.hear(end)
            except (OSError, SealBroken) as error:
                if time.monotonic() >= end:
                    raise NeighbourSilent(
                        f"waited {self.patience.arrival:g} s for {missing}: has it started (--wait SECONDS waits "
                        "longer)?"
                    ) from error
                raise ProtocolError(f"{self.papers.call(0)} was lost while the ranks met") from error
            if said["kind"] == "missing":
                missing = readable(said.get("text"))
            elif said["kind"] == "waiting" and self.place.rank == self.place.first:
                news(readable(said.get("text")))
            elif said["kind"] == "lost":
                raise ProtocolError(readable(said.get("text")))
            elif said["kind"] == "ports":
                return self._checked(said.get("ports"))

    def _checked(self, ports: object) -> dict[int, str]:
        """Return ports that can be: one for each party but that of rank 0, with this one's among them."""
        try:
            found = {int(first): str(port) for first, port in ports.items()}  # type: ignore[attr-defined]
        except (AttributeError, ValueError):
            found = {}
        if self.place.first not in {0, *found} or not all(0 < first < self.place.size for first in found):
            raise ProtocolError(f"expected the ports of all parties from {self.papers.call(0)}, found others")
        return found

    def leave(self, code: int) -> None:
        """Tell rank 0, who tells the others."""
        self._ended = True
        with suppress(OSError):
            self._wire.say("bye" if code == 0 else "end", code=code)
            self._wire.finish()

    def _listen(self) -> None:
        """Hear of losses until the end."""
        while not self._ended:
            try:
                said = self._wire.hear()
            except (OSError, SealBroken):
                self.mark_lost(f"{self.papers.call(0)} was lost")
                break
            if said["kind"] == "lost":
                self.mark_lost(readable(said.get("text")))
                break
            if said["kind"] == "bye":
                self._ended = True
        self._wire.close()
