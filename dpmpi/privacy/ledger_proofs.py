"""What a ledger is proven by: the rank's own key, its identity, and a head that is kept apart.

The chain of plain hashes (`ledger.py`) shows a slip; whoever means to rewrite a ledger computes it anew. Against that,
with K the 32 bytes in the file `rank-NNN.key` beside the ledger (mode 0600), and h_n the hash of line n,

    mac of line n        HMAC-SHA256(HMAC-SHA256(K, MAC), h_n)                      the owner can check it      (1)
    signature of line n  Ed25519 of (LEDGER, run, rank, n, h_n) by the rank's identity      everybody can       (2)
    head                 (n + 1, h_n) of the last line, in a file apart from the ledger     the owner can       (3)

h_n covers all lines up to n, so the last mac or signature speaks for the whole ledger. (1) and (2) do not show that
lines are missing at the end; (3) does, to the owner, and so does the closing head in the summary, to everybody.

A head's file is named by HMAC-SHA256(K, NAME), so that it is found wherever the ledger is moved to. A ledger that goes
on over runs also leaves its name under the place where it lies: another ledger and key in that place is noticed.
Heads are in ~/.local/state/dpmpi/heads, or where DPMPI_HEADS says. A missing one is accepted: the machine may be new.
Those of run directories that were deleted are swept away as new ones come.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpmpi.core.files import user_path, write_file, writing
from dpmpi.core.frozen import frozen
from dpmpi.errors import LedgerError

KEY_BYTES = 32
_MAC, _NAME, _ROW = b"dpmpi ledger mac", b"dpmpi ledger name", b"dpmpi row mark"
_LARGEST_HEAD = 4096
_MANY = 64  # heads in one of the 256 folders


@frozen
class LedgerKey:
    """A rank's ledger key: its uses are derived by context, so that none says anything about another."""

    secret: bytes

    def mac(self, digest: str) -> str:
        """Return the mac (1) of a line with this hash."""
        return hmac.digest(self._derived(_MAC), digest.encode(), "sha256").hex()

    def row_mark(self, row: bytes) -> bytes:
        """Return the mark of one coded record: 16 bytes that say nothing without the key."""
        return hmac.digest(self._derived(_ROW), row, "sha256")[:16]

    def owner_mark(self, fingerprint: str) -> str:
        """Return the mark of a whole shard."""
        return hmac.digest(self.secret, fingerprint.encode(), "sha256").hex()

    @property
    def name(self) -> str:
        """The name of the ledger's head."""
        return self._derived(_NAME).hex()

    def _derived(self, context: bytes) -> bytes:
        return hmac.digest(self.secret, context, "sha256")


def key_file(ledger: Path) -> Path:
    """Return where a ledger's key lies: beside it."""
    return ledger.with_suffix(".key")


