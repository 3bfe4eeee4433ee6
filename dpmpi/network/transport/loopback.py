"""All agents in this one process, without threads: a mailbox per ordered pair of ranks."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np

from dpmpi.core import Array, Bytes
from dpmpi.errors import ProtocolError
from dpmpi.network.channel import Channel, ChannelSpec
from dpmpi.rng import Words


class LoopbackTransport:
    """Delivers messages between the flows of one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranks: Sequence[int] = range(size)
        self.tolerant = False
        self.on_slow: Callable[[int, tuple[int, ...], float], None] | None = None
        self._mail: defaultdict[tuple[int, int, int], deque[Bytes]] = defaultdict(deque)

    def channel(self, spec: ChannelSpec) -> Channel:
        """Return a new channel."""
        return Channel(spec)

    def start(self, channel: Channel) -> None:
        """Put a copy of the outgoing message into every peer's mailbox."""
        for peer, message in zip(channel.peers, channel.messages, strict=True):
            self._mail[channel.rank, peer, channel.tag].append(message.copy())

    def done(self, channel: Channel) -> bool:
        """Deliver and return True if every source's message has come."""
        boxes = [self._mail[peer, channel.rank, channel.tag] for peer in channel.sources]
        if not all(boxes):
            return False
        for box, message in zip(boxes, channel.incoming_messages, strict=True):
            np.copyto(message, box.popleft())
        channel.check()
        return True

    def wait(self, channel: Channel) -> None:
        """Like `done`; with nobody else to run, a missing message will never come."""
        if not self.done(channel):
            silent = [peer for peer in channel.sources if not self._mail[peer, channel.rank, channel.tag]]
            raise ProtocolError(
                f"rank {channel.rank} expected messages of ranks {silent} in round {channel.round}, hop {channel.hop}, "
                "found none: the schedules of the ranks differ"
            )

    def total(self, buffer: Array) -> None:
        """Leave the buffer as it is: this process is everybody."""

    def collect(self, texts: Sequence[str]) -> list[str]:
        """Return the texts of all ranks, one each: all of them are here."""
        return list(texts)

    def add_up(self, words: Words) -> None:
        """Leave the words as they are: this process is everybody."""

    def gather(self, row: Array, roots: Sequence[int]) -> Array | None:
        """Return the rows as they are: this process is everybody."""
        return row

    def swap(self, messages: Sequence[bytes], theirs: Sequence[int] | None = None) -> list[bytes]:
        """Refuse: ranks in one process have nothing to send each other."""
        raise ProtocolError("expected ranks in processes of their own to swap bytes, found all of them in this one")

    def swap_alike(self, messages: Sequence[bytes]) -> Callable[[], list[bytes]]:
        """Refuse likewise."""
        return lambda: self.swap(messages)

    def vote(self, wishes: Array) -> Callable[[], Array]:
        """Agree at once: this process is everybody."""
        return lambda: wishes

    def close(self) -> None:
        """Do nothing: what was sent has arrived."""

    def release(self) -> None:
        """Do nothing: there is nothing to give back."""

    def agree_to_end(self) -> bool:
        """Agree: this process is everybody."""
        return True

    def shrink(self) -> tuple[LoopbackTransport, list[int]]:
        """Return this one: agents in one process do not die."""
        return self, list(self.ranks)

    def among(self, chosen: Sequence[int]) -> LoopbackTransport | None:
        """Return this one: all agents are here."""
        return self

    def abort(self, code: int) -> None:
        """Exit: this process is everybody."""
        raise SystemExit(code)
