"""Messages between two ranks that nobody else can read, change, repeat or put elsewhere: AES-256-GCM.

Each direction i -> j of an incarnation has its own key, (2) of keys.py. The message of (round, hop) is sealed with

    nonce = round (8 bytes) | hop (4 bytes), big-endian                                                      (1)
    associated data = (context, run, incarnation, i, j) hashed | round (8) | hop (4) | length (8)            (2)

Neither is sent: both sides know them from the schedule. Positions (round, hop) must increase in each direction, which
both sides enforce, and a handshake gives out a pair's keys once. Hence no nonce is used twice under a key; and what is
repeated, late, early, cut, altered, sent by or to another rank, or of another run or incarnation does not open.

A message that does not open leaves zeros in the receiver's buffer: the library decrypts before it knows.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dpmpi.core import Bytes
from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.keys import PairKeys, Session
from dpmpi.errors import SealBroken

Buffer: TypeAlias = Bytes | memoryview | bytearray
"""Bytes in one piece, not longer words: an array is viewed as uint8 first."""

PAST = "expected an increasing position, found a past one"
WRITES_INTO = hasattr(AESGCM, "encrypt_into")  # older versions of the library return new bytes only


Position: TypeAlias = tuple[bytes, bytes]
"""Where a message stands: (1), and (2) without its beginning."""


def position(round_: int, hop: int, length: int) -> Position:
    """Return the position of messages of `length` bytes in a round and hop, the same for all pairs."""
    try:
        details = struct.pack(">QIQ", round_, hop, length)
    except struct.error as error:
        raise ValueError(f"expected 0 <= round < 2^64 and 0 <= hop < 2^32, found {round_!r} and {hop!r}") from error
    return details[:12], details


class SealedPair:
    """One rank's end of the two directions between it and a peer: for each, the beginning of (2) and the last nonce.

    Nonces are big-endian, so they compare as positions do.
    """

    __slots__ = ("_heard", "_incoming", "_opened", "_outgoing", "_said", "_sealed", "peer", "rank")

    def __init__(self, session: Session, rank: int, peer: int, keys: PairKeys) -> None:
        self.rank = rank
        self.peer = peer
        self._outgoing: Any = AESGCM(keys.outgoing)
        self._incoming: Any = AESGCM(keys.incoming)
        self._sealed = _bound(session, rank, peer)
        self._opened = _bound(session, peer, rank)
        self._said = self._heard = b""

    def seal(self, plain: Buffer, out: Buffer, round_: int, hop: int) -> None:
        """Write the sealed `plain`, `SEAL_BYTES` bytes longer, to `out`, for the peer to open at (round, hop)."""
        self.seal_at(position(round_, hop, len(plain)), plain, out)

    def seal_at(self, place: Position, plain: Buffer, out: Buffer) -> None:
        """Write the sealed `plain`, of the length that the position has, to `out`; they may begin at the same byte."""
        nonce, details = place
        if nonce <= self._said:
            raise self._refusal(nonce, PAST)
        self._said = nonce  # before it is used: a nonce whose use failed half-way is used
        try:
            if WRITES_INTO:
                self._outgoing.encrypt_into(nonce, plain, self._sealed + details, out)
            else:
                _put(out, self._outgoing.encrypt(nonce, plain, self._sealed + details))
        except ValueError as error:
            raise self._refusal(nonce, _misfit(len(out), len(plain)) or str(error)) from error

    def open(self, sealed: Buffer, out: Buffer, round_: int, hop: int) -> None:
        """Open the peer's message of (round, hop) into `out`; raise `SealBroken`, with zeros there, if it is not."""
        self.open_at(position(round_, hop, len(out)), sealed, out)

    def open_at(self, place: Position, sealed: Buffer, out: Buffer) -> None:
        """Open the peer's message of a position into `out`, of its length; both may begin at the same byte."""
        nonce, details = place
        try:
            if nonce <= self._heard:
                raise ValueError(PAST)
            if WRITES_INTO:
                self._incoming.decrypt_into(nonce, sealed, self._opened + details, out)
            else:
                _put(out, self._incoming.decrypt(nonce, sealed, self._opened + details))
        except (InvalidTag, ValueError) as error:
            misfit = _misfit(len(sealed), len(out))
            reason = misfit or str(error) or "it was changed, or belongs to another round, rank or run"
            _put(out, bytes(len(out)))
            raise SealBroken(
                f"rank {self.rank} could not open the message of rank {self.peer} in {_in_words(nonce)}: {reason}"
            ) from error
        self._heard = nonce  # only now: what did not open must not keep the true message out

    def _refusal(self, nonce: bytes, reason: str) -> ValueError:
        return ValueError(f"rank {self.rank} cannot seal a message to rank {self.peer} in {_in_words(nonce)}: {reason}")


def _bound(session: Session, sender: int, receiver: int) -> bytes:
    """Return the beginning of (2)."""
    run = hashlib.sha256(session.run).digest()
    numbers = struct.pack(">QII", session.incarnation, sender, receiver)
    return hashlib.sha256(b"dpmpi sealed message" + run + numbers).digest()


def _in_words(nonce: bytes) -> str:
    """Return (1) in words."""
    round_, hop = struct.unpack(">QI", nonce)
    return f"round {round_}, hop {hop}"


def _misfit(sealed: int, plain: int) -> str:
    """Say which length was expected of a sealed message, if it has another; the library refuses it without a reason."""
    return "" if sealed == plain + SEAL_BYTES else f"expected {plain + SEAL_BYTES} sealed bytes, found {sealed}"


def _put(out: Any, content: bytes) -> None:
    memoryview(out)[:] = content