def read_key(ledger: Path) -> LedgerKey | None:
    """Return the key of a ledger; None if there is none."""
    path = key_file(ledger)
    try:
        secret = bytes.fromhex(path.read_text())
        if len(secret) != KEY_BYTES:  # an empty one would make every mark a plain hash
            raise ValueError(f"expected {KEY_BYTES} bytes in hexadecimal digits, found {len(secret)}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LedgerError(f"cannot use the ledger's key {path}: {error}") from error
    return LedgerKey(secret)


def make_key(ledger: Path) -> LedgerKey:
    """Return the key of a ledger; the first time it is drawn, and is on disk when this returns."""
    found = read_key(ledger)
    if found is None:
        try:
            with writing(key_file(ledger), private=True, durable=True, exclusive=True) as file:
                file.write(os.urandom(KEY_BYTES).hex().encode())
        except FileExistsError:  # another process was faster
            pass
        except OSError as error:
            raise LedgerError(f"cannot use the ledger's key {key_file(ledger)}: {error}") from error
        found = read_key(ledger)
    if found is None:
        raise LedgerError(f"expected the key {key_file(ledger)} that was just written, found none: is the disk full?")
    return found


def signed_bytes(run: str, rank: int, seq: int, digest: str) -> bytes:
    """Return the bytes that (2) signs: unambiguous, and of no other use."""
    return json.dumps(["dpmpi ledger", run, rank, seq, digest], separators=(",", ":")).encode()


# --- heads -----------------------------------------------------------------------------------------------------------


@frozen
class Head:
    """The last line of a ledger, as it was kept apart: how many lines there were, and its hash."""

    lines: int
    hash: str


def heads_folder() -> Path:
    """Return where this user's heads are kept."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return user_path(os.environ.get("DPMPI_HEADS") or f"{state}/dpmpi/heads")


def head_file(key: LedgerKey) -> Path:
    """Return where the head of the ledger with this key is kept."""
    return heads_folder() / key.name[:2] / f"{key.name}.json"


def place_file(ledger: Path) -> Path:
    """Return where the name of the lasting ledger in a place is kept; on another host it is another place."""
    place = f"{os.uname().nodename} {ledger.parent.resolve() / ledger.name}"
    return heads_folder() / f"at-{hashlib.sha256(place.encode()).hexdigest()}.json"


def read_head(key: LedgerKey) -> Head | None:
    """Return the head that is kept of a ledger; None if there is none, or none that can be read."""
    found = _read(head_file(key))
    lines, digest = found.get("lines"), found.get("hash")
    return Head(lines, digest) if isinstance(lines, int) and isinstance(digest, str) else None


def write_head(ledger: Path, key: LedgerKey, head: Head, *, lasting: bool) -> None:
    """Keep a ledger's head; a home that cannot be written to is no reason to end a run."""
    with suppress(OSError):
        where = str(ledger.absolute())
        told: dict[str, Any] = {"ledger": where, "lines": head.lines, "hash": head.hash}
        told |= {"host": os.uname().nodename, "lasting": lasting}
        if not head_file(key).exists():
            _sweep(head_file(key).parent)
        write_file(head_file(key), json.dumps(told) + "\n", private=True)
        if lasting and _read(place_file(ledger)).get("name") != key.name:
            write_file(place_file(ledger), json.dumps({"ledger": where, "name": key.name}) + "\n", private=True)


def _sweep(folder: Path) -> None:
    """Remove heads of run directories on this host that are gone, once a folder has many: each new run brings some."""
    names = os.listdir(folder) if folder.exists() else []
    if len(names) <= _MANY:
        return
    for name in names:
        found = _read(folder / name)
        here = found.get("host") == os.uname().nodename and found.get("lasting") is False
        if here and not Path(str(found.get("ledger"))).exists():
            with suppress(OSError):  # another process was faster
                os.unlink(folder / name)


def check_head(ledger: Path, key: LedgerKey | None, hashes: Sequence[str]) -> None:
    """Raise `LedgerError` if lines that a head knows are missing from a ledger, or if another ledger is in its place.

    `hashes` are those of the lines that are there.
    """
    known = _read(place_file(ledger)).get("name")
    if isinstance(known, str) and (key is None or key.name != known):
        raise LedgerError(
            f"expected the ledger that {ledger} was, by {place_file(ledger)}, found another one or none: put it back "
            "with its key, it says what was charged; if nothing was, remove that file"
        )
    head = None if key is None else read_head(key)
    if key is None or head is None:
        return
    advice = f"put the whole ledger back, it says what was charged (its head is {head_file(key)})"
    if len(hashes) < head.lines:
        raise LedgerError(f"expected {head.lines} lines in {ledger}, found {len(hashes)}, it was cut: {advice}")
    if head.lines and hashes[head.lines - 1] != head.hash:
        raise LedgerError(
            f"expected the hash {head.hash[:16]}... in {ledger}:{head.lines}, found {hashes[head.lines - 1][:16]}..., "
            f"it was rewritten: {advice}"
        )


def _read(path: Path) -> dict[str, object]:
    """Return the values in a small JSON file; none if it is not there or not whole."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_HEAD))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
