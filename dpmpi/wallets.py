"""What a rank may spend: its budget, its ledger, and what earlier runs have charged to it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmpi.agreement import everyone, on_first
from dpmpi.config import Config
from dpmpi.core import Transport
from dpmpi.data import Shard
from dpmpi.errors import ConfigError, LedgerError
from dpmpi.planning import allowance, filter_order, planned_releases, read_budget, release_event
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.ledger import read_ledger, recorded_spending
from dpmpi.rng import fresh_key


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
    config: Config, transport: Transport, ledger_path: Callable[[int], Path], shards: Sequence[Shard],
    records: Sequence[int], sigmas: Sequence[float], active: Sequence[int],
) -> dict[int, Wallet]:  # fmt: skip
    """Return the wallets of the ranks in this process, after reading their budgets and what earlier runs spent."""
    earlier: dict[int, Counter[ReleaseEvent]] = {}
    budgets: dict[int, float | None] = {}
    orders: dict[int, int] = {}
    owners: dict[int, str | None] = {}
    path = ledger_path if config.ledger is None else lambda rank: Path(str(config.ledger)) / f"rank-{rank:03d}.jsonl"

    def read() -> list[Any]:
        for rank, shard in zip(transport.ranks, shards, strict=True):
            budgets[rank] = read_budget(config, rank)
            earlier[rank] = Counter()
            owners[rank] = None if config.ledger is None else owner_mark(path(rank), shard)
            if path(rank).exists():
                check_owner(path(rank), owners[rank])
                earlier[rank] = recorded_spending(path(rank))
                orders[rank] = int(next(read_ledger(path(rank))).get("filter_order", 2))
        return [
            [budgets[k], orders.get(k), [[event.to_dict(), count] for event, count in earlier[k].items()]]
            for k in transport.ranks
        ]

    known = everyone(transport, read)

    def allow(rank: int) -> tuple[int | None, int]:
        budget, order, spent = known[rank]
        event, planned = release_event(config, records[rank], sigmas[rank]), planned_releases(config, active[rank])
        before = {ReleaseEvent.from_dict(fields): count for fields, count in spent}
        if order is None:
            order = filter_order(event, planned, budget or config.epsilon or 1.0, config.delta)
        allowed = None if budget is None else allowance(event, planned, before, budget, config.delta, order)
        return allowed, order

    plain = config.budget is None and config.ledger is None
    found = [(None, 2)] * transport.size if plain else on_first(
        transport, lambda: [allow(rank) for rank in range(transport.size)]
    )  # fmt: skip
    return {
        k: Wallet(path(k), earlier[k], budgets[k], found[k][0], found[k][1], owners[k]) for k in transport.ranks
    }


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
            raise ConfigError(f"the ledger {path} belongs to another shard: give this one its own --ledger directory")
