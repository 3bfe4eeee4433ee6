"""Who may introduce itself at rank 0's port: so many at a time, of whom one address cannot keep out another."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from dpmpi.network.rendezvous.wire import Wire

STRANGERS = 64
"""Connections that may introduce themselves at a time."""
MOST_NAMED = 50
"""Different lines about strangers: a scan of ports does not fill the terminal."""


@dataclass
class Door:
    """The connections that have not proven who they are, the oldest first, and what was said of those turned away."""

    _waiting: dict[Wire, str] = field(default_factory=dict)
    _named: set[str] = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, wire: Wire, address: str) -> None:
        """Let a connection in; if there are too many, close the oldest one of the network that has most of them."""
        with self._guard:
            self._waiting[wire] = network_of(address)
            if len(self._waiting) <= STRANGERS:
                return
            [(most, _)] = Counter(self._waiting.values()).most_common(1)
            oldest = next(one for one, network in self._waiting.items() if network == most)
            del self._waiting[oldest]
        oldest.close()

    def leave(self, wire: Wire) -> None:
        """Note that a connection has introduced itself, or was turned away."""
        with self._guard:
            self._waiting.pop(wire, None)

    def turned_away(self, text: str, news: Callable[[str], None]) -> None:
        """Say who was turned away and why, each of it once."""
        with self._guard:
            if text in self._named or len(self._named) > MOST_NAMED:
                return
            self._named.add(text)
            text = text if len(self._named) <= MOST_NAMED else "others were turned away, too many to name"
        news(text)


def network_of(address: str) -> str:
    """Return the network of an address, as one sender may have many: all of IPv4, the first half of IPv6."""
    if ":" not in address:
        return address
    import ipaddress  # noqa: PLC0415 - rare

    return str(ipaddress.ip_network((int(ipaddress.IPv6Address(address.partition("%")[0])), 64), strict=False))
