"""The ledger of one rank: an append-only, hash-chained JSONL file that is written before anything is sent.

A line is a JSON object with `seq`, `type`, its own fields, `prev` (the hash of the line before) and `hash`, the SHA-256
of the line without what proves it: `hash`, `mac` under the rank's key and `signature` by its identity
(ledger_proofs.py). Anybody can follow the chain of hashes, the owner the macs, who has the roster the signatures. Lines
of an earlier version have neither mac nor signature; from the first mac on, all have one. The types are

    header    who, which run, under which settings; `private: false` where nothing is promised. A file that goes on
              over several runs has one for each, with the mark of its `shard`, or of a raw `table` that was described.
    reserve   the charges that may be made next, from round `round` on: `events` is a list of [event, count] in order of
              time; fsynced before the first of them. An event that read held-out rows says so, and stands alone: those
              rows are charged for it and for nothing else
    close     how many charges at the end of the last reservation were not used; `ended` when the run charges no more

A charge is thus durable before its release exists. A crash leaves a reservation without its close, which counts in
full: a ledger can say too much, never too little.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpmpi.core import Event
from dpmpi.core.files import sync_folders
from dpmpi.core.frozen import frozen
from dpmpi.errors import BudgetExceeded, LedgerError
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger_proofs import Head, LedgerKey, check_head, read_key, signed_bytes, write_head

LEAST_RESERVED = 128
"""The least number of charges per reservation: an fsync costs milliseconds, a round may cost less than one."""
RESERVATIONS = 8
"""The number of reservations of a run, about: few enough to cost nothing, enough to bound what a crash over-counts."""

FIRST = "0" * 64


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":"), sort_keys=True)


def _hash(entry: dict[str, Any]) -> str:
    return hashlib.sha256(_line(entry).encode()).hexdigest()


class Ledger:
    """Writes one rank's ledger. Use as a context manager: a clean exit closes the last reservation."""

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        plan: Sequence[tuple[Event, int]] = (),
        allowance: int | None = None,
        lines: int | None = None,
        *,
        key: LedgerKey | None = None,
        sign: Callable[[bytes], bytes] | None = None,
        evaluations: int | None = None,
    ) -> None:
        """Create the file, or go on with the one that is there, and write a header.

        `plan` holds the charges that are foreseen, (event, how many times) in order of time; reservations follow it.
        No more than `allowance` are made, and no more than `evaluations` of held-out rows beside them. All were found
        from the first `lines` lines of the file: there must be no others. While a ledger is open no other process can
        open it. With `key`, lines have macs and the head is kept apart; with `sign`, they are signed in the name of the
        header's run and rank.
        """
        self._path = path
        self._key, self._sign = key, sign
        self._whose = str(header.get("run", "")), int(header.get("rank", -1))
        self._lasting = header.get("shard") is not None or header.get("table") is not None
        self._signature: str | None = None
        self._seq = 0
        self._prev = FIRST
        self._reserved: deque[tuple[Event, int]] = deque()
        """The charges that are reserved and not used, in order of time."""
        self._plan = deque(plan)
        self._by_plan = False
        self._expected = sum(count for _, count in plan) or LEAST_RESERVED
        if allowance is not None:
            self._expected = min(self._expected, allowance)
        self._allowance, self._evaluations = allowance, evaluations
        self.block: int | None = None
        """The most charges to reserve at a time; by default a fraction of what is foreseen."""
        self._spent: Counter[Event] = Counter()
        self._closed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise LedgerError(f"cannot open the ledger {path}: {error.strerror}") from error
        try:
            self._take_up(lines)
        except BaseException:
            self._file.close()
            raise
        self._write("header", header)
        self._keep_head()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        with suppress(OSError):  # what was charged is on disk; the rest could not be written when it was tried
            self._file.close()

    def charge(self, event: Event, round_: int) -> None:
        """Charge `event`: from the current reservation, or a new one that is on disk when this returns."""
        while self._reserved and self._reserved[0][1] == 0:
            self._reserved.popleft()
        if not self._reserved or self._reserved[0][0] != event:
            self._reserve(event, round_)
        event, left = self._reserved[0]
        self._reserved[0] = (event, left - 1)

    def spending(self) -> Counter[Event]:
        """Return the charges of this run so far."""
        spent = self._spent.copy()
        for event, count in self._reserved:
            spent[event] -= count
        return +spent

    def settle(self) -> None:
        """Return the unused rest of the reservation, so that a crash from here on does not count it."""
        if not self._closed:
            self._give_back()
            self._keep_head()

    def head(self) -> dict[str, Any]:
        """Return the last line's place, hash and signature (None without an identity), JSON-ready."""
        return {"seq": self._seq - 1, "hash": self._prev, "signature": self._signature}

    @property
    def mark(self) -> tuple[int, str]:
        """How many lines the file has, and the hash of the last one."""
        return self._seq, self._prev

    def close(self) -> None:
        """Write how many charges of the last reservation were not used; nothing can be charged after this."""
        if not self._closed:
            self._give_back()
            self._write("close", {"unused": 0, "ended": True})
            self._keep_head()
            self._closed = True

    def _take_up(self, lines: int | None) -> None:
        """Lock the file, and go to its end."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(
                f"expected a ledger of no other run, found {self._path} in use: wait for its run"
            ) from None
        except OSError:  # a file system without locks
            pass
        hashes = check_proofs(self._path, self._key)
        if self._key is not None:
            check_head(self._path, self._key, hashes)
        self._seq, self._prev = len(hashes), hashes[-1] if hashes else FIRST
        if lines is not None and lines != self._seq:
            raise LedgerError(
                f"expected the {lines} lines that {self._path} just had, found {self._seq}: another run charges to it"
            )
        try:
            os.truncate(self._path, self._path.read_bytes().rfind(b"\n") + 1)  # a torn last line was never durable
            if not hashes:
                sync_folders(self._path)
        except OSError as error:
            raise LedgerError(f"cannot write to the ledger {self._path}: {error.strerror}") from error

    def _reserve(self, event: Event, round_: int) -> None:
        """Begin a new reservation, of `event` first."""
        if self._closed:
            raise LedgerError(f"expected an open ledger, found {self._path} closed: nothing can be charged any more")
        self._give_back()
        held_out = getattr(event, "rows", None) == "held-out"
        evaluated = sum(count for e, count in self._spent.items() if getattr(e, "rows", None) == "held-out")
        made = evaluated if held_out else self._spent.total() - evaluated
        allowance = self._evaluations if held_out else self._allowance
        if allowance is not None and made >= allowance:
            raise BudgetExceeded(f"expected at most the {allowance} charges that the budget allows, found one more")
        if held_out:
            self._reserve_block([(event, 1)], round_, by_plan=False)
            return
        block = max(LEAST_RESERVED, -(-self._expected // RESERVATIONS)) if self.block is None else self.block
        block = max(1, min(block, self._expected - made))
        self._reserve_block(self._foreseen(event, block), round_, by_plan=self._by_plan)

    def _reserve_block(self, reserved: list[tuple[Event, int]], round_: int, *, by_plan: bool) -> None:
        """Write a reservation."""
        self._by_plan = by_plan
        self._write("reserve", {"events": [[e.to_dict(), count] for e, count in reserved], "round": round_})
        self._keep_head()
        for e, count in reserved:
            self._spent[e] += count
        self._reserved = deque(reserved)

    def _foreseen(self, event: Event, block: int) -> list[tuple[Event, int]]:
        """Take the next `block` charges from the plan; if it does not begin with `event`, repeat that event."""
        self._by_plan = bool(self._plan) and self._plan[0][0] == event
        if not self._by_plan:
            return [(event, block)]
        found: list[tuple[Event, int]] = []
        while block and self._plan:
            e, count = self._plan.popleft()
            found.append((e, min(count, block)))
            if count > block:
                self._plan.appendleft((e, count - block))
            block -= found[-1][1]
        return found

    def _give_back(self) -> None:
        """Close the reservation: an event that was not foreseen, or the end, interrupts it."""
        left = sum(count for _, count in self._reserved)
        if left:
            self._write("close", {"unused": left})
        while self._reserved:
            event, count = self._reserved.pop()
            self._spent[event] -= count
            if count and self._by_plan:
                self._plan.appendleft((event, count))

    def _write(self, type_: str, fields: dict[str, Any]) -> None:
        entry = {"seq": self._seq, "type": type_, **fields, "prev": self._prev}
        proofs = {"hash": _hash(entry)}
        if self._key is not None:
            proofs["mac"] = self._key.mac(proofs["hash"])
        if self._sign is not None:
            proofs["signature"] = self._sign(signed_bytes(*self._whose, self._seq, proofs["hash"])).hex()
        entry |= proofs
        self._prev, self._signature = proofs["hash"], proofs.get("signature")
        self._seq += 1
        try:
            self._file.write(_line(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise LedgerError(f"cannot write to the ledger {self._path}: {error.strerror}") from error

    def _keep_head(self) -> None:
        if self._key is not None:
            write_head(self._path, self._key, Head(self._seq, self._prev), lasting=self._lasting)


def in_use(path: Path) -> bool:
    """Return whether a run that has not ended charges to a ledger."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # not there, or a file system without locks
        pass
    return False


