"""One agent per MPI process: persistent nonblocking requests on numpy buffers.

This is the only importer of mpi4py; importing it initialises MPI, so `open_world` does that, after it has told MPI
whether there are more ranks than cores here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpmpi.core import Array, Channel
from dpmpi.errors import NeighbourSilent

LOCAL_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")

POLLS = 64
"""How often to poll between looks at the clock."""
SLEEP_AFTER_SECONDS = 0.02
"""A neighbour that is this late is slow, not merely not scheduled: stop competing with it for the core."""


def launched_as(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return (rank, size) that the launcher announced, without initialising MPI; (0, 1) if there was none."""

    def first(names: Sequence[str], default: int) -> int:
        return next((int(environment[name]) for name in names if environment.get(name, "").isdigit()), default)

    return first(RANK_VARIABLES, 0), first(SIZE_VARIABLES, 1)


def local_ranks(environment: Mapping[str, str]) -> int:
    """Return how many ranks the launcher put on this host; 1 if it does not say."""
    for name in LOCAL_SIZE_VARIABLES:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return 1


def usable_cores() -> int:
    """Return the cores this host gives to all its ranks together. A rank bound to one core sees the others too."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return bound if bound > 1 else os.cpu_count() or 1


def open_world(deadline: float = 120.0) -> MpiTransport:
    """Initialise MPI and return the transport over a private copy of COMM_WORLD.

    With more ranks than cores, a rank that polls without yielding keeps the core from the rank it waits for (measured:
    a round of 20 ranks on 2 cores takes 100 ms instead of 2). Open MPI must be told before it starts.
    """
    crowded = local_ranks(os.environ) > usable_cores()
    if crowded:
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    import mpi4py  # noqa: PLC0415 - importing initialises MPI

    mpi4py.rc.thread_level = "single"  # one thread per rank: MPI need not lock
    from mpi4py import MPI  # noqa: PLC0415

    return MpiTransport(MPI, MPI.COMM_WORLD, deadline)


class MpiTransport:
    """Sends the bytes of channels on duplicated communicators, one for rounds and one for evaluation."""

    def __init__(self, mpi: Any, world: Any, deadline: float) -> None:
        self._mpi = mpi
        self._world = world
        self._rounds = world.Dup()
        self._aside = world.Dup()
        self._deadline = deadline
        self._since = 0.0
        self.rank: int = world.Get_rank()
        self.size: int = world.Get_size()
        self.ranks: Sequence[int] = (self.rank,)
        self._testall: Callable[[list[Any]], bool] = mpi.Request.Testall
        self._testsome: Callable[[list[Any]], list[int] | None] = mpi.Request.Testsome
        self._startall: Callable[[list[Any]], None] = mpi.Prequest.Startall

    def channel(self, rank: int, peers: Sequence[int], payload_bytes: int, tag: int) -> Channel:
        """Return a new channel with persistent requests, the receives first."""
        channel = Channel(rank, peers, payload_bytes, tag)
        receives = [self._rounds.Recv_init(m, p, tag) for m, p in zip(channel.messages[1:], peers, strict=True)]
        sends = [self._rounds.Send_init(channel.messages[0], p, tag) for p in peers]
        channel.handle = receives + sends
        return channel

    def start(self, channel: Channel) -> None:
        """Start the receives, then the sends."""
        self._startall(channel.handle)

    def done(self, channel: Channel) -> bool:
        """Return whether all messages have been sent and have arrived."""
        if not self._testall(channel.handle):
            return False
        channel.check()
        return True

    def wait(self, channel: Channel) -> None:
        """Poll, yielding the core before each poll; note which message came last.

        To yield first costs little when the neighbour has a core of its own, and when it does not, it is the only way
        to hear from it.
        """
        requests, receives = channel.handle, len(channel.peers)
        left, polls, testsome, yield_core = len(requests), 0, self._testsome, os.sched_yield
        while left:
            yield_core()
            finished = testsome(requests)
            if finished:
                left -= len(finished)
                for position in finished:
                    if position < receives:
                        channel.awaited = position
            polls += 1
            if polls % POLLS == 0:
                self._late(polls, lambda: self._silence(channel))
        channel.check()

    def total(self, buffer: Array) -> None:
        """Sum over all ranks in rank order: each rank adds up one slice of the coordinates, then all get all slices."""
        n = self.size
        width = -(-buffer.size // n)
        mine = np.zeros((n, width))
        mine.reshape(-1)[: buffer.size] = buffer.reshape(-1)
        theirs = np.empty((n, width))
        self._finish(self._aside.Ialltoall(mine, theirs), "an evaluation")
        for row in theirs[1:]:
            theirs[0] += row
        self._finish(self._aside.Iallgather(theirs[0].copy(), mine), "an evaluation")
        buffer.reshape(-1)[:] = mine.reshape(-1)[: buffer.size]

    def collect(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of all ranks in rank order."""
        [text] = texts
        mine = np.frombuffer(text.encode(), np.uint8)
        lengths = np.empty(self.size, np.int64)
        self._finish(self._aside.Iallgather(np.array([mine.size], np.int64), lengths), "the other ranks")
        joined = np.empty(int(lengths.sum()), np.uint8)
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        spec = [joined, lengths.tolist(), starts.tolist(), self._mpi.BYTE]
        self._finish(self._aside.Iallgatherv([mine, self._mpi.BYTE], spec), "the other ranks")
        return [joined[s : s + k].tobytes().decode() for s, k in zip(starts, lengths, strict=True)]

    def gather(self, row: Array) -> Array | None:
        """Return the rows of all ranks as a matrix on rank 0, None elsewhere."""
        rows = np.empty((self.size, row.size)) if self.rank == 0 else None
        self._finish(self._aside.Igather(row, rows, root=0), "the other ranks")
        return rows

    def abort(self, code: int) -> None:
        """End all ranks now."""
        self._world.Abort(code)

    def barrier(self) -> None:
        """Return when every rank has called this; for benchmarks."""
        self._finish(self._aside.Ibarrier(), "the other ranks")

    def bare_communicator(self) -> Any:
        """Return a new duplicate of COMM_WORLD, for benchmarks that go without this class."""
        return self._world.Dup()

    def wait_all(self, requests: list[Any]) -> None:
        """Call MPI_Waitall; for the same benchmarks."""
        self._mpi.Request.Waitall(requests)

    def describe(self) -> str:
        """Return the MPI library's name and version, on one line."""
        return " ".join(str(self._mpi.Get_library_version()).split())[:60]

    def _finish(self, request: Any, what: str) -> None:
        """Wait for a collective operation."""
        polls = 0
        while not request.Test():
            os.sched_yield()
            polls += 1
            if polls % POLLS == 0:
                self._late(
                    polls,
                    lambda: NeighbourSilent(
                        f"rank {self.rank} waited {self._deadline:g} s for {what}: has a rank died, or is it slow "
                        "(--deadline SECONDS waits longer)?"
                    ),
                )

    def _late(self, polls: int, silence: Callable[[], Exception]) -> None:
        """Raise `silence()` if the deadline is over; sleep if the neighbour is slow, not merely not scheduled."""
        now = time.monotonic()
        if polls == POLLS:
            self._since = now
        waited = now - self._since
        if waited > self._deadline:
            raise silence()
        if waited > SLEEP_AFTER_SECONDS:
            time.sleep(min(0.05 * waited, 0.01))

    def _silence(self, channel: Channel) -> Exception:
        silent = [
            peer for peer, request in zip(channel.peers, channel.handle, strict=False) if not request.Test()
        ]
        return NeighbourSilent(
            f"rank {self.rank} waited {self._deadline:g} s in round {channel.round}, hop {channel.hop}, "
            f"tag {channel.tag} for rank {', '.join(map(str, silent)) or '(own sends)'}: has it died, or is it slow "
            "(--deadline SECONDS waits longer)?"
        )
