"""What a run evaluates: nothing, its records without noise, or its held-out rows privately."""

from __future__ import annotations

from typing import Literal

from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError

PRIVATE = "private"
HELD_OUT = 0.1
"""The fraction of each private shard that is held out for a private evaluation."""


@frozen
class Evaluating:
    """What is evaluated, and every how many rounds beside the last one; 0 for the last alone."""

    kind: Literal["off", "open", "private"]
    every: int = 0
    given: bool = True
    """Whether somebody asked for it."""

    @classmethod
    def parse(cls, text: str | int) -> Evaluating:
        """Return the meaning of `--evaluate`: N, 0, private or private:N."""
        word, colon, number = str(text).partition(":")
        count = number if word == PRIVATE else str(text)
        if word == PRIVATE and not colon:
            return cls("private")
        try:
            every = int(count)
        except ValueError:
            raise ConfigError(
                f"expected --evaluate N, 0, private or private:N, found {text!r}: a number of rounds, or private"
            ) from None
        if every < (1 if word == PRIVATE else 0):
            raise ConfigError(f"--evaluate must be at least 0 rounds, or private:1, got {text}")
        if every >= 2**63:
            raise ConfigError(f"--evaluate must be less than 2^63, got {text}")
        return cls("private", every) if word == PRIVATE else cls("open" if every else "off", every)

    def rounds(self, last: int) -> list[int]:
        """Return after which of `last` rounds there is an evaluation."""
        if self.kind == "off":
            return []
        return [*range(self.every, last, self.every), last] if self.every else [last]
