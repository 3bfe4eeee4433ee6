"""Along which edges a sum over all ranks travels: who passes what on to whom, and what that costs.

    tree        up a spanning tree of the graph, every rank adding its children's sums to its own vector, and down again
    butterfly   recursive halving and doubling: everybody adds up a part of the vector, then hands it to all
    direct      everybody's vector to everybody

A tree is for any connected graph; the others are for complete ones. A sum of n ranks with vectors of m words takes

                messages of all ranks          words of a rank             hops one after the other
    tree        2 (n - 1)                      m per edge of the tree      2 depth
    butterfly   2 n sum_k (p_k - 1)            2 m (n - 1)/n, about        2 K                            (1)
    direct      n (n - 1)                      (n - 1) m                   1

The tree is rooted at a centre of the graph, from which the farthest rank is as near as from any: none is less deep. On
a complete graph of more than `FLAT` ranks it has two levels instead of one, so that nobody sends more than about
sqrt(n) vectors.

The butterfly is that of [T24] with stages of any width. The vector has n blocks; rank r ends with the sum of block r.
With s = n at first, a rank cares for the blocks r, ..., r + s - 1 (modulo n). In a stage of p pieces of w = ceil(s/p)
blocks it keeps the first piece and sends the one that begins at r + k w to rank r + k w, which cares for these blocks
as its own first ones; then s = w. After K stages s = 1; the same stages backwards hand the sums to all. Any n works:
p = 2 is halving, p = n one hop from all to all. Messages of a stage are equally long, so that the last piece may
be filled up: stages that would fill up by more than `MOST_FILLED` are not used.

`plan_stages` chooses the stages, and `Routes.of` between butterfly and direct, by an estimate of the seconds of a sum:

    PHASE_SECONDS a hop + MESSAGE_SECONDS a message + BYTE_SECONDS a byte                                 (2)

the same on every rank, whatever machine it runs on. On a complete graph of more than `FLAT` ranks, vectors of at most
`SHORT_BYTES` take the tree: a message costs more than its bytes then, and no route has fewer; where several ranks share
a core it takes a third of the butterfly's time, as most ranks turn to others only once. Longer vectors take the
butterfly, in which nobody sends more than about two of them. No route depends on data, and none changes an integer sum;
sums of floating-point numbers are added up in an order that the route fixes.

[T24] Traeff. Optimal, non-pipelined reduce-scatter and allreduce algorithms. arXiv:2410.14234, 2024.
"""

from __future__ import annotations

import math
from functools import cache, cached_property, lru_cache
from typing import TypeAlias

from dpmpi.core.frozen import frozen
from dpmpi.errors import ConfigError
from dpmpi.network.graph import Graph

PHASE_SECONDS, MESSAGE_SECONDS, BYTE_SECONDS = 30e-6, 2e-6, 0.5e-9
"""Of (2)."""
SHORT_BYTES = 1 << 16
"""Vectors up to this length take a tree, also where all edges are there."""
FLAT = 8
"""How many ranks of a complete graph have a tree of depth 1, at most."""
MOST_FILLED = 1.04
"""How much longer than its blocks a stage's messages may be, all together."""


@frozen
class Stage:
    """A stage of a butterfly: pieces of `width` blocks, of which `offsets` says where those that are sent begin."""

    width: int
    offsets: tuple[int, ...]
    last: int
    """Blocks of the last piece: `width` at most."""

    def blocks(self, piece: int) -> int:
        """Return how many blocks a piece has."""
        return self.last if piece == len(self.offsets) - 1 else self.width


Stages: TypeAlias = tuple[Stage, ...]


@frozen
class Sent:
    """What one rank sends in a sum."""

    messages: int
    payload: int
    """Bytes of numbers."""
    hops: int
    """How often it turns to others."""

    @property
    def seconds(self) -> float:
        """The estimate (2)."""
        return self.hops * PHASE_SECONDS + self.messages * MESSAGE_SECONDS + self.payload * BYTE_SECONDS


