"""What a rank shows when it introduces itself, and what both sides compute from it."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence

from dpmpi.core.frozen import frozen
from dpmpi.crypto.keys import Identity, Roster, Session
from dpmpi.crypto.signatures import check_signature
from dpmpi.errors import ConfigError, ProtocolError, SealBroken

MAGIC = b"dpmpi join 2\n"
NONCE_BYTES = 32
LONGEST_TEXT = 500
_ADDRESS = re.compile(r"tcp://(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:/\[\]\s]+)):(?P<port>\d{1,5})")


@frozen
class Place:
    """Where a rank sits: its number, the ranks of its party, and the ranks of the run."""

    rank: int
    first: int
    count: int
    size: int

    def check(self) -> None:
        """Raise `ConfigError` for ranks that the run does not have."""
        if not 0 <= self.first <= self.rank < self.first + self.count <= self.size:
            raise ConfigError(
                f"expected ranks from 0 to {self.size - 1}, found {self.first} to {self.first + self.count - 1}: "
                "check --rank, --of and -n"
            )


@frozen
class Papers:
    """What a rank shows and expects to see: its identity, the roster with its names, the digest of its settings."""

    identity: Identity
    roster: Roster
    names: Sequence[str]
    digest: str

    def call(self, rank: int) -> str:
        """Return a rank as messages call it."""
        name = self.names[rank] if 0 <= rank < len(self.names) else ""
        return f"rank {rank} ({name})" if name else f"rank {rank}"

    def session(self, a: bytes, b: bytes, place: Place) -> Session:
        """Return the session (4) of the package's docstring."""
        numbers = struct.pack(">QQQ", place.rank, place.first, place.count)
        return Session(hashlib.sha256(b"dpmpi join" + a + b + bytes.fromhex(self.digest) + numbers).digest(), 0)

    def sign_refusal(self, a: bytes, b: bytes, text: str) -> str:
        """Return rank 0's signature of a refusal, in hexadecimal digits."""
        return self.identity.sign(_refusal(a, b, text)).hex()

    def refused_by_host(self, a: bytes, b: bytes, text: str, signature: object) -> bool:
        """Return whether a refusal was signed by the key that the roster has for rank 0."""
        try:
            check_signature(self.roster[0], _refusal(a, b, text), str(signature))
        except SealBroken:
            return False
        return True


@frozen
class Patience:
    """How many seconds a rank waits for the others."""

    arrival: float
    """Until all have come."""
    silence: float
    """Until one of which nothing is heard is lost."""


def _refusal(a: bytes, b: bytes, text: str) -> bytes:
    return b"dpmpi join refusal" + a + b + text.encode(errors="replace")


def arrange(places: Mapping[int, Place], own: Place, papers: Papers) -> dict[int, Place]:
    """Return the parties by their first ranks, rank 0's `own` included; raise `ConfigError` if they contradict."""
    parties = {0: own}
    for rank, place in sorted(places.items()):
        party = parties.setdefault(place.first, place)
        if party.count != place.count or not place.first <= rank < place.first + place.count:
            raise ConfigError(
                f"expected the ranks of a party to tell the same of it, found {papers.call(rank)} in one of ranks "
                f"{place.first} to {place.first + place.count - 1}: check its --rank and -n"
            )
    free = 0
    for first, party in sorted(parties.items()):
        if first != free:
            who = papers.call(max(one for one in parties if one < first))
            raise ConfigError(
                f"expected parties one after the other, found that of {who} up to rank {free - 1} and that of "
                f"{papers.call(first)} from rank {first}: check their --rank and -n"
            )
        free += party.count
    if free != own.size:
        raise ConfigError(f"expected parties of {own.size} ranks in all, found {free}: check --rank and -n")
    return dict(sorted(parties.items()))


def readable(text: object) -> str:
    """Return words from elsewhere as one line of limited length, without control characters."""
    return str(ProtocolError(str(text)[:LONGEST_TEXT]))


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
