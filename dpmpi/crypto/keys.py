"""Identities of ranks, and the keys that two ranks agree on.

Identities are Ed25519 keys: one private key file a rank (PEM, readable by its owner alone) and one public roster for
all. At the start of each incarnation of a run, rank i draws an X25519 key pair (x_i, X_i) and sends a hello

    MAGIC | incarnation | i | P_i | X_i | signature of (HELLO, run, incarnation, i, X_i) under its identity P_i     (1)

With a, b the lower and the higher of two ranks, and s the X25519 secret of x_i and X_j, which must not be zero,

    shared = (run, incarnation, a, b, P_a, P_b, X_a, X_b)
    key of direction i -> j = HKDF-SHA256(s, salt = run, info = (SEAL, shared, i, j))                               (2)
    secret of the masks     = HKDF-SHA256(s, salt = run, info = (MASK, shared))                                     (3)

    keys for a purpose      = HKDF-SHA256(each of them, salt = run, info = (PURPOSE, its name))                     (4)

where the parts of a tuple are joined with their lengths. `run` stands for all that the ranks must agree on before they
speak: the digest of their settings, the run that goes on, who takes part. The x_i are never stored: keys of different
incarnations have nothing in common, and a stolen identity does not open what was recorded before.

Without key files a rank draws an identity for the run, and there is no roster to check hellos against: messages are
then hidden from those who only listen, not from those who can change the hellos on their way.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TypeAlias

from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpmpi.core.files import parse_toml, write_file
from dpmpi.core.frozen import frozen
from dpmpi.core.tables import TomlTable
from dpmpi.errors import ConfigError, SealBroken
from dpmpi.rng import fresh_key

Roster: TypeAlias = tuple[bytes, ...]
"""The ranks' Ed25519 public keys, 32 bytes each, in rank order."""
_MAGIC = b"dpmpi 1\n"
_HELLO = struct.Struct(">8sQI32s32s64s")
HELLO_BYTES = _HELLO.size
_LARGEST_FILE = 1 << 20
_HEX_KEY = re.compile(r"[0-9a-fA-F]{64}")
MOST_IDENTITIES = 10_000
"""More ranks than any run has: a slip of the keyboard would fill the disk with keys."""


# --- identities ------------------------------------------------------------------------------------------------------


