"""Releases in order of time, planned or made: how many, which come first, and the epsilon that they come to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from dpmpi.core import Event
from dpmpi.core.files import user_path
from dpmpi.privacy import accountants
from dpmpi.privacy.events import ReleaseEvent
from dpmpi.privacy.spending import Spending

Releases: TypeAlias = Sequence[tuple[ReleaseEvent, int]]
"""Releases in order of time: (event, how many times)."""


@dataclass
class Recorder:
    """Charges in memory, for laboratories and tests: their records are made up, and nobody keeps their spending."""

    charged: list[tuple[int, Event]] = field(default_factory=list)

    def charge(self, event: Event, round_: int) -> None:
        """Remember the charge."""
        self.charged.append((round_, event))

    def spending(self) -> Counter[Any]:
        """Return how often each event was charged."""
        return Counter(event for _, event in self.charged)


def tally(events: Iterable[tuple[ReleaseEvent, int]]) -> Counter[ReleaseEvent]:
    """Return how often each event occurs."""
    found: Counter[ReleaseEvent] = Counter()
    for event, count in events:
        found[event] += count
    return found


def first_releases(planned: Releases, wanted: int) -> Releases:
    """Return the first `wanted` of the planned releases."""
    kept = []
    for event, count in planned:
        if wanted <= 0:
            break
        kept.append((event, min(count, wanted)))
        wanted -= count
    return kept


def later_releases(planned: Releases, made: int) -> Releases:
    """Return the planned releases without the first `made` ones."""
    left = []
    for event, count in planned:
        gone = min(count, made)
        made -= gone
        if count > gone:
            left.append((event, count - gone))
    return left


def spent_epsilon(spending: Spending, delta: float, *, cached: bool = True) -> float | None:
    """Return the certified epsilon of what was released; None if it is infinite, or too large to be computed."""
    try:
        epsilon = accountants.certified_epsilon(spending, delta, cache=cache_file() if cached else None)
    except (ArithmeticError, ValueError, MemoryError):  # losses beyond what the accountant's grid can hold
        return None
    return epsilon if math.isfinite(epsilon) else None


def live_epsilon(spending: Mapping[Any, int], delta: float) -> float | None:
    """Return the certified epsilon so far where it has a closed form, which takes no import; None elsewhere."""
    if all("gaussian" in event.noise and event.sampling.kind == "full" for event in spending):
        return spent_epsilon(spending, delta)
    return None


def cache_file() -> Path:
    """Return where this user's figures are kept: the accountant takes seconds, and runs repeat."""
    return user_path("~/.cache/dpmpi/accountant.json")
