"""What a rank may spend: its budget, its ledger, and what earlier runs have charged to it."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dpmpi.agreement import everyone, on_first
from dpmpi.data import Shard
from dpmpi.errors import ConfigError, LedgerError
from dpmpi.planning import Prospect, allowance, filter_order, read_budget
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import read_ledger, recorded_spending
from dpmpi.rng import fresh_key
from dpmpi.wire import Transport


@dataclass(frozen=True)
class Wallet:
    """Where a rank charges, what it may spend in all, and how many charges of this run that leaves."""

    path: Path
    earlier: Mapping[ReleaseEvent, int]
    budget: float | None
    allowance: int | None
    order: int
    """The Renyi order of the filter, for a ledger that goes on over runs."""
    owner: str | None
    """The shard's mark in such a ledger."""


def open_wallets(
    prospect: Prospect, transport: Transport, ledger_path: Callable[[int], Path], shards: Sequence[Shard],
    sigmas: Sequence[float], stack: ExitStack,
) -> dict[int, Wallet]:  # fmt: skip
    """Return the wallets of the ranks in this process, after reading their budgets and what earlier runs spent."""
    config = prospect.config
    earlier: dict[int, Counter[ReleaseEvent]] = {}
    budgets: dict[int, float | None] = {}
    orders: dict[int, int] = {}
    owners: dict[int, str | None] = {}
    path = ledger_path if config.ledger is None else lambda rank: Path(str(config.ledger)) / f"rank-{rank:03d}.jsonl"

    def read() -> list[Any]:
        for rank, shard in zip(transport.ranks, shards, strict=True):
            budgets[rank] = read_budget(config, rank)
            earlier[rank] = Counter()
            if config.ledger is None:
                continue  # a ledger of its own, in a run directory that is not there yet
            stack.enter_context(lock(path(rank)))
            owners[rank] = owner_mark(path(rank), shard)
            if path(rank).exists():
                check_owner(path(rank), owners[rank])
                earlier[rank] = recorded_spending(path(rank))
                orders[rank] = first_order(path(rank))
        return [
            [budgets[k], orders.get(k), [[event.to_dict(), count] for event, count in earlier[k].items()]]
            for k in transport.ranks
        ]

    known = everyone(transport, read)

    def allow(rank: int) -> tuple[int | None, int]:
        budget, order, spent = known[rank]
        planned = prospect.events(prospect.terms(rank), sigmas[rank])
        before = {ReleaseEvent.from_dict(fields): count for fields, count in spent}
        if order is None:
            order = filter_order(planned, budget or config.epsilon or 1.0, config.delta)
        allowed = None if budget is None else allowance(planned, before, budget, config.delta, order)
        return allowed, order

    plain = config.budget is None and config.ledger is None
    found = [(None, 2)] * transport.size if plain else on_first(
        transport, lambda: [allow(rank) for rank in range(transport.size)]
    )  # fmt: skip
    return {
        k: Wallet(path(k), earlier[k], budgets[k], found[k][0], found[k][1], owners.get(k)) for k in transport.ranks
    }


def lock(ledger: Path) -> IO[str]:
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
    if not isinstance(order, int) or order < 2:
        raise LedgerError(f"{ledger}:1: expected a filter_order of at least 2, found {order!r}")
    return order


def owner_mark(ledger: Path, shard: Shard) -> str:
    """Return the mark by which a ledger knows its shard: a keyed hash, as a plain one would confirm guesses of records.

    The key lies beside the ledger, for its owner alone.
    """
    path = ledger.with_suffix(".key")
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(fresh_key().hex())
        key = bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise LedgerError(f"cannot use the ledger's key {path}: {error}") from error
    import hmac  # noqa: PLC0415 - only ledgers that go on over runs need it

    return hmac.digest(key, shard.fingerprint.encode(), "sha256").hex()


def check_owner(path: Path, mark: str | None) -> None:
    """Raise `ConfigError` if a ledger belongs to another shard: its spending would be counted for the wrong people."""
    for entry in read_ledger(path):
        owner = entry.get("shard")
        if owner is not None and owner != mark:
            raise ConfigError(
                f"the ledger {path} belongs to other rows: the shard has changed, or --seed, --test-fraction, "
                "--samples or --normalize cut it differently, or the key beside the ledger was lost"
            )