@frozen
class Line:
    """One line of a ledger whose chain holds: what it says, and what proves it."""

    entry: dict[str, Any]
    hash: str
    mac: str | None
    signature: str | None


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a ledger; raise `LedgerError` at the first one that breaks the chain.

    A last line without its newline is what a crash leaves: it was never made durable, so nothing was sent under it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerError(f"cannot read the ledger {path}: {error}") from error
    prev = FIRST
    lines = text.split("\n")
    for seq, line in enumerate(lines[:-1]):
        try:
            entry = json.loads(line)
            found, mac, signature = entry.pop("hash"), entry.pop("mac", None), entry.pop("signature", None)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _no_entry(path, seq, error) from error
        if entry.get("seq") != seq or entry.get("prev") != prev or _hash(entry) != found:
            raise LedgerError(f"{path}:{seq + 1}: expected the hash chain to go on, found it broken here")
        prev = found
        yield Line(entry, found, mac, signature)


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a ledger; raise `LedgerError` at the first line that breaks the chain."""
    return (line.entry for line in read_lines(path))


def check_proofs(path: Path, key: LedgerKey | None) -> list[str]:
    """Return the hashes of a ledger's lines; raise `LedgerError` if their macs are not those of the key.

    Without the key they cannot be checked, only that they are there. Lines of dpmpi 0.1, before all others, have none.
    """
    hashes: list[str] = []
    keyed = False
    for line in read_lines(path):
        if line.entry.get("type") == "header":
            keyed = keyed or not str(line.entry.get("dpmpi", "0.1")).startswith("0.1")
        keyed = keyed or line.mac is not None
        if keyed and (line.mac is None or (key is not None and line.mac != key.mac(line.hash))):
            raise LedgerError(
                f"{path}:{len(hashes) + 1}: expected the mac of the key beside it, found "
                f"{'none' if line.mac is None else 'another'}: it was rewritten, or the key is another ledger's; put "
                "both back as they were"
            )
        hashes.append(line.hash)
    return hashes


def check_run_proofs(path: Path, run: str) -> None:
    """Raise `LedgerError` unless every line of a run has the mac of the key beside the ledger: nobody else wrote it."""
    key, mine = read_key(path), False
    for line in read_lines(path):
        mine = line.entry.get("run") == run if line.entry.get("type") == "header" else mine
        if mine and (key is None or line.mac != key.mac(line.hash)):
            raise LedgerError(
                f"expected lines with the mac of the key beside {path}, found others or no key: put the ledger and its "
                "key back as they were"
            )


def _no_entry(path: Path, seq: int, error: Exception) -> LedgerError:
    return LedgerError(f"{path}:{seq + 1}: expected a ledger entry, found another line ({error!r:.200})")


def has_line(path: Path, count: int, digest: str) -> bool:
    """Return whether a ledger has at least `count` lines, of which the last has this hash: it has not been cut back."""
    if not path.exists():
        return False
    return any(line.entry["seq"] + 1 == count and line.hash == digest for line in read_lines(path))


def recorded_spending(path: Path) -> Counter[ReleaseEvent]:
    """Return the charges in a ledger file: every reservation in full, less the returned part."""
    return sum((spent for _, spent, _ in recorded_runs(path)), Counter())


def recorded_runs(path: Path) -> list[tuple[dict[str, Any], Counter[ReleaseEvent], bool]]:
    """Return (header, spending, whether it was closed) of every run in a ledger.

    Noise that can be repeated can be taken off again: in a run with an insecure seed, a release counts as one without.
    """
    runs: list[tuple[dict[str, Any], Counter[ReleaseEvent], bool]] = []
    reserved: list[tuple[ReleaseEvent, int]] = []
    for entry in read_ledger(path):
        try:
            if entry["type"] == "header":
                runs.append((entry, Counter(), False))
                reserved = []
                continue
            header, spent, _ = runs[-1]
            if entry["type"] == "reserve":
                reserved = [(ReleaseEvent.from_dict(event), _natural(count)) for event, count in entry["events"]]
                if header.get("insecure_noise"):
                    reserved = [(ReleaseEvent("none", 0.0, e.sensitivity, e.sampling), count) for e, count in reserved]
                for event, count in reserved:
                    spent[event] += count
                runs[-1] = (header, spent, False)
            elif entry["type"] == "close":
                unused = _natural(entry["unused"])
                while unused and reserved:
                    event, count = reserved.pop()
                    spent[event] -= min(count, unused)
                    unused = max(0, unused - count)
                if unused:
                    raise ValueError(f"gives back {unused} more than was reserved")
                runs[-1] = (header, +spent, True)
                reserved = []
            else:
                raise ValueError(f"unknown type {entry['type']!r}")
        except (KeyError, TypeError, ValueError, IndexError, LedgerError) as error:
            raise _no_entry(path, entry["seq"], error) from error
    return runs


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected a count, found {value!r}")
    return value
