"""A transport on which faults happen, and a mechanism that counts releases: what chaos hands to a run.

A rank notes, just before each message, in which round it is and how many releases it has made. Faults are exact: a rank
dies before, in or after a certain round, not some milliseconds after a watcher has seen it there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from dpmpi.commands.chaos.faults import REGROUP, TRAILER, Fault, Record
from dpmpi.core import Agent, Bytes, Event, Query
from dpmpi.network.channel import TRAILER_BYTES, Channel
from dpmpi.runtime.job import Job

OPERATIONS = ("total", "add_up", "collect", "gather", "vote", "swap", "swap_alike")
"""Of all ranks together."""


def preceded(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `first` and then the other."""

    def both(*args: Any) -> Any:
        first()
        return then(*args)

    return both


def die() -> None:
    """End this process without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


class Injector:
    """What happens to the ranks of this process, whatever transports and agents they have in turn."""

    def __init__(self, record: Record, faults: Sequence[Fault] = ()) -> None:
        self.record, self._faults = record, faults
        self.releases = 0
        """How many were made. One without data, of a rank whose budget is spent, is none."""
        self._kills = [fault for fault in faults if fault.kind == "kill"]
        self._steps: int | None = None
        """How many operations and sends there were since the rank began to regroup."""

    def wrap(self, transport: Any) -> FaultyTransport:
        """Return the transport with these faults."""
        return FaultyTransport(transport, self)

    def attend(self, job: Job) -> None:
        """Count the releases of a job's agents."""
        for seat in job.engine.seats:
            counted: Any = CountedMechanism(seat.agent, self)
            seat.agent.mechanism = counted

    def before_send(self, channel: Channel) -> tuple[Bytes, int] | None:
        """Let happen what happens before a send; return the message that is corrupted on its way, and in which bit."""
        self.die_at("send", channel.round)
        self._step()
        flipped = None
        for fault in self._faults:
            if fault.kind == "slow" and channel.round >= fault.round:
                self.record.fires()
                time.sleep(fault.seconds)
            new = self.record.fired is None and channel.peers
            if fault.kind == "corrupt" and channel.round >= fault.round and new:
                self.record.fires()
                flipped = _drawn_bit(fault, channel)
        self.record.speaks(channel.round, self.releases)
        return flipped

    def before_operation(self) -> None:
        """Let happen what happens before an operation of all ranks."""
        self.die_at("aside", self.record.round)
        self._step()

    def before_regrouping(self) -> None:
        """Let happen what happens when ranks are about to go on without another one."""
        if self._steps is None:
            self._steps = -1
            self._step()

    def _step(self) -> None:
        if self._steps is not None:
            self._steps += 1
            self.die_at(REGROUP, self._steps)

    def die_at(self, moment: str, reached: int) -> None:
        """Die if the moment of a fault has come: by its round or, while ranks regroup, by its step."""
        for fault in self._kills:
            if fault.moment == moment and reached >= (fault.step if moment == REGROUP else fault.round):
                self.record.fires()
                die()


def _drawn_bit(fault: Fault, channel: Channel) -> tuple[Bytes, int]:
    """Return a message of the channel and which of its bits is corrupted: of its trailer, or of what it says."""
    message, trailer = channel.messages[fault.step % len(channel.peers)], fault.moment == TRAILER
    first, bits = (len(message) - TRAILER_BYTES, TRAILER_BYTES) if trailer else (0, channel.payload_bytes)
    return message, 8 * first + fault.step % (8 * bits)


class FaultyTransport:
    """A transport on which faults happen; in everything else it is the one inside."""

    def __init__(self, inside: Any, injector: Injector) -> None:
        self.inside, self._injector = inside, injector
        for name in OPERATIONS:
            setattr(self, name, preceded(injector.before_operation, getattr(inside, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)

    @property
    def on_slow(self) -> Any:
        """The callback for long waits."""
        return self.inside.on_slow

    @on_slow.setter
    def on_slow(self, report: Any) -> None:
        self.inside.on_slow = report

    def start(self, channel: Channel) -> None:
        """Send, disturbed.

        A sender whose message is corrupted has done nothing wrong: its buffer is mended when the message has left it.
        """
        flipped = self._injector.before_send(channel)
        if flipped is not None:
            _flip(*flipped)
        self.inside.start(channel)
        if flipped is not None:
            while not self.inside.sent(channel):
                os.sched_yield()
            _flip(*flipped)
        self._injector.die_at("wait", channel.round)

    def shrink(self) -> tuple[Any, list[int]]:
        """Return a faulty transport among the ranks that live, and who they are."""
        self._injector.before_regrouping()
        return self.inside.shrink(self._injector.wrap)  # type: ignore[no-any-return]

    def among(self, chosen: Sequence[int]) -> Any:
        """Return a faulty transport among some of the ranks; None on the others."""
        found = self.inside.among(chosen)
        return None if found is None else self._injector.wrap(found)


def _flip(message: Bytes, bit: int) -> None:
    message[bit // 8] ^= 1 << bit % 8


class CountedMechanism:
    """An agent's mechanism, and the count of its releases: by the noise for them, whatever the ledger says.

    The parts of a release have one event, and count as one.
    """

    def __init__(self, agent: Agent, injector: Injector) -> None:
        self._inside, self._agent, self._injector, self._new = agent.mechanism, agent, injector, False
        for name in ("part", "perturb", "through"):
            setattr(self, name, preceded(self._count, getattr(agent.mechanism, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)

    def event(self, query: Query, scale: float = 1.0) -> Event:
        """Begin a release."""
        self._new = True
        return self._inside.event(query, scale)

    def _count(self) -> None:
        self._injector.releases += self._new and self._agent.admitted
        self._new = False
