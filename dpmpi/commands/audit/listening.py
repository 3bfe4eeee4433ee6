"""What an adversary hears of the victim: every message that it sends or receives, as its peers read it.

Messages are heard inside of the seals, because a peer opens them. Of sums in which nobody sees a summand, everybody
hears the sum; colluders know what they put into it themselves, and take it off:

    heard = sum of all summands - those of the colluders                                                (1)

With noise inside the sum there are `--colluders` of them. Noise on each rank's own value must hold against everybody
else, so then all other ranks collude, and (1) is the victim's own vector.

With noise that cancels between neighbours, colluders combine the messages of all ranks (`pairs.py`).

Every vector becomes one number, its product with the unit vector of equal coordinates, which is the canary's direction;
for a loss of K scores, K numbers: one for the columns of each score.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpmpi.commands.audit.pairs import combined, overhear
from dpmpi.core import Array, Hidden, Mix, Request, Sum
from dpmpi.crypto.ring import decode
from dpmpi.network.channel import Channel, Neighbourhood, Transport
from dpmpi.runtime.engine import Seat
from dpmpi.runtime.job import Job
from dpmpi.runtime.messages import SharedSums

VICTIM = 0
"""The rank that holds the canary."""


def project(vector: Array, columns: int, scores: int = 1) -> list[float]:
    """Return the products of a message with the canary's direction, one a score.

    That is for each part of the size of a model, or once for a message of another size.
    """
    if vector.size % scores:  # no part of a model
        scores = 1
    whole = vector.size >= columns * scores and vector.size % (columns * scores) == 0
    width = columns if whole else max(vector.size // scores, 1)
    return list(map(float, (vector.reshape(-1, width, scores).sum(axis=1) / math.sqrt(width)).ravel()))


@dataclass
class Heard:
    """Vectors that were heard, one entry for each exchange of the victim."""

    sent: list[Array] = field(default_factory=list)
    """What the victim said."""
    received: list[list[Array]] = field(default_factory=list)
    """What it was told, or what everybody was."""
    before: list[list[Array]] = field(default_factory=list)
    """What colluders make of the other messages of the exchange and of what they know; empty without them."""

    def numbers(self, columns: int, scores: int = 1) -> list[tuple[list[float], list[float]]]:
        """Return the projections of each exchange: of what was sent, and of what was received."""

        def projected(vectors: Sequence[Array]) -> list[float]:
            return [x for one in vectors for x in project(one, columns, scores)]

        before = self.before or [[]] * len(self.sent)
        return [
            (projected([*known, own]), projected(others))
            for known, own, others in zip(before, self.sent, self.received, strict=True)
        ]


class Tap:
    """A transport that hears the exchanges of the victim."""

    def __init__(self, inside: Transport, read: Any) -> None:
        self._inside, self._read = inside, read
        self.heard = Heard()
        self.sums = False
        """Whether the victim is in a sum, of which it is heard otherwise."""
        self.pairs = False
        """Whether noise cancels between neighbours, so that colluders combine the messages of all ranks."""
        self._last: Channel | None = None

    def start(self, channel: Channel) -> None:
        """Note what came of the exchange before and what is said in this one, then send it."""
        if channel.rank == VICTIM and not self.sums:
            self.finish()
            self.heard.sent.append(self._read(channel.outgoing[channel.turn][0]))
            self._last = channel
        self._inside.start(channel)

    def finish(self) -> None:
        """Note what came in the last exchange: its buffers hold it until the next one begins."""
        if self._last is not None:
            self.heard.received.append([self._read(payload) for payload in self._last.incoming])
            self._last = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


class OpenSums:
    """The victim's plain exchange, whose sums pass through others: these together know what each of them added."""

    def __init__(self, inside: Any, tap: Tap) -> None:
        self._inside, self._tap = inside, tap

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Generator[Channel, None, Any]:
        """Note the victim's summand and the sum, then serve the request."""
        if not isinstance(request, Sum):
            return (yield from self._inside.serve(request, near, round_))
        tap, own = self._tap, request.vector.value.copy()
        tap.finish()
        tap.sums = True
        answer = yield from self._inside.serve(request, near, round_)
        tap.sums = False
        tap.heard.sent.append(own)
        tap.heard.received.append([answer.copy()])
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


class Summands:
    """A rank's exchange that remembers what a colluder puts into sums, to hand it over; zeros for other ranks."""

    def __init__(self, inside: Any, bits: int, colludes: bool) -> None:
        self._inside, self._bits, self._colludes = inside, bits, colludes
        self._scale = np.array(2.0**-bits)
        self.given: list[Array] = []
        self.totals: list[Array] = []
        """The sums, which everybody may know."""

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Generator[Channel, None, Any]:
        """Remember the summand, then serve the request."""
        summand = self._summand(request)
        self.given.append(summand if self._colludes else np.zeros(summand.size))
        answer = yield from self._inside.serve(request, near, round_)
        self.totals.append(np.empty(summand.size))
        decode(self._inside.total, self._scale, self.totals[-1])
        return answer

    def _summand(self, request: Request) -> Array:
        plus = request.plus if isinstance(request, Mix) else None
        for vector in (plus, request.vector):
            if isinstance(vector, Hidden):
                return vector.secret + np.ldexp(vector.noise.astype(np.float64), -self._bits)
        own: Array = request.vector.value.copy()
        if plus is not None and isinstance(request, Mix):
            own += request.times * plus.value
        return own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


def listen(job: Job) -> Tap:
    """Tap the transport of a job, and let its colluders remember what they put into sums; return the tap."""
    messages, engine = job.settings.messages, job.engine
    if isinstance(messages, SharedSums):
        first = job.plan.ranks - colluders(job)
        engine.seats = [
            Seat(seat.agent, seat.state, Summands(seat.exchange, messages.bits, seat.agent.rank >= first))
            for seat in engine.seats
        ]
        tap = Tap(engine.transport, lambda payload: None)
        tap.sums = True
    else:
        tap = Tap(engine.transport, lambda payload: payload.view(messages.wire).astype(np.float64))
        engine.seats = [
            Seat(seat.agent, seat.state, OpenSums(seat.exchange, tap)) if seat.agent.rank == VICTIM else seat
            for seat in engine.seats
        ]
    tap.pairs = overhear(job)
    engine.transport = tap
    return tap


def colluders(job: Job) -> int:
    """Return how many ranks hand over what they know: the last ones."""
    declared = job.settings.noise.colluders
    return job.plan.ranks - 1 if declared is None else declared


def heard(job: Job, tap: Tap) -> Heard:
    """Return the messages heard during a job that has ended; all processes call this together."""
    tap.finish()
    if tap.pairs:
        before, received = map(list, zip(*combined(job), strict=True))
        return Heard(tap.heard.sent, received, before)
    if not isinstance(job.settings.messages, SharedSums):
        return tap.heard
    found = Heard()
    parts = [np.concatenate(seat.exchange.given) for seat in job.engine.seats if isinstance(seat.exchange, Summands)]
    handed = np.sum(parts, axis=0)
    job.meter.total(handed)
    at = 0
    for seat in job.engine.seats:
        for total in seat.exchange.totals if seat.agent.rank == VICTIM else ():  # type: ignore[attr-defined]
            found.sent.append(total - handed[at : at + total.size])  # (1)
            found.received.append([total])
            at += total.size
    return found
