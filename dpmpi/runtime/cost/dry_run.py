"""Rounds without messages: when every rank would be through, given who waits for whom and how many cores there are.

Rank i needs u_i seconds of a core for a round, then its message leaves; it is through with the round when the messages
of its peers N_i(t) have come, tau seconds after they left:

    sent_i = when a core of its host has worked u_i seconds for it, from done_i on         (1)
    done_i = max( sent_i, max_{j in N_i(t)} sent_j + tau )                                 (2)

A core works for one rank at a time; who is ready first is served first. With all ranks active, (1) and (2) are a pass
over ranks and edges for each round. With sampled edges many rounds are under way at once, and the meetings are taken
from a queue in the order of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from dpmpi.core import Array, Integers
from dpmpi.core.frozen import frozen
from dpmpi.network.schedule import BLOCK_ROUNDS, SampledSchedule

PASSES = 32
"""Rounds that are rehearsed if all ranks are active: the pace is steady long before."""
MEETINGS = 100_000
"""Those that are rehearsed of sampled edges, together."""


@frozen
class Hosts:
    """The machines: how many ranks on each, one after the other, and how many cores for them."""

    ranks: int
    cores: int

    @property
    def crowding(self) -> float:
        """The chance that a rank which waits loses its core, and comes back to one that others have used since.

        (1 - C/R)^2 with R ranks for C cores, and 0 with a core for each.
        """
        return max(0.0, 1.0 - self.cores / self.ranks) ** 2


class Cores:
    """The cores of all hosts, and until when each is busy."""

    def __init__(self, size: int, hosts: Hosts) -> None:
        self._on_a_host = hosts.ranks
        self._crowded = min(size, hosts.ranks) > hosts.cores
        self._free = [[0.0] * hosts.cores for _ in range(-(-size // hosts.ranks))]

    def work(self, ready: Array, work: Array) -> Array:
        """Return (1): when each rank's work is done, those of a host being served in the order in which they ask."""
        if not self._crowded:
            return ready + work
        end, needed = ready.tolist(), work.tolist()
        for rank in np.argsort(ready, kind="stable").tolist():
            end[rank] = self.serve(rank, end[rank], needed[rank])
        return np.array(end)

    def serve(self, rank: int, ready: float, work: float) -> float:
        """Return when the work of a rank that asks now is done."""
        free = self._free[rank // self._on_a_host]
        end = max(ready, free[0]) + work
        heapreplace(free, end)
        return end


def everyone_waits(work: Array, transit: float, hosts: Hosts, rounds: int) -> float:
    """Return the seconds of `rounds` rounds in which every rank waits for all others."""

    def through(sent: Array) -> Array:
        last, heard = int(sent.argmax()), np.full(len(sent), sent.max())
        heard[last] = np.delete(sent, last).max(initial=-np.inf)  # it waits for the one before
        done: Array = np.maximum(sent, heard + transit)
        return done

    return _passes(work, through, hosts, rounds)


def neighbours_wait(edges: Integers, work: Array, transit: float, hosts: Hosts, rounds: int) -> float:
    """Return the seconds of `rounds` rounds in which every rank waits for its neighbours; `edges` holds each once."""
    ends = np.concatenate([edges, edges[:, ::-1]])
    ends = ends[np.argsort(ends[:, 0], kind="stable")]
    waiters, first = np.unique(ends[:, 0], return_index=True)
    heard = ends[:, 1]

    def through(sent: Array) -> Array:
        done = sent.copy()
        done[waiters] = np.maximum(done[waiters], np.maximum.reduceat(sent[heard], first) + transit)  # (2)
        return done

    return _passes(work, through, hosts, rounds)


def _passes(work: Array, through: Callable[[Array], Array], hosts: Hosts, rounds: int) -> float:
    cores, done, clock = Cores(len(work), hosts), np.zeros(len(work)), [0.0]
    for _ in range(min(rounds, PASSES)):
        done = through(cores.work(done, work))
        clock.append(float(done.max()))
    return _extended(clock, rounds)


def pairs_wait(schedule: SampledSchedule, work: float, transit: float, hosts: Hosts, rounds: int) -> float:
    """Return the seconds of `rounds` rounds in which only the ends of sampled edges work, and wait for each other."""
    n = schedule.size
    last = min(rounds, max(1, MEETINGS // schedule.edges_per_round))
    agenda: list[deque[tuple[int, int]]] = [deque() for _ in range(n)]
    for start in range(0, last + 1, BLOCK_ROUNDS):  # block by block, as the schedule draws them
        for rank in range(n):
            met = schedule.rounds(rank, max(start, 1), min(start + BLOCK_ROUNDS, last + 1))
            agenda[rank].extend((t, near.peers[0]) for t, near in met)
    cores = Cores(n, hosts)
    queue = [(0.0, meetings.popleft(), rank) for rank, meetings in enumerate(agenda) if meetings]
    heapify(queue)
    sent: dict[tuple[int, int], float] = {}
    clock = [0.0] * (last + 1)
    while queue:
        ready, (t, peer), rank = heappop(queue)
        end = cores.serve(rank, ready, work)  # (1)
        other = sent.pop((t, peer), None)
        if other is None:
            sent[t, rank] = end
            continue
        for who, own, heard in ((rank, end, other), (peer, other, end)):
            done = max(own, heard + transit)  # (2)
            clock[t] = max(clock[t], done)
            if agenda[who]:
                heappush(queue, (done, agenda[who].popleft(), who))
    return _extended(np.maximum.accumulate(clock).tolist(), rounds)


def _extended(clock: list[float], rounds: int) -> float:
    """Return when `rounds` rounds are through, from `clock[t]` of the first ones, at the pace of their second half."""
    last = len(clock) - 1
    half = last // 2
    return clock[-1] + (rounds - last) * (clock[-1] - clock[half]) / max(1, last - half)
