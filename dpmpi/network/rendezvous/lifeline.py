"""What one rank knows of the others while the run lasts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dpmpi.errors import ProtocolError
from dpmpi.network.rendezvous.papers import Papers, Patience, Place
from dpmpi.network.rendezvous.wire import Wire

BEATS = 4
"""Frames to be heard within the deadline: one that is lost makes nobody lost."""
INTRODUCTION_SECONDS = 10.0
"""How long two ranks may take in all to say who they are."""
NEWS_SECONDS = 10.0
"""Between two lines on who has not come yet."""


@dataclass
class Lifeline:
    """The connections of one rank beside MPI: `Host` of rank 0, `Guest` of any other."""

    papers: Papers
    place: Place
    patience: Patience
    lost: str | None = None
    """Which rank was lost, in words; None while all is well."""
    on_loss: Callable[[str], None] | None = None
    """Called once, from a thread, when a rank is lost."""
    _ended: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Raise `ProtocolError` if a rank was lost."""
        if self.lost is not None:
            raise ProtocolError(self.lost)

    def mark_lost(self, text: str) -> bool:
        """Remember the first loss; return whether this is it."""
        with self._guard:
            if self._ended or self.lost is not None:
                return False
            self.lost = text
        if self.on_loss is not None:
            self.on_loss(text)
        return True

    def leave(self, code: int) -> None:
        """Tell the others that this rank is through (code 0), or that it ends early."""
        raise NotImplementedError

    def _beat(self, wires: Callable[[], Sequence[Wire]]) -> None:
        """Let the others hear of this rank often enough, until the end."""
        while not self._ended and self.lost is None:
            time.sleep(self.patience.silence / BEATS)
            for wire in wires():
                with suppress(OSError):
                    wire.say("beat")


def early_end(call: str, code: object) -> str:
    """Return the words for a rank that ended early."""
    number = code if isinstance(code, int) and 0 <= code < 256 else 1
    return f"{call} ended early (exit code {number}): it says why at its own terminal"
