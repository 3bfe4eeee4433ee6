"""A rank to which something happens: `mpirun ... python -m dpmpi.chaos.rank PLAN.json -- flags of a run`.

It is a rank as any other, with hooks where it charges and where it speaks: it counts its releases in a mapped file just
before each message, and does to itself what the plan says. Hooks are exact: a rank dies before, in or after a certain
round, not some milliseconds after a watcher has seen it there.
"""

from __future__ import annotations

from dpmpi.run import main as run  # isort: skip - before numpy: it sets the number of threads

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpmpi.chaos.faults import REGROUP, TRAILER, Fault, Plan, Record, pauses_file, record_file
from dpmpi.core import Agent, Query, Release, Sendable
from dpmpi.launched import fault_tolerant, launched_as
from dpmpi.transport.mpi import MpiTransport
from dpmpi.wire import TRAILER_BYTES, Channel

WATCH_SECONDS = 0.05
OPERATIONS = ("vote", "total", "collect", "gather")
"""Of all ranks together."""


def count_releases(record: Record) -> None:
    """Let this process count its releases, and note before every message how many it has made.

    A release without data, of a rank whose budget is spent, is none.
    """
    made = 0
    release, inside, start = Agent.release, Agent.release_inside, MpiTransport.start

    def counted(self: Agent, query: Query, scale: float = 1.0, part: int = 0) -> Sendable:
        nonlocal made
        said = release(self, query, scale, part)
        made += part == 0 and self.admitted
        return said

    def counted_inside(self: Agent, query: Query, solve: Callable[[Any], None], scale: float = 1.0) -> Release:
        nonlocal made
        said = inside(self, query, solve, scale)
        made += self.admitted
        return said

    def noted(self: MpiTransport, channel: Channel) -> None:
        record.speaks(channel.round, made)
        start(self, channel)

    Agent.release = counted  # type: ignore[method-assign]
    Agent.release_inside = counted_inside  # type: ignore[method-assign]
    MpiTransport.start = noted  # type: ignore[method-assign]


def die(record: Record) -> None:
    """End without a word."""
    record.fires(time.time_ns())
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(fault: Fault, record: Record) -> None:
    """Let this process die where the fault says."""
    start, shrink = MpiTransport.start, MpiTransport.shrink
    regrouping, steps = False, 0

    def count() -> None:
        nonlocal steps
        steps += regrouping
        if regrouping and steps == fault.step:
            die(record)

    def dying(self: MpiTransport, channel: Channel) -> None:
        if fault.moment == "send" and channel.round >= fault.round:
            die(record)
        count()
        start(self, channel)
        if fault.moment == "wait" and channel.round >= fault.round:
            die(record)

    def regroups(self: MpiTransport) -> Any:
        nonlocal regrouping
        regrouping = True
        if fault.step == 0:
            die(record)
        return shrink(self)

    def before(name: str) -> Callable[..., Any]:
        method = getattr(MpiTransport, name)

        def operation(self: MpiTransport, *args: Any) -> Any:
            if fault.moment == "aside" and record.round >= fault.round:
                die(record)
            count()
            return method(self, *args)

        return operation

    MpiTransport.start = dying  # type: ignore[method-assign]
    if fault.moment == REGROUP:
        MpiTransport.shrink = regroups  # type: ignore[method-assign]
    for name in OPERATIONS:
        setattr(MpiTransport, name, before(name))


def sleep_at(fault: Fault, record: Record) -> None:
    """Let this process be slow."""
    start = MpiTransport.start

    def sleepy(self: MpiTransport, channel: Channel) -> None:
        if channel.round >= fault.round:
            record.fires(time.time_ns())
            time.sleep(fault.seconds)
        start(self, channel)

    MpiTransport.start = sleepy  # type: ignore[method-assign]


def corrupt_at(fault: Fault, record: Record) -> None:
    """Let one bit of one message be another one: of its trailer, or of what it says.

    The sender's own buffer is mended as soon as the message has left it: the sender has done nothing wrong.
    """
    start, trailer = MpiTransport.start, fault.moment == TRAILER

    def corrupting(self: MpiTransport, channel: Channel) -> None:
        if channel.round < fault.round or record.fired is not None or not channel.peers:
            start(self, channel)
            return
        message = channel.messages[fault.step % len(channel.peers)]
        place = (len(message) - TRAILER_BYTES) * 8 if trailer else 0
        place += fault.step % (8 * (TRAILER_BYTES if trailer else channel.payload_bytes))
        record.fires(time.time_ns())
        message[place // 8] ^= 1 << place % 8
        start(self, channel)
        while not self._testall(channel.handle.sends[channel.turn]):  # until it has left
            os.sched_yield()
        message[place // 8] ^= 1 << place % 8

    MpiTransport.start = corrupting  # type: ignore[method-assign]


def pause_from_beside(fault: Fault, plan: Path, names: Sequence[int]) -> None:
    """Fork a process that stops this one for some seconds, again and again, until it is gone.

    At the end of each pause it writes down in which round each rank is.
    """
    rank = os.getpid()
    if os.fork():
        return
    for descriptor in range(256):  # a launcher waits for those who hold its pipes
        try:
            os.close(descriptor)
        except OSError:
            continue
    records = {name: Record(record_file(plan, name)) for name in names}
    try:
        while _alive(rank, WATCH_SECONDS):
            if records[fault.rank].round < fault.round:
                continue
            os.kill(rank, signal.SIGSTOP)
            records[fault.rank].fires(time.time_ns())
            stayed = _alive(rank, fault.seconds)
            line = {str(name): record.round for name, record in records.items()}
            os.kill(rank, signal.SIGCONT)
            with pauses_file(plan).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            if not stayed or not _alive(rank, fault.every - fault.seconds):
                break
    except ProcessLookupError:
        pass  # it ended meanwhile
    os._exit(0)


def _alive(parent: int, seconds: float) -> bool:
    """Sleep, and return whether the parent is still there; False as soon as it is not."""
    end = time.monotonic() + seconds
    while os.getppid() == parent:
        left = end - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, WATCH_SECONDS))
    return False


def disturb(plan: Path, rank: int) -> None:
    """Install what the plan says of this rank."""
    told = Plan.read(plan)
    record = Record(record_file(plan, told.names[rank]))
    record.tolerant = fault_tolerant(os.environ)
    count_releases(record)
    for fault in told.faults:
        if fault.rank != told.names[rank]:
            continue
        if fault.kind == "kill":
            die_at(fault, record)
        elif fault.kind == "slow":
            sleep_at(fault, record)
        elif fault.kind == "corrupt":
            corrupt_at(fault, record)
        elif fault.kind == "stop":
            pause_from_beside(fault, plan, told.names)


def main(argv: Sequence[str]) -> int:
    """Run a rank of a run, disturbed."""
    plan, separator, *flags = argv
    assert separator == "--", argv  # noqa: S101 - `dpmpi.chaos.command` writes this line
    disturb(Path(plan), launched_as(os.environ)[0])
    return run(flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
