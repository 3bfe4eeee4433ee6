"""One rank's ledger as `verify` reads it: the charges of every start in their order, and what proves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpmpi.core.frozen import frozen
from dpmpi.errors import DpmpiError, LedgerError, SealBroken
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import Line, check_proofs, read_lines, recorded_runs
from dpmpi.privacy.ledger_proofs import LedgerKey, check_head, read_head, read_key, signed_bytes
from dpmpi.privacy.releases import Releases


@frozen
class Start:
    """What a rank charged between one start of the run and the next."""

    header: dict[str, Any]
    charged: Releases
    """In the order of time, as they were written: also under noise that can be repeated."""
    spending: Counter[ReleaseEvent]
    """What counts: a release under noise that can be repeated counts as one without."""
    closed: bool
    last: Line
    """The last line of it."""

    @property
    def incarnation(self) -> int:
        """How often the run was started before."""
        return int(self.header["incarnation"])

    @property
    def after(self) -> int:
        """The round after which it went on."""
        return int(self.header["after_round"])


@frozen
class RankLedger:
    """A rank's ledger: the starts of this run, what is wrong with it, and what could not be checked."""

    name: int
    starts: tuple[Start, ...] = ()
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    absent: bool = False
    """Whether there is no such file here, as after a run in which every party keeps its own."""

    @property
    def spending(self) -> Counter[ReleaseEvent]:
        """What the run charged in all."""
        return self.before(None)

    def before(self, incarnation: int | None) -> Counter[ReleaseEvent]:
        """Return the charges of the starts before this one; None for all starts."""
        chosen = [one for one in self.starts if incarnation is None or one.incarnation < incarnation]
        return sum((one.spending for one in chosen), Counter[ReleaseEvent]())


@frozen
class Roster:
    """The ranks' public keys, if the run had any; `why` says why there are none."""

    keys: Sequence[bytes] | None
    why: str


def read_rank(path: Path, name: int, summary: dict[str, Any], roster: Roster) -> RankLedger:
    """Read a rank's ledger and check its chain, macs, signature, head and closing; never raise."""
    if not path.exists() and path.with_suffix(".key").exists():
        return RankLedger(name, problems=(f"expected {path} beside its key, found none: it was removed",))
    if not path.exists():
        where = f"everything: get {path.name} from its party and put it into {path.parent}, or give --ledger DIR"
        return RankLedger(name, unchecked=(where,), absent=True)
    try:
        starts = tuple(one for one in _starts(path) if one.header.get("run") == summary["run"])
        if not starts and name in summary["lost"]:
            return RankLedger(name, unchecked=("its charges: the ledger of a lost rank that is empty",))
        if not 1 <= len(starts) <= summary["starts"]:
            raise LedgerError(f"{path} holds {len(starts)} starts of the run, the summary says {summary['starts']}")
        incarnations = [one.incarnation for one in starts]
        if sorted(set(incarnations)) != incarnations or any(one.after < 0 for one in starts):
            raise LedgerError(f"{path}: expected starts in order, found incarnations {incarnations}")
    except DpmpiError as error:
        return RankLedger(name, problems=(str(error),))
    except (KeyError, TypeError, ValueError) as error:
        return RankLedger(name, problems=(f"{path}: not the ledger of a run ({error!r:.80})",))
    problems: list[str] = []
    unchecked: list[str] = []
    record = next((one for one in summary["per_rank"] if one["rank"] == name), None)
    for check in (_owner, _signature, _closing):
        try:
            unchecked += check(path, starts, record, roster)
        except DpmpiError as error:
            problems.append(str(error))
    return RankLedger(name, starts, tuple(problems), tuple(unchecked))


def _starts(path: Path) -> Iterator[Start]:
    """Yield the starts of all runs in a ledger; `recorded_runs` has refused what is no ledger."""
    runs, lines = recorded_runs(path), list(read_lines(path))
    begins = [k for k, line in enumerate(lines) if line.entry["type"] == "header"]
    if not begins:  # a rank that died before its first line was written
        return
    for (header, spending, closed), begin, end in zip(runs, begins, [*begins[1:], len(lines)], strict=True):
        charged: list[tuple[ReleaseEvent, int]] = []
        for line in lines[begin:end]:
            if line.entry["type"] == "reserve":
                charged += [(ReleaseEvent.from_dict(event), count) for event, count in line.entry["events"]]
            elif line.entry["type"] == "close":
                _take_back(charged, line.entry["unused"])
        yield Start(header, _runs(charged), spending, closed, lines[end - 1])


def _take_back(charged: list[tuple[ReleaseEvent, int]], unused: int) -> None:
    while unused:
        event, count = charged.pop()
        if count > unused:
            charged.append((event, count - unused))
        unused -= min(count, unused)


def _runs(charged: Releases) -> Releases:
    """Return the charges with equal neighbours put together."""
    found: list[tuple[ReleaseEvent, int]] = []
    for event, count in charged:
        if found and found[-1][0] == event:
            found[-1] = (event, found[-1][1] + count)
        elif count:
            found.append((event, count))
    return found


Checked = list[str]
"""What could not be checked."""


def _owner(path: Path, starts: Sequence[Start], record: Any, roster: Roster) -> Checked:
    """Check what the owner can: the macs, and that nothing the head knows is missing."""
    key: LedgerKey | None = None
    with suppress(LedgerError):  # somebody else's key cannot be read, and need not be
        key = read_key(path)
    hashes = check_proofs(path, key)
    if all(line.mac is None for line in read_lines(path)):
        return ["macs: an earlier version wrote none"]
    if key is None:
        return ["macs and head: the key is its owner's"]
    check_head(path, key, hashes)
    return ["lines cut off by the owner: no head is kept here"] if read_head(key) is None else []


def _signature(path: Path, starts: Sequence[Start], record: Any, roster: Roster) -> Checked:
    """Check the identity's signature on every line of the run: a later start signs what it finds, forged or not."""
    if roster.keys is None:
        return [f"signatures: {roster.why}"]
    from dpmpi.crypto.signatures import check_signature  # noqa: PLC0415 - slow, and few runs need it

    run, name, mine = starts[-1].header["run"], int(starts[-1].header["rank"]), False
    for line in read_lines(path):
        mine = line.entry.get("run") == run if line.entry["type"] == "header" else mine
        if mine and (line.signature is None or not 0 <= name < len(roster.keys)):
            raise SealBroken(f"{path}: expected lines that rank {name} signed, found none: it was rewritten")
        if mine and line.signature is not None:
            told = signed_bytes(run, name, line.entry["seq"], line.hash)
            check_signature(roster.keys[name], told, line.signature)
    return []


def _closing(path: Path, starts: Sequence[Start], record: Any, roster: Roster) -> Checked:
    """Check that the ledger ends where the run ended it; ranks that were lost ended nothing."""
    if record is None:
        return []
    line, head = starts[-1].last, record.get("ledger")
    if not starts[-1].closed:
        raise LedgerError("the ledger was not closed: the run ended early, the last reservation counts in full")
    if head is not None and (head.get("seq"), head.get("hash")) != (line.entry["seq"], line.hash):
        raise LedgerError(f"expected the ledger to end with {head.get('hash')!s:.16}..., found {line.hash[:16]}...")
    if line.entry.get("ended") is True:
        return []
    if line.mac is not None or line.signature is not None:
        raise LedgerError("expected the run's last line, which ends the ledger, found another: it was cut")
    return ["closing line: an earlier version wrote none"]
