"""Sums along every graph and route, plain and shared: the bits of loopback, under mpirun on all ranks at once."""

from dataclasses import dataclass

import numpy as np
import pytest

from dpmpi.core import Method, Sum, public
from dpmpi.crypto.mask_graph import circulant, connectivity, stays_connected
from dpmpi.network.graph import make_graph
from dpmpi.network.route import Routes
from dpmpi.network.transport.meter import Meter
from dpmpi.testing import random_shards, shared, simulate
from dpmpi.testing.simulation import routed

pytestmark = pytest.mark.mpi(min_size=3)

GRAPHS = ("path", "star", "ring", "torus", "random tree", "erdos-renyi:p=0.6", "complete")
LENGTHS = (3, 1000, 40_000)
"""The last is too long for MPI to send without a word of the receiver."""


@dataclass(frozen=True)
class Talk(Method):
    """Adds up vectors of several lengths in every round."""

    def start(self, agent):
        return []

    def round(self, agent, state, t):
        for length in LENGTHS:
            vector = np.random.default_rng([agent.rank, length, t]).standard_normal(length)
            state.append((yield Sum(public(vector, because="a constant"))).copy())

    def releases(self, terms):
        return []

    def model(self, agent, state, t, out):
        out[:] = 0.0


@pytest.mark.parametrize("name", GRAPHS)
def test_sums_have_the_bits_of_loopback(world, on_all, name):
    n = world.size
    graph = make_graph(f"random:edges={n - 1}" if name == "random tree" else name, n, n)
    shards = random_shards(n, 2, 3, 0)
    for route in ("tree", "butterfly", "direct") if graph.complete else ("tree",):
        routes, few = Routes(graph, route), circulant(n, connectivity(n, 1))
        kinds = {"plain": routed(routes), "expanded": shared(routes=routes, pairs=few)}
        if graph.complete or stays_connected(n, graph.edges, 1):
            kinds["full"] = shared("full", routes=routes, pairs=few if graph.complete else graph.edges)
        sums = {}
        for kind, exchange in kinds.items():
            alone = simulate(Talk(), shards, 3, graph=graph, exchange=exchange).seats[world.rank].state
            found = simulate(Talk(), shards, 3, graph=graph, exchange=exchange, transport=Meter(world)).seats[0].state
            same = all(np.array_equal(one, other) for one, other in zip(alone, found, strict=True))
            on_all(same, f"other bits than loopback: {kind} sums on {name} by {route}")
            sums[kind] = found
        for found in sums.values():
            near = [np.abs(one - other).max() for one, other in zip(sums["plain"], found, strict=True)]
            on_all(max(near) <= n * 2.0**-41 + n * 2.0**-48, f"off the plain sum by {max(near)}")
