"""What all MPI ranks do together, beside their rounds: sums, texts, votes, on a communicator of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array
from dpmpi.errors import NeighbourSilent, RankLost
from dpmpi.network.channel import slices
from dpmpi.network.launcher import fault_tolerant
from dpmpi.network.polling import POLLS, nap_until
from dpmpi.network.words import check_lengths, other_lengths, text_of
from dpmpi.rng import Words

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")

CARD_BYTES = 256
"""A text that fits, with its length, is collected in one step."""
FEW_BYTES = 1 << 18
"""As much of all ranks together goes through the first one, in 2 (n - 1) messages instead of n (n - 1)."""


def telling(method: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Let a method raise `RankLost` where MPI says that a rank has died."""

    @wraps(method)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            raise translated(error) from error

    return called


def translated(error: Exception) -> Exception:
    """Return `RankLost` for what MPI raises when it is fault tolerant, and anything else as it is.

    An operation that fails because of a death has many codes: of the process, of a request in a list, or of a
    communicator that another survivor revoked. With fault tolerance on, nothing else makes these operations fail.
    """
    if fault_tolerant(os.environ) and type(error).__module__.startswith("mpi4py"):
        return RankLost(f"a rank has died ({error})")
    return error


class MpiCollectives:
    """The collective operations of a transport; each waits no longer than the deadline."""

    def __init__(self, mpi: Any, comm: Any, deadline: float) -> None:
        self._mpi = mpi
        self._aside = comm
        self._deadline = deadline
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.tolerant = fault_tolerant(os.environ)

    def watch(self) -> None:
        """Raise if waiting is in vain; called while this rank waits."""

    @telling
    def total(self, buffer: Array) -> None:
        """Sum over all ranks in rank order, the same bits everywhere."""
        self._add(buffer)

    @telling
    def add_up(self, words: Words) -> None:
        """Sum over all ranks modulo 2^64."""
        self._add(words)

    def _add(self, buffer: NDArray[Any]) -> None:
        """Add up on the first rank, or if it is much a slice of the coordinates on each; then all get all."""
        if buffer.nbytes * self.size <= FEW_BYTES:
            rows, total = self._on_first(buffer.reshape(-1), "an evaluation"), buffer.reshape(-1).copy()
            for row in () if rows is None else rows[1:]:
                total += row
            self._finish(self._aside.Ibcast(total), "an evaluation")
            buffer.reshape(-1)[:] = total
            return
        mine = slices(buffer, self.size)
        theirs = np.empty_like(mine)
        self._finish(self._aside.Ialltoall(mine, theirs), "an evaluation")
        for row in theirs[1:]:
            theirs[0] += row
        self._finish(self._aside.Iallgather(theirs[0].copy(), mine), "an evaluation")
        buffer.reshape(-1)[:] = mine.reshape(-1)[: buffer.size]

    def _on_first(self, row: NDArray[Any], what: str) -> NDArray[Any] | None:
        """Return the rows of all ranks as a matrix on the first one, None elsewhere."""
        rows = np.empty((self.size, row.size), row.dtype) if self.rank == 0 else None
        self._finish(self._aside.Igather(row, rows), what)
        return rows

    @telling
    def collect(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of all ranks in rank order.

        If all are short the first rank passes them on; longer ones, such as hellos, are left to MPI.
        """
        [text] = texts
        mine = np.frombuffer(text.encode(), np.uint8)
        # Most texts are short: they go with their lengths, in one step.
        card = np.zeros(CARD_BYTES, np.uint8)
        card[:8].view(np.int64)[0] = mine.size
        card[8 : 8 + mine.size] = mine[: CARD_BYTES - 8]
        if CARD_BYTES * self.size <= FEW_BYTES:
            found = self._on_first(card, "the other ranks")
            cards = np.empty((self.size, CARD_BYTES), np.uint8) if found is None else found
            self._finish(self._aside.Ibcast(cards), "the other ranks")
        else:
            cards = np.empty((self.size, CARD_BYTES), np.uint8)
            self._finish(self._aside.Iallgather(card, cards), "the other ranks")
        lengths: list[int] = cards[:, :8].copy().view(np.int64)[:, 0].tolist()
        check_lengths(self.rank, lengths)
        if max(lengths) <= CARD_BYTES - 8:
            return [
                text_of(peer, row[8 : 8 + k].tobytes())
                for peer, (row, k) in enumerate(zip(cards, lengths, strict=True))
            ]
        with self._announced(lengths):
            joined, ends = np.empty(sum(lengths), np.uint8), np.cumsum([0, *lengths]).tolist()
            spec = [joined, lengths, ends[:-1], self._mpi.BYTE]
            self._finish(self._aside.Iallgatherv([mine, self._mpi.BYTE], spec), "the other ranks")
        return [text_of(peer, joined[a:b].tobytes()) for peer, (a, b) in enumerate(pairwise(ends))]

    @contextmanager
    def _announced(self, lengths: Sequence[int]) -> Iterator[None]:
        """Raise `ProtocolError` for lengths that cannot be, and where others come than were announced."""
        check_lengths(self.rank, lengths)
        try:
            yield
        except self._mpi.Exception as error:
            if self.tolerant:
                raise
            raise other_lengths(self.rank, lengths) from error

    @telling
    def gather(self, row: Array, roots: Sequence[int]) -> Array | None:
        """Return the rows of all ranks as a matrix on those in `roots`, None elsewhere."""
        found = None
        for root in roots:
            rows = np.empty((self.size, row.size)) if self.rank == root else None
            self._finish(self._aside.Igather(row, rows, root=root), "the other ranks")
            found = found if rows is None else rows
        return found

    @telling
    def swap(self, messages: Sequence[bytes], theirs: Sequence[int] | None = None) -> list[bytes]:
        """Send every rank its own bytes; return those of every rank, who announced as many as `theirs`.

        Without `theirs` the lengths are announced here, bare.
        """
        lengths = [len(message) for message in messages]
        if theirs is None:
            told = self.swap_alike([length.to_bytes(8, "big") for length in lengths])()
            theirs = [int.from_bytes(one, "big") for one in told]
        with self._announced(theirs):
            came, out = np.empty(sum(theirs), np.uint8), np.frombuffer(b"".join(messages), np.uint8)
            ends, outs = np.cumsum([0, *theirs]).tolist(), np.cumsum([0, *lengths]).tolist()
            byte = self._mpi.BYTE
            request = self._aside.Ialltoallv([out, lengths, outs[:-1], byte], [came, [*theirs], ends[:-1], byte])
            self._finish(request, "the other ranks")
        return [came[a:b].tobytes() for a, b in pairwise(ends)]

    @telling
    def swap_alike(self, messages: Sequence[bytes]) -> Callable[[], list[bytes]]:
        """Begin to send every rank its own bytes, all of one length; calling the result returns those of every rank."""
        out = np.frombuffer(b"".join(messages), np.uint8)
        buffers = (out, np.empty_like(out))
        request, width = self._aside.Ialltoall(*buffers), len(messages[0])

        @telling
        def result() -> list[bytes]:
            self._finish(request, "the other ranks")
            came = buffers[1]  # both are held until here, as by `vote`
            return [came[k : k + width].tobytes() for k in range(0, len(came), width)]

        return result

    @telling
    def vote(self, wishes: Array) -> Callable[[], Array]:
        """Begin to agree on the largest of all ranks' wishes, entry by entry."""
        buffers = (wishes, np.empty_like(wishes))
        request = self._aside.Iallreduce(*buffers, op=self._mpi.MAX)

        @telling
        def result() -> Array:
            self._finish(request, "the other ranks")
            return buffers[1]  # both must be held until here: mpi4py 4.1 lets go of what Iallreduce reads

        return result

    def barrier(self) -> None:
        """Return when every rank has called this; for benchmarks."""
        self._finish(self._aside.Ibarrier(), "the other ranks")

    def _finish(self, request: Any, what: str) -> None:
        """Wait for a collective operation."""
        for _ in range(POLLS):
            if request.Test():
                return
            os.sched_yield()

        def ready() -> bool:
            if request.Test():
                return True
            self.watch()
            return False

        if not nap_until(ready, self._deadline):
            raise NeighbourSilent(
                f"rank {self.rank} waited {self._deadline:g} s for {what}: has a rank died, or is it slow "
                "(--deadline SECONDS waits longer)?"
            )
