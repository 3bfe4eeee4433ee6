"""A tap on MPI itself: sees, and may change, every buffer that a process hands to it, on every communicator.

`tapped()` puts a stand-in in the place of `mpi4py.MPI` before dpmpi imports it. Communicators made from the world
(`Dup`, `Split`, `Shrink`) are tapped too. A verb that is neither known to send nor known to be silent is refused, so
that a new one cannot go unseen.

What is sent point to point goes through a copy of the sender's buffer, and what a collective brings is looked at where
it arrives: `on_wire` may change either, as somebody on one link of the network could, and never touches what a sender
keeps. `abort` ends the run instead of the processes: all ranks raise `Ended`, so that one start serves many runs.
"""

import mmap
import os
import time
from dataclasses import dataclass, field

import mpi4py
import numpy as np

from dpmpi.network.launcher import advice, heartbeats

SENT = ("Send", "Isend", "Ssend", "Issend")
LASTING = ("Send_init", "Ssend_init")
GATHERED = ("Allgather", "Iallgather", "Gather", "Igather", "Alltoall", "Ialltoall")
SPREAD = ("Allgatherv", "Iallgatherv", "Gatherv", "Igatherv", "Alltoallv", "Ialltoallv")
REDUCED = ("Allreduce", "Iallreduce", "Reduce", "Ireduce")
FROM_ROOT = ("Bcast", "Ibcast")
SILENT = ("Get_rank", "Get_size", "Recv_init", "Irecv", "Recv", "Ibarrier", "Barrier", "Iprobe", "Revoke", "Is_revoked")
SILENT += ("Free", "Get_failed", "Ack_failed", "Get_parent")
TOLD = ("Agree",)
MADE = ("Dup", "Split", "Shrink")


class Ended(BaseException):
    """Another rank has aborted the run; a launcher would have killed this process."""


@dataclass(frozen=True)
class Sent:
    """One buffer as it was handed to MPI."""

    communicator: str
    verb: str
    peer: int | None
    content: bytes

    @property
    def where(self):
        """Say where it was sent."""
        return f"{self.verb} to {'all' if self.peer is None else f'rank {self.peer}'} on {self.communicator}"


@dataclass
class Wire:
    """What this process has said since the last `reset`, and who else has ended."""

    ended: mmap.mmap
    """One byte, shared by all ranks: whether the run was aborted."""
    sent: list = field(default_factory=list)
    on_wire: object = None
    """Called with (verb, the bytes that may be changed) for each message on its way."""
    kept: list = field(default_factory=list)
    """All requests and buffers: MPI may write to those of a run that has ended before its last message came."""
    real_abort: bool = False
    """Whether an abort ends the processes after all."""
    made: int = 0
    aborted: bool = False
    """Whether a run was ever aborted: then MPI may have requests that nobody will complete."""

    def reset(self):
        self.sent.clear()
        self.on_wire, self.made = None, 0

    def note(self, communicator, verb, peer, content):
        self.sent.append(Sent(communicator, verb, peer, bytes(content)))

    def pass_on(self, verb, *parts):
        if self.on_wire is not None:
            self.on_wire(verb, [part for part in parts if part.size])

    def check(self):
        if self.ended[0]:
            self.aborted = True
            raise Ended("another rank has aborted the run")

    def abort(self, code):
        self.ended[0] = 1
        self.aborted = True
        raise Ended(f"aborted with code {code}")


def shared_byte(path):
    """Return a byte that all processes which map the file share."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(handle, 1)
    return mmap.mmap(handle, 1)


def tapped(wire):
    """Put a tapped MPI in the place of mpi4py's; return the real one."""
    for name, value in advice(os.environ).items():
        os.environ.setdefault(name, value)
    mpi4py.rc.thread_level = "multiple" if heartbeats(os.environ) else "single"
    mpi4py.rc.finalize = wire.real_abort  # pending requests of runs that were aborted would make it wait
    from mpi4py import MPI  # noqa: PLC0415 - importing initialises MPI

    mpi4py.MPI = _stand_in(MPI, wire)
    return MPI


def _stand_in(real, wire):
    class Request(real.Request):
        """A request whose completion the wire hears of."""

        then = None

        def Test(self, status=None):
            wire.check()
            done = super().Test(status)
            if done:
                self.completed()
            return done

        def completed(self):
            if self.then is not None:
                then, self.then = self.then, None
                then()

        @staticmethod
        def Testall(requests, statuses=None):
            wire.check()
            done = real.Request.Testall(requests, statuses)
            for request in requests if done else ():
                request.completed()
            return done

        def Wait(self, status=None):
            while not self.Test(status):
                time.sleep(1e-4)
            return True

        @staticmethod
        def Waitall(requests, statuses=None):
            while not Request.Testall(requests, statuses):
                time.sleep(1e-4)

    class Prequest(real.Prequest):
        """A persistent request; one that sends has a copy of its buffer, which is what travels."""

        source = None

        def completed(self):
            pass

        def started(self):
            if self.source is not None:
                self.copy[:] = self.source
                wire.note(self.where, self.verb, self.peer, self.copy.tobytes())
                wire.pass_on(self.verb, self.copy)

        def Start(self):
            self.started()
            super().Start()

        def Test(self, status=None):
            wire.check()
            return super().Test(status)

        @staticmethod
        def Startall(requests):
            for request in requests:
                request.started()
            real.Prequest.Startall(requests)

    class Stand:
        COMM_WORLD = None

        def __getattr__(self, name):
            return getattr(real, name)

    Stand.Request, Stand.Prequest = Request, Prequest
    Stand.COMM_WORLD = Communicator(real, wire, real.COMM_WORLD, "world", Request, Prequest)
    return Stand()


