"""Whose ledger it is: one run at a time spends from it, and for the rows that it was charged for."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from dpmpi.core.files import write_file
from dpmpi.data import Shard
from dpmpi.errors import ConfigError, LedgerError
from dpmpi.privacy.ledger import check_proofs, read_ledger
from dpmpi.privacy.ledger_proofs import LedgerKey, check_head, key_file, make_key, read_key


def lock_ledger(ledger: Path) -> IO[str]:
    """Return an open file that no other run can lock while it is open.

    Two runs that spend from one ledger at once would not see each other.
    """
    try:
        ledger.parent.mkdir(parents=True, exist_ok=True)
        file = ledger.with_suffix(".lock").open("w")
    except OSError as error:
        raise ConfigError(f"cannot use the ledger directory {ledger.parent}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(f"the ledger {ledger} is in use by another run: wait for it to end") from error
    return file


def first_order(ledger: Path) -> int:
    """Return the Renyi order that the first run of a ledger fixed."""
    order = next(read_ledger(ledger), {}).get("filter_order", 2)
    if not isinstance(order, int) or not 2 <= order < 2**31:
        raise LedgerError(f"{ledger}:1: expected a filter_order of at least 2, found {order!r:.40}")
    return order


def known_mark(ledger: Path, shard: Shard) -> str | None:
    """Return the shard's mark in a ledger; None before the first run. Raise `LedgerError` if the ledger is gone."""
    if ledger.exists():
        return owner_mark(ledger, shard)
    check_not_gone(ledger)
    _check_continued(ledger, shard, 0)
    return None


def check_not_gone(ledger: Path) -> None:
    """Raise `LedgerError` if there was a ledger in a place where there is none."""
    if key_file(ledger).exists():
        raise LedgerError(
            f"expected the ledger {ledger} beside its key, found none: put it back, it says what was charged; if "
            f"nothing was, remove {key_file(ledger)}"
        )
    check_head(ledger, None, ())


def owner_mark(ledger: Path, shard: Shard) -> str:
    """Return the mark by which a ledger knows its shard: a keyed hash, as a plain one would confirm guesses of records.

    The key lies beside the ledger, for its owner alone.
    """
    return make_key(ledger).owner_mark(shard.identity)


def check_ledger(path: Path, shard: Shard | None) -> int:
    """Raise `LedgerError` if a ledger was rewritten or cut, `ConfigError` if it is another shard's; return its lines.

    A ledger of one run alone (`shard` None) belongs to its run directory, whatever the rows.
    """
    key = read_key(path)
    hashes = check_proofs(path, key)
    check_head(path, key, hashes)
    return len(hashes) if shard is None or key is None else check_ledger_owner(path, key, shard)


def check_ledger_owner(path: Path, key: LedgerKey, shard: Shard) -> int:
    """Raise `ConfigError` if a ledger belongs to another shard: its spending would be counted for the wrong people.

    A shard that continues another, as `data table --continues` writes it, goes on with its ledger if it shares a row
    with what the ledger was charged for: the rows that stay have spent what the ledger says, the new ones less, and the
    ledger counts all of it for all of them. Return how many lines it has.
    """
    entries = list(read_ledger(path))
    lines, owners = len(entries), [entry["shard"] for entry in entries if entry.get("shard") is not None]
    trained = any(entry.get("type") == "header" and entry.get("table") is None for entry in entries)
    _check_continued(path, shard, lines if trained else 0)
    # Earlier versions knew a shard by the rows that were left for training.
    if not owners or any(key.owner_mark(known) in owners for known in (shard.identity, shard.fingerprint)):
        return lines
    if not shard.continues:
        raise ConfigError(
            f"the ledger {path} belongs to other rows: the shard has changed (then code it with data table "
            "--continues), or --seed, --test-fraction, --samples, --deal or --normalize cut it differently, or the key "
            "beside the ledger was lost"
        )
    known = _known_rows(path)
    if known is not None and known.isdisjoint(map(key.row_mark, shard.row_bytes())):
        raise ConfigError(
            f"the ledger {path} belongs to other rows: the shard continues a table, and none of its rows was charged "
            "here; give the ledger of that table"
        )
    return lines


def check_table_owner(path: Path, identity: str, *, changed: bool) -> str:
    """Return the mark of a raw table; raise `ConfigError` if its ledger was charged for another one, not `changed`.

    Whether it is the table that a shard was coded from cannot be seen.
    """
    mark = make_key(path).owner_mark(f"table {identity}")
    known = [entry["table"] for entry in read_ledger(path) if entry.get("table") is not None] if path.exists() else []
    if known and mark not in known and not changed:
        raise ConfigError(
            f"the ledger {path} belongs to another table: give this one's own --ledger and --rank, or --changed if it "
            "is the same table with other records by now"
        )
    return mark


def _check_continued(ledger: Path, shard: Shard, lines: int) -> None:
    """Raise `ConfigError` if rows that were charged before would begin with an empty ledger."""
    if shard.continues and not lines:
        raise ConfigError(
            f"expected the ledger of the table that the shard continues, found none at {ledger}: give its --ledger; if "
            "nothing was ever charged, code the table without --continues"
        )


def remember_rows(ledger: Path, key: LedgerKey, shard: Shard) -> None:
    """Add the marks of a shard's rows to those that a ledger was charged for, in a file for its owner alone.

    They are written before the ledger names the shard, so that a ledger never knows too few rows.
    """
    known, mark = _known_rows(ledger), key.owner_mark(shard.identity)
    if known and ledger.exists() and any(entry.get("shard") == mark for entry in read_ledger(ledger)):
        return
    marks = set(map(key.row_mark, shard.row_bytes())) | (known or set())
    write_file(rows_file(ledger), b"".join(sorted(marks)), private=True, durable=True, error=LedgerError)


def rows_file(ledger: Path) -> Path:
    """Return where the marks of the rows that a ledger was charged for lie: beside it."""
    return ledger.with_suffix(".rows")


def _known_rows(ledger: Path) -> set[bytes] | None:
    """Return the marks of the rows that a ledger was charged for; None if an earlier version kept none."""
    try:
        raw = rows_file(ledger).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"cannot read the row marks {rows_file(ledger)}: {error.strerror}") from error
    return {raw[at : at + 16] for at in range(0, len(raw), 16)}


def training_mark(ledger: Path, shard: Shard) -> str:
    """Return the mark of the training rows, in their order: `split_of` does not know whose the rows are.

    Who a record belongs to, or the order in which a table is coded, may change while all rows stay.
    """
    return make_key(ledger).owner_mark(f"training {shard.fingerprint}")


def split_file(ledger: Path) -> Path:
    """Return where the mark of a run's training rows lies, for its owner alone; in a lasting ledger it is a line's.

    The last hash of a ledger of one run is told to all ranks, so that no line of it depends on the rows.
    """
    return ledger.with_suffix(".split")


def remember_split(ledger: Path, shard: Shard) -> None:
    """Keep the mark of a run's training rows: if it goes on, its parts must be the same."""
    write_file(split_file(ledger), training_mark(ledger, shard), private=True, durable=True, error=LedgerError)


def read_split(ledger: Path) -> str | None:
    """Return the mark that was kept of a run's training rows; None if it had no private evaluation."""
    try:
        return split_file(ledger).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LedgerError(f"cannot read the mark of the training rows {split_file(ledger)}: {error}") from error
