"""One line that shows how far a run is: tqdm on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from dpmpi.evaluation import Evaluation

PIECE_SECONDS = 0.25
LINE_SECONDS = 5.0


class Progress:
    """Shows the rounds of a run on the first rank; silent on the others."""

    def __init__(self, rounds: int, *, shown: bool) -> None:
        self._rounds = rounds
        self._shown = shown
        self._bar: Any = None
        self._begin = self._spoke = time.monotonic()
        self._done = 0
        self._note = ""
        if shown and sys.stderr.isatty():
            from tqdm import tqdm  # noqa: PLC0415 - one rank only

            self._bar = tqdm(total=rounds, unit="round", dynamic_ncols=True, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def pieces(self, done: int, stop: int) -> Iterator[int]:
        """Yield the rounds up to which to run next, so that a piece takes a fraction of a second.

        Pieces are no barriers: a rank that is not shown runs to `stop` at once.
        """
        size = 1
        while done < stop:
            piece = min(stop, done + size) if self._shown else stop
            begin = time.monotonic()
            yield piece
            seconds = max(time.monotonic() - begin, 1e-6)
            size = max(1, min(4 * size, int((piece - done) * PIECE_SECONDS / seconds)))
            done = piece

    def update(self, done: int) -> None:
        """Note that the rounds up to `done` are complete."""
        if not self._shown:
            return
        if self._bar is not None:
            self._bar.update(done - self._done)
        elif (now := time.monotonic()) - self._spoke >= LINE_SECONDS:
            self._spoke = now
            rate = done / (now - self._begin)
            left = (self._rounds - done) / rate
            print(
                f"round {done}/{self._rounds}  {rate:.0f} rounds/s  {left:.0f} s left{self._note}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        self._done = done

    def note(self, evaluation: Evaluation, optimum: float | None) -> None:
        """Show the latest figures next to the rounds."""
        parts = [f"objective {evaluation.objective:.5g}"]
        if optimum is not None:
            parts.append(f"suboptimality {evaluation.objective - optimum:.2e}")
        if evaluation.accuracy is not None:
            parts.append(f"accuracy {evaluation.accuracy:.4f}")
        self._note = "  " + "  ".join(parts)
        if self._bar is not None:
            self._bar.set_postfix_str(self._note.strip(), refresh=False)
