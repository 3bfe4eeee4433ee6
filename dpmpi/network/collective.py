"""Processes that decide together: an error on one is an error on all, a figure of the first is everybody's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dpmpi.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DpmpiError,
    LedgerError,
    ProtocolError,
    RankLost,
    SealBroken,
)
from dpmpi.network.channel import Transport

T = TypeVar("T")


def on_all_ranks(transport: Transport, action: Callable[[], Sequence[Any]]) -> list[Any]:
    """Run `action` in every process, which returns a JSON-ready value for each rank here; return those of all ranks.

    If it fails in one process, that process's error is raised in all of them.
    """
    own: DpmpiError | None = None
    try:
        texts = [json.dumps([None, None, value]) for value in action()]
    except RankLost:
        raise
    except DpmpiError as error:
        own = error
    except OSError as error:  # what files can do to any step
        own = ConfigError(f"{type(error).__name__}: {error}")
        own.__cause__ = error
    except (MemoryError, OverflowError, UnicodeError) as error:  # what sizes and texts can do, which may be records
        own = ConfigError(f"rank {transport.ranks[0]} failed ({type(error).__name__})")
        own.__cause__ = error
    if own is not None:
        texts = [json.dumps([type(own).__name__, str(own), None])] * len(transport.ranks)
    values, told = [], dict[str, list[Any]]()
    for rank, text in enumerate(transport.collect(texts)):
        if text not in told:  # most say the same
            told[text] = _entry(rank, text)
        name, message, value = told[text]
        if name is not None:
            first = own if own is not None and rank in transport.ranks else _KINDS.get(name, DpmpiError)(message)
            first.told = True
            raise first
        values.append(value)
    if own is not None:  # whatever became of it on its way
        raise own
    return values


_KINDS = {kind.__name__: kind for kind in (CheckpointError, ConfigError, DataError, LedgerError, SealBroken)}


def _entry(rank: int, text: str) -> list[Any]:
    try:
        name, message, value = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"expected the words of rank {rank}, found other text: was it changed?") from error
    return [name, message, value]


def fail_together(transport: Transport, action: Callable[[], None]) -> None:
    """Run `action` in every process; if it fails in one, raise that process's error in all of them."""

    def nothing() -> Sequence[Any]:
        action()
        return [None] * len(transport.ranks)

    on_all_ranks(transport, nothing)


def on_first_rank(transport: Transport, compute: Callable[[], Any]) -> Any:
    """Compute a JSON-ready value on the first rank and give it to all: accountants are slow to import."""
    others = [None] * len(transport.ranks)
    return on_all_ranks(transport, lambda: [compute(), *others[1:]] if 0 in transport.ranks else others)[0]


def in_each_domain(transport: Transport, leaders: Sequence[int], compute: Callable[[], T]) -> T:
    """Compute a value in every process, first in those of the `leaders`: what they keep spares the others the work."""
    lead = any(rank in leaders for rank in transport.ranks)
    found: list[T] = []

    def first() -> None:
        if lead:
            found.append(compute())

    fail_together(transport, first)
    return found[0] if lead else compute()
