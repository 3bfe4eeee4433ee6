"""The ledger of one rank: an append-only, hash-chained JSONL file that is written before anything is sent.

A line is a JSON object with `seq`, `type`, its own fields, `prev` (the hash of the line before) and `hash`, the SHA-256
of the line without `hash`. The types are

    header    who, which run, under which settings; `private: false` where nothing is promised. A file that goes on
              over several runs has one for each.
    reserve   `count` charges of `event` may be made from round `round` on; fsynced before the first of them
    close     how many charges of the last reservation were not used

A charge is thus durable before its release exists. A crash leaves a reservation without its close, which counts in
full: a ledger can say too much, never too little.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpmpi.core import Event
from dpmpi.errors import BudgetExceeded, LedgerError
from dpmpi.privacy.events import ReleaseEvent

BLOCK = 128
"""The least number of charges per reservation: an fsync costs milliseconds, a round may cost less than one."""
BLOCKS = 8
"""A run makes about so many reservations: few enough to cost nothing, enough to bound what a crash over-counts."""

FIRST = "0" * 64


def _hash(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


class Ledger:
    """Writes one rank's ledger. Use as a context manager: a clean exit closes the last reservation."""

    def __init__(
        self, path: Path, header: dict[str, Any], expected: int = BLOCK, allowance: int | None = None
    ) -> None:
        """Create the file, or go on with the one that is there, and write a header.

        `expected` charges are foreseen; a reservation does not exceed them. No more than `allowance` are made.
        """
        self._path = path
        self._seq = 0
        self._prev = FIRST
        self._event: Event | None = None
        self._left = 0
        self._expected = expected if allowance is None else min(expected, allowance)
        self._allowance = allowance
        self._spent: Counter[Event] = Counter()
        self._closed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                for entry in read_ledger(path):
                    self._seq, self._prev = entry["seq"] + 1, _hash(entry)
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # a torn last line was never durable
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise LedgerError(f"cannot open the ledger {path}: {error.strerror}") from error
        self._write("header", header)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        self._file.close()

    def charge(self, event: Event, round_: int) -> None:
        """Charge `event`: from the current reservation, or a new one that is on disk when this returns."""
        if self._left == 0 or (event is not self._event and event != self._event):
            self._reserve(event, round_)
        self._left -= 1

    def spending(self) -> Counter[Event]:
        """Return what this run has charged so far."""
        spent = self._spent.copy()
        if self._event is not None:
            spent[self._event] -= self._left
        return spent

    def close(self) -> None:
        """Write how many charges of the last reservation were not used; nothing can be charged after this."""
        if not self._closed:
            self._give_back()
            self._write("close", {"unused": 0})
            self._closed = True

    def _reserve(self, event: Event, round_: int) -> None:
        if self._closed:
            raise LedgerError(f"the ledger {self._path} is closed: nothing can be charged any more")
        self._give_back()
        if self._allowance is not None and self._spent.total() >= self._allowance:
            raise BudgetExceeded(f"the budget allows {self._allowance} charges, and all are made")
        block = max(BLOCK, -(-self._expected // BLOCKS))
        count = max(1, min(block, self._expected - self._spent.total()))
        self._write("reserve", {"event": event.to_dict(), "count": count, "round": round_})
        self._event, self._left = event, count
        self._spent[event] += count

    def _give_back(self) -> None:
        """Close the reservation: another event, or the end, interrupts it."""
        if self._event is not None and self._left:
            self._write("close", {"unused": self._left})
            self._spent[self._event] -= self._left
        self._event, self._left = None, 0

    def _write(self, type_: str, fields: dict[str, Any]) -> None:
        entry = {"seq": self._seq, "type": type_, **fields, "prev": self._prev}
        entry["hash"] = self._prev = _hash(entry)
        self._seq += 1
        try:
            self._file.write(json.dumps(entry, separators=(",", ":"), sort_keys=True) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise LedgerError(f"cannot write to the ledger {self._path}: {error.strerror}") from error


def read_ledger(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a ledger; raise `LedgerError` at the first line that breaks the chain.

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
            found = entry.pop("hash")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(f"{path}:{seq + 1}: not a ledger entry ({error})") from error
        if entry.get("seq") != seq or entry.get("prev") != prev or _hash(entry) != found:
            raise LedgerError(f"{path}:{seq + 1}: the hash chain is broken here")
        prev = found
        yield entry


def recorded_spending(path: Path) -> Counter[ReleaseEvent]:
    """Return what a ledger file charges: every reservation in full, less what was given back."""
    return sum((spent for _, spent, _ in recorded_runs(path)), Counter())


def recorded_runs(path: Path) -> list[tuple[dict[str, Any], Counter[ReleaseEvent], bool]]:
    """Return (header, spending, whether it was closed) of every run in a ledger.

    Noise that can be repeated can be taken off again: in a run with an insecure seed, a release counts as one without.
    """
    runs: list[tuple[dict[str, Any], Counter[ReleaseEvent], bool]] = []
    event: ReleaseEvent | None = None
    left = 0
    for entry in read_ledger(path):
        try:
            if entry["type"] == "header":
                runs.append((entry, Counter(), False))
                event, left = None, 0
                continue
            header, spent, _ = runs[-1]
            if entry["type"] == "reserve":
                event, left = ReleaseEvent.from_dict(entry["event"]), _natural(entry["count"])
                if header.get("insecure_noise"):
                    event = ReleaseEvent("none", 0.0, event.sensitivity, event.sampling)
                spent[event] += left
                runs[-1] = (header, spent, False)
            elif entry["type"] == "close":
                unused = _natural(entry["unused"])
                if unused > left:
                    raise ValueError(f"gives back {unused} of {left}")
                if event is not None:
                    spent[event] -= unused
                runs[-1] = (header, +spent, True)
                event, left = None, 0
            else:
                raise ValueError(f"unknown type {entry['type']!r}")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise LedgerError(f"{path}:{entry['seq'] + 1}: not a ledger entry ({error})") from error
    return runs


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected a count, found {value!r}")
    return value
