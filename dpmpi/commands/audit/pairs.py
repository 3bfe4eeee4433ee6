"""What colluders hear of a victim whose noise cancels between neighbours (`--noise-in pairs`).

They have all messages of all ranks, and the secrets of their own pairs. With w the row of the victim u of the inverse
of (2) of privacy/pair_noise.py, w_u = 1, and k_i the noise of rank i's pairs with colluders, which these draw too,

    x = sum over the honest ranks of w_i (message of i)         the best test of u's release by (3) there           (1)
    k = sum over the honest ranks of w_i k_i                    what of (1) is known                                (2)

A message is a part of a release and what was public before, so that x is predicted from k and from the messages of the
last exchanges, of all ranks, as score.py does. What is left is Gaussian of the deviation that was certified. The
victim's own message, with k_u, comes after x: it adds nothing where the pairs' noise is there, and all where it is not.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from dpmpi.core import Array, Mix, Request
from dpmpi.network.channel import Channel, Neighbourhood
from dpmpi.privacy.pair_noise import PairMechanism, best_weights, worst_colluders
from dpmpi.runtime.engine import Seat
from dpmpi.runtime.job import Job


class Overheard:
    """A rank's exchange that remembers what the rank says, and the noise in it that colluders know."""

    def __init__(self, inside: Any, mechanism: PairMechanism, colluders: frozenset[int]) -> None:
        self._inside, self._colluders = inside, colluders
        self.said: list[Array] = []
        self.known: list[Array] = []
        self._since: Array = np.zeros(mechanism.noise.dimension)
        mechanism.told = self._note

    def _note(self, neighbour: int, noise: Array) -> None:
        if neighbour in self._colluders:
            self._since += noise

    def serve(self, request: Request, near: Neighbourhood, round_: int) -> Generator[Channel, None, Any]:
        """Remember what is said, then serve the request."""
        own: Array = request.vector.value.copy()
        if isinstance(request, Mix) and request.plus is not None:
            own += request.times * request.plus.value
        self.said.append(own)
        self.known.append(self._since.copy())
        self._since[:] = 0.0
        return (yield from self._inside.serve(request, near, round_))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


def overhear(job: Job) -> bool:
    """Let all ranks of a job remember what they say; return whether noise cancels between them."""
    seats, noise = job.engine.seats, job.settings.noise
    mechanisms = [getattr(seat.agent.mechanism, "does", seat.agent.mechanism) for seat in seats]  # of weak noise
    paired = [one for one in mechanisms if isinstance(one, PairMechanism)]
    if noise.place != "pairs" or len(paired) < len(seats):  # without noise there are no pairs
        return False
    known = frozenset(colluders(job))
    job.engine.seats = [
        Seat(seat.agent, seat.state, Overheard(seat.exchange, mechanism, known))
        for seat, mechanism in zip(seats, paired, strict=True)
    ]
    return True


def colluders(job: Job) -> tuple[int, ...]:
    """Return the ranks that hand over their secrets: those that leave the victim the least."""
    graph, noise = job.plan.schedule.graph, job.settings.noise
    return worst_colluders(graph.edges, graph.size, noise.kappa, noise.colluders)  # type: ignore[union-attr,arg-type]


def combined(job: Job) -> list[tuple[list[Array], list[Array]]]:
    """Return k, k_u and x of each exchange, and the other ranks' messages; all processes call this together."""
    exchanges = {seat.agent.rank: seat.exchange for seat in job.engine.seats if isinstance(seat.exchange, Overheard)}
    some, n = next(iter(exchanges.values())), job.plan.ranks
    said, known = _gathered(job, exchanges, "said"), _gathered(job, exchanges, "known")
    graph, kappa = job.plan.schedule.graph, job.settings.noise.kappa  # type: ignore[union-attr]
    weights = best_weights(graph.edges, n, kappa, colluders(job))
    ends = np.cumsum([len(one) for one in some.said])[:-1]
    messages, noises = np.split(said, ends, axis=1), np.split(known, len(some.known), axis=1)
    found = []
    for message, noise in zip(messages, noises, strict=True):
        before = [weights @ noise, noise[0]] if noise.any() else []  # (2)
        found.append(([*before, weights @ message], list(message[1:])))  # (1)
    return found


def _gathered(job: Job, exchanges: dict[int, Overheard], name: str) -> Array:
    """Return the vectors of all ranks, those of a rank end to end in its row."""
    rows = {rank: np.concatenate(getattr(one, name)) for rank, one in exchanges.items()}
    table = np.zeros((job.plan.ranks, len(next(iter(rows.values())))))
    for rank, row in rows.items():
        table[rank] = row
    flat: Array = table.ravel()
    job.meter.total(flat)
    return flat.reshape(table.shape)
