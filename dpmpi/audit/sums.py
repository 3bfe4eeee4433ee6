"""The audit of noise inside a sum: what the sum tells about one rank's record, also to colluders.

Nobody sees a rank's release, so the adversary looks at what everybody learns: the sum. Dual averaging on a complete
graph adds a_t/n times it to the dual, which is the same on all ranks, hence

    sum of the releases, noise included, in round t = (z(t+1) - z(t)) n / a_t                           (1)

The last c ranks collude: they hand over their parts of the noise, which are taken off (1). Everything else is as in
`audit/wire.py`: the first rank holds the canary, the others' records are silent.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np

from dpmpi.audit.wire import VICTIM, Laboratory, Tally, Watch
from dpmpi.config import Config
from dpmpi.core import Agent, Array, Integers
from dpmpi.engine import Engine, Seat
from dpmpi.privacy.mechanisms import SumMechanism
from dpmpi.rng import PrivateStream, rank_key
from dpmpi.rows import Dense, Rows
from dpmpi.secrecy import agree_on_secrets, check_shares, make_exchange, sealed
from dpmpi.wire import Transport


class Colluder(SumMechanism):
    """A rank's part of the noise, remembered to be handed over."""

    __slots__ = ("given",)

    def __init__(self, sigma: float, parts: int, bits: int, key: bytes, width: int) -> None:
        super().__init__(sigma, parts, bits, key, width)
        self.given: list[Array] = []

    def part(self, scale: float = 1.0) -> Integers:
        """Return the part, and keep a copy."""
        drawn = super().part(scale)
        self.given.append(np.ldexp(drawn.astype(np.float64), -self.bits))
        return drawn


class SumLaboratory(Laboratory):
    """Runs dual averaging with noise inside the sum, and listens to the sum."""

    def __init__(self, config: Config, transport: Transport, records: int) -> None:
        super().__init__(config, transport, records)
        check_shares(self.prospect)
        self._carrier = transport

    def run(self, rows: Rows, labels: Array, watched: int, progress: Watch | None = None) -> Array:
        """Run all rounds with this shard on the first rank, zeros elsewhere; return the sums (1), colluders' parts off.

        Row t holds the first `watched` coordinates of round t.
        """
        config, transport, m = self.config, self._carrier, rows.dimension
        n, c = transport.size, config.colluders
        silent = Dense(np.zeros((self.records, m)))
        secrets = agree_on_secrets(config, transport, "00" * 8, incarnation=self._runs)
        carrier = sealed(config, transport, secrets)
        seats = []
        for rank in transport.ranks:
            key = rank_key(config.insecure_noise_seed, self._runs * n + rank)
            mine = (rows, labels) if rank == VICTIM else (silent, np.zeros(self.records))
            kind = Colluder if rank >= n - c else SumMechanism
            mechanism = kind(self.sigmas[rank], n - c, config.share_bits, key, m)
            terms = dataclasses.replace(self.prospect.terms(rank), dimension=m)
            charges = Tally(self.spending if rank == VICTIM and self._runs == 0 else Counter())
            agent = Agent(
                rank, self.schedule.share, terms, self._make_problem(*mine, config, key), self._penalty, mechanism,
                charges, PrivateStream(key, "weights"),
            )  # fmt: skip
            exchange = make_exchange(config, carrier, rank, secrets, self.sigmas[rank])
            seats.append(Seat(agent, self.algorithm.start(agent), exchange))
        engine = Engine(self.algorithm, self.schedule, carrier, seats)
        z, last, sums = seats[0].state.z, np.zeros(watched), np.zeros((config.rounds, watched))
        for t in range(1, config.rounds + 1):
            engine.advance(t)
            a = float(t) if self.algorithm.weighting == "linear" else 1.0
            sums[t - 1] = (z[:watched] - last) * (n / a)  # (1)
            last[:] = z[:watched]
            if progress is not None:
                progress.update(self._runs * config.rounds + t)
        handed = np.zeros_like(sums)
        for seat in seats:
            if isinstance(seat.agent.mechanism, Colluder):
                handed += np.array([part[:watched] for part in seat.agent.mechanism.given])
        transport.total(handed)
        self._runs += 1
        return sums - handed