class Communicator:
    """A communicator of which all that is sent is seen."""

    def __init__(self, real, wire, comm, name, request, prequest):
        self._real, self._wire, self._comm, self._name = real, wire, comm, name
        self._request, self._prequest = request, prequest

    def __getattr__(self, verb):
        known = {SENT: self._send, LASTING: self._lasting, GATHERED: self._gathered, SPREAD: self._gathered}
        known |= {REDUCED: self._gathered, FROM_ROOT: self._from_root, TOLD: self._told, MADE: self._make}
        known |= {SILENT: self._silent, ("Abort",): self._abort}
        for verbs, action in known.items():
            if verb in verbs:
                return lambda *args, **named: action(verb, *args, **named)
        raise AttributeError(f"expected a verb that the tap knows, found {verb}: say in tap.py what it sends")

    def _silent(self, verb, *args, **named):
        found = getattr(self._comm, verb)(*args, **named)
        if not isinstance(found, self._real.Request):
            return found
        return self._kept((self._prequest if verb == "Recv_init" else self._request)(found), args)

    def _kept(self, request, buffers):
        self._wire.kept.append((request, buffers))
        return request

    def _told(self, verb, value):
        self._wire.note(self._name, verb, None, repr(value).encode())
        return getattr(self._comm, verb)(value)

    def _make(self, verb, *args, **named):
        if args or named:
            self._wire.note(self._name, verb, None, repr((args, named)).encode())
        self._wire.made += 1
        name = f"{self._name}.{verb}{self._wire.made}"
        made = getattr(self._comm, verb)(*args, **named)
        if made == self._real.COMM_NULL:
            return made
        return Communicator(self._real, self._wire, made, name, self._request, self._prequest)

    def _abort(self, verb, code=0):
        if self._wire.real_abort:
            self._comm.Abort(code)
            os._exit(code)  # MPICH may return before it has ended this process
        self._wire.abort(code)

    def _send(self, verb, buffer, dest, tag=0):
        copy = _bytes(buffer).copy()
        self._wire.note(self._name, verb, dest, copy.tobytes())
        self._wire.pass_on(verb, copy)
        found = getattr(self._comm, verb)([copy, self._real.BYTE], dest, tag)
        if found is None:
            return None
        return self._kept(self._request(found), copy)

    def _lasting(self, verb, buffer, dest, tag=0):
        source = _bytes(buffer)
        copy = source.copy()
        request = self._prequest(getattr(self._comm, verb)([copy, self._real.BYTE], dest, tag))
        request.source, request.copy, request.where, request.verb, request.peer = source, copy, self._name, verb, dest
        return self._kept(request, source)

    def _from_root(self, verb, buffer, root=0):
        here = self._comm.Get_rank() == root
        if here:
            self._wire.note(self._name, verb, None, _bytes(buffer).tobytes())
        found = getattr(self._comm, verb)(buffer, root)
        return self._arriving(verb, found, [] if here else [_bytes(buffer)], buffer)

    def _gathered(self, verb, sent, received, *args, **named):
        what = received if sent is self._real.IN_PLACE else sent
        layout = what[1:-1] if isinstance(what, list | tuple) else ()
        told = repr(layout).encode() if layout else b""
        self._wire.note(self._name, verb, None, told + _bytes(what).tobytes())
        found = getattr(self._comm, verb)(sent, received, *args, **named)
        return self._arriving(verb, found, self._foreign(verb, received), (sent, received))

    def _foreign(self, verb, received):
        """Return what has come from other ranks, as bytes that can be changed."""
        if received is None or self._comm.Get_size() == 1:
            return []
        arrived, rank, size = _bytes(received), self._comm.Get_rank(), self._comm.Get_size()
        if verb in REDUCED:
            return [arrived]
        if verb in GATHERED:
            return [row for k, row in enumerate(arrived.reshape(size, -1)) if k != rank]
        array, counts, starts = received[0], received[1], received[2]
        if isinstance(counts, tuple):
            counts, starts = counts
        width = np.asarray(array).itemsize
        pieces = zip(counts, starts, strict=True)
        return [arrived[width * s : width * (s + c)] for k, (c, s) in enumerate(pieces) if k != rank]

    def _arriving(self, verb, found, parts, buffers):
        if not isinstance(found, self._real.Request):
            self._wire.pass_on(verb, *parts)
            return found
        request = self._kept(self._request(found), buffers)
        request.then = lambda: self._wire.pass_on(verb, *parts)
        return request


def _bytes(buffer):
    """Return a buffer as bytes that share its memory."""
    array = np.asarray(buffer[0] if isinstance(buffer, list | tuple) else buffer)
    assert array.flags.c_contiguous, array.flags
    return array.reshape(-1).view(np.uint8)