@frozen
class Tree:
    """A spanning tree of least depth."""

    root: int
    depth: int
    parents: tuple[int, ...]
    """Of each rank; the root's is itself."""

    def waits(self, rank: int) -> int:
        """Return how often a rank turns to others in a sum: to its children twice, to its parent once."""
        return 2 * bool(self.children[rank]) + (rank != self.root)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each rank, sorted."""
        found: list[list[int]] = [[] for _ in self.parents]
        for rank, parent in enumerate(self.parents):
            if rank != parent:
                found[parent].append(rank)
        return tuple(map(tuple, found))


def spanning_tree(graph: Graph) -> Tree:
    """Return the tree; the lowest rank that will do is the root, and the lowest neighbour that will do the parent."""
    n = graph.size
    if graph.complete:
        return complete_tree(n)
    near = [sum(1 << j for j in graph.neighbours(rank)) for rank in range(n)]
    root, depth = 0, n
    for rank in range(n):
        found = _eccentricity(near, rank, depth)
        if found is not None and found < depth:
            root, depth = rank, found
        if depth <= 1:
            break
    parents, level = {root: root}, [root]
    while level:
        following = []
        for rank in level:
            for peer in graph.neighbours(rank):
                if peer not in parents:
                    parents[peer] = rank
                    following.append(peer)
        level = sorted(following)
    if len(parents) < n:
        raise ConfigError(f"expected a connected graph for a sum of all ranks, found one that reaches {len(parents)}")
    return Tree(root, depth, tuple(parents[rank] for rank in range(n)))


def complete_tree(n: int) -> Tree:
    """Return the tree where all edges are there.

    Of more than `FLAT` ranks the root has k children, and each of these at most k, for the least k.
    """
    if n <= FLAT:
        return Tree(0, min(1, n - 1), (0,) * n)
    k = next(k for k in range(1, n) if 1 + k + k * k >= n)
    return Tree(0, 2, tuple(0 if rank <= k else 1 + (rank - 1) % k for rank in range(n)))


def _eccentricity(near: list[int], rank: int, limit: int) -> int | None:
    """Return how far the farthest rank is, None if it is `limit` or farther; ranks are the bits of integers."""
    reached, fresh, steps, everyone = 1 << rank, 1 << rank, 0, (1 << len(near)) - 1
    while reached != everyone:
        steps += 1
        if steps >= limit or not fresh:
            return None
        touched = 0
        while fresh:
            low = fresh & -fresh
            touched |= near[low.bit_length() - 1]
            fresh ^= low
        fresh = touched & ~reached
        reached |= fresh
    return steps


def plan_stages(size: int, payload: int) -> Stages:
    """Return the stages of a butterfly of `size` ranks for vectors of `payload` bytes, by the least seconds of (2)."""
    return _stages(size, block_words(size, payload))


def block_words(size: int, payload: int) -> int:
    """Return the words of 8 bytes of a block."""
    return -(-payload // (8 * size))


@lru_cache(maxsize=256)
def _stages(size: int, words: int) -> Stages:
    @cache
    def best(s: int) -> tuple[float, Stages]:
        if s == 1:
            return 0.0, ()
        found: tuple[float, Stages] = (math.inf, ())
        for w in {-(-s // p) for p in range(2, s + 1)}:
            pieces = -(-s // w)
            if pieces * w > MOST_FILLED * s and w > 1:
                continue
            after, rest = best(w)
            took = PHASE_SECONDS + (pieces - 1) * (MESSAGE_SECONDS + BYTE_SECONDS * 8 * words * w) + after
            if took < found[0]:
                stage = Stage(w, tuple(range(w, s, w)), s - (pieces - 1) * w)
                found = took, (stage, *rest)
        return found

    return best(size)[1]


def choose(wanted: str, complete: bool, size: int, payload: int) -> str:
    """Return the route of vectors of `payload` bytes: tree, butterfly or direct, by (2) where it is not asked for."""
    if wanted != "auto":
        return wanted
    if not complete or (size > FLAT and payload <= SHORT_BYTES):
        return "tree"
    direct, butterfly = Sent(size - 1, (size - 1) * payload, 1), butterfly_sent(size, payload)
    return "direct" if direct.seconds <= butterfly.seconds else "butterfly"


def butterfly_sent(size: int, payload: int) -> Sent:
    """Return the messages and bytes that each rank sends in a butterfly."""
    stages, block = plan_stages(size, payload), 8 * block_words(size, payload)
    messages = sum(len(stage.offsets) for stage in stages)
    return Sent(2 * messages, 2 * sum(len(s.offsets) * s.width for s in stages) * block, 2 * len(stages))


def all_sent(route: str, size: int, payload: int) -> tuple[int, int]:
    """Return the messages and the bytes of numbers that all ranks send in a sum of vectors of `payload` bytes."""
    if route == "butterfly":
        one = butterfly_sent(size, payload)
        return size * one.messages, size * one.payload
    messages = 2 * (size - 1) if route == "tree" else size * (size - 1)
    return messages, messages * payload


@frozen
class Routes:
    """The routes of the sums of a run: over which graph, and which was asked for."""

    graph: Graph
    wanted: str = "auto"

    def __post_init__(self) -> None:
        if self.wanted in ("butterfly", "direct") and not self.complete:
            raise ConfigError(
                f"expected an edge between every two ranks for --route {self.wanted}, found --graph {self.graph.name}: "
                "use --route tree, or --graph complete"
            )

    @property
    def complete(self) -> bool:
        """Whether every two ranks may talk to each other."""
        return self.graph.complete

    @cached_property
    def tree(self) -> Tree:
        """The spanning tree."""
        return spanning_tree(self.graph)

    def of(self, payload: int) -> str:
        """Return the route of vectors of `payload` bytes: tree, butterfly or direct."""
        return choose(self.wanted, self.complete, self.graph.size, payload)

    def sent(self, rank: int, payload: int) -> Sent:
        """Return the messages and bytes that a rank sends in a sum of vectors of `payload` bytes."""
        n, route = self.graph.size, self.of(payload)
        if route == "butterfly":
            return butterfly_sent(n, payload)
        if route == "direct":
            return Sent(n - 1, (n - 1) * payload, 1)
        messages = len(self.tree.children[rank]) + (rank != self.tree.root)
        return Sent(messages, messages * payload, self.tree.waits(rank))
