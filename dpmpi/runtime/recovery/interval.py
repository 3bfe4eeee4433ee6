"""How often to checkpoint."""

from __future__ import annotations

from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError


@frozen
class Interval:
    """How often to checkpoint: every N rounds, or every N seconds."""

    rounds: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str | None) -> Interval:
        """Return the interval that `200` (rounds) or `60s` (seconds) describes; None for never."""
        if text is None:
            return cls()
        number = text.removesuffix("s")
        try:
            value = float(number) if number != text else int(number)
        except ValueError:
            value = -1
        if not 0 < value < 1e9:
            raise ConfigError(f"--checkpoint-every takes rounds (200) or seconds (60s), got {text!r}")
        return cls(seconds=value) if number != text else cls(rounds=int(value))

    @property
    def never(self) -> bool:
        """Whether there are no checkpoints."""
        return self.rounds is None and self.seconds is None
