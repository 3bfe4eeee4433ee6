"""Processes that decide together: an error on one is an error on all, a figure of the first is everybody's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from dpmpi.core import Transport
from dpmpi.errors import ConfigError, DataError, DpmpiError, LedgerError

Result = TypeVar("Result")


def agreed(transport: Transport, action: Callable[[], Result]) -> Result:
    """Run `action` in every process; if it fails in one, raise that process's error in all of them."""
    error: DpmpiError | None = None
    try:
        result = action()
    except DpmpiError as caught:
        error = caught
    text = "" if error is None else json.dumps([type(error).__name__, str(error)])
    for found in transport.collect([text] * len(transport.ranks)):
        if found:
            name, message = json.loads(found)
            kinds = {kind.__name__: kind for kind in (ConfigError, DataError, LedgerError)}
            raise kinds.get(name, DpmpiError)(message)
    return result


def on_first(transport: Transport, compute: Callable[[], Any]) -> Any:
    """Compute a JSON-ready value on the first rank and give it to all: accountants are slow to import."""
    text = json.dumps(agreed(transport, lambda: compute() if 0 in transport.ranks else None))
    return json.loads(transport.collect([text] * len(transport.ranks))[0])
