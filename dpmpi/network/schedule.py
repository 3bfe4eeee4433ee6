"""Who talks to whom in which round: pure functions of (shared seed, round), so that no rank has to ask another.

`StaticSchedule` uses all edges of a graph in every round; `SumSchedule` is for sums over all ranks. `SampledSchedule`
uses K vertex-disjoint edges a round, uniform over all K-matchings of the graph: exactly 2K ranks are active and
iota = 2K/n. On a matching, Metropolis weights are 1/2 and 1/2, so that with M_t the edges of round t and
L_e = (e_i - e_j)(e_i - e_j)'

    W_t = I - (1/2) sum_{e in M_t} L_e                                             (1)

is the projection that averages each pair: W_t' W_t = W_t. With p_e = P(e in M_t), E|W_t x - mean|^2 contracts by

    beta^2 = rho( E[W_t' W_t] - 11'/n ) = rho( I - (1/2) sum_e p_e L_e - 11'/n )   (2)

K edges drawn independently, and kept only if they are disjoint, are uniform over the ordered K-matchings. So are K
consecutive pairs of a random permutation of the nodes, if the graph is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from dpmpi.core import Array, Integers
from dpmpi.errors import ConfigError
from dpmpi.network.channel import Neighbourhood
from dpmpi.network.graph import Graph, beta, common_weight, mixing_matrix, neighbourhood
from dpmpi.rng import public_generator

BLOCK_ROUNDS = 1024
"""The rounds that are drawn at a time; part of what a seed means."""

_RAREST = 1e-4
_MOST_ROWS = 1 << 16  # draws at a time: bounds the memory when disjoint edges are rare


class StaticSchedule:
    """All edges of the graph in every round, with fixed weights."""

    def __init__(self, graph: Graph, weights: str = "metropolis") -> None:
        self.graph = graph
        self.weights = weights
        self.size = graph.size
        self.share = 1.0
        self._common = common_weight(graph, weights)
        self._near: dict[int, Neighbourhood] = {}
        self._beta: float | None = None

    @property
    def degrees(self) -> tuple[int, ...]:
        """How many neighbours each rank has."""
        return self.graph.degrees

    def neighbourhood(self, rank: int) -> Neighbourhood:
        """Return the neighbourhood of `rank`, always the same object; takes no dense matrix."""
        if rank not in self._near:
            self._near[rank] = neighbourhood(self.graph, rank, self._common)
        return self._near[rank]

    def rounds(self, rank: int, start: int, stop: int) -> Iterator[tuple[int, Neighbourhood]]:
        """Yield (t, neighbourhood) for every round t with start <= t < stop."""
        return zip(range(start, stop), repeat(self.neighbourhood(rank)))

    def active_counts(self, start: int, stop: int) -> Integers:
        """Return how often each rank is active in the rounds start <= t < stop."""
        return np.full(self.size, max(stop - start, 0), np.int64)

    def beta(self) -> float:
        """Return the second largest singular value of W (dense: for planning, not for very large graphs)."""
        if self._beta is None:
            self._beta = beta(mixing_matrix(self.graph, self.weights))
        return self._beta


class SumSchedule(StaticSchedule):
    """Everybody with everybody in every round, all with the same weight: sums over all ranks, along some graph.

    For exchanges that answer from the sum of all ranks: a mix is then the mean, whatever way the sum travels.
    """

    @property
    def degrees(self) -> tuple[int, ...]:
        """Everybody is everybody's neighbour."""
        return (self.size - 1,) * self.size

    def neighbourhood(self, rank: int) -> Neighbourhood:
        """Return all other ranks, with the weight 1/n; always the same object."""
        if rank not in self._near:
            others = tuple(j for j in range(self.size) if j != rank)
            self._near[rank] = Neighbourhood(others, (1.0 / self.size,) * len(others), 1.0 / self.size)
        return self._near[rank]

    def beta(self) -> float:
        """Return 0: one mix averages over all ranks."""
        return 0.0