class Identity:
    """An Ed25519 key, made from its 32 private bytes or drawn from OS entropy."""

    __slots__ = ("_key", "public")

    def __init__(self, private: bytes | None = None) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(fresh_key() if private is None else private)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`, 64 bytes."""
        return self._key.sign(message)

    def pem(self) -> bytes:
        """Return the private key as it is written to a file."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_name(rank: int) -> str:
    """Return a rank's name in the roster, which is also that of its key file."""
    return f"rank-{rank:03d}"


def make_identity(path: Path) -> Identity:
    """Draw an identity and write it to a new file that only its owner can read."""
    identity = Identity()
    write_file(path, identity.pem(), private=True, exclusive=True, error=ConfigError)
    return identity


def make_identities(n: int, folder: Path) -> Roster:
    """Write folder/rank-000.key, ... and folder/roster.toml for n ranks, replacing nothing; return the roster."""
    if not 1 <= n <= MOST_IDENTITIES:
        raise ConfigError(f"expected 1 to {MOST_IDENTITIES} identities to make, found {n}")
    roster = tuple(make_identity(folder / f"{key_name(rank)}.key").public for rank in range(n))
    write_roster(folder / "roster.toml", roster)
    return roster


def write_roster(path: Path, roster: Sequence[bytes]) -> None:
    """Write the public keys of all ranks to a new file."""
    lines = [f'{key_name(rank)} = "{public.hex()}"\n' for rank, public in enumerate(roster)]
    write_file(path, f"# Ed25519 public keys\n[public]\n{''.join(lines)}", exclusive=True, error=ConfigError)


def load_identity(path: Path) -> Identity:
    """Read a private key file; raise `ConfigError` if others could read it too, or if it is not an Ed25519 key."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - slow, and only for files

    raw = _read_keys(path, secret=True)
    try:
        key = serialization.load_pem_private_key(raw, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError) as error:  # TypeError: it is locked
        raise ConfigError(f"expected an Ed25519 private key without password (PEM) in {path}, found none") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"expected an Ed25519 private key in {path}, found one of another kind: make a new key")
    return Identity(key.private_bytes_raw())


def load_roster(path: Path) -> Roster:
    """Read the public keys of all ranks; raise `ConfigError` if one is missing, malformed or there twice."""
    try:
        text = _read_keys(path, secret=False).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"expected a roster in TOML, found text that is not UTF-8 in {path}") from error
    public = TomlTable(parse_toml(text, f"the roster {path}"), str(path)).table("public")
    if not public.content:
        raise ConfigError(f"{path}: expected a table [public] with one key for each rank, found none")
    roster: list[bytes] = []
    for rank in range(len(public.content)):
        name = key_name(rank)
        key = bytes.fromhex(public.get(name, str, expected="64 hexadecimal digits", valid=_HEX_KEY.fullmatch))
        if key in roster:
            other = key_name(roster.index(key))
            raise ConfigError(f"{path}: expected a different key for each rank, found that of {other} for {name} too")
        roster.append(key)
    return tuple(roster)


def load_names(path: Path) -> tuple[str, ...]:
    """Read what the parties of a roster are called, for messages: its table [names], which may be left out."""
    content = parse_toml(_read_keys(path, secret=False).decode(), f"the roster {path}")
    names = content.get("names", {})
    table = names if isinstance(names, dict) else {}
    found = [table.get(key_name(rank), "") for rank in range(len(content.get("public", {})))]
    if table is not names or not all(
        isinstance(name, str) and name.isprintable() and len(name) <= 60 for name in found
    ):
        raise ConfigError(f"{path}: expected names of at most 60 printable characters in [names], found others")
    return tuple(found)


def check_identity(identity: Identity, rank: int, size: int, roster: Roster) -> None:
    """Raise `ConfigError` unless the roster is one of `size` ranks and has this identity for `rank`."""
    if len(roster) != size:
        raise ConfigError(f"expected a roster of {size} ranks, found {len(roster)} keys: start as many ranks as it has")
    if roster[rank] != identity.public:
        found = f"that of rank {roster.index(identity.public)}" if identity.public in roster else "one that it lacks"
        raise ConfigError(f"expected the key that the roster has for rank {rank}, found {found}: give each its own")


def _read_keys(path: Path, secret: bool) -> bytes:
    """Return the content of a file of keys; of a `secret` one, only if nobody but its owner can read it."""
    try:
        # Not blocking, so that a pipe in the place of the file does not hang the rank.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE:
                raise ConfigError(f"expected a file of keys at {path}, found something else or more than 1 MB")
            if secret and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                mode = stat.S_IMODE(status.st_mode)
                raise ConfigError(
                    f"expected a key file for its owner alone, found mode {mode:04o} of {path}: use chmod 600"
                )
            return file.read()
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no file name"
        raise ConfigError(f"expected a file of keys at {path}, found none that can be read: {reason}") from error


# --- the handshake ---------------------------------------------------------------------------------------------------


@frozen
class Session:
    """Which run, and which start of it: a run that is resumed is a new incarnation."""

    run: bytes
    incarnation: int

    def __post_init__(self) -> None:
        if not 0 <= self.incarnation < 1 << 64:
            raise ValueError(f"expected an incarnation from 0 to 2^64 - 1, found {self.incarnation}")


@frozen
class Greeting:
    """The content of a verified hello: a rank, its identity and its X25519 public key."""

    rank: int
    identity: bytes
    exchange: bytes


@frozen
class PairKeys:
    """The secrets that two ranks share: a key for each direction of (2), and the secret (3) of their masks."""

    outgoing: bytes = field(repr=False)
    incoming: bytes = field(repr=False)
    masks: bytes = field(repr=False)

    def purpose(self, name: bytes) -> PairKeys:
        """Return other keys of the same pair, (4): those of different purposes have nothing in common."""
        info = _join(b"dpmpi purpose", name)
        return PairKeys(*(hkdf(key, b"", info) for key in (self.outgoing, self.incoming, self.masks)))


class Handshake:
    """One rank's side of the key agreement: its hello, and the keys that follow from the others' hellos.

    `private` replaces the 32 bytes of OS entropy; with it, the keys are as secret as it is.
    """

    __slots__ = ("_met", "_private", "greeting", "hello", "identity", "session")

    def __init__(self, session: Session, rank: int, identity: Identity, private: bytes | None = None) -> None:
        self.session = session
        self.identity = identity
        self._private = fresh_key() if private is None else private
        exchange = X25519PrivateKey.from_private_bytes(self._private).public_key().public_bytes_raw()
        self._met = {rank}
        self.greeting = Greeting(rank, identity.public, exchange)
        signature = identity.sign(_signed(session, rank, exchange))
        self.hello = _HELLO.pack(_MAGIC, session.incarnation, rank, identity.public, exchange, signature)  # (1)

    def keys(self, peer: Greeting) -> PairKeys:
        """Return the keys that this rank and `peer` share, once; raise `SealBroken` if its public key is degenerate.

        A second call is refused, because a second use of the keys would repeat the nonces of the first.
        """
        own = self.greeting
        if peer.rank in self._met:
            raise ValueError(
                f"expected a new peer of rank {own.rank}, found rank {peer.rank}, which has its keys or is itself"
            )
        secret = agree(self._private, peer.exchange, peer.rank)
        self._met.add(peer.rank)
        a, b = sorted((own, peer), key=lambda greeting: greeting.rank)
        run = self.session.run
        shared = _join(run, self.session.incarnation, a.rank, b.rank, a.identity, b.identity, a.exchange, b.exchange)
        return PairKeys(
            outgoing=hkdf(secret, run, _join(b"dpmpi seal", shared, own.rank, peer.rank)),  # (2)
            incoming=hkdf(secret, run, _join(b"dpmpi seal", shared, peer.rank, own.rank)),
            masks=hkdf(secret, run, _join(b"dpmpi mask", shared)),  # (3)
        )


def hello_bytes(text: object, rank: int) -> bytes:
    """Return the hello that a rank sent as hexadecimal digits; raise `SealBroken` for anything else."""
    try:
        return bytes.fromhex(text)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise SealBroken(f"expected a hello from rank {rank}, found other text: was it changed?") from error


def verify_hello(hello: bytes, session: Session, rank: int, roster: Roster | None) -> Greeting:
    """Return the content of the hello of `rank`; raise `SealBroken` unless it is genuine, for this run and start.

    Without a roster the hello only proves that its sender has the identity that it shows.
    """
    if len(hello) != HELLO_BYTES:
        raise SealBroken(f"expected a hello of {HELLO_BYTES} bytes from rank {rank}, found {len(hello)}")
    magic, incarnation, sender, identity, exchange, signature = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise SealBroken(f"expected a hello from rank {rank}, found other bytes: do all ranks run the same version?")
    if sender != rank or incarnation != session.incarnation:
        raise SealBroken(
            f"expected the hello of rank {rank}, incarnation {session.incarnation}, "
            f"found that of rank {sender}, incarnation {incarnation}"
        )
    if roster is not None and (rank >= len(roster) or roster[rank] != identity):
        raise SealBroken(f"expected the key that the roster has in the hello of rank {rank}, found another one")
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, _signed(session, rank, exchange))
    except (InvalidSignature, ValueError) as error:  # ValueError: the identity is not the encoding of a point
        raise SealBroken(
            f"expected the signature of rank {rank} on its hello, found another: it was changed, or is of another run"
        ) from error
    return Greeting(rank, identity, exchange)


def agree(private: bytes, public: bytes, peer: int) -> bytes:
    """Return the X25519 secret; raise `SealBroken` if it is zero, as with a public key of low order."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise SealBroken(
            f"expected a public key of full order from rank {peer}, found a degenerate one: it agrees on no secret"
        ) from error


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = 32) -> bytes:
    """Return `length` bytes of HKDF-SHA256 (RFC 5869)."""
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


def _signed(session: Session, rank: int, exchange: bytes) -> bytes:
    """Return the bytes that (1) signs."""
    return _join(b"dpmpi hello", session.run, session.incarnation, rank, exchange)


def _join(*parts: bytes | int) -> bytes:
    """Join with lengths, so that different tuples give different bytes."""
    raw = [part.to_bytes(8, "big") if isinstance(part, int) else part for part in parts]
    return b"".join(len(part).to_bytes(8, "big") + part for part in raw)
