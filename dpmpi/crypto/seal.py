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
from dpmpi.crypto.keys import PairKeys, Session
from dpmpi.errors import SealBroken
from dpmpi.wire import SEAL_BYTES

Buffer: TypeAlias = Bytes | memoryview | bytearray
"""Bytes in one piece, not longer words: an array is viewed as uint8 first."""

_pack_details = struct.Struct(">QIQ").pack
_INTO = hasattr(AESGCM, "encrypt_into")  # older versions of the library return new bytes only


class _Direction:
    """One sender, one receiver, one key: the last position used, and what (2) begins with."""

    __slots__ = ("_bound", "aead", "last")

    def __init__(self, session: Session, sender: int, receiver: int, key: bytes) -> None:
        run = hashlib.sha256(session.run).digest()
        numbers = struct.pack(">QII", session.incarnation, sender, receiver)
        self._bound = hashlib.sha256(b"dpmpi sealed message" + run + numbers).digest()
        self.aead: Any = AESGCM(key)
        self.last = b""

    def at(self, round_: int, hop: int, length: int) -> tuple[bytes, bytes]:
        """Return (1) and (2); raise `ValueError` unless the position comes after the last one."""
        try:
            details = _pack_details(round_, hop, length)
        except struct.error as error:
            raise ValueError(f"expected 0 <= round < 2^64 and 0 <= hop < 2^32, got {round_!r} and {hop!r}") from error
        nonce = details[:12]  # (1)
        if nonce <= self.last:  # big-endian, so that bytes compare as positions do
            raise ValueError("positions must increase, and this one is over")
        return nonce, self._bound + details  # (2)


class SealedPair:
    """One rank's end of the two directions between it and a peer."""

    __slots__ = ("_incoming", "_outgoing", "peer", "rank")

    def __init__(self, session: Session, rank: int, peer: int, keys: PairKeys) -> None:
        self.rank = rank
        self.peer = peer
        self._outgoing = _Direction(session, rank, peer, keys.outgoing)
        self._incoming = _Direction(session, peer, rank, keys.incoming)

    def seal(self, plain: Buffer, out: Buffer, round_: int, hop: int) -> None:
        """Write the sealed `plain`, `SEAL_BYTES` bytes longer, to `out`, for the peer to open at (round, hop)."""
        way = self._outgoing
        try:
            nonce, data = way.at(round_, hop, len(plain))
            way.last = nonce  # before it is used: a nonce whose use failed half-way is used
            if _INTO:
                way.aead.encrypt_into(nonce, plain, data, out)
            else:
                _put(out, way.aead.encrypt(nonce, plain, data))
        except ValueError as error:
            reason = _misfit(len(out), len(plain)) or str(error)
            where = f"round {round_}, hop {hop}"
            raise ValueError(
                f"rank {self.rank} cannot seal a message to rank {self.peer} in {where}: {reason}"
            ) from error

    def open(self, sealed: Buffer, out: Buffer, round_: int, hop: int) -> None:
        """Write what the peer sealed for (round, hop) to `out`; raise `SealBroken`, with zeros there, if it did not."""
        way = self._incoming
        try:
            nonce, data = way.at(round_, hop, len(out))
            if _INTO:
                way.aead.decrypt_into(nonce, sealed, data, out)
            else:
                _put(out, way.aead.decrypt(nonce, sealed, data))
        except (InvalidTag, ValueError) as error:
            _put(out, bytes(len(out)))
            misfit = _misfit(len(sealed), len(out))
            reason = misfit or str(error) or "it was changed, or belongs to another round, rank or run"
            where = f"round {round_}, hop {hop}"
            raise SealBroken(
                f"rank {self.rank} could not open the message of rank {self.peer} in {where}: {reason}"
            ) from error
        way.last = nonce  # only now: what did not open must not keep the true message out


def _misfit(sealed: int, plain: int) -> str:
    """Say which length was expected of a sealed message, if it has another; the library refuses it without a reason."""
    return "" if sealed == plain + SEAL_BYTES else f"expected {plain + SEAL_BYTES} sealed bytes, got {sealed}"


def _put(out: Any, content: bytes) -> None:
    memoryview(out)[:] = content