class SampledSchedule:
    """`edges_per_round` disjoint edges of the graph in every round, uniformly at random."""

    def __init__(self, graph: Graph, edges_per_round: int, seed: int) -> None:
        K, n, found = edges_per_round, graph.size, len(graph.edges)
        if K < 1:
            raise ConfigError(f"expected at least 1 sampled edge a round, found {K}")
        if found < K:
            raise ConfigError(f"expected at most the {found} edges of {graph.name} sampled a round, found {K}")
        if n // 2 < K:
            raise ConfigError(
                f"expected {2 * K} ranks for {K} disjoint edges a round, found {n}: take at most {n // 2}"
            )
        self.graph = graph
        self.edges_per_round = K
        self.seed = seed
        self.size = n
        self.share = 2 * K / n
        self._edges: Integers = np.array(graph.edges, np.int64)
        self._columns = self._edges.T.astype(np.int32, order="C")
        self._complete = found == n * (n - 1) // 2
        self._acceptance = 1.0 if K == 1 or self._complete else self._estimate_acceptance()
        self._pairs = [Neighbourhood((other,), (0.5,), 0.5) for other in range(n)]
        self._last: tuple[int, Integers, Integers, Integers] | None = None

    def rounds(self, rank: int, start: int, stop: int) -> Iterator[tuple[int, Neighbourhood]]:
        """Yield (t, neighbourhood) for every round t with start <= t < stop in which `rank` is active."""
        pairs = self._pairs
        for block in range(start // BLOCK_ROUNDS, -(-stop // BLOCK_ROUNDS)):
            times, others = self._meetings(block, rank)
            low, high = np.searchsorted(times, (start, stop))
            for t, other in zip(times[low:high].tolist(), others[low:high].tolist(), strict=True):
                yield t, pairs[other]

    def active_counts(self, start: int, stop: int) -> Integers:
        """Return how often each rank is active in the rounds start <= t < stop."""
        counts = np.zeros(self.size, np.int64)
        for block in range(start // BLOCK_ROUNDS, -(-stop // BLOCK_ROUNDS)):
            first = block * BLOCK_ROUNDS
            ends = self._draw(block)[max(start - first, 0) : stop - first]
            counts += np.bincount(ends.ravel(), minlength=self.size)
        return counts

    def beta(self) -> float:
        """Return beta of (2), from a dense matrix.

        p_e = K/|E| exactly for K = 1 and, by symmetry, for the complete graph; for other graphs p_e is the frequency of
        e in the first 16 blocks (16384 rounds), so that beta is an estimate.
        """
        W = np.eye(self.size)
        for (i, j), p in zip(self.graph.edges, self._edge_probabilities().tolist(), strict=True):
            W[i, i] -= p / 2
            W[j, j] -= p / 2
            W[i, j] = W[j, i] = p / 2
        return float(np.sqrt(beta(W)))

    def _edge_probabilities(self) -> Array:
        if self.edges_per_round == 1 or self._complete:
            return np.full(len(self._edges), self.edges_per_round / len(self._edges))
        met = np.zeros(self.size * self.size)
        for block in range(16):
            ends = self._draw(block).reshape(-1, 2)
            met += np.bincount(ends.min(1) * self.size + ends.max(1), minlength=len(met))
        probabilities: Array = met[self._edges[:, 0] * self.size + self._edges[:, 1]] / (16 * BLOCK_ROUNDS)
        return probabilities

    def _meetings(self, block: int, rank: int) -> tuple[Integers, Integers]:
        """Return the rounds of `block` in which `rank` is active, and whom it meets then.

        The block is sorted by rank once, so that many ranks in one process do not each scan all of it.
        """
        if self._last is None or self._last[0] != block:
            ends = self._draw(block)
            nodes = ends.reshape(-1)
            order = np.argsort(nodes, kind="stable")  # stable: rounds stay in order
            others = ends[:, :, ::-1].reshape(-1)[order]
            times = block * BLOCK_ROUNDS + order // (2 * self.edges_per_round)
            self._last = block, times, others, np.searchsorted(nodes[order], np.arange(self.size + 1))
        _, times, others, bounds = self._last
        mine = slice(bounds[rank], bounds[rank + 1])
        return times[mine], others[mine]

    def _draw(self, block: int) -> Integers:
        """Return the endpoints (BLOCK_ROUNDS, K, 2) of the edges of all rounds of `block`."""
        generator = public_generator(self.seed, "schedule", block)
        K = self.edges_per_round
        if K == 1:
            return self._edges[generator.integers(0, len(self._edges), (BLOCK_ROUNDS, 1))]
        if self._complete:
            keys = generator.random((BLOCK_ROUNDS, self.size))
            chosen = np.argpartition(keys, 2 * K - 1, axis=1)[:, : 2 * K]
            # the order that argpartition leaves is its own affair; the order of the keys is uniform
            order = np.argsort(np.take_along_axis(keys, chosen, 1), axis=1)
            return np.take_along_axis(chosen, order, 1).reshape(BLOCK_ROUNDS, K, 2)
        kept: list[Integers] = []
        missing = BLOCK_ROUNDS
        while missing > 0:
            rows = min(int(1.1 * missing / self._acceptance) + 16, _MOST_ROWS)
            kept.append(self._disjoint(generator, rows)[:missing])
            missing -= len(kept[-1])
        return np.concatenate(kept)

    def _disjoint(self, generator: np.random.Generator, rows: int) -> Integers:
        """Draw `rows` times K edges; return those draws whose edges are disjoint, in the order drawn.

        A draw is given up at its first clash: its further edges would not be looked at, so they are not drawn.
        """
        columns: list[NDArray[np.int32]] = []
        for _ in range(self.edges_per_round):
            edge = generator.integers(0, len(self._edges), rows, np.int32)
            i, j = self._columns[0][edge], self._columns[1][edge]
            clash = np.zeros(rows, np.bool_)
            for earlier in columns:
                clash |= earlier == i
                clash |= earlier == j
            kept = np.flatnonzero(~clash)
            columns = [column[kept] for column in (*columns, i, j)]
            rows = len(kept)
        return np.stack(columns, axis=1).reshape(rows, self.edges_per_round, 2).astype(np.int64)

    def _estimate_acceptance(self) -> float:
        """Return how often K edges are disjoint, from draws that depend on the graph and K only."""
        generator = public_generator(0, "acceptance")
        drawn = kept = 0
        while kept < 100 and drawn < 2 * _MOST_ROWS:
            rows = max(drawn, 2048)
            kept += len(self._disjoint(generator, rows))
            drawn += rows
        if kept < _RAREST * drawn:
            raise ConfigError(
                f"expected {self.edges_per_round} disjoint edges of {self.graph.name} on {self.size} ranks in one of "
                f"{1 / _RAREST:.0f} draws, found {kept} in {drawn}: sample fewer edges, or take a graph with more"
            )
        return kept / drawn


def make_schedule(graph: Graph, weights: str, sample_edges: int | None, seed: int) -> StaticSchedule | SampledSchedule:
    """Return the schedule of all edges in every round or, with `sample_edges`, of that many disjoint edges a round."""
    if sample_edges is None:
        return StaticSchedule(graph, weights)
    if weights != "metropolis":
        raise ConfigError(f"expected metropolis weights (1/2 and 1/2) for sampled edges, found {weights}")
    return SampledSchedule(graph, sample_edges, seed)
