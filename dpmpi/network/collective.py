"""Processes that decide together: an error on one is an error on all, a figure of the first is everybody's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from dpmpi.errors import CheckpointError, ConfigError, DataError, DpmpiError, LedgerError, RankLost, SealBroken
from dpmpi.network.channel import Transport


def on_all_ranks(transport: Transport, action: Callable[[], Sequence[Any]]) -> list[Any]:
    """Run `action` in every process, which returns a JSON-ready value for each rank here; return those of all ranks.

    If it fails in one process, that process's error is raised in all of them.
    """
    try:
        texts = [json.dumps([None, None, value]) for value in action()]
    except RankLost:
        raise
    except DpmpiError as error:
        texts = [json.dumps([type(error).__name__, str(error), None])] * len(transport.ranks)
    except (OSError, MemoryError, OverflowError, UnicodeError) as error:  # what files and sizes can do to any step
        texts = [json.dumps(["ConfigError", f"{type(error).__name__}: {error}", None])] * len(transport.ranks)
    values = []
    for name, message, value in map(json.loads, transport.collect(texts)):
        if name is not None:
            kinds = {kind.__name__: kind for kind in (CheckpointError, ConfigError, DataError, LedgerError, SealBroken)}
            raise kinds.get(name, DpmpiError)(message)
        values.append(value)
    return values


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
