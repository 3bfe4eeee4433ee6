"""The round loop: algorithms' requests become hops, hops become messages.

A flow is one agent's run as a generator of channels. Under MPI a process drives its one flow; on loopback one process
drives them all, switching whenever a flow has to wait. Both run the same flow, so both compute the same bits. Rounds
are not barriers: a flow waits only for the peers of its own rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from dpmpi.core import Agent, Array, Method
from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.network.channel import Channel, Exchange, Flow, Schedule, Transport


@frozen
class Seat:
    """An agent with its state and its way to speak."""

    agent: Agent
    state: Any
    exchange: Exchange


def flow(algorithm: Method, schedule: Schedule, seat: Seat, start: int, stop: int) -> Flow:
    """Run rounds start <= t < stop of one agent."""
    agent, state, serve = seat.agent, seat.state, seat.exchange.serve
    for t, near in schedule.rounds(agent.rank, start, stop):
        agent.round = t
        agent.active_rounds += 1
        steps = algorithm.round(agent, state, t)
        try:
            request = next(steps)
            while True:
                request = steps.send((yield from serve(request, near, t)))
        except StopIteration:
            pass
        except TypeError as error:
            if steps is None:
                raise ConfigError(f"expected {type(algorithm).__name__}.round to yield requests, found none") from error
            raise


def regrouping(algorithm: Method, schedule: Schedule, seat: Seat, t: int) -> Flow:
    """Let one agent adapt to a changed neighbourhood after round t, over the edges of its next round."""
    for _, near in schedule.rounds(seat.agent.rank, t + 1, t + 2):
        steps = algorithm.regroup(seat.agent, seat.state)
        try:
            request = next(steps)
            while True:
                request = steps.send((yield from seat.exchange.serve(request, near, t)))
        except StopIteration:
            pass


class Engine:
    """Runs the agents of this process round by round."""

    def __init__(
        self, algorithm: Method, schedule: Schedule, transport: Transport, seats: Sequence[Seat], completed: int = 0
    ) -> None:
        self.algorithm = algorithm
        self.schedule = schedule
        self.transport = transport
        self.seats = seats
        self.completed = completed
        self.failed: Agent | None = None
        """The agent whose round raised an error, where one process drives several."""

    def advance(self, last: int) -> None:
        """Run the rounds after the completed ones up to and including `last`."""
        flows = [flow(self.algorithm, self.schedule, seat, self.completed + 1, last + 1) for seat in self.seats]
        self.drive(flows)
        self.completed = last

    def regroup(self) -> None:
        """Let the agents adapt to a changed neighbourhood, after the completed rounds."""
        flows = [regrouping(self.algorithm, self.schedule, seat, self.completed) for seat in self.seats]
        self.drive(flows)

    def model(self, seat: Seat, out: Array) -> None:
        """Write the model of one agent after the completed rounds to `out`."""
        self.algorithm.model(seat.agent, seat.state, self.completed, out)

    def drive(self, flows: Sequence[Flow]) -> None:
        """Run one flow of each agent here to its end."""
        if len(flows) == 1:
            self._drive_one(flows[0], self.seats[0])
        else:
            self._drive_all(flows)

    def _drive_one(self, one: Flow, seat: Seat) -> None:
        start, wait, agent, ahead = self.transport.start, self.transport.wait, seat.agent, seat.exchange.prepare
        prepare = agent.mechanism.prepare if agent.mechanism.streams() else None  # without noise there is none to draw
        for channel in one:
            start(channel)
            if prepare is not None:
                begin = perf_counter()
                prepare()  # while the messages travel
                agent.clock.noise += perf_counter() - begin
            ahead()
            wait(channel)

    def _drive_all(self, flows: Sequence[Flow]) -> None:
        waiting: deque[tuple[Flow, Channel | None]] = deque((one, None) for one in flows)
        idle = 0
        while waiting:
            one, channel = waiting.popleft()
            if channel is not None and not self.transport.done(channel):
                idle += 1
                waiting.append((one, channel))
                if idle == len(waiting):  # nobody can go on: the one furthest behind says who is missing
                    channels = [stuck for _, stuck in waiting if stuck is not None]
                    self.transport.wait(min(channels, key=lambda stuck: (stuck.round, stuck.hop)))
                continue
            idle = 0
            try:
                channel = next(one, None)
            except Exception:
                self.failed = self.seats[flows.index(one)].agent
                raise
            if channel is not None:
                self.transport.start(channel)
                waiting.append((one, channel))
