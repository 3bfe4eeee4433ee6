"""Figures about the process: whether anything but the messages of the rounds tells two shards apart.

Whole runs, closing included, over two shards that differ in one record: the canary, or an empty record. The texts and
votes that the victim hands over outside of the rounds are heard on their way to the transport, and every number in them
is a figure; of a text that is no number, its length. Each figure is compared between the worlds by the test of Mann and
Whitney. With k figures that are not constant, a figure tells the worlds apart if

    k p <= 1 - confidence                                                                               (1)

so that chance alone finds any with at most that probability. Vectors that are gathered or added up are functions of
releases, which may differ as much as is certified: they are audited as messages are, and left out here.

Within one start the operating system's peak of memory never falls, so that it tells nothing here: the contract on whole
processes in the tests looks at that.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpmpi.commands.audit.listening import VICTIM
from dpmpi.core import Array
from dpmpi.core.frozen import frozen


class FigureTap:
    """A transport that notes every number that the victim hands over outside of the rounds."""

    def __init__(self, inside: Any) -> None:
        self._inside = inside
        self.heard: dict[str, float] = {}
        self._calls = 0

    def collect(self, texts: Sequence[str]) -> list[str]:
        """Note the numbers in the victim's text, then collect."""
        if VICTIM in self._inside.ranks:
            self._note("text", list(numbers_in(texts[list(self._inside.ranks).index(VICTIM)])))
        return list(self._inside.collect(texts))

    def vote(self, wishes: Array) -> Callable[[], Array]:
        """Note the wishes, then vote."""
        if VICTIM in self._inside.ranks:
            self._note("vote", [(str(k), float(x)) for k, x in enumerate(wishes)])
        found: Callable[[], Array] = self._inside.vote(wishes)
        return found

    def _note(self, kind: str, found: Sequence[tuple[str, float]]) -> None:
        self._calls += 1
        for name, value in found:
            self.heard[f"{kind} {self._calls}: {name}"] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


def numbers_in(text: str) -> Iterator[tuple[str, float]]:
    """Yield every number in a JSON text with the path to it; of other texts the length."""
    try:
        yield from _walk(json.loads(text), "")
    except ValueError:
        yield "length", float(len(text))


def _walk(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _walk(one, f"{path}/{key}")
    elif isinstance(value, list):
        yield f"{path}/length", float(len(value))
        for k, one in enumerate(value):
            yield from _walk(one, f"{path}/{k}")
    elif isinstance(value, bool | int | float):
        yield path, float(value)
    else:
        yield f"{path}/length", float(len(value or ""))


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep what a run says to people off the screen."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


@frozen
class Figures:
    """What the figures tell: how many there were, and the clearest ones with the probability of chance."""

    count: int
    clearest: tuple[tuple[str, float], ...]

    def separates(self, confidence: float) -> bool:
        """Return whether a figure tells the worlds apart, (1)."""
        return bool(self.clearest) and self.count * self.clearest[0][1] <= 1.0 - confidence


def compare(plus: Sequence[Mapping[str, float]], minus: Sequence[Mapping[str, float]], shown: int = 5) -> Figures:
    """Return the test of all figures; one that a run did not have counts as nothing."""
    from scipy.stats import mannwhitneyu  # noqa: PLC0415 - only one rank needs it

    names = sorted({name for run in (*plus, *minus) for name in run})
    found: list[tuple[str, float]] = []
    for name in names:
        up, down = (np.nan_to_num([run.get(name, np.inf) for run in world]) for world in (plus, minus))
        if np.ptp(np.concatenate([up, down])) > 0.0:
            found.append((name, float(mannwhitneyu(up, down, method="asymptotic").pvalue)))
    found.sort(key=lambda one: one[1])
    return Figures(len(found), tuple(found[:shown]))
