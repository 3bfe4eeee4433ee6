"""How bytes travel: inside this process (`loopback`), by MPI (`mpi`, imported only when used), counted (`meter`)."""

from __future__ import annotations

from typing import Any

from dpmpi.network.channel import World


def open_transport(loopback: int | None, deadline: float, comm: Any = None) -> World:
    """Return the transport among `loopback` agents in this process, or else among the ranks of MPI.

    `comm` is an mpi4py communicator, on which nothing is sent; None for that of all ranks.
    """
    if loopback is not None:
        from dpmpi.network.transport.loopback import LoopbackTransport  # noqa: PLC0415 - not under mpirun

        return LoopbackTransport(loopback)
    from dpmpi.network.transport.mpi import open_world  # noqa: PLC0415 - not on loopback

    return open_world(deadline, comm)
