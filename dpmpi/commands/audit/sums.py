"""The audit of noise inside a sum: what the sum tells about one rank's record, also to colluders.

Nobody sees a rank's release, so the adversary looks at what everybody learns: the sum. Dual averaging on a complete
graph adds a_t/n times it to the dual, which is the same on all ranks, hence

    sum of the releases, noise included, in round t = (z(t+1) - z(t)) n / a_t                           (1)

The last c ranks collude: they hand over their parts of the noise, which are taken off (1). Everything else is as in
`audit/wire.py`: the first rank holds the canary, the others' records are silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpmpi.commands.audit.wire import Laboratory
from dpmpi.core import Agent, Array, Integers
from dpmpi.network.channel import Transport
from dpmpi.network.handshake import agree_on_secrets
from dpmpi.problem.rows import Rows
from dpmpi.runtime.engine import Engine, Seat
from dpmpi.runtime.settings import Settings


class Colluder:
    """A rank's mechanism whose parts of the noise are remembered, to be handed over."""

    def __init__(self, inside: Any) -> None:
        self._inside, self.given = inside, list[Array]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)

    def part(self, scale: float = 1.0) -> Integers:
        """Return the part, and keep a copy."""
        drawn: Integers = self._inside.part(scale)
        self.given.append(np.ldexp(drawn.astype(np.float64), -self._inside.bits))
        return drawn


class SumLaboratory(Laboratory):
    """Runs dual averaging with noise inside the sum, and listens to the sum."""

    def __init__(self, settings: Settings, transport: Transport, records: int) -> None:
        super().__init__(settings, transport, records)
        self._messages, self._noise = self.plan.settings.messages, settings.noise
        self._messages.check(self.plan)
        self._carrier = transport

    def agents(self, rows: Rows, labels: Array) -> Iterator[Agent]:
        """Yield the agents; the last ones remember their parts of the noise."""
        for agent in super().agents(rows, labels):
            if agent.rank >= self.plan.ranks - (self._noise.colluders or 0):
                remembering: Any = Colluder(agent.mechanism)
                agent.mechanism = remembering
            yield agent

    def run(self, rows: Rows, labels: Array, watched: int) -> Array:
        """Run all rounds with this shard on the first rank, zeros elsewhere; return the sums (1), colluders' parts off.

        Row t holds the first `watched` coordinates of round t.
        """
        config, transport, n = self.config, self._carrier, self.plan.ranks
        secrets = agree_on_secrets(transport)
        carrier = self._messages.carrier(transport, secrets)
        seats = []
        for agent in self.agents(rows, labels):
            tail, seed = self._noise.tail(self.sigmas[agent.rank], n), config.insecure_noise_seed
            exchange = self._messages.exchange(carrier, agent.rank, secrets, tail=tail, seed=seed)
            seats.append(Seat(agent, self.algorithm.start(agent), exchange))
        engine = Engine(self.algorithm, self.schedule, carrier, seats)
        z, last, sums = seats[0].state.z, np.zeros(watched), np.zeros((config.rounds, watched))
        for t in range(1, config.rounds + 1):
            engine.advance(t)
            a = float(t) if self.algorithm.weighting == "linear" else 1.0
            sums[t - 1] = (z[:watched] - last) * (n / a)  # (1)
            last[:] = z[:watched]
            self.progress.update(self._runs * config.rounds + t)
        handed = np.zeros_like(sums)
        for seat in seats:
            if isinstance(seat.agent.mechanism, Colluder):
                handed += np.array([part[:watched] for part in seat.agent.mechanism.given])
        transport.total(handed)
        self._runs += 1
        return sums - handed
