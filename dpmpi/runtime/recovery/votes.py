"""Rounds after which all ranks look around together, without waiting for each other more than they have to.

About every `seconds`, after a round that all ranks know, each casts a vote: does it wish for a checkpoint, was it told
to stop, up to which round has it checkpoints. The votes travel while the rounds go on; what came of them, the largest
of each, is acted on `slack` such rounds later, which is the same round on all ranks. So a rank may be `slack` looks
ahead of the slowest one before it has to wait for it.

The first rank also says how many rounds it ran per look, and everybody adopts that; where ranks keep their timings to
themselves, looks are a fixed number of rounds apart instead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from dpmpi.core import Array
from dpmpi.network.channel import Transport

GROWTH = 4
"""Looks are a round apart at first, and at most this many times further at each."""


class Votes:
    """Counts rounds from look to look, the same on all ranks."""

    def __init__(self, transport: Transport, completed: int, seconds: float | None, slack: int, most: int) -> None:
        """Begin after round `completed`; no two looks are more than `most` rounds apart.

        They are about `seconds` apart, or exactly `most` rounds if that is None.
        """
        self._transport = transport
        self._seconds = seconds
        self._slack = slack
        self._most = most
        self._first = 0 in transport.ranks
        self._cast: deque[Callable[[], Array]] = deque()
        self._step = 1 if seconds is not None else most
        self._since = time.monotonic()
        self.next = completed + 1
        """The next round after which to look around."""

    def look(self, *wishes: float) -> list[float]:
        """Cast a vote for each wish; return the largest of those that all ranks cast `slack` looks ago, 0 before."""
        pace = 0.0
        if self._seconds is not None:
            now = time.monotonic()
            pace = self._step * self._seconds / max(now - self._since, 1e-6)
            self._since = now
        self._cast.append(self._transport.vote(np.array([*wishes, pace if self._first else 0.0], np.float64)))
        granted = [0.0] * len(wishes)
        if len(self._cast) > self._slack:
            *granted, pace = self._cast.popleft()().tolist()
            if self._seconds is not None:
                self._step = max(1, min(GROWTH * self._step, int(pace), self._most))
        self.next += self._step
        return granted
