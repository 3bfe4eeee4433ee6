"""Frames over a connection: a length, then so many bytes; sealed once both sides have proven who they are."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

from dpmpi.crypto import SEAL_BYTES
from dpmpi.crypto.seal import SealedPair

LONGEST_FRAME = 1 << 16


class Wire:
    """One end of a connection. Whatever is wrong with what comes is an `OSError`; `SealBroken` if it does not open."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        """Take over a connection on which all must be said before `end`, a time of the monotonic clock."""
        self._connection = connection
        self._end: float | None = end
        self._patience = 0.0
        self._pair: SealedPair | None = None
        self._sealed = self._opened = 0
        self._lock = threading.Lock()
        connection.settimeout(max(0.001, end - time.monotonic()))

    def seal(self, pair: SealedPair, patience: float) -> None:
        """Seal all frames from here on, each of which may take `patience` seconds to come."""
        self._pair, self._end, self._patience = pair, None, patience
        self._connection.settimeout(patience)

    def send(self, content: bytes) -> None:
        """Send one frame; threads may do so at the same time."""
        with self._lock:
            if self._pair is not None:
                self._sealed += 1
                out = bytearray(len(content) + SEAL_BYTES)
                self._pair.seal(bytearray(content), out, self._sealed, 0)
                content = bytes(out)
            self._connection.sendall(struct.pack(">I", len(content)) + content)

    def receive(self, end: float | None = None) -> bytes:
        """Return the next frame, all of which has come in time: by `end`, or else as this wire was told."""
        usual = time.monotonic() + self._patience if self._end is None else self._end
        end = usual if end is None else min(end, usual)
        (length,) = struct.unpack(">I", self._exactly(4, end))
        if length > LONGEST_FRAME:
            raise ConnectionError(f"a frame of {length} bytes")
        content = self._exactly(length, end)
        if self._pair is None:
            return content
        self._opened += 1
        out = bytearray(max(0, length - SEAL_BYTES))
        self._pair.open(bytearray(content), out, self._opened, 0)
        return bytes(out)

    def say(self, kind: str, **facts: Any) -> None:
        """Send a frame with a kind and facts, as JSON."""
        self.send(json.dumps({"kind": kind, **facts}).encode())

    def hear(self, end: float | None = None) -> dict[str, Any]:
        """Return the next frame that `say` sent."""
        try:
            said = json.loads(self.receive(end))
            if isinstance(said, dict) and isinstance(said.get("kind"), str):
                return said
        except (ValueError, RecursionError):
            pass
        raise ConnectionError("something else than a frame")

    def _exactly(self, count: int, end: float) -> bytes:
        """Return so many bytes; somebody who sends them one by one has no more time than others."""
        parts = b""
        while len(parts) < count:
            self._await(end)
            part = self._connection.recv(count - len(parts))
            if not part:
                raise ConnectionError("the end")
            parts += part
        return parts

    def _await(self, end: float) -> None:
        """Wait until there is something to read. The connection's own timeout is for those who send meanwhile."""
        poll = select.poll()
        try:
            poll.register(self._connection, select.POLLIN)
        except ValueError as error:
            raise ConnectionError("closed") from error
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError("nothing came in time")

    def finish(self) -> None:
        """Send nothing more; the other side may."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Break the connection, also for a thread that waits on it."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._connection.close()
